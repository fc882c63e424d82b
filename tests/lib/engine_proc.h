/* SPDX-License-Identifier: Apache-2.0 */
/* A real engine process that is driven as the daemon drives it: started on a socketpair and sent
 * messages, while its completions are collected. For tests and benchmarks. An error that must not
 * occur in them ends the program with abort(). Use a struct engine_proc from one thread only. */
#ifndef CST_ENGINE_PROC_H
#define CST_ENGINE_PROC_H

#include "proto/engine.pb-c.h"
#include "proto/frame.h"
#include "proto/table.h"

#include <sys/types.h>

#define ENGINE_PROC_MAX_AFTER 8
#define ENGINE_PROC_MAX_SRC 64
#define ENGINE_PROC_MAX_ROWS 5

/* A row that an UPDATE reads or writes at another place than the table's. */
struct engine_row {
    uint32_t row; /* an enum cst_row */
    struct cst_place place;
};

/* A command without nested messages. Fields are those of proto/engine.proto, and zero if the kind
 * does not use them. */
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
    bool accumulate; /* REDUCE: add to the destination */
    bool partials;   /* REDUCE: the sources are fp32 */
    /* UPDATE: rows that are read or written elsewhere. */
    struct engine_row in[ENGINE_PROC_MAX_ROWS], out[ENGINE_PROC_MAX_ROWS];
    unsigned n_in, n_out;
    bool guard;
    /* SET_MASTER also clears the moments, which have the format `moments`. */
    bool clear;
    bool from_bf16; /* SET_MASTER: the elements are bf16 */
    bool split;     /* SET_MASTER: split master weights */
    bool fp32;      /* SET_MASTER: of an fp32 tensor */
    uint32_t moments, row;
    uint64_t first, row_elems;
    /* Not sent to the engine. kill_run issues the command only when it knows the ends of
     * `after`. */
    bool after_ack;
    float lr, beta1, beta2, eps, weight_decay, grad_scale; /* UPDATE: hyper-parameters */
};

/* Make a COPY of @bytes, or a FILL of @bytes with zeros. */
struct engine_command engine_command_copy(struct cst_place dst, struct cst_place src,
                                          uint64_t bytes);
struct engine_command engine_command_fill(struct cst_place dst, uint64_t bytes);

/* The end of a command, as DONE reports it. */
struct engine_completion {
    uint64_t ticket;
    int status;
    double value;
    char text[640];
};

/* The engine's answer to SEGMENT_ADD or SEGMENT_DROP. */
struct engine_segment_done {
    int status;
    bool locked;
    int fd; /* descriptor that came with the answer, owned by the caller; -1: none */
    char text[640];
};

/* An engine process, and what it has sent. */
struct engine_proc {
    pid_t pid;                /* process id of the engine; 0: it was reaped */
    int sock;                 /* the test's end of the socketpair; -1: closed */
    uint64_t last_request;    /* id of the last request that was sent */
    struct cst_frame_buf buf; /* buffer of the last message */
    /* Completions in order of arrival, without those that were forgotten. */
    struct engine_completion *done;
    size_t n_done, capacity;        /* entries in `done`, and its capacity */
    uint32_t threads, copy_threads; /* numbers of threads that READY reported */
    char isa[16];                   /* instruction set that READY reported */
    char device_name[64];           /* name of the GPU that READY reported */
    uint64_t device_bytes, granularity;
    uint32_t driver;
    Engine__Ready *ready;    /* READY; owned */
    uint64_t progress_bytes; /* bytes that the last PROGRESS reported */
    unsigned n_progress;     /* number of PROGRESS events received */
};

/* The program that engine_proc_start runs: the one set by engine_proc_use, otherwise $CST_ENGINE,
 * otherwise ./cistern-engine-host. */
const char *engine_proc_program(void);

/* Start @program from now on, and name @device in SETUP (NULL: none). Both strings must stay
 * valid. */
void engine_proc_use(const char *program, const char *device);

/* Start the program with @option (NULL: none) and its argument @value from now on. The option
 * "--paced" with a file of rates makes the host's engine a paced accelerator. Both strings must
 * stay valid. */
void engine_proc_use_option(const char *option, const char *value);

/* Set the copy_share of every SETUP from now on. */
void engine_proc_copy_share(float share);

/* Name a network in every SETUP from now on (NULL: none). @net must stay valid. */
void engine_proc_net(Engine__Net *net);

/* Pass a table of traffic with every SETUP from now on: @n slots in the file @fd, of which the
 * engine's is @own. @fd -1: pass no table. */
void engine_proc_traffic(int fd, uint32_t n, int own);

/* Make a sealed memfd of @bytes zeros. If @base is not NULL, the memfd is also mapped at *@base.
 * The caller owns the descriptor and the mapping. */
int engine_proc_memfd(uint64_t bytes, void **base);

/* Start the engine without sending it anything. Its stderr goes to @stderr_fd (-1: not
 * redirected). */
void engine_proc_start(struct engine_proc *proc, int stderr_fd);

/* Engines that are started from now on are told that segments of an earlier daemon follow. */
void engine_proc_leave_unsettled(void);

/* Start the engine and send SETUP with @undo_fd, of @undo_bytes, as segment @undo_id. Returns when
 * READY has come. */
void engine_proc_open(struct engine_proc *proc, uint32_t threads, uint32_t copy_threads,
                      uint32_t undo_id, int undo_fd, uint64_t undo_bytes);

/* Send one message with the descriptor @fd (-1: none). Returns the request id. */
uint64_t engine_proc_send(struct engine_proc *proc, Engine__MsgType type,
                          const ProtobufCMessage *message, int fd);

/* Read messages until the reply to @request comes, and keep DONE and PROGRESS messages on the way.
 * Returns the frame, valid until the next read, or NULL if the engine closed the connection. */
const struct cst_frame *engine_proc_reply(struct engine_proc *proc, uint64_t request,
                                          struct cst_frame *frame);

/* Send a SEGMENT_ADD and wait for the answer. */
struct engine_segment_done engine_proc_add(struct engine_proc *proc, uint32_t id, int fd,
                                           uint64_t bytes, int node, bool populate, bool lock);

/* Add @bytes of a GPU's memory as a segment. @fd is the exported memory; -1: the engine allocates
 * it and answers with a descriptor. */
struct engine_segment_done engine_proc_add_device(struct engine_proc *proc, uint32_t id, int fd,
                                                  uint64_t bytes);

/* Add the range of @bytes from @offset on of the file @fd as a segment of a drive's engine. With
 * @populate, space is allocated and zeros are written. */
struct engine_segment_done engine_proc_add_file(struct engine_proc *proc, uint32_t id, int fd,
                                                uint64_t offset, uint64_t bytes, bool populate);

/* Send a SEGMENT_ADD that must succeed. */
void engine_proc_must_add(struct engine_proc *proc, uint32_t id, int fd, uint64_t bytes);

/* Send a SEGMENT_DROP. Returns the request id, for engine_proc_segment_done. */
uint64_t engine_proc_drop(struct engine_proc *proc, uint32_t id, bool discard);

/* Wait for the SEGMENT_DONE that answers @request. */
struct engine_segment_done engine_proc_segment_done(struct engine_proc *proc, uint64_t request);

/* Submit @n commands in as few messages as possible. */
void engine_proc_submit(struct engine_proc *proc, const struct engine_command *commands, size_t n);

/* Wait until command @ticket has completed. NULL if the engine closed the connection before. */
const struct engine_completion *engine_proc_wait(struct engine_proc *proc, uint64_t ticket);

/* The completion of @ticket, or NULL if it has not come. */
const struct engine_completion *engine_proc_find(const struct engine_proc *proc, uint64_t ticket);

/* Read messages that come within @timeout_ms (-1: wait for at least one). False if the engine
 * closed the connection. */
bool engine_proc_read(struct engine_proc *proc, int timeout_ms);

/* Send a ping and wait for the answer; *out has no peers. */
void engine_proc_ping(struct engine_proc *proc, Engine__Pong *out);

/* Kill the engine with SIGKILL and reap it. Completions that it had sent are kept. */
void engine_proc_kill(struct engine_proc *proc);

/* Close the connection and reap the engine. Returns its exit status in the form of waitpid. Frees
 * the completions. */
int engine_proc_close(struct engine_proc *proc);

#endif
