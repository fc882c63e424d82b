/* SPDX-License-Identifier: Apache-2.0 */
/* What the modules of the daemon share. The pointers are to modules that belong to daemon.c, which
 * opens and closes them; a file includes the header of a module that it uses.
 *
 * One thread, the loop thread, runs the one libuv loop and almost all functions of daemon/. Only
 * searches for plans (searches.h), the building of layouts (layout_work.h), and the making of
 * descriptions (describe.h) and ledgers (ledger_make.h) run in threads of libuv's pool; they write
 * nothing that the loop thread uses meanwhile. */
#ifndef CSTD_DAEMON_STATE_H
#define CSTD_DAEMON_STATE_H

#include "daemon/base/deferred.h"
#include "daemon/base/keeper.h"
#include "daemon/base/notify.h"
#include "offload/books/actions.h"
#include "proto/frame.h"

#include <uv.h>

struct cstd_budget;
struct cstd_core_driver_ops;
struct cstd_drives;
struct cstd_ended_parts;
struct cstd_engines;
struct cstd_gpus;
struct cstd_jobs;
struct cstd_links;
struct cstd_modules;
struct cstd_pendings;
struct cstd_planner;
struct cstd_quota;
struct cstd_remains;
struct cstd_revival;
struct cstd_searches;
struct cstd_server;
struct cstd_settings;
struct cstd_span_ops;
struct cstd_staging_queue;
struct cstd_standbys;
struct cstd_tiers;
struct cstd_unpack;

struct cstd_daemon {
    uv_loop_t loop;
    struct cstd_modules *modules;       /* Memory of the modules, which daemon.c owns. */
    const struct cstd_settings *config; /* The configuration; it belongs to the caller. */
    struct cstd_budget *host;           /* Budget of arenas, job tables and staging. */
    struct cstd_budget *pool;           /* Budget of pools in host memory. */
    struct cstd_remains *remains;       /* Dropped memory that processes may still hold. */
    struct cstd_quota *quota;           /* Amounts that each user holds, and their limits. */
    struct cstd_engines *engines;
    struct cstd_gpus *gpus;
    struct cstd_drives *drives;
    struct cstd_tiers *tiers; /* The kinds of memory that jobs can have. */
    struct cstd_planner *planner;
    struct cstd_searches *searches; /* Searches for plans that are queued or running. */
    struct cstd_server *server;     /* Listening sockets and sessions. */
    struct cstd_jobs *jobs;
    struct cstd_links *links; /* Links to other nodes; NULL: [node] names no place to listen. */
    struct cstd_ended_parts *ended_parts;     /* Of jobs on several nodes. */
    struct cstd_staging_queue *staging_queue; /* Requests for staging that wait for some. */
    struct cstd_standbys *standbys;           /* Processes that wait to take the place of a rank. */
    struct cstd_pendings *requests;           /* Requests that wait for their final reply. */
    /* Work that must wait until the current callback has returned. */
    struct cstd_deferred_queue later;
    /* Work of low priority, done after engines got their commands; it must not issue commands. */
    struct cstd_deferred_queue idle_work;
    struct cstd_unpack *unpack;      /* Decoder of messages; it holds one message at a time. */
    struct cst_frame_buf in;         /* Buffer of the received frame that is being served. */
    uint8_t out[CST_FRAME_MAX_BODY]; /* Buffer in which a reply is encoded. */
    /* Functions that core_driver.c calls after a core has processed an event. */
    const struct cstd_core_driver_ops *core_ops;
    const struct cstd_span_ops *span_ops;      /* What jobs on several nodes ask for. */
    void (*leave)(struct cstd_daemon *daemon); /* cstd_daemon_leave, for serve_handover.c. */
    struct cst_actions actions; /* What the core asks for that processes an event now. */
    uint64_t epoch;             /* Random number of this start of the daemon. */
    uint64_t started_ns;        /* Monotonic time of the start. */
    uint64_t n_requests;        /* Requests since the start. */
    bool status_changed;        /* Jobs or bytes have changed: tell the service manager. */
    bool draining;              /* The daemon is shutting down. */
    uint32_t n_barring;         /* Connections of managers that bar new jobs (session.h). */
    uv_check_t reader;          /* Reads requests after each poll of the sockets. */
    uv_prepare_t prepare;       /* Runs at the end of each iteration of the loop. */
    uv_signal_t terminate, interrupt, reload;
    struct cstd_notify notify;    /* Connection to the service manager. */
    struct cstd_keeper keeper;    /* The service manager's store of descriptors. */
    struct cstd_revival *revival; /* Jobs of an earlier daemon that are not ready yet. */
    bool leaving;                 /* draining: jobs are kept for the next process. */
    uv_timer_t watchdog;          /* Runs only if the service manager asked for a watchdog. */
};

#endif
