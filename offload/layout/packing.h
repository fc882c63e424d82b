/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of tensors into chunks of given capacities: next-fit in order of first use, for each kind
 * separately. Fast enough to try many capacities. Private to layout.c, capacity.c, min_blocks.c.
 *
 *   tensors -> items (a tensor, or all tensors in one chunk of the base job) -> chunks
 *
 * A kind is what the tensors of a chunk have in common: the ranks, the pattern, the type, whether
 * Muon updates them, and the first and the last stage that uses them. Stages therefore share a
 * chunk only if they share its tensors.
 *
 * Sizes are numbers of places. A place is the memory of a bf16 weight in a block; a block has as
 * many places as its class has capacity. An fp32 weight takes two places. */
#ifndef CST_PACKING_H
#define CST_PACKING_H

#include "offload/layout/layout.h"
#include "proto/set.h"

/* The first and the last stage that uses a tensor; both 0 if the model is not cut into stages. */
struct cst_stages {
    uint32_t first, last;
};

struct cst_kind {
    uint32_t group; /* A group of its ranks; others can have the same ones. */
    enum cst_pattern_kind pattern;
    enum cst_dtype dtype;
    bool muon;                /* Muon updates the tensors. */
    struct cst_stages stages; /* The stages that use them. */
    bool has_states;          /* Property of the pattern. */
    bool sparse; /* Property of the pattern: items of different operators do not share a chunk. */
};

/* An indivisible unit of packing. */
struct cst_item {
    uint64_t n_places;
    uint32_t kind;
    uint32_t op; /* First operator that uses the item; n_operators: none does. */
    /* Chunk of the base job's layout that the item is; CST_PACKING_OWN: it is a tensor of this
     * job. */
    uint32_t base_chunk;
};

#define CST_PACKING_OWN UINT32_MAX

/* Capacities of the size classes, ascending. Given and final ones are multiples of
 * CST_LAYOUT_CAPACITY_STEP. */
struct cst_sizes {
    uint64_t v[CST_LAYOUT_MAX_CLASSES];
    uint32_t n;
};

struct cst_packed {
    /* Places up to the end of the last item; a multiple of those of CST_LAYOUT_ALIGN_ELEMS. */
    uint64_t n_places;
    uint32_t kind;
    uint32_t size_class;
    uint32_t base_chunk; /* Value of its first item. */
};

/* Where the next item of a kind and class may be placed. */
struct cst_slot {
    uint32_t chunk; /* The open chunk; UINT32_MAX: there is none yet. */
    uint32_t op;    /* For sparse kinds: the operator of the chunk's items. */
};

/* State of a chunk in a sweep through the operators, as one rank sees it. */
struct cst_swept {
    uint32_t seen;      /* 1 + the last operator that was seen to use the chunk. */
    uint32_t uses_left; /* Uses of its items, by any rank, whose backward pass has not ended. */
    uint32_t n_ops;     /* Number of operators that use the chunk. */
    bool used;          /* The rank runs one of these operators. */
    bool sparse;        /* One of these operators may be left out of a step. */
    bool open;          /* The gradient is begun and not complete. */
};

struct cst_packing {
    struct cst_stages *stages;          /* Per tensor; owned. */
    const struct cst_model *model;      /* Borrowed, like base_model and base. */
    const struct cst_model *base_model; /* NULL: there is no base job. */
    const struct cst_layout *base;
    uint32_t world;         /* Number of ranks, at least 1. */
    struct cst_set *groups; /* Per group of the model: its ranks in the world. */
    /* The first rank of each set of ranks that are in the same groups. */
    struct cst_set leaders;
    uint16_t leader_of[CST_SET_MAX]; /* Per rank: the leader of its set. */
    /* Tensor numbers in order of first use, unused ones last. Owned, like all arrays here. */
    uint32_t *order;
    bool *muon;             /* Per tensor: Muon updates it. */
    uint32_t *item_of;      /* Per tensor: its item. */
    struct cst_item *items; /* In order of first use. */
    uint32_t n_items;
    uint32_t *op_first;         /* Per operator and one more: start of its items in op_items. */
    uint32_t *op_items;         /* One for each tensor of each operator. */
    bool *op_sparse;            /* Per operator: it uses a tensor of a sparse kind. */
    struct cst_sets op_runners; /* Per operator: ranks that run it. */
    /* Per operator: ranks that hold a tensor of it; not all of them need run it. Empty if none
     * does. */
    struct cst_sets op_holders;
    struct cst_kind *kinds;
    uint32_t n_kinds;
    struct cst_slot *slots;  /* Scratch, CST_LAYOUT_MAX_CLASSES per kind. */
    struct cst_swept *swept; /* Scratch, per chunk. */
    struct cst_sets users;   /* Scratch, per chunk: ranks that run operators which use the chunk. */
    uint64_t largest;        /* Places of the largest item, rounded up to the alignment. */
    uint64_t smallest;       /* Places of the smallest item, rounded up to the alignment. */
    uint64_t n_places;       /* Places of all items. */

    /* The fields from here on are results of the last cst_packing_pack. */

    uint32_t *chunk_of;        /* Per item: its chunk. */
    uint64_t *offset;          /* Per item: offset in its chunk, in places. */
    struct cst_packed *chunks; /* In order of their first items. */
    uint32_t n_chunks;
    uint32_t class_chunks[CST_LAYOUT_MAX_CLASSES]; /* Number of chunks of each class. */
    /* n_places of the largest chunk of each class. */
    uint64_t class_places[CST_LAYOUT_MAX_CLASSES];
};

/* Returns the places of an element of @dtype. */
static inline uint64_t cst_packing_places(enum cst_dtype dtype)
{
    return cst_dtype_bytes(dtype) / cst_dtype_bytes(CST_BF16);
}

/* Find items, kinds and the order of first use. CST_EINVAL: a group has ranks beyond @config's
 * world. CST_ENOMEM. On failure nothing is owned. */
int cst_packing_init(struct cst_packing *packing, const struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err);
/* Free all arrays. */
void cst_packing_close(struct cst_packing *packing);

/* Pack the items into chunks of the classes in @sizes, the last of which must hold the largest
 * item. Each item goes to the smallest class that holds it. */
void cst_packing_pack(struct cst_packing *packing, const struct cst_sizes *sizes);

#endif
