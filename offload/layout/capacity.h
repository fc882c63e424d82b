/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the chunks' capacities. Private to layout.c. */
#ifndef CST_CAPACITY_H
#define CST_CAPACITY_H

#include "offload/layout/packing.h"
#include "offload/layout/size_classes.h"

/* Maximum number of capacities of the first class to try, in growing steps. */
#define CST_CAPACITY_MAX_CANDIDATES 200

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

/* Capacities of all classes, and their costs. */
struct cst_capacity {
    struct cst_sizes sizes;
    struct cst_layout_need need;
    uint64_t waste;   /* Elements that the chunks do not fill. */
    uint64_t further; /* Bytes of the necessary blocks of the classes after the first. */
    uint64_t bytes;   /* Bytes of all necessary blocks. */
};

/* The capacities to choose from. */
struct cst_capacities {
    struct cst_packing *packing;
    struct cst_size_classes outliers; /* Sizes above `low`. */
    struct cst_capacity *list;        /* Ordered by the capacity of the first class; owned. */
    uint32_t n;
    uint32_t max_classes;
    uint64_t low, high; /* Range of capacities of the first class. */
    uint64_t price;     /* Elements that a further class must save. */
};

/* List capacities that may be good for the model of @packing, whatever the pool: at most
 * CST_CAPACITY_MAX_CANDIDATES (fewer for models of more than 80000 tensors and uses). The capacity
 * of the first class ranges from the largest tensor up to 64 Mi elements or twice that tensor, and
 * is cut down to what the fullest chunk needs. With @max_classes > 1 the range begins lower, where
 * the tensors that fit the first class have a tenth of all elements. Larger tensors get further
 * classes, as many as save half a percent of the parameters each. CST_ENOMEM. The caller frees
 * `list`. */
int cst_capacities_open(struct cst_capacities *capacities, struct cst_packing *packing,
                        uint32_t max_classes);

#endif
