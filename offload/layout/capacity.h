/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the chunks' capacities. Private to layout.c. */
#ifndef CST_CAPACITY_H
#define CST_CAPACITY_H

#include "offload/layout/packing.h"

/* Maximum number of capacities of the first class to try, in growing steps. */
#define CST_CAPACITY_MAX_CANDIDATES CST_LAYOUT_MAX_CANDIDATES

/* Number of blocks that a pool should have if possible, so that eviction has a choice and prefetch
 * has room. */
#define CST_CAPACITY_GOOD_BLOCKS 8

/* Maximum and best number of elements of a chunk, unless tensors are larger: 128 MiB and 16 MiB of
 * weights, which keep every link busy. */
#define CST_CAPACITY_MOST_ELEMS (64u << 20)
#define CST_CAPACITY_GOOD_ELEMS (8u << 20)

/* A further class must save more than one part in this many of the parameters to be worth its
 * blocks. */
#define CST_CAPACITY_CLASS_PRICE 200

/* A loss of up to this many prices of a class (1.5 % of the parameters) is accepted to avoid a
 * capacity that is too small or too large. */
#define CST_CAPACITY_LITTLE 3

/* Choose *sizes_out for @packing as cst_layout_build describes; or check the given capacities,
 * rounded up to CST_LAYOUT_CAPACITY_STEP. Leaves @packing packed for them. CST_EPOOL, CST_EINVAL,
 * CST_ENOMEM as cst_layout_build. */
int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        struct cst_sizes *sizes_out, struct cst_err *err);

/* List candidates as cst_layout_candidates describes, at most @max. */
int cst_capacity_list(struct cst_packing *packing, const struct cst_layout_config *config,
                      struct cst_layout_candidate *list, uint32_t max, uint32_t *n_out,
                      struct cst_err *err);

#endif
