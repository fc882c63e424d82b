/* SPDX-License-Identifier: Apache-2.0 */
/* How many of a step's updates go through accelerators: k, of each k chunks of a node in a row the
 * last one (Deep Optimizer States, Maurya et al., Middleware 2024, arXiv 2410.21316). A machine's
 * rates in, k out. Pure arithmetic; who asks for k, and when, is not here.
 *
 *   nodes    | 1 | 3 | 5 | 7 |        k = 2: while the nodes' engines update chunks 1, 3, 5 ...,
 *   link up  |  2  |  4  |  6  | ...         2, 4, 6 ... go up,
 *   device         |2|   |4|   |6|           are updated there,
 *   link down        |  2  |  4  |  6  |     and come down. */
#ifndef CST_INTERLEAVE_H
#define CST_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

#define CST_INTERLEAVE_NEVER 0 /* k = infinity: no chunk goes up */
#define CST_INTERLEAVE_MOST 64 /* k that is tried */
#define CST_INTERLEAVE_MARGIN                                                                      \
    0.03 /* by which it must be faster than the nodes alone, as predicted */
#define CST_INTERLEAVE_MAX_LINKS 8

struct cst_interleave {
    uint32_t n_chunks;   /* updates of a step */
    double chunk_elems;  /* of each */
    uint32_t n_nodes;    /* that chunks are dealt to in turn, 8 at most; 0: 1 */
    double node_elems;   /* elements/s that the nodes' engines update, all of them together */
    double device_elems; /* same, an accelerator */
    double up, down;     /* bytes/s of the link to each accelerator */
    bool shared;         /* the directions share it: one at a time */
    uint32_t n_links;    /* accelerators with a link of their own; they take turns. 0: none */
    uint32_t buffers;    /* chunks that may be in each accelerator's room at a time; 0: no room */
    double up_bytes; /* that an element brings up: 14 for AdamW in fp32, 12 where its gradient is up
                        already */
    double down_bytes;  /* that it takes down: 14 */
    double fetch_bytes; /* that go up behind its update because the next forward wants the weights:
                           2, or 0 where pools are host memory */
};

/* Seconds from the commit to the end of the last update if each @k-th chunk of every node goes up,
 * by playing them; of the first 1024 chunks, where there are more, in proportion. @k =
 * CST_INTERLEAVE_NEVER: none does; 1: all do. */
double cst_interleave_seconds(const struct cst_interleave *machine, uint32_t k);

/* The fastest k of 1..min(n_chunks, CST_INTERLEAVE_MOST), the largest of those that are as fast;
 * CST_INTERLEAVE_NEVER unless it is faster than the nodes alone by CST_INTERLEAVE_MARGIN, or where
 * a rate is not above 0. */
uint32_t cst_interleave_choose(const struct cst_interleave *machine);

/* The closed formula of the paper, for an endless row of chunks whose gradients are up and whose
 * weights stay up:
 *
 *   while one chunk goes up and another one down, k - 1 are updated by the nodes and their weights
 * go up (k - 1) / node_elems  >=  12 / up + 1 / device_elems + (k - 1) 2 / up        (up and down
 * at once) k = 1 + ceil((12 / up + 1 / device_elems) / (1 / node_elems - 2 / up))
 *
 * the smallest k at which the nodes are what is waited for; 24 instead of 12 where the directions
 * share the link. CST_INTERLEAVE_NEVER: the link does not even bring up the weights as fast as the
 * nodes make them. Reads node_elems, device_elems, up, shared. To check the above by. */
uint32_t cst_interleave_formula(const struct cst_interleave *machine);

#endif
