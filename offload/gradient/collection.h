/* SPDX-License-Identifier: Apache-2.0 */
/* The contributions to a chunk's gradient: which addends have come, and what is to be summed next.
 * What an addend is, and who contributes it, the job's schedule knows (step_schedule.h). Owns the
 * collection. It issues no commands: sum.h does. Called by core.c, the parts that sum or move
 * contributions, and the parts that end steps and attempts. */
#ifndef CST_COLLECTION_H
#define CST_COLLECTION_H

#include "offload/base/event.h"
#include "offload/base/flight.h"
#include "proto/set.h"

struct cst_core;
struct cst_chunk;
struct cst_part;

struct cst_collection {
    /* Number of the current collection of gradients: there is one for each step and attempt. */
    uint64_t number;
    uint32_t n_reduced; /* Chunks whose gradient of this collection is complete. */
    uint64_t n_dropped; /* Gradients that were handed in for chunks that were already updated. */
    /* Per chunk that is CARRIED: ranks that have handed in again in their present micro-batch;
     * owned. */
    struct cst_sets again;
    /* Per chunk, by_rank: ranks whose addend of the sum that it collects has come or was taken as
     * left out. All, while the last command of the sum is in flight. Owned. */
    struct cst_sets come;
};

/* How far the sum of a chunk's gradient is, in the current collection.
 *
 *   NOTHING --REDUCE, or an update that makes the sum, is issued--> PARTIAL
 *   PARTIAL --nothing is left to add--> COMPLETE
 *   any state --the collection ends--> NOTHING; for a chunk that is CARRIED (weight_row.h): PARTIAL
 *                                      while the command with its sum is in flight, else COMPLETE
 */
enum cst_gradient_sum { CST_SUM_NOTHING, CST_SUM_PARTIAL, CST_SUM_COMPLETE };

/* Contents of a chunk's grad row, for READ. The row outlives the collection.
 *
 *   any state  --a contribution is spilled, an fp32 row is added to, or a sum fails--> PARTIAL
 *   any state  --an update makes the sum--> NOT_STORED
 *   NOT_STORED --a sum into a bf16 row is issued--> WHOLE
 *   PARTIAL    --a sum into a bf16 row is done, or the gradient is complete--> WHOLE */
enum cst_grad_row { CST_GRAD_ROW_WHOLE, CST_GRAD_ROW_PARTIAL, CST_GRAD_ROW_NOT_STORED };

/* The collection of one chunk's gradient. */
struct cst_gradient {
    enum cst_gradient_sum sum;
    enum cst_grad_row row;
    /* The first addend that no sum has taken. Those before it are in the grad row, or are added to
     * it by `reduce_ticket`, or were left out. */
    uint32_t next;
    /* The first addend of the sum that the chunk collects, until its last command is done. */
    uint32_t first;
    uint32_t spilled; /* Addend that is spilled in the grad row; CST_NONE: none is. */
    /* Command in flight that makes a sum, of this or an earlier collection; else 0. */
    uint64_t reduce_ticket;
    /* COPY into the grad row in flight, of a contribution or, from another machine, of the sum, of
     * this or an earlier collection; else 0. */
    uint64_t spill_ticket;
    uint64_t version; /* Incremented when a write to the grad row is issued. */
};

/* CST_ENOMEM; the caller calls cst_collection_close nevertheless. */
int cst_collection_open(struct cst_core *core);

/* Free what cst_collection_open allocated. */
void cst_collection_close(struct cst_core *core);

/* Handle CST_EV_HAND_IN. */
void cst_collection_hand_in(struct cst_core *core, const struct cst_event *event);

/* The addends that the next sum of a chunk takes. */
struct cst_sources {
    uint32_t end;          /* From the chunk's next one to before this one. */
    struct cst_set blocks; /* Ranks that have one of them in a block. */
    bool spilled;          /* One of them is in the grad row. */
};

/* What a chunk's collection needs next. */
enum cst_collection_next {
    CST_COLLECTION_WAITS, /* Nothing: ranks or commands have to come first. */
    CST_COLLECTION_SUM,   /* A sum of all addends that belong together, *sources. */
    /* A sum of nothing, *sources, because no rank contributed. Not with several rank blocks. */
    CST_COLLECTION_ZERO,
    CST_COLLECTION_COMPLETE, /* Nothing is left to add: cst_collection_complete. */
};

/* What @chunk needs next. Passes by the addends that were left out. */
enum cst_collection_next cst_collection_next(struct cst_core *core, uint32_t chunk,
                                             struct cst_sources *sources);

/* Nothing is left to add to the sum of the step. */
void cst_collection_complete(struct cst_core *core, uint32_t chunk);

/* What a sum of @chunk can take now: the addends up to the first one that may still come. */
struct cst_sources cst_collection_sources(const struct cst_core *core, uint32_t chunk);

/* The command @ticket, which sums @sources into the grad row or, with @fused, also makes the
 * update and does not store the sum, was issued. */
void cst_collection_summing(struct cst_core *core, uint32_t chunk,
                            const struct cst_sources *sources, uint64_t ticket, bool fused);
/* The command that made the sum is complete. */
void cst_collection_fused(struct cst_chunk *chunk);
/* REDUCE @flight is complete, well if @ok. */
void cst_collection_summed(struct cst_core *core, const struct cst_flight *flight, bool ok);

/* REDUCE @ticket, which adds the sums of all rank blocks to the grad row (partials.h), was issued.
 */
void cst_collection_adding(struct cst_core *core, uint32_t chunk, uint64_t ticket);
/* The COPY @ticket, which brings the gradient from another machine to the grad row, was issued; is
 * complete, well if @ok. */
void cst_collection_replacing(struct cst_core *core, uint32_t chunk, uint64_t ticket);
void cst_collection_replaced(struct cst_chunk *chunk, bool ok);

/* The COPY @ticket, which spills @addend to the grad row, was issued. */
void cst_collection_spilling(struct cst_chunk *chunk, uint32_t addend, uint64_t ticket);
/* That COPY is complete. @kept: the contribution is in the row, or void. */
void cst_collection_spilled(struct cst_chunk *chunk, bool kept);

/* Gradients of @part are spilled only for fetches, which get the error, in this collection. */
void cst_collection_spill_failed(struct cst_part *part);

/* Those of the ranks below @end from which an addend of the sum that @chunk collects may still
 * come. None, if any rank may contribute the addend. */
struct cst_set cst_collection_missing(const struct cst_core *core, uint32_t chunk, uint32_t end);
/* The lowest of them; CST_SET_MAX: there is none. */
uint32_t cst_collection_first_missing(const struct cst_core *core, uint32_t chunk, uint32_t end);

/* True if the rank of @event may open the gradient of the chunk now. Else the request is refused.
 */
bool cst_collection_admit_open(struct cst_core *core, const struct cst_event *event);

/* True if @rank has an addend of the sum that @chunk collects in a block of its pool, and no
 * command moves it. */
bool cst_collection_holds(const struct cst_core *core, uint32_t chunk, uint32_t rank);

/* The rank begins its next micro-batch. */
void cst_collection_next_micro(struct cst_core *core, uint32_t rank);

/* Discard the gradients that the rank opened and did not hand in. */
void cst_collection_drop_open(struct cst_core *core, uint32_t rank);

/* Let all ranks look for blocks again, because a contribution may be able to leave its pool now. */
void cst_collection_wake(struct cst_core *core);

/* End the collection: its contributions are dropped, and their blocks are free now or when their
 * command is done. */
void cst_collection_drop(struct cst_core *core);

#endif
