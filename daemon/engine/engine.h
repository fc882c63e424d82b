/* SPDX-License-Identifier: Apache-2.0 */
/* One engine of the daemon: the state of its process, the segments that it maps, and its commands.
 * The daemon survives the death of an engine process: it starts another process, which gets the
 * same segments and all commands that had not completed. A death while the process populates memory
 * of a job counts against the job (mounts.h), not against the engine.
 *
 *   OFF --start--> STARTING --Ready--> MOUNTING --all mapped again--> READY --no job--> ENDING, OFF
 *    ^                 \-----------------/ dies: STARTING again -----/     (accelerators' only)
 *    |                                   | more than 5 deaths in a row, no command completed
 *    |                                   | (nodes' engines: within 10 s)
 *    +--- (daemon ends)                  +--> FAILED
 *
 * An engine is also given up if its process says that a drive does not answer, or if its process
 * does not end after it was killed. The daemon does not wait for such a process.
 *
 * In FAILED the engine has no process, and requests to map segments fail with CST_EENGINE.
 * - All commands of an accelerator's engine fail with CST_EENGINE as well, because its memory may
 *   be gone.
 * - A node's engine keeps its commands and the undo data of partly updated tiles, because their
 *   memory belongs to the daemon. The jobs are told by on_given_up.
 * - The engine is started again with the next mount, with the next command for a node's engine, and
 *   when a rank attaches that needs it.
 *
 * Loop thread only. */
#ifndef CSTD_ENGINE_H
#define CSTD_ENGINE_H

#include "daemon/budget/arena.h"
#include "daemon/engine/commands.h"
#include "daemon/engine/deaths.h"
#include "daemon/engine/engine_counters.h"
#include "daemon/base/deferred.h"
#include "daemon/engine/process.h"
#include "daemon/engine/rates.h"

#include <protobuf-c/protobuf-c.h>

struct cstd_engines;
struct cstd_net_engine;

enum cstd_engine_state {
    CSTD_ENGINE_OFF,
    CSTD_ENGINE_STARTING,
    CSTD_ENGINE_MOUNTING,
    CSTD_ENGINE_READY,
    CSTD_ENGINE_FAILED,
    CSTD_ENGINE_ENDING,
};

struct cstd_engine {
    struct cstd_engines *engines; /* The set that contains the engine. */
    unsigned index;               /* Index in the set, which is the core's engine number. */
    unsigned os_node;             /* NUMA node (OS number). */
    /* UUID of the engine's GPU, "paced:N", "drive:N:M" or "net:JOB"; empty: the engine of a NUMA
     * node. */
    char device[64];
    struct cstd_net_engine *net; /* Of a network: what it is told of it; owned. Else NULL. */
    enum cstd_engine_state state;
    struct cstd_process *process; /* NULL in OFF and FAILED. */
    /* FAILED: the last process, which has been killed and has not ended, because the kernel waits
     * for a drive. Until it has ended, what it was told to write can still be written, and no other
     * process is started. NULL: there is none. */
    struct cstd_process *stuck;
    /* Segments on this accelerator are multiples of this many bytes; 0: the engine has not been up
     * yet. */
    uint64_t granularity;
    /* Accelerators: uses by ranks of jobs, counted by cstd_engine_use. */
    unsigned n_users;
    uv_timer_t idle; /* Accelerators: runs while n_users is 0. */
    /* Old contents of tiles that are being changed. The segment survives the process. */
    struct cstd_segment *undo;
    struct cstd_commands commands; /* Commands that have not completed. */
    /* Segments that a new process must map before it gets commands. */
    uint32_t n_remounting;
    uint32_t threads, copy_threads; /* Numbers of threads that the process reported. */
    char isa[16];                   /* Instruction set that the process reported. */
    uint64_t n_restarts;
    uint64_t n_completed;                 /* Commands completed during the life of the daemon. */
    struct cstd_deaths deaths;            /* Deaths since the last completed command. */
    struct cstd_engine_counters base;     /* Counters of earlier processes, summed. */
    struct cstd_engine_counters counters; /* Counters of the present process at the last Pong. */
    /* Rates computed from the differences between successive Pongs. */
    struct cstd_rates_seen seen;
    /* The engine's progress counter at the last Pong; it changes while the engine works. */
    uint64_t progress;
    uint64_t progress_seen; /* Value of progress when the watchdog checked last. */
    /* Seconds without a message from the process while it is busy. */
    unsigned n_unanswered;
    uint32_t n_asked; /* Requests to map or unmap segments that the process has not answered. */
    /* Some segments wait to be mapped until the population of another owner's segments has ended;
     * see mounts.c. */
    bool one_by_one;
    bool locked; /* Outcome of the last attempt to lock a segment. */
    /* Accelerators: the driver did not register some host memory, which the process copies through
     * buffers of its own. */
    bool staged;
    bool unsettled; /* The process was told that memory of an earlier daemon's jobs is to come. */
    char why[sizeof((struct cst_err *)NULL)->text]; /* FAILED: the reason. */
    /* The last message of a process that ends with an error; status 0: there was none. */
    struct cst_err last_words;
    /* FAILED: deferred handling of commands that arrive, and of a failed start. */
    struct cstd_deferred refuse;
    /* FAILED, node's engine: a command arrived, and the engine will be started again for it. */
    bool retry;
};

/* Initialise @engine as OFF. @device: UUID of the engine's accelerator, or empty for a node's
 * engine. */
void cstd_engine_init(struct cstd_engine *engine, struct cstd_engines *engines, unsigned index,
                      unsigned os_node, const char *device);

/* Free the commands and the undo segment. The process must have ended. */
void cstd_engine_close(struct cstd_engine *engine);

/* Start the engine's process. CST_EENGINE or CST_ENOMEM: the process cannot be started; the state
 * is FAILED then. */
int cstd_engine_start(struct cstd_engine *engine, struct cst_err *err);

/* Start the engine if it is OFF or FAILED. If the start fails, those who wait for the engine are
 * told later, not inside this call. Before cstd_engines_start nothing is started. */
void cstd_engine_need(struct cstd_engine *engine);

/* Count a use of an accelerator's engine by a rank, and the end of this use. The engine starts with
 * the first use. It ends when it has had no use for the configured time. */
void cstd_engine_use(struct cstd_engine *engine);
void cstd_engine_unuse(struct cstd_engine *engine);

/* End the process of an engine that has no use now: its next use starts another one. What it still
 * maps is unmapped by its end. */
void cstd_engine_end_idle(struct cstd_engine *engine);

/* True for the engine of an accelerator (a GPU or a simulated accelerator) or of a drive, false for
 * that of a NUMA node. */
static inline bool cstd_engine_is_gpu(const struct cstd_engine *engine)
{
    return engine->device[0] != '\0';
}

/* Returns "host", "cuda", "paced" or "disk". */
const char *cstd_engine_kind(const struct cstd_engine *engine);

/* Queue @command, which was taken, for its engine. If the state is FAILED, a node's engine is
 * started again later, and an accelerator's engine completes the command with CST_EENGINE later. */
void cstd_engine_queue(struct cstd_command *command);

/* Send a message of @type with the descriptor @fd (-1: none) to the process. A process that cannot
 * receive it is killed. */
int cstd_engine_send(struct cstd_engine *engine, uint16_t type, uint64_t request,
                     const ProtobufCMessage *message, int fd);

/* The same with the @n bytes of a packed message. */
int cstd_engine_send_bytes(struct cstd_engine *engine, uint16_t type, uint64_t request,
                           const uint8_t *body, size_t n);

/* True if the process runs and can be asked to map segments. */
static inline bool cstd_engine_is_up(const struct cstd_engine *engine)
{
    return engine->state == CSTD_ENGINE_READY || engine->state == CSTD_ENGINE_MOUNTING;
}

/* Send unsent commands until the socket is full. Called once per iteration of the loop, and when
 * the socket is writable again. */
void cstd_engine_flush(struct cstd_engine *engine);

/* True if the process has commands or segment requests to complete, or is starting. */
bool cstd_engine_is_busy(const struct cstd_engine *engine);

/* Ask the process for its counters. A process that has sent nothing for 60 s is killed. If it does
 * not end in 10 s more, the engine is given up. Called once a second while an engine is busy. */
void cstd_engine_ping(struct cstd_engine *engine);

/* Returns the name of @state for users. The name of CSTD_ENGINE_MOUNTING is "restarting". */
const char *cstd_engine_state_name(enum cstd_engine_state state);

#endif
