/* SPDX-License-Identifier: Apache-2.0 */
/* Which capacities chunks have. Private to layout.c. */
#ifndef CST_CAPACITY_H
#define CST_CAPACITY_H

#include "offload/packing.h"

/* Capacities of the first class that are tried at most, in growing steps. */
#define CST_CAPACITY_MAX_CANDIDATES CST_LAYOUT_MAX_CANDIDATES

/* Blocks that a pool should have where it can: room for eviction to choose and for prefetch. */
#define CST_CAPACITY_GOOD_BLOCKS 8

/* Most and best elements of a chunk, unless tensors are larger: 128 MiB, and 16, which keep every
 * link busy. */
#define CST_CAPACITY_MOST_ELEMS (64u << 20)
#define CST_CAPACITY_GOOD_ELEMS (8u << 20)

/* What a further class must save to be worth its blocks: one part in so many of the parameters. */
#define CST_CAPACITY_CLASS_PRICE 200

/* So many prices of a class are not worth a capacity that is too small or too large: 1.5 %. */
#define CST_CAPACITY_LITTLE 3

/* Choose *sizes_out for @packing as cst_layout_build says, or check those given, rounded up to
 * CST_LAYOUT_CAPACITY_STEP.
 * @packing is left packed for them. CST_EPOOL, CST_EINVAL, CST_ENOMEM as cst_layout_build. */
int cst_capacity_choose(struct cst_packing *packing, const struct cst_layout_config *config,
                        struct cst_sizes *sizes_out, struct cst_err *err);

/* cst_layout_candidates. */
int cst_capacity_list(struct cst_packing *packing, const struct cst_layout_config *config,
                      struct cst_layout_candidate *list, uint32_t max, uint32_t *n_out,
                      struct cst_err *err);

#endif
