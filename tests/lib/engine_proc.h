/* SPDX-License-Identifier: Apache-2.0 */
/* A real engine process, driven as the daemon drives it: started on a socketpair, fed with
 * messages, its completions collected. For tests and benchmarks: what cannot go wrong in them is
 * asserted with abort(). One thread. */
#ifndef CST_ENGINE_PROC_H
#define CST_ENGINE_PROC_H

#include "proto/engine.pb-c.h"
#include "proto/frame.h"
#include "proto/table.h"

#include <sys/types.h>

#define ENGINE_PROC_MAX_AFTER 8
#define ENGINE_PROC_MAX_SRC 64
#define ENGINE_PROC_MAX_ROWS 5

/* A row of an UPDATE that is elsewhere. */
struct engine_row {
    uint32_t row; /* enum cst_row */
    struct cst_place place;
};

/* A command, flat. Fields as in proto/engine.proto; zero where a kind has no use for them. */
struct engine_command {
    Engine__CommandKind kind;
    uint64_t ticket;
    uint64_t after[ENGINE_PROC_MAX_AFTER];
    unsigned n_after;
    Engine__Priority priority;
    bool newest_first;
    struct cst_place src[ENGINE_PROC_MAX_SRC];
    unsigned n_src;
    struct cst_place dst[4];
    unsigned n_dst;
    uint64_t bytes, n_elems;
    uint32_t table, chunk;
    uint64_t mark;
    bool accumulate;                                                       /* REDUCE */
    struct engine_row in[ENGINE_PROC_MAX_ROWS], out[ENGINE_PROC_MAX_ROWS]; /* UPDATE */
    unsigned n_in, n_out;
    bool guard;
    bool encode, decode; /* CONVERT, of `row`, whose format `moments` is */
    bool clear;          /* CONVERT of a master row: moments are rows of the format `moments` */
    uint32_t moments, row;
    uint64_t first, row_elems;
    bool told; /* not for the engine: kill_run issues it when the ends of `after` are known */
    float lr, beta1, beta2, eps, weight_decay, grad_scale; /* UPDATE */
};

/* A COPY, a FILL with zeros. */
struct engine_command engine_command_copy(struct cst_place dst, struct cst_place src,
                                          uint64_t bytes);
struct engine_command engine_command_fill(struct cst_place dst, uint64_t bytes);

struct engine_completion {
    uint64_t ticket;
    int status;
    double value;
    char text[384];
};

struct engine_segment_done {
    int status;
    bool locked;
    int fd; /* that came with it, the caller's; -1: none */
    char text[384];
};

struct engine_proc {
    pid_t pid;                      /* of the engine; 0: reaped */
    int sock;                       /* our end; -1: closed */
    uint64_t last_request;          /* id of the last request sent */
    struct cst_frame_buf buf;       /* of the last message */
    struct engine_completion *done; /* all that have come and were not forgotten, in order */
    size_t n_done, capacity;        /* in done; room */
    uint32_t threads, copy_threads; /* as READY said */
    char isa[16];                   /* same */
    char device_name[64];           /* same, and so on: an engine of a GPU */
    uint64_t device_bytes, granularity;
    uint32_t driver;
    uint64_t progress_bytes; /* of the last PROGRESS */
    unsigned n_progress;     /* PROGRESS events that came */
};

/* The program that tests start: what engine_proc_use says, else $CST_ENGINE, else
 * ./cistern-engine-host. */
const char *engine_proc_program(void);

/* From now on start @program and name @device in SETUP (NULL: none). Both are borrowed. */
void engine_proc_use(const char *program, const char *device);

/* From now on give the program @option (NULL: none), which takes @value: "--paced" and rates make
 * the host's a paced accelerator. Both are borrowed. */
void engine_proc_use_option(const char *option, const char *value);

/* The copy_share of every SETUP from now on. */
void engine_proc_copy_share(float share);

/* The table of traffic of every SETUP from now on, of @n slots in @fd; @own: the engine's. -1: none
 * is passed. */
void engine_proc_traffic(int fd, uint32_t n, int own);

/* A sealed memfd of @bytes, zeroed; mapped to *@base if that is not NULL. */
int engine_proc_memfd(uint64_t bytes, void **base);

/* Start the engine without saying anything to it; its stderr goes to fd @stderr_fd, or nowhere else
 * if that is -1. */
void engine_proc_start(struct engine_proc *proc, int stderr_fd);

/* Start it and send SETUP with @undo_fd of @undo_bytes as segment @undo_id; READY has come. */
void engine_proc_open(struct engine_proc *proc, uint32_t threads, uint32_t copy_threads,
                      uint32_t undo_id, int undo_fd, uint64_t undo_bytes);

/* Send one message with @fd (-1: none). Returns its request id. */
uint64_t engine_proc_send(struct engine_proc *proc, Engine__MsgType type,
                          const ProtobufCMessage *message, int fd);

/* Read messages until the reply to @request comes; its frame, good until the next read, or NULL:
 * the engine hung up. DONE and PROGRESS on the way are kept. */
const struct cst_frame *engine_proc_reply(struct engine_proc *proc, uint64_t request,
                                          struct cst_frame *frame);

/* Send a SEGMENT_ADD and wait for its answer. */
struct engine_segment_done engine_proc_add(struct engine_proc *proc, uint32_t id, int fd,
                                           uint64_t bytes, int node, bool populate, bool lock);

/* Same for @bytes of a GPU's memory whose handle is @fd; -1: make it, and the answer has a handle.
 */
struct engine_segment_done engine_proc_add_device(struct engine_proc *proc, uint32_t id, int fd,
                                                  uint64_t bytes);

/* Send a SEGMENT_ADD that must succeed. */
void engine_proc_must_add(struct engine_proc *proc, uint32_t id, int fd, uint64_t bytes);

/* Send a SEGMENT_DROP; returns the request, for engine_proc_segment_done. */
uint64_t engine_proc_drop(struct engine_proc *proc, uint32_t id);

/* Wait for the SEGMENT_DONE that answers @request. */
struct engine_segment_done engine_proc_segment_done(struct engine_proc *proc, uint64_t request);

/* Submit @n commands in as few messages as they fit in. */
void engine_proc_submit(struct engine_proc *proc, const struct engine_command *commands, size_t n);

/* Wait until command @ticket has completed; NULL: the engine hung up first. */
const struct engine_completion *engine_proc_wait(struct engine_proc *proc, uint64_t ticket);

/* The completion of @ticket, if it has come. */
const struct engine_completion *engine_proc_find(const struct engine_proc *proc, uint64_t ticket);

/* Read what is there within @timeout_ms (-1: wait for something). False: the engine hung up. */
bool engine_proc_read(struct engine_proc *proc, int timeout_ms);

/* Ping it. */
void engine_proc_ping(struct engine_proc *proc, Engine__Pong *out);

/* kill -9 and reap. Completions that were sent are kept. */
void engine_proc_kill(struct engine_proc *proc);

/* Hang up and reap; returns the exit status as waitpid tells it. Frees the completions. */
int engine_proc_close(struct engine_proc *proc);

#endif
