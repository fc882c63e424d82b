/* SPDX-License-Identifier: Apache-2.0 */
/* The set of engines, one per NUMA node and one per accelerator, and what they share: the segments
 * that they map, the submission of commands and the delivery of completions. The nodes' engines
 * have the first indices and start with the daemon. An accelerator's engine starts when a job first
 * needs it. The module knows nothing of jobs. Loop thread only. */
#ifndef CST_ENGINES_H
#define CST_ENGINES_H

#include "daemon/config.h"
#include "daemon/engine.h"
#include "daemon/waits.h"
#include "proto/traffic.h"

#include <uv.h>

#define CST_ENGINES_BUCKETS 256

/* A command has completed. @text: the engine's words for a status other than CST_OK; may be
 * NULL. */
typedef void (*cst_engines_done_fn)(void *arg, uint64_t ticket, int status, double value,
                                    const char *text);

/* Engine number @engine worked on the command of @ticket from @began_ns to @ended_ns (monotonic).
 * Called before cst_engines_done_fn, and only if the engine reported the times. */
typedef void (*cst_engines_timed_fn)(void *arg, uint64_t ticket, unsigned engine, uint64_t began_ns,
                                     uint64_t ended_ns);

/* An accelerator's engine is up or was given up; requests that wait for an engine can be checked
 * again. */
typedef void (*cst_engines_up_fn)(void *arg);

/* The node's engine number @engine was given up and keeps commands. @why: the reason in words. */
typedef void (*cst_engines_given_up_fn)(void *arg, unsigned engine, const char *why);

struct cst_engines {
    uv_loop_t *loop; /* The daemon's loop. */
    const struct cst_config *config;
    struct cst_later_queue *later; /* The daemon's queue of deferred work. */
    /* Path of the engine program for nodes and simulated accelerators. */
    char program[CST_CONFIG_PATH_BYTES];
    /* Path of the engine program for GPUs; empty: there is none. */
    char gpu_program[CST_CONFIG_PATH_BYTES];
    struct cst_engine v[CST_ARENA_MAX_ENGINES];
    /* Number of nodes' engines, which are the first ones in v. */
    unsigned n_nodes;
    unsigned n; /* Number of engines in v. */
    /* Commands that wait for commands of other engines. */
    struct cst_waits waits;
    TAILQ_HEAD(, cst_segment) segments; /* Segments that an engine maps or is asked to map. */
    struct cst_segment *buckets[CST_ENGINES_BUCKETS]; /* The segments in a hash table by id. */
    uint32_t next_segment;                            /* Id of the next new segment. */
    /* Number of engine processes that have died. */
    uint64_t n_deaths;
    struct cst_segment *traffic_memory; /* Segment of the table of traffic. */
    /* The table of traffic, mapped: one slot for each engine. */
    struct cst_traffic *traffic;
    cst_engines_done_fn on_done;
    cst_engines_up_fn on_up;
    cst_engines_timed_fn on_timed; /* NULL: not called. */
    cst_engines_given_up_fn on_given_up;
    void *arg; /* First argument of all four callbacks. */
    /* Runs while an engine is busy; in cst_engines_stop, the time limit for the processes. */
    uv_timer_t ping;
    bool pinging; /* ping runs periodically. */
    /* The engines are being stopped, and a process that dies is not replaced. */
    bool stopping;
    uint8_t body[CST_FRAME_MAX_BODY]; /* Buffer in which a Submit message is encoded. */
};

/* Initialise the set, and find the engine programs and the NUMA nodes. CST_ENOTFOUND: there is no
 * engine program (with the places searched), or a named GPU engine program does not exist;
 * CST_EINVAL: a configured NUMA node does not exist or has no cores. */
int cst_engines_init(struct cst_engines *engines, uv_loop_t *loop, const struct cst_config *config,
                     struct cst_later_queue *later, cst_engines_done_fn on_done,
                     cst_engines_up_fn on_up, cst_engines_given_up_fn on_given_up, void *arg,
                     struct cst_err *err);

/* Add an engine for the accelerator @uuid on NUMA node @os_node (-1: the node of engine 0). Its
 * state is OFF, and *index is its number. CST_EUNSUPPORTED: too many engines. */
int cst_engines_add_gpu(struct cst_engines *engines, const char *uuid, int os_node, unsigned *index,
                        struct cst_err *err);

/* Start the nodes' engines. CST_EENGINE, CST_ENOMEM: an engine cannot be started. */
int cst_engines_start(struct cst_engines *engines, struct cst_err *err);

/* Stop all processes; those that still run after two seconds are killed. The loop has no more work
 * from the engines when all have ended. */
void cst_engines_stop(struct cst_engines *engines);

/* Free everything, after the processes have ended. The loop must run once more to close a
 * handle. */
void cst_engines_close(struct cst_engines *engines);

/* Returns an id for a new segment. */
uint32_t cst_engines_segment_id(struct cst_engines *engines);

/* Map @segment in its engines. The fields engines, populate, bind and lock say where and how.
 * on_mounted is called when all engines have answered, never inside this call. An engine that had
 * failed is started again. */
void cst_engines_mount(struct cst_engines *engines, struct cst_segment *segment);

/* Unmap @segment in all engines. Each engine's reference is released when the engine has unmapped
 * the segment. */
void cst_engines_unmount(struct cst_engines *engines, struct cst_segment *segment);

/* Returns the segment with this @id, or NULL. */
struct cst_segment *cst_engines_find(const struct cst_engines *engines, uint32_t id);

/* Remove @segment from list and hash table if no engine maps it or is asked to. For mounts.c. */
void cst_engines_unlist(struct cst_engines *engines, struct cst_segment *segment);

/* Queue @command for the engine command->node. It is sent at the end of this turn of the loop or,
 * if it must come after commands of other engines, when these have completed. on_done is called
 * once for each command, never inside this call. CST_ENOMEM: out of memory; CST_EINTERNAL: there is
 * no such engine. */
int cst_engines_submit(struct cst_engines *engines, const struct cst_command *command,
                       struct cst_err *err);

/* Start the periodic check of all engines, because an engine has got work. The check runs once a
 * second until no engine is busy. For engine.c and mounts.c. */
void cst_engines_watch(struct cst_engines *engines);

/* Report that the command of @ticket has completed or will never be executed, and release the
 * commands that wait for it. If it is @forgiven, these commands are executed even if it has failed.
 * For engine.c. */
void cst_engines_complete(struct cst_engines *engines, uint64_t ticket, int status, double value,
                          const char *text, bool forgiven);

/* Drop all commands with (ticket >> @shift) == @value. on_done is not called for them. */
void cst_engines_forget(struct cst_engines *engines, unsigned shift, uint64_t value);

/* Send the commands that were queued in this turn of the loop. */
void cst_engines_flush(struct cst_engines *engines);

/* True if every engine with commands has made progress since the last call. Engines in FAILED are
 * ignored. For the watchdog. */
bool cst_engines_alive(struct cst_engines *engines);

#endif
