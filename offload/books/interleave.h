/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of k: the last of every k consecutive chunks of a node is updated on an accelerator (Deep
 * Optimizer States, Maurya et al., Middleware 2024, arXiv 2410.21316). Computes k from a machine's
 * rates. Pure arithmetic; the callers decide when to choose.
 *
 *   nodes    | 1 | 3 | 5 | 7 |        k = 2: while the nodes' engines update chunks 1, 3, 5 ...,
 *   link up  |  2  |  4  |  6  | ...         2, 4, 6 ... are copied up,
 *   device         |2|   |4|   |6|           updated there,
 *   link down        |  2  |  4  |  6  |     and copied down. */
#ifndef CST_INTERLEAVE_H
#define CST_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

#define CST_INTERLEAVE_NEVER 0 /* k = infinity: no chunk is updated on an accelerator. */
#define CST_INTERLEAVE_MOST 64 /* Largest k to try. */
#define CST_INTERLEAVE_MARGIN                                                                      \
    0.03 /* Share by which the predicted time must be shorter than that of the nodes alone. */
#define CST_INTERLEAVE_MAX_LINKS 8

struct cst_interleave {
    uint32_t n_chunks;  /* Updates of a step. */
    double chunk_elems; /* Elements of each chunk. */
    /* Floating-point operations of the products of Muon of each chunk, on average. The rates of
     * updates below include their time. */
    double chunk_flops;
    /* Number of nodes to which chunks are distributed in turn, at most 8; 0: 1. */
    uint32_t n_nodes;
    double node_elems;   /* Elements/s that all nodes' engines together update. */
    double device_elems; /* Elements/s that one accelerator updates. */
    double up, down;     /* Bytes/s of the link of each accelerator, per direction. */
    bool shared;         /* Both directions share the link: only one is used at a time. */
    /* Number of accelerators, each with a link of its own; they take turns. 0: none. */
    uint32_t n_links;
    /* Number of chunks that each device reservation holds at a time; 0: there is no device
     * reservation, and no chunk is updated on an accelerator. */
    uint32_t buffers;
    /* Bytes per element that are copied up: 14 for AdamW in fp32, 12 if the gradient is on the
     * accelerator. */
    double up_bytes;
    double down_bytes; /* Bytes per element that are copied down: 14 for AdamW in fp32. */
    /* Bytes per element that are copied up after the update because the next forward pass fetches
     * the weights: 2, or 0 if pools are host memory. */
    double fetch_bytes;
};

/* Seconds from the commit to the end of the last update if every @k-th chunk of each node is
 * updated on an accelerator. Simulates at most 1024 chunks and scales the result. @k =
 * CST_INTERLEAVE_NEVER: no chunk; 1: all chunks. */
double cst_interleave_seconds(const struct cst_interleave *machine, uint32_t k);

/* The fastest k in 1..min(n_chunks, CST_INTERLEAVE_MOST), the largest of equally fast ones.
 * CST_INTERLEAVE_NEVER if that is not faster than the nodes alone by CST_INTERLEAVE_MARGIN, or if a
 * rate is not positive. */
uint32_t cst_interleave_choose(const struct cst_interleave *machine);

#endif
