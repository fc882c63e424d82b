/* SPDX-License-Identifier: Apache-2.0 */
/* A rank as the core sees it, and how far it is in the step that is not committed yet. What the
 * rank has done and announced in this step, and `wants_prefetch`, are changed only by the functions
 * below. Every part of the core may call them. */
#ifndef CST_RANK_H
#define CST_RANK_H

#include "offload/base/stats.h"
#include "offload/books/block.h"
#include "offload/base/event.h"
#include "offload/books/trace.h"
#include "proto/set.h"

struct cst_core;

/* How far a rank is in the step that is not committed yet: nothing yet; it has fetched weights; it
 * has opened or handed in a gradient, ended a micro-batch, or asked for the step. */
enum cst_rank_begun { CST_BEGUN_NOTHING, CST_BEGUN_READING, CST_BEGUN_WRITING };

struct cst_rank {
    enum cst_rank_state state;
    uint64_t state_step; /* Number of committed steps when the rank entered this state. */
    bool joined;         /* The rank takes part in the running attempt. */
    bool shut_out;       /* HUNG_UP: its process cannot write what others use (SHUT_OUT). */
    uint32_t sync;       /* The rank's waiting SYNC request, or CST_NO_REQUEST. */
    uint32_t step;       /* The rank's waiting STEP request, or CST_NO_REQUEST. */
    uint32_t next;       /* The rank's waiting NEXT request, or CST_NO_REQUEST. */
    /* If status != 0: an engine that the rank depends on is lost, and why. Cleared when the rank
     * attaches. */
    struct cst_err gone;
    uint32_t micro; /* Current micro-batch of the step, from 0; changed by collection.c. */

    /* What the rank has done in the current step; changed by the functions of rank.h. */

    enum cst_rank_begun begun;
    bool stepped;  /* The rank has asked for the step, whether or not the request still waits. */
    bool prepared; /* EARLY: the rank has announced the hyper-parameters of its STEP. */
    struct cst_hyper promised; /* The announced hyper-parameters, if `prepared`. */
    struct cst_hyper hyper;    /* Hyper-parameters of the rank's STEP. */
    double loss;               /* Loss of the rank's STEP. */
    bool wants_prefetch;       /* Look for something to load at the end of this event. */

    /* Changed by drift.c. */

    struct cst_set alike;     /* Ranks that run the same operators. Set by core_open. */
    struct cst_set waits_for; /* A fetch waits until these ranks hand in. */
    uint64_t patient_until;   /* When that wait ends, in ns; CST_CORE_NEVER: there is none. */
    bool impatient;           /* A wait took too long in this step. */

    struct cst_pool pool;
    struct cst_trace trace;
    /* hits, misses, late, waits: fetches. prefetches: loads. evictions: blocks. */
    uint64_t hits, misses, late, prefetches, evictions, waits;
    uint64_t weight_wait_ns; /* Time for which the worker waited for weights. */
    uint64_t bytes_up, bytes_down, bytes_peer;

    /* Times on both clocks, see instant.c. stream, device and shift are used for GPUs only. */

    /* The worker's last request, or the last answer that it waited for. */
    struct cst_moment thread;
    struct cst_moment resumed; /* The last answer that the worker waited for. */
    /* The last known end of work of the GPU, from what the worker has given back. */
    struct cst_moment stream;
    /* Predicted time when the GPU has finished everything that it was granted. */
    struct cst_moment device;
    uint64_t shift; /* Sum of the corrections of `device` so far, in ns modulo 2^64. */
    /* Instant when everything that the worker fetched ahead would be there, in ns. */
    uint64_t ahead_instant;
};

/* Note that @rank is at least @begun far into the step. */
static inline void cst_rank_begin(struct cst_rank *rank, enum cst_rank_begun begun)
{
    rank->begun = rank->begun > begun ? rank->begun : begun;
}

/* @rank announces the hyper-parameters of its STEP. */
void cst_rank_promise(struct cst_rank *rank, const struct cst_hyper *hyper);

/* @rank asks for the step by @event. */
void cst_rank_ask_step(struct cst_rank *rank, const struct cst_event *event);

/* @rank takes back that it asked for the step. */
void cst_rank_withdraw_step(struct cst_rank *rank);

/* The step is committed or the attempt has ended: @rank has neither announced nor asked for the
 * next step. */
void cst_rank_end_step(struct cst_rank *rank);

/* Look for something to load for @rank at the end of this event. */
static inline void cst_rank_want_prefetch(struct cst_rank *rank)
{
    rank->wants_prefetch = true;
}

/* True if something to load is to be looked for; the wish is then fulfilled. */
static inline bool cst_rank_take_wants_prefetch(struct cst_rank *rank)
{
    bool wants = rank->wants_prefetch;

    rank->wants_prefetch = false;
    return wants;
}

/* How far the ranks are into the step: the maximum of all. */
enum cst_rank_begun cst_rank_furthest(const struct cst_core *core);

/* Reset `begun` of all ranks, when a step is committed or an attempt begins. */
void cst_rank_reset_begun(struct cst_core *core);

#endif
