/* Which chunk capacity to take. Private to layout.c. */
#ifndef CST_CAPACITY_H
#define CST_CAPACITY_H

#include "offload/packing.h"

/* Candidates that are tried at most: evenly spaced between the largest tensor and what the pool
 * could hold, so that the search stays well under a second for 65536 tensors. */
#define CST_CAPACITY_MAX_CANDIDATES 200

/* Blocks that a pool should have beyond need where it can: room for eviction to choose and for
 * prefetch. */
#define CST_CAPACITY_GOOD_BLOCKS 8

/* Choose *capacity_out (elements) for @packing as cst_layout_build says, or check
 * config->chunk_elems, rounded up to CST_LAYOUT_CAPACITY_STEP. @packing is left packed for it.
 * CST_EPOOL, CST_EINVAL, CST_ENOMEM as cst_layout_build. */
int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        uint64_t *capacity_out, struct cst_err *err);

#endif
