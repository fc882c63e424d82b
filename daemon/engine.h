/* SPDX-License-Identifier: Apache-2.0 */
/* One engine of the daemon: the state of its process, what it maps, what it was told to do and has
 * not done. A death is survived: another process is started, gets the same segments and every
 * command that had not completed. Deaths while it populates memory of a job count against the job
 * (mounts.h), not against the engine.
 *
 *   OFF --start--> STARTING --Ready--> MOUNTING --all mapped again--> READY --no job--> ENDING, OFF
 *    ^                 \-----------------/ dies: STARTING again -----/     (a GPU's alone)
 *    |                                   | more than 5 deaths in a row with nothing done in between
 *    |                                   | (a node's: in 10 s)
 *    +--- (daemon ends)                  +--> FAILED
 *
 * FAILED. What was to be mapped gets CST_EENGINE. So do all commands of an accelerator's engine,
 * whose memory may be gone. The engine of a node keeps its commands and what it needs to undo a
 * tile that is half changed, because the memory is the daemon's: the jobs hear of it (on_given_up).
 * The engine is started again with the next mount or command, and with a rank that attaches and
 * needs it.
 *
 * Loop thread only. */
#ifndef CST_ENGINE_H
#define CST_ENGINE_H

#include "daemon/arena.h"
#include "daemon/commands.h"
#include "daemon/deaths.h"
#include "daemon/later.h"
#include "daemon/process.h"
#include "daemon/rates.h"

#include <protobuf-c/protobuf-c.h>

struct cst_engines;

enum cst_engine_state {
    CST_ENGINE_OFF,
    CST_ENGINE_STARTING,
    CST_ENGINE_MOUNTING,
    CST_ENGINE_READY,
    CST_ENGINE_FAILED,
    CST_ENGINE_ENDING,
};

struct cst_engine_counters { /* as in engine.proto's Pong */
    uint64_t copy_bytes, copy_ns;
    uint64_t update_elems, update_ns;
    uint64_t reduce_elems, reduce_ns;
    uint64_t up_bytes, up_ns;
    uint64_t down_bytes, down_ns;
    uint64_t update_bytes, reduce_bytes;
    uint64_t held_ns;
};

struct cst_engine {
    struct cst_engines *engines; /* its set */
    unsigned index;              /* in the set; the core's node number */
    unsigned os_node;            /* NUMA node */
    char device[64];             /* UUID of its GPU, "paced:N"; empty: it is a node's */
    enum cst_engine_state state;
    struct cst_process *process;    /* NULL: OFF or FAILED */
    uint64_t granularity;           /* GPU: segments are multiples of it, bytes; 0: not up yet */
    unsigned n_users;               /* GPU: ranks of jobs that want it */
    uv_timer_t idle;                /* GPU: runs while there are none */
    struct cst_segment *undo;       /* old values of tiles being changed; survives the process */
    struct cst_commands commands;   /* not completed */
    uint32_t n_remounting;          /* segments that it must have again before commands go out */
    uint32_t threads, copy_threads; /* as it said */
    char isa[16];                   /* as it said */
    uint64_t n_restarts;
    uint64_t n_completed;                /* commands, in the life of the daemon */
    struct cst_deaths deaths;            /* in a row: since the last completion */
    struct cst_engine_counters base;     /* of processes that are gone */
    struct cst_engine_counters counters; /* of this one, at the last Pong */
    struct cst_rates_seen seen;          /* rates, from Pong to Pong */
    uint64_t progress;                   /* at the last Pong; differs where the engine has moved */
    uint64_t progress_seen;              /* when the watchdog last looked */
    unsigned n_unanswered;               /* seconds without a word, while it has something to do */
    uint32_t n_asked; /* segments that it was asked to map or unmap, and has not yet */
    bool one_by_one;  /* segments wait, since a population that has killed engines is apart */
    bool locked;      /* the last segment to be locked was */
    char why[256];    /* FAILED: the words */
    struct cst_later refuse; /* FAILED: answers what comes in nevertheless, or tries again */
    bool retry;              /* FAILED, a node's: a command came in, for which it is tried again */
};

/* Zeroed otherwise; OFF. @device: UUID of its accelerator, or empty. */
void cst_engine_init(struct cst_engine *engine, struct cst_engines *engines, unsigned index,
                     unsigned os_node, const char *device);

/* Forget commands and undo. The process is gone by now. */
void cst_engine_close(struct cst_engine *engine);

/* Start its process. CST_EENGINE with words; the state is FAILED then. */
int cst_engine_start(struct cst_engine *engine, struct cst_err *err);

/* Somebody needs it: start it if it is OFF or has FAILED before. Failing again is told to those who
 * wait, later. */
void cst_engine_need(struct cst_engine *engine);

/* A GPU's engine: a rank wants it, and is done with it. It starts with the first one, and ends when
 * there has been none for the configured time and nothing of it is mapped. */
void cst_engine_use(struct cst_engine *engine);
void cst_engine_unuse(struct cst_engine *engine);

/* It is no node's: a GPU's, or that of a paced accelerator. */
bool cst_engine_is_gpu(const struct cst_engine *engine);

/* "host", "cuda", "paced". */
const char *cst_engine_kind(const struct cst_engine *engine);

/* @command is to be done. In FAILED a node's engine is tried again, later; an accelerator's
 * completes it with CST_EENGINE, later. CST_ENOMEM. */
int cst_engine_submit(struct cst_engine *engine, const struct cst_command *command,
                      struct cst_err *err);

/* Send a message of @type with @fd (-1: none). A process that cannot take it is killed. */
int cst_engine_send(struct cst_engine *engine, uint16_t type, uint64_t request,
                    const ProtobufCMessage *message, int fd);

/* A process is there and takes segments. */
bool cst_engine_is_up(const struct cst_engine *engine);

/* Send what waits, as far as the socket takes it. Once a turn of the loop. */
void cst_engine_flush(struct cst_engine *engine);

/* It has commands, segments or its own start to see to. */
bool cst_engine_is_busy(const struct cst_engine *engine);

/* Ask for counters. Kills a process that has said nothing for long. Once a second while it is busy.
 */
void cst_engine_ping(struct cst_engine *engine);

const char *cst_engine_state_name(enum cst_engine_state state);

#endif
