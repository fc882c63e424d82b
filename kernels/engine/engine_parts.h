/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the engine, private to engine.c (loop and messages), engine_commands.c (SUBMIT to
 * DONE), engine_segments.c (SEGMENT_ADD and SEGMENT_DROP) and engine_peers.c (other machines). All
 * functions here run on the loop thread. */
#ifndef CST_ENGINE_PARTS_H
#define CST_ENGINE_PARTS_H

#include "kernels/engine/cpus.h"
#include "kernels/engine/thread_pool.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/mapping.h"
#include "kernels/engine/outbox.h"
#include "kernels/engine/recovery.h"
#include "kernels/engine/traffic.h"
#include "kernels/engine/work.h"
#include "proto/engine.pb-c.h"
#include "proto/frame.h"

/* The state of an engine; owned by the loop thread. */
struct cste_engine {
    struct cste_engine_config config;
    /* SETUP was received. Before that, only config, outbox and buf are valid. */
    bool set_up;
    struct cste_cpus cpus;     /* Processors of the NUMA node. */
    struct cste_device device; /* The device that copies and computes. */
    struct cste_mailbox box;   /* Mails from the thread pools. */
    /* Thread pools for COPY, FILL, conversions and for mapping segments, by enum cste_device_lane.
     * Only the first one is used if the device has one_pool. */
    struct cste_thread_pool lanes[CSTE_LANES];
    struct cste_thread_pool team; /* Thread pool for REDUCE, UPDATE and NORM. */
    /* Segments that the daemon passed in. Each belongs to an owned struct cste_mapping. */
    struct cste_segments segments;
    uint32_t n_adding; /* Number of segments in state ADDING. */
    uint32_t undo_id;  /* Id of the undo segment, which is not in segments. */
    int lock; /* Descriptor that holds the lock of the table of traffic's file; -1: none. */
    struct cste_mem undo;               /* Memory of the undo segment. */
    struct cste_recovery recovery;      /* The undo slots in the undo segment. */
    struct cste_engine_traffic traffic; /* Table of the copies that accelerators make. */
    /* Segments of an earlier daemon's jobs may still be added (Setup.unsettled). */
    bool unsettled;
    bool recovered; /* No undo slot is left to restore, and commands may run. */
    /* Commands that wait until recovered is set, oldest first. */
    struct cste_work *held, **held_tail;
    struct cst_ticket_graph tickets; /* Commands that have not completed. */
    /* Ends of the list of commands that have not completed, in order of submission. */
    struct cste_work *oldest, *youngest;
    uint64_t n_submitted;             /* Number of commands submitted so far. */
    uint32_t n_drops;                 /* Number of SEGMENT_DROPs that wait for older commands. */
    struct cste_work_context context; /* Data and counters that all commands share. */
    struct cste_outbox outbox;        /* Messages to the daemon. */
    struct cst_frame_buf buf;         /* Buffer for the message being read. */
    /* First failure in the delivery of a mail. The loop ends with this status. */
    int status;
    struct cst_err err; /* Message text of status. */
};

/* Returns the thread pool of @lane. */
struct cste_thread_pool *cste_engine_lanes(struct cste_engine *engine, enum cste_device_lane lane);

/* Record failure @rc, which cannot be returned to a caller. Only the first failure is kept. @rc 0
 * is ignored. */
void cste_engine_fail(struct cste_engine *engine, int rc, const struct cst_err *err);

/* Handle a SUBMIT message. CST_EPROTO: the message is malformed; CST_ENOMEM. */
int cste_engine_submit(struct cste_engine *engine, const struct cst_frame *frame,
                       struct cst_err *err);

/* Start every command that is ready. */
void cste_engine_start_ready(struct cste_engine *engine);

/* All segments of an earlier daemon's jobs were added: see ENGINE_SETTLED. */
void cste_engine_settle(struct cste_engine *engine);

/* Start the held commands if recovery is complete. Called when the adding of a segment has
 * ended. */
void cste_engine_start_held(struct cste_engine *engine);

/* Handle a SEGMENT_ADD (its fd is taken over) and a SEGMENT_DROP. Statuses as in
 * cste_engine_submit. A fault of the segment itself is answered to the daemon and is no failure of
 * these functions. */
int cste_engine_add_segment(struct cste_engine *engine, struct cst_frame *frame,
                            struct cst_err *err);
int cste_engine_drop_segment(struct cste_engine *engine, const struct cst_frame *frame,
                             struct cst_err *err);

/* Handle a PEER_ADD and a PEER_DROP. Statuses as in cste_engine_submit; a fault of the peer is
 * answered to the daemon. */
int cste_engine_add_peer(struct cste_engine *engine, const struct cst_frame *frame,
                         struct cst_err *err);
int cste_engine_drop_peer(struct cste_engine *engine, const struct cst_frame *frame,
                          struct cst_err *err);

/* Fill @out with what SETUP says of a network. Returns @out, or NULL if it says nothing. */
const struct cste_net_spec *cste_engine_net_spec(const Engine__Setup *setup,
                                                 struct cste_net_spec *out);

/* Fill @out from @end, to which it points. */
void cste_engine_say_end(const struct cste_net_end *end, Engine__NetEnd *out);

/* Fill @pong with the traffic of machines, until cste_engine_uncount_peers frees it. CST_ENOMEM. */
int cste_engine_count_peers(struct cste_engine *engine, Engine__Pong *pong, struct cst_err *err);
void cste_engine_uncount_peers(Engine__Pong *pong);

/* Close @work, which is over, and unmap the dropped segments that only @work still used. */
void cste_engine_close_work(struct cste_engine *engine, struct cste_work *work);

/* Begin the SEGMENT_DROPs that no longer have an older command to wait for. Called when the oldest
 * command is over. */
void cste_engine_start_drops(struct cste_engine *engine);

/* Send PROGRESS for each segment of which more has been populated since the last report. */
void cste_engine_report_progress(struct cste_engine *engine);

#endif
