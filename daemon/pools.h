/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks of which size class a pool has, and what its slabs take. Arithmetic on a layout
 * alone: no memory, no jobs.
 *
 *   a pool: blocks of class 0 in slabs, then those of class 1, ...; a slab has blocks of one class
 */
#ifndef CST_POOLS_H
#define CST_POOLS_H

#include "offload/layout.h"

#include <stdint.h>

/* Blocks by size class. */
struct cst_pools_blocks {
    uint32_t n[CST_LAYOUT_MAX_CLASSES];
};

/* Blocks of size class @class in a slab: as many as an arena segment would hold, at least one. */
uint32_t cst_pools_per_slab(const struct cst_layout *layout, uint32_t class);

/* Slabs that @n_blocks of @class lie in, and the bytes of one of @n_blocks where slabs are
 * multiples of
 * @grain bytes. */
uint32_t cst_pools_slabs(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks);
uint64_t cst_pools_slab_bytes(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks,
                              uint64_t grain);

/* Bytes that all slabs of a pool take. */
uint64_t cst_pools_bytes(const struct cst_layout *layout, const struct cst_pools_blocks *blocks,
                         uint64_t grain);

/* The blocks that @rank's pool of @bytes has: every class as many as @planned says, if that is of
 * use to @rank and fits, else (also where @planned is NULL) its least; what is left goes to class 0
 * as far as it is of use, then to class 1, and so on. CST_EPOOL: less than the least, with the
 * class, its operator and the bytes that are short. */
int cst_pools_divide(const struct cst_layout *layout, const struct cst_model *model, uint32_t rank,
                     uint64_t bytes, uint64_t grain, const struct cst_pools_blocks *planned,
                     struct cst_pools_blocks *out, struct cst_err *err);

#endif
