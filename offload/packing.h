/* Tensors into chunks of one capacity: next-fit in order of first use. Cheap enough to try many
 * capacities. Private to layout.c and capacity.c. */
#ifndef CST_PACKING_H
#define CST_PACKING_H

#include "offload/layout.h"

struct cst_packing {
    const struct cst_model *model; /* borrowed */
    uint32_t *order;    /* tensor numbers in order of first use, unused ones last; owned */
    uint32_t *chunk_of; /* per tensor; owned */
    uint64_t *offset;   /* per tensor, elements from the start of its chunk; owned */
    uint32_t
        *open_uses; /* scratch of the sweep, per chunk: uses whose backward has not ended; owned */
    uint32_t *seen; /* scratch, per chunk: 1 + the last operator visit that met it; owned */
    bool *open;     /* scratch, per chunk: its gradient is begun and not complete; owned */
    uint32_t n_chunks; /* of the last pack */
    uint64_t largest;  /* elements of the largest tensor, rounded up to alignment */
};

static inline uint64_t cst_align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Find the order of first use. CST_ENOMEM: nothing is owned. */
int cst_packing_init(struct cst_packing *packing, const struct cst_model *model);
void cst_packing_close(struct cst_packing *packing);

/* Pack for chunks of @capacity >= largest elements; returns the number of chunks. */
uint32_t cst_packing_pack(struct cst_packing *packing, uint64_t capacity);

/* The number of chunks that cst_packing_pack would make; nothing is changed. */
uint32_t cst_packing_count(const struct cst_packing *packing, uint64_t capacity);

/* Blocks that the last packing needs, as cst_layout_need defines it; *op_out names the operator. */
uint32_t cst_packing_need(struct cst_packing *packing, uint32_t *op_out);

#endif
