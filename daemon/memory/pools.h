/* SPDX-License-Identifier: Apache-2.0 */
/* How many blocks of each size class a pool has, and how many bytes its slabs take. Arithmetic on a
 * layout; allocates nothing and knows nothing of jobs.
 *
 *   a pool: blocks of class 0 in slabs, then those of class 1, ...; a slab has blocks of one
 * class */
#ifndef CST_POOLS_H
#define CST_POOLS_H

#include "offload/layout/layout.h"

#include <stdint.h>

/* Number of blocks by size class. */
struct cstd_pools_blocks {
    uint32_t n[CST_LAYOUT_MAX_CLASSES];
};

/* Return the number of blocks of size class @class in a slab: as many as fit in
 * CST_LAYOUT_SEGMENT_BYTES, and at least one. */
uint32_t cstd_pools_per_slab(const struct cst_layout *layout, uint32_t class);

/* Return the number of slabs that @n_blocks of @class need, and the bytes of one slab with
 * @n_blocks. Slabs are multiples of @grain bytes. */
uint32_t cstd_pools_slabs(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks);
uint64_t cstd_pools_slab_bytes(const struct cst_layout *layout, uint32_t class, uint32_t n_blocks,
                               uint64_t grain);

/* Return the bytes that all slabs of a pool take. */
uint64_t cstd_pools_bytes(const struct cst_layout *layout, const struct cstd_pools_blocks *blocks,
                          uint64_t grain);

/* Divide @rank's pool of @bytes between the size classes. Each class has as many blocks as @planned
 * says, limited to what @rank can use, if all classes fit; otherwise, or if @planned is NULL, each
 * class has its minimum. The rest of the bytes goes to class 0 up to what @rank can use, then to
 * class 1, and so on. CST_EPOOL: @bytes are less than the minimum; the words name the class, its
 * operator and the missing bytes. */
int cstd_pools_divide(const struct cst_layout *layout, const struct cst_model *model, uint32_t rank,
                      uint64_t bytes, uint64_t grain, const struct cstd_pools_blocks *planned,
                      struct cstd_pools_blocks *out, struct cst_err *err);

#endif
