/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of tests/lib/nccl_rig.h that pass arrays in a ring: each puts arrays for the next rank and
 * takes those of the previous one, in all forms of put and take. Sizes, contents and forms follow
 * from the order's seed. An array with wrong bytes ends the worker with a message. */
#ifndef EDGE_RING_H
#define EDGE_RING_H

#include "tests/lib/nccl_rig.h"

enum {
    EDGE_RING_SLOT = 3000, /* Bytes of a slot; arrays have up to as many. */
    EDGE_RING_SLOTS = 3,   /* Slots of an edge, and arrays of a group. */
    EDGE_RING_GROUPS = 8,  /* A rank puts all arrays of a group, and then takes as many. */
    EDGE_RING_ARRAYS = EDGE_RING_GROUPS * EDGE_RING_SLOTS,
    EDGE_RING_GRAIN = 2 << 20, /* The granularity of the stand-in's memory, in bytes. */
};

/* A new order of @world ranks whose slots are on GPUs, if possible. Nobody dies: `at` is
 * EDGE_RING_ARRAYS. With a smaller one the rank `victim` kills itself when it passes the array with
 * this number or a later one, unless `dead` is set, in a moment that follows from the seed. */
struct nccl_order *edge_ring_order(uint32_t world);

/* Return the edge from @rank to the next one, and the edge from the previous one. */
int edge_ring_out(const struct nccl_order *order, uint32_t rank);
int edge_ring_in(const struct nccl_order *order, uint32_t rank);

/* In a worker: what a test does before the arrays of group @group are put. */
typedef void edge_ring_event(struct nccl_worker *w, struct nccl_order *order, uint32_t group);

/* In a worker that has synced: pass all arrays. @happens may be NULL. Returns the status of the
 * first put or take that failed. */
int edge_ring(struct nccl_worker *w, struct nccl_order *order, edge_ring_event *happens,
              struct cst_err *err);

/* In a worker: cst_edge_on_device must return @expected for @edge. */
void edge_ring_on_device(struct nccl_worker *w, int edge, int expected);

/* For tests of two ranks. Fork both; wait until both have posted `begun`; post `ended` for both;
 * wait until both have ended well. */
void edge_ring_fork(nccl_body *body, struct nccl_order *order, pid_t pids[2]);
void edge_ring_await(struct nccl_order *order);
void edge_ring_release(struct nccl_order *order);
void edge_ring_join(const pid_t pids[2]);

/* What the daemon says of the engine of the GPU with this UUID. */
const Cistern__EngineInfo *edge_ring_engine(const char *gpu);

/* In a worker: end with a message unless @holds. */
void edge_ring_must(bool holds, const char *words, const struct cst_err *err);

#endif
