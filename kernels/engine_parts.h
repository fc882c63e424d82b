/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine consists of, for its own files alone: engine.c (loop and messages),
 * engine_commands.c (SUBMIT to DONE) and engine_segments.c (SEGMENT_ADD and SEGMENT_DROP). All
 * functions here belong to the loop thread. */
#ifndef CST_ENGINE_PARTS_H
#define CST_ENGINE_PARTS_H

#include "kernels/cpus.h"
#include "kernels/crew.h"
#include "kernels/engine.h"
#include "kernels/mapping.h"
#include "kernels/outbox.h"
#include "kernels/recovery.h"
#include "kernels/tickets.h"
#include "kernels/traffic.h"
#include "kernels/work.h"
#include "proto/engine.pb-c.h"
#include "proto/frame.h"

struct cst_engine {
    struct cst_engine_config config;
    bool set_up;              /* SETUP came; until then only config, outbox and buf are valid */
    struct cst_cpus cpus;     /* of the node */
    struct cst_device device; /* what moves and computes */
    struct cst_mailbox box;   /* from the crews */
    struct cst_crew lanes[CST_LANES]; /* COPY, FILL, CONVERT; mapping. Only the first one where the
                                         device wants no more */
    struct cst_crew team;             /* REDUCE, UPDATE, NORM */
    struct cst_segments segments; /* what the daemon passed in; each is a cst_mapping's, owned */
    uint32_t n_adding;            /* of them, ADDING */
    uint32_t undo_id;             /* id of the undo segment, which is not in segments */
    struct cst_mem undo;          /* the undo segment */
    struct cst_recovery recovery; /* its slots */
    struct cst_engine_traffic traffic;  /* what accelerators copy */
    bool recovered;                     /* nothing is left to put back: commands may run */
    struct cst_work *held, **held_tail; /* commands that wait for that, oldest first */
    struct cst_tickets tickets;         /* commands that have not completed */
    struct cst_work *oldest, *youngest; /* the same, in order of submission */
    uint64_t n_submitted;               /* commands, ever */
    uint32_t n_drops;                   /* SEGMENT_DROPs that wait for older commands */
    struct cst_work_context context;    /* what commands share; counters */
    struct cst_outbox outbox;           /* to the daemon */
    struct cst_frame_buf buf;           /* of the message being read */
    int status;         /* first failure of a mail's delivery: the loop ends with it */
    struct cst_err err; /* its words */
};

/* The crew of @lane. */
struct cst_crew *cst_engine_lanes(struct cst_engine *engine, enum cst_device_lane lane);

/* Remember the first failure that has nobody to be returned to. @rc 0: nothing. */
void cst_engine_fail(struct cst_engine *engine, int rc, const struct cst_err *err);

/* A SUBMIT. CST_EPROTO: malformed; CST_ENOMEM. */
int cst_engine_submit(struct cst_engine *engine, const struct cst_frame *frame,
                      struct cst_err *err);

/* Start every command that is ready. */
void cst_engine_start_ready(struct cst_engine *engine);

/* A segment's adding is over: start what waited for it, if it need not wait any longer. */
void cst_engine_start_held(struct cst_engine *engine);

/* A SEGMENT_ADD (its fd is taken over) and a SEGMENT_DROP. As cst_engine_submit; what is wrong with
 * the segment is answered. */
int cst_engine_add_segment(struct cst_engine *engine, struct cst_frame *frame, struct cst_err *err);
int cst_engine_drop_segment(struct cst_engine *engine, const struct cst_frame *frame,
                            struct cst_err *err);

/* Close @work, which is over, and let go the segments that waited for it alone. */
void cst_engine_close_work(struct cst_engine *engine, struct cst_work *work);

/* The oldest command is over: let go the segments whose SEGMENT_DROP has no older command to wait
 * for now. */
void cst_engine_start_drops(struct cst_engine *engine);

/* Say how far populating has come, where that is news. */
void cst_engine_report_progress(struct cst_engine *engine);

#endif
