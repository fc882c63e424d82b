/* SPDX-License-Identifier: Apache-2.0 */
/* The way that the contributions to a chunk's gradient come together: one function of where they
 * lie. Knows engines by number alone: 0 to n_nodes - 1 serve the host's nodes, the others a GPU
 * each. */
#ifndef CST_WAY_H
#define CST_WAY_H

#include <stdint.h>

enum cst_way_kind {
    CST_WAY_HOST,   /* all lie in host memory: the processor sums them */
    CST_WAY_DEVICE, /* one GPU has all that lie on GPUs: it sums them */
    CST_WAY_PEER,   /* several GPUs have them: one of them reads the others' over the link between
                       them */
};

#define CST_WAY_HOST_MEMORY 0u     /* engine of a contribution that lies in host memory */
#define CST_WAY_NOTHING UINT32_MAX /* engine of a rank that contributes nothing */

struct cst_way {
    enum cst_way_kind kind;
    uint32_t engine;  /* that sums */
    uint32_t n_own;   /* contributions in the memory of its GPU */
    uint32_t n_peers; /* in other GPUs' memory */
    uint32_t n_host;  /* in host memory */
};

/* Choose for @chunk, whose home engine @home serves, given the engine of each of @world ranks'
 * contribution. GPUs take turns by chunk: the sum is made on the GPU of the first rank, from
 * @chunk % @world on, whose contribution lies on one. The result does not depend on it: sums go in
 * rank order anywhere. */
struct cst_way cst_way_choose(uint32_t home, uint32_t chunk, uint32_t world,
                              const uint32_t *engines);

#endif
