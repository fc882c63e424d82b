/* SPDX-License-Identifier: Apache-2.0 */
/* The one object that the daemon's modules hang on, and its life: start, run, drain. One thread,
 * one libuv loop; nothing in daemon/ is called from any other thread. */
#ifndef CST_DAEMON_H
#define CST_DAEMON_H

#include "daemon/arena.h"
#include "daemon/config.h"
#include "daemon/engines.h"
#include "daemon/gpus.h"
#include "daemon/job.h"
#include "daemon/later.h"
#include "daemon/notify.h"
#include "daemon/pending.h"
#include "daemon/planner.h"
#include "daemon/quota.h"
#include "daemon/remains.h"
#include "daemon/searches.h"
#include "daemon/server.h"
#include "daemon/unpack.h"
#include "offload/core.h"
#include "proto/frame.h"

#include <uv.h>

struct cst_daemon {
    uv_loop_t loop;
    const struct cst_config *config; /* the caller's */
    struct cst_budget host;          /* arenas, tables, staging */
    struct cst_budget pool;          /* pools of the host device */
    struct cst_remains remains;      /* dropped memory that processes may still hold */
    struct cst_quota quota;          /* what each user holds, and may hold */
    struct cst_engines engines;
    struct cst_gpus gpus;
    struct cst_planner planner;
    struct cst_searches searches; /* of plans, under way */
    struct cst_server server;     /* listeners and sessions */
    struct cst_jobs jobs;
    struct cst_pendings requests;
    struct cst_later_queue later;    /* what must wait until a callback has returned */
    struct cst_later_queue spare;    /* what nobody waits for; it has nothing for engines */
    struct cst_unpack unpack;        /* one message is unpacked at a time ... */
    struct cst_frame_buf in;         /* ... out of this ... */
    uint8_t out[CST_FRAME_MAX_BODY]; /* ... and one reply packed into this */
    struct cst_actions actions;      /* of the core that is being stepped */
    uint64_t epoch;                  /* one value per start */
    uint64_t started_ns;             /* monotonic */
    uint64_t n_requests;             /* ever */
    bool draining;                   /* going down */
    uv_check_t reader;               /* reads requests after each look at the sockets */
    uv_prepare_t turn;               /* end of each turn of the loop */
    uv_signal_t terminate, interrupt, reload;
    struct cst_notify notify; /* the service manager */
    uv_timer_t watchdog;      /* runs only if the service manager asked for it */
};

/* Listen, start the engines, tell the service manager. CST_E...: with the words for one line;
 * everything is undone. */
int cst_daemon_open(struct cst_daemon *daemon, const struct cst_config *config,
                    struct cst_err *err);

/* Run until a signal has ended it and everything is closed. */
void cst_daemon_run(struct cst_daemon *daemon);

/* Stop accepting, answer what waits with CST_EDRAINING, end engines; cst_daemon_run returns when
 * that is done. */
void cst_daemon_drain(struct cst_daemon *daemon);

void cst_daemon_close(struct cst_daemon *daemon);

/* Tell the service manager about jobs and bytes, if they have changed. */
void cst_daemon_status(struct cst_daemon *daemon);

#endif
