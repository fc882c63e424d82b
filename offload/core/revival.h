/* SPDX-License-Identifier: Apache-2.0 */
/* What of a job must be known to go on with it after the death of the daemon, in addition to its
 * memory, and how a new core goes on from there. Owns nothing. Called by the driver.
 *
 * The driver stores the record of cst_core_record after each event, before it carries out the
 * event's actions. The record then never lags behind what engines have begun or workers were told.
 * The engines mark the updates that they make in place. The core marks device updates, when their
 * results are copied back.
 *
 * A new core that is given the record and the job table
 *
 *   - stands at the last committed step, in phase IDLE: each worker must attach and sync,
 *   - issues again the updates of that step whose chunks do not carry the step's mark. An engine
 *     that finds marks of tiles does only what is left,
 *   - issues again the COPYs that bring the results of device updates back from the device
 *     reservation, or from the slabs of the pool that has lent memory, which were kept,
 *   - keeps early updates of the uncommitted step that are complete. An early update that was begun
 *     is made again when its gradient has been summed again; the tiles that are done are skipped.
 *     Until the commit, all ranks must therefore repeat the step with the same hyper-parameters.
 *   - awaits the WRITEs of states that were under way: workers repeat them (open_writes.h).
 *
 * A tile that was being changed in place when its engine died is restored from the engine's undo
 * slot. A driver that cannot go on with a job, and lets other jobs use the slots, sets undo_lost.
 * No core goes on with the job then, unless every update was complete. */
#ifndef CST_REVIVAL_H
#define CST_REVIVAL_H

#include "offload/base/core_config.h"
#include "offload/base/event.h"
#include "offload/layout/buffers.h"

struct cst_core;

/* A device update that is known to be complete, and whose results are being copied back: the rows
 * of its chunk are partly overwritten. */
struct cst_core_copying {
    uint32_t chunk; /* Number of the chunk + 1; 0: none. */
    /* The results are in blocks of a pool (offload/gradient/lent_memory.h): its rank + 1; 0: they
     * are in a device reservation. */
    uint32_t lender;
    uint64_t mark; /* Adam step of the update. */
};

/* A WRITE of states that is not known to be complete (open_writes.h). */
struct cst_open_write {
    uint32_t chunk;
    uint32_t rank;          /* The rank that writes. */
    uint8_t row;            /* enum cst_row */
    uint8_t raw, exponents; /* As in struct cst_event. */
    uint8_t pad;            /* 0. */
    uint32_t pad2;          /* 0. */
    uint64_t at, n_elems;   /* Elements of the chunk's row; n_elems 0: there is none. */
};

/* Most WRITEs that the next core can await again. A client has four in flight. */
#define CST_CORE_MAX_OPEN_WRITES 64

#define CST_CORE_MAX_COPYING (CST_CORE_MAX_UPDATE_DEVICES * CST_BUFFERS_MAX)

struct cst_core_record {
    struct cst_counters counters;
    uint64_t restored_adam_step;  /* counters.adam_step when states were restored last, or 0. */
    uint32_t n_writes;            /* WRITEs of states that are not known to be complete. */
    uint8_t initialised;          /* As in struct cst_core_stats. */
    uint8_t failed;               /* The job has failed: states are lost. */
    uint8_t has_hyper;            /* There was a step. */
    uint8_t guard;                /* The updates of the last step are guarded (offload/update/). */
    uint8_t second;               /* Fetches read the second weight row of chunks with states. */
    uint8_t delayed;              /* The other weight row has the last committed update. */
    uint8_t early;                /* Updates of the uncommitted step were issued. */
    uint8_t undo_lost;            /* The undo slots of its engines were used by other jobs since. */
    struct cst_hyper hyper;       /* Hyper-parameters of the last step. */
    float factor;                 /* Factor of the gradients in the updates of the last step. */
    uint32_t pad2;                /* 0. */
    struct cst_hyper early_hyper; /* Hyper-parameters of the early updates. */
    double last_loss, last_grad_norm;
    /* With other machines: the last decision that is recorded here, about the last step or the one
     * after it (offload/core/agreement.h). Else zeros. */
    struct cst_decision decision;
    /* Of buffer b of device reservation r at r * CST_BUFFERS_MAX + b. */
    struct cst_core_copying copying[CST_CORE_MAX_COPYING];
    struct cst_open_write writes[CST_CORE_MAX_OPEN_WRITES]; /* Those that found a place. */
};

/* Fill *out. All its bytes are set, so that two records can be compared with memcmp. */
void cst_core_record(const struct cst_core *core, struct cst_core_record *out);

/* CST_OK: @core, which was just opened for a job whose memory was kept, can go on by CST_EV_REVIVE
 * from @record and @table, the job table as the engines left it. CST_ELOST: it cannot be proven
 * that the states are those of one step, for the reason in @err. */
int cst_core_may_revive(const struct cst_core *core, const struct cst_core_record *record,
                        struct cst_table_header *table, struct cst_err *err);

/* Handle CST_EV_REVIVE. Marks of reductions are deleted from the table, because tickets begin
 * anew. */
void cst_revival_go_on(struct cst_core *core, const struct cst_event *event);

#endif
