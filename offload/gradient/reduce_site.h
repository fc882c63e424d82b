/* SPDX-License-Identifier: Apache-2.0 */
/* The reduce site of a chunk, the engine that sums its gradients, as a function of where they lie.
 * Knows only numbers of tiers.
 */
#ifndef CST_REDUCE_SITE_H
#define CST_REDUCE_SITE_H

#include "offload/layout/tier.h"
#include "proto/set.h"

#include <stdint.h>

enum cst_reduce_site_kind {
    CST_REDUCE_SITE_HOST,   /* All contributions lie in host memory: the processor sums them. */
    CST_REDUCE_SITE_DEVICE, /* One GPU has all contributions that lie on GPUs, and sums them. */
    /* Several GPUs have contributions: one of them sums, and reads the others over the link between
     * GPUs. */
    CST_REDUCE_SITE_PEER,
    /* Several GPUs have contributions, and none of them can access the memory of all others: the
     * contributions are copied to host memory (landing.h), and the processor sums them. */
    CST_REDUCE_SITE_LANDED,
};

/* Instead of the number of a tier: the rank contributes nothing. */
#define CST_REDUCE_SITE_NOTHING UINT32_MAX

struct cst_reduce_site {
    enum cst_reduce_site_kind kind;
    uint32_t engine;  /* Engine that sums. */
    uint32_t n_own;   /* Contributions in the memory of its GPU. LANDED: 0. */
    uint32_t n_peers; /* Contributions in other GPUs' memory. LANDED: on all GPUs. */
    uint32_t n_host;  /* Contributions in host memory. */
};

/* Choose for @chunk, whose node's engine is @home. @tiers: for each of @world ranks the tier
 * where its contribution lies. @unreachable: for each rank the engines whose GPUs' memory the GPU
 * of its pool cannot access, one set each. GPUs take turns by chunk: the sum is made on the GPU of
 * the first rank, from @chunk % @world on, whose contribution lies on a GPU that can access all
 * contributions. The choice does not affect the result, because sums are always made in rank
 * order. */
struct cst_reduce_site cst_reduce_site_choose(uint32_t home, uint32_t chunk, uint32_t world,
                                              const uint32_t *tiers,
                                              const struct cst_set *const *unreachable);

#endif
