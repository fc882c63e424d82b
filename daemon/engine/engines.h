/* SPDX-License-Identifier: Apache-2.0 */
/* The set of engines, one per NUMA node and one per accelerator, and what they share: the segments
 * that they map, the submission of commands and the delivery of completions. The nodes' engines
 * have the first indices and start with the daemon. An accelerator's engine starts when a job first
 * needs it. The module knows nothing of jobs. Loop thread only. */
#ifndef CST_ENGINES_H
#define CST_ENGINES_H

#include "daemon/settings/settings.h"
#include "daemon/engine/engine.h"
#include "proto/traffic.h"

#include <uv.h>

#define CSTD_ENGINES_BUCKETS 256

/* A command has completed. @text: the engine's words for a status other than CST_OK; may be
 * NULL. */
typedef void (*cstd_engines_done_fn)(void *arg, uint64_t ticket, int status, double value,
                                     const char *text);

/* Engine number @engine worked on the command of @ticket from @began_ns to @ended_ns (monotonic).
 * Called before cstd_engines_done_fn, and only if the engine reported the times. */
typedef void (*cstd_engines_timed_fn)(void *arg, uint64_t ticket, unsigned engine,
                                      uint64_t began_ns, uint64_t ended_ns);

/* An accelerator's engine is up or was given up; requests that wait for an engine can be checked
 * again. */
typedef void (*cstd_engines_up_fn)(void *arg);

/* The node's engine number @engine was given up and keeps commands. @why: the reason in words. */
typedef void (*cstd_engines_given_up_fn)(void *arg, unsigned engine, const char *why);

struct cstd_engines {
    uv_loop_t *loop; /* The daemon's loop. */
    const struct cstd_settings *config;
    struct cstd_deferred_queue *later; /* The daemon's queue of deferred work. */
    /* Path of the engine program for nodes and simulated accelerators. */
    char program[CSTD_SETTINGS_PATH_BYTES];
    /* Path of the engine program for GPUs; empty: there is none. */
    char gpu_program[CSTD_SETTINGS_PATH_BYTES];
    /* Path of the engine program for networks; empty: there is none. */
    char net_program[CSTD_SETTINGS_PATH_BYTES];
    struct cstd_engine v[CSTD_ARENA_MAX_ENGINES];
    /* Number of nodes' engines, which are the first ones in v. */
    unsigned n_nodes;
    unsigned n;                          /* Number of engines in v. */
    struct cst_ticket_graph tickets;     /* Tickets of the commands of all engines. */
    bool releasing;                      /* Commands that wait no more are being queued. */
    TAILQ_HEAD(, cstd_segment) segments; /* Segments that an engine maps or is asked to map. */
    struct cstd_segment *buckets[CSTD_ENGINES_BUCKETS]; /* The segments in a hash table by id. */
    uint32_t next_segment;                              /* Id of the next new segment. */
    /* Number of engine processes that have died. */
    uint64_t n_deaths;
    /* Segment of the table of traffic. Engines hold a lock of its file while they live. It can be
     * that of an earlier daemon, set before cstd_engines_start. */
    struct cstd_segment *traffic_memory;
    /* The table of traffic, mapped: one slot for each engine. */
    struct cst_traffic *traffic;
    cstd_engines_done_fn on_done;
    cstd_engines_up_fn on_up;
    cstd_engines_timed_fn on_timed; /* NULL: not called. */
    cstd_engines_given_up_fn on_given_up;
    void *arg; /* First argument of all four callbacks. */
    /* Runs while an engine is busy; in cstd_engines_stop, the time limit for the processes. */
    uv_timer_t ping;
    bool pinging; /* ping runs periodically. */
    /* All segments of an earlier daemon were given to the engines, or are lost: undo slots that
     * still hold a tile hold it in vain. */
    bool settled;
    /* The engine of a drive of an earlier daemon has not ended, and can still write: jobs of that
     * daemon that have states on drives cannot go on. */
    bool drives_held;
    bool has_recalled; /* Commands were recalled in this iteration of the loop. */
    /* The engines are being stopped, and a process that dies is not replaced. */
    bool stopping;
    uint8_t body[CST_FRAME_MAX_BODY]; /* Buffer in which a Submit message is encoded. */
};

/* Initialise the set, and find the engine programs and the host nodes (proto/host_nodes.h).
 * CST_ENOTFOUND: there is no engine program (with the places searched), or a named GPU engine
 * program does not exist; CST_EINVAL: a configured NUMA node does not exist or is not a host node;
 * CST_EINTERNAL: hwloc failed. */
int cstd_engines_init(struct cstd_engines *engines, uv_loop_t *loop,
                      const struct cstd_settings *config, struct cstd_deferred_queue *later,
                      cstd_engines_done_fn on_done, cstd_engines_up_fn on_up,
                      cstd_engines_given_up_fn on_given_up, void *arg, struct cst_err *err);

/* Add an engine for the device @uuid, an accelerator or a drive, on NUMA node @os_node (-1: the
 * node of engine 0). Its state is OFF, and *index is its number. CST_EUNSUPPORTED: too many
 * engines. */
int cstd_engines_add_device(struct cstd_engines *engines, const char *uuid, int os_node,
                            unsigned *index, struct cst_err *err);

/* Start the nodes' engines, and those of accelerators that are in use already. CST_EENGINE,
 * CST_ENOMEM: a node's engine cannot be started. */
int cstd_engines_start(struct cstd_engines *engines, struct cst_err *err);

/* Stop all processes; those that still run after two seconds are killed. The loop has no more work
 * from the engines when all have ended. */
void cstd_engines_stop(struct cstd_engines *engines);

/* True if no engine has a process. */
bool cstd_engines_all_ended(const struct cstd_engines *engines);

/* Free everything, after the processes have ended. The loop must run once more to close a
 * handle. */
void cstd_engines_close(struct cstd_engines *engines);

/* Returns an id for a new segment. */
static inline uint32_t cstd_engines_segment_id(struct cstd_engines *engines)
{
    return engines->next_segment++;
}

/* Give the id @id to no new segment, because a segment of an earlier daemon has it. */
static inline void cstd_engines_reserve_id(struct cstd_engines *engines, uint32_t id)
{
    if (id >= engines->next_segment) {
        engines->next_segment = id + 1;
    }
}

/* Map @segment in its engines. The fields engines, populate, bind and lock say where and how.
 * on_mounted is called when all engines have answered, never inside this call. An engine that had
 * failed is started again. */
void cstd_engines_mount(struct cstd_engines *engines, struct cstd_segment *segment);

/* Nothing of an earlier daemon's jobs is left to be mapped (engines->settled). */
void cstd_engines_settle(struct cstd_engines *engines);

/* Unmap @segment in all engines. Each engine's reference is released when the engine has unmapped
 * the segment. */
void cstd_engines_unmount(struct cstd_engines *engines, struct cstd_segment *segment);

/* Returns the segment with this @id, or NULL. */
struct cstd_segment *cstd_engines_find(const struct cstd_engines *engines, uint32_t id);

/* Remove @segment from list and hash table if no engine maps it or is asked to. For mounts.c. */
void cstd_engines_unlist(struct cstd_engines *engines, struct cstd_segment *segment);

/* Queue @command for the engine command->node. It is sent at the end of this iteration of the loop
 * or, if it must come after commands of other engines, when these have completed. on_done is called
 * once for each command, never inside this call. CST_ENOMEM: out of memory; CST_EINTERNAL: there is
 * no such engine. */
int cstd_engines_submit(struct cstd_engines *engines, const struct cst_command *command,
                        struct cst_err *err);

/* Start the periodic check of all engines, because an engine has got work. The check runs once a
 * second until no engine is busy. For engine.c and mounts.c. */
void cstd_engines_watch(struct cstd_engines *engines);

/* Report that the command of @ticket has completed or will never be executed, and release the
 * commands that wait for it. If it is @may_fail, these commands are executed even if it has failed.
 * For engine.c. */
void cstd_engines_complete(struct cstd_engines *engines, uint64_t ticket, int status, double value,
                           const char *text, bool may_fail);

/* Drop all commands with (ticket >> @shift) == @value. on_done is not called for them. */
void cstd_engines_forget(struct cstd_engines *engines, unsigned shift, uint64_t value);

/* Cancel the command of @ticket at the end of this iteration of the loop, if it is still held here
 * then. on_done is called for it as for any other command. */
void cstd_engines_recall(struct cstd_engines *engines, uint64_t ticket);

/* Cancel the commands that were recalled in this iteration of the loop, and send those that were
 * queued. */
void cstd_engines_flush(struct cstd_engines *engines);

/* True if every engine with commands has made progress since the last call. Engines in FAILED are
 * ignored. For the watchdog. */
bool cstd_engines_alive(struct cstd_engines *engines);

#endif
