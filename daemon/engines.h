/* SPDX-License-Identifier: Apache-2.0 */
/* The set of engines, one per NUMA node and one per GPU, and what all of them share: the segments
 * they map, the way in for commands and out for completions. The nodes' come first, and start with
 * the daemon; a GPU's starts when a job first wants it. Knows nothing of jobs. Loop thread only. */
#ifndef CST_ENGINES_H
#define CST_ENGINES_H

#include "daemon/config.h"
#include "daemon/engine.h"
#include "daemon/waits.h"
#include "proto/traffic.h"

#include <uv.h>

#define CST_ENGINES_BUCKETS 256

/* A command completed. @text: the engine's words, with a status; may be NULL. */
typedef void (*cst_engines_done_fn)(void *arg, uint64_t ticket, int status, double value,
                                    const char *text);

/* ... and engine number @engine worked on it between two monotonic times, where it said so; called
 * before cst_engines_done_fn. */
typedef void (*cst_engines_timed_fn)(void *arg, uint64_t ticket, unsigned engine, uint64_t began_ns,
                                     uint64_t ended_ns);

/* An engine of a GPU is up, or has failed: who waits for one may look again. */
typedef void (*cst_engines_up_fn)(void *arg);

/* The engine of node @engine was given up and keeps commands. @why: words. */
typedef void (*cst_engines_given_up_fn)(void *arg, unsigned engine, const char *why);

struct cst_engines {
    uv_loop_t *loop; /* the daemon's */
    const struct cst_config *config;
    struct cst_later_queue *later;           /* the daemon's */
    char program[CST_CONFIG_PATH_BYTES];     /* that is started for a node */
    char gpu_program[CST_CONFIG_PATH_BYTES]; /* ... for a GPU; empty: there is none */
    struct cst_engine v[CST_ARENA_MAX_ENGINES];
    unsigned n_nodes;                                 /* the first of them */
    unsigned n;                                       /* of them */
    struct cst_waits waits;                           /* commands that wait for other engines' */
    TAILQ_HEAD(, cst_segment) segments;               /* that any engine has something of */
    struct cst_segment *buckets[CST_ENGINES_BUCKETS]; /* the same, by id */
    uint32_t next_segment;                            /* id */
    uint64_t n_deaths;                                /* of processes, ever */
    struct cst_segment *traffic_memory;               /* that of traffic */
    struct cst_traffic *traffic;                      /* in it, a slot for each engine; mapped */
    cst_engines_done_fn on_done;
    cst_engines_up_fn on_up;
    cst_engines_timed_fn on_timed; /* NULL: nobody wants to know */
    cst_engines_given_up_fn on_given_up;
    void *arg;                        /* of all four */
    uv_timer_t ping;                  /* runs while an engine is busy */
    bool pinging;                     /* it runs */
    bool stopping;                    /* a death is no longer survived */
    uint8_t body[CST_FRAME_MAX_BODY]; /* where Submit is put together */
};

/* Find the programs and the nodes. CST_ENOTFOUND: no engine program, with the places looked at, or
 * none for GPUs where one was named; CST_EINVAL: a configured node is not there. */
int cst_engines_init(struct cst_engines *engines, uv_loop_t *loop, const struct cst_config *config,
                     struct cst_later_queue *later, cst_engines_done_fn on_done,
                     cst_engines_up_fn on_up, cst_engines_given_up_fn on_given_up, void *arg,
                     struct cst_err *err);

/* An engine more, OFF, for the GPU that goes by @uuid, on NUMA node @os_node (-1: the first
 * node's); *index is its number. CST_EUNSUPPORTED: too many. */
int cst_engines_add_gpu(struct cst_engines *engines, const char *uuid, int os_node, unsigned *index,
                        struct cst_err *err);

/* Start the nodes'. CST_EENGINE: one could not be started. */
int cst_engines_start(struct cst_engines *engines, struct cst_err *err);

/* End all: they get two seconds, then SIGKILL. The loop runs empty when they are gone. */
void cst_engines_stop(struct cst_engines *engines);

/* Free everything, when the processes are gone; the loop has a handle to close after that. */
void cst_engines_close(struct cst_engines *engines);

/* A number for a new segment. */
uint32_t cst_engines_segment_id(struct cst_engines *engines);

/* Map @segment (segment->node, populate, bind, lock say how) in its engines; on_mounted is called,
 * never from within, when all have answered. An engine that had failed is tried again. */
void cst_engines_mount(struct cst_engines *engines, struct cst_segment *segment);

/* Unmap it everywhere; each engine's reference goes when it has done so. */
void cst_engines_unmount(struct cst_engines *engines, struct cst_segment *segment);

/* The segment that goes by @id on the wire, or NULL. */
struct cst_segment *cst_engines_find(const struct cst_engines *engines, uint32_t id);

/* Nothing is left of @segment in any engine: forget it. For mounts.c. */
void cst_engines_unlist(struct cst_engines *engines, struct cst_segment *segment);

/* Queue @command for engine command->node; it goes out with the turn's others, or when the tickets
 * of other engines that it comes after are complete. Each gets one on_done, never from within.
 * CST_ENOMEM; CST_EINTERNAL: no such engine. */
int cst_engines_submit(struct cst_engines *engines, const struct cst_command *command,
                       struct cst_err *err);

/* An engine has got something to do: look after all once a second until none has. For engine.c and
 * mounts.c. */
void cst_engines_watch(struct cst_engines *engines);

/* A command has completed, or will never be done: tell, and let go what waited for it; where it is
 * @forgiven as if it had succeeded. For engine.c. */
void cst_engines_complete(struct cst_engines *engines, uint64_t ticket, int status, double value,
                          const char *text, bool forgiven);

/* Forget the commands whose ticket >> shift is @value: on_done will not be called for them. */
void cst_engines_forget(struct cst_engines *engines, unsigned shift, uint64_t value);

/* Send what this turn produced. */
void cst_engines_flush(struct cst_engines *engines);

/* Every engine with commands in flight has moved since the last call. */
bool cst_engines_alive(struct cst_engines *engines);

#endif
