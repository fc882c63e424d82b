/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors into chunks of given capacities: next-fit in order of first use, kind by kind. Cheap
 * enough to try many capacities. Private to layout.c, capacity.c, need.c.
 *
 *   tensors -> items (a tensor, or all tensors that lie in one chunk of the base) -> chunks
 *
 * A kind is what the tensors of a chunk have in common: the ranks and the pattern. */
#ifndef CST_PACKING_H
#define CST_PACKING_H

#include "offload/layout.h"

struct cst_kind {
    uint64_t ranks; /* a bit each, none beyond the world */
    enum cst_pattern_kind pattern;
    bool has_states; /* as the pattern */
    bool sparse;     /* as the pattern: items of different operators do not share a chunk */
};

/* What is placed as a whole. */
struct cst_item {
    uint64_t n_elems;
    uint32_t kind;
    uint32_t op;         /* that uses it first; n_operators: none */
    uint32_t base_chunk; /* of the base's layout, which it is; CST_PACKING_OWN: it is a tensor of
                            this job's */
};

#define CST_PACKING_OWN UINT32_MAX

/* Capacities of the size classes, ascending, but for the first one multiples of nothing smaller
 * than CST_LAYOUT_CAPACITY_STEP. */
struct cst_sizes {
    uint64_t v[CST_LAYOUT_MAX_CLASSES];
    uint32_t n;
};

struct cst_packed {
    uint64_t n_elems; /* from its start to the end of its last item, a multiple of
                         CST_LAYOUT_ALIGN_ELEMS */
    uint32_t kind;
    uint32_t size_class;
    uint32_t base_chunk; /* as of its one item */
};

/* Where the next item of a kind and class may go. */
struct cst_slot {
    uint32_t chunk; /* UINT32_MAX: there is none yet */
    uint32_t op;    /* of its items, where the kind is sparse */
};

/* Of a chunk, in a sweep through the operators of one rank. */
struct cst_swept {
    uint32_t seen;      /* 1 + the last operator that met it */
    uint32_t uses_left; /* of its items, whose backward has not ended */
    uint32_t n_ops;     /* operators that use it */
    bool sparse;        /* one of them may be left out */
    bool open;          /* its gradient is begun and not complete */
};

struct cst_packing {
    const struct cst_model *model;      /* borrowed, as the base's are */
    const struct cst_model *base_model; /* NULL: there is none */
    const struct cst_layout *base;
    uint64_t world;   /* its ranks, a bit each */
    uint64_t leaders; /* ranks: the first one of each set of ranks that are in the same groups */
    uint8_t leader_of[CST_LAYOUT_MAX_WORLD]; /* per rank */
    uint32_t
        *order; /* tensor numbers in order of first use, unused ones last; owned, as all arrays */
    uint32_t *item_of;      /* per tensor */
    struct cst_item *items; /* in order of first use */
    uint32_t n_items;
    uint32_t *op_first; /* per operator and one more: where its items begin in op_items */
    uint32_t *op_items; /* one per tensor of the operator */
    bool *op_sparse;    /* per operator: it uses a tensor of a sparse kind */
    struct cst_kind *kinds;
    uint32_t n_kinds;
    struct cst_slot *slots;  /* scratch, CST_LAYOUT_MAX_CLASSES per kind */
    struct cst_swept *swept; /* scratch, per chunk */
    uint64_t largest;        /* elements of the largest item, rounded up to alignment */
    uint64_t smallest;       /* same, of the smallest */
    uint64_t n_elems;        /* of all items */
    /* of the last pack */
    uint32_t *chunk_of;        /* per item */
    uint64_t *offset;          /* per item, elements from the start of its chunk */
    struct cst_packed *chunks; /* in order of their first item */
    uint32_t n_chunks;
    uint32_t class_chunks[CST_LAYOUT_MAX_CLASSES]; /* chunks of each class */
    uint64_t class_elems[CST_LAYOUT_MAX_CLASSES];  /* n_elems of the largest chunk of each class */
};

static inline uint64_t cst_align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Find items, kinds and the order of first use. CST_EINVAL: a group has ranks beyond @config's
 * world; CST_ENOMEM. On failure nothing is owned. */
int cst_packing_init(struct cst_packing *packing, const struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err);
void cst_packing_close(struct cst_packing *packing);

/* Pack for classes of @sizes, the last of which holds the largest item. An item goes to the
 * smallest class that holds it. */
void cst_packing_pack(struct cst_packing *packing, const struct cst_sizes *sizes);

#endif
