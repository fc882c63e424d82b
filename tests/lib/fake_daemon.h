/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated daemon in a thread of the test, for tests of libcistern alone. It serves one rank on
 * one connection at a time, with all memory in two arrays, and answers as proto/cistern.proto
 * specifies. A hook of the test sees each request first and may answer it differently, even
 * wrongly. Tensor i lies in chunk i / 2 at element (i % 2) x FAKE_TENSOR_ELEMS, so a tensor has at
 * most that many elements. */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include "proto/cistern.pb-c.h"
#include "proto/frame.h"

#include <pthread.h>
#include <stdbool.h>

#define FAKE_CHUNK_ELEMS 4096
#define FAKE_TENSOR_ELEMS 2048
#define FAKE_BLOCK_BYTES (2 * FAKE_CHUNK_ELEMS)
#define FAKE_MAX_CHUNKS 2048
#define FAKE_MAX_BLOCKS 16
#define FAKE_BLOCKS_PER_SLAB 2
#define FAKE_MAX_ARENAS 4
#define FAKE_ARENA_ROWS 8     /* weight rows in each arena */
#define FAKE_ARENA_SEGMENT 70 /* segment id of the first arena */

struct fake_daemon;

/* Sees a request before the daemon does. Returns true if it has handled the request. Runs in the
 * daemon's thread. */
typedef bool (*fake_hook)(struct fake_daemon *fake, const struct cst_frame *request, void *arg);

/* A block of the simulated pool. */
struct fake_block {
    bool used;           /* the block is leased */
    bool is_grad;        /* the block holds a gradient; false: weights */
    uint32_t chunk;      /* the chunk in the block */
    uint64_t generation; /* generation of the block's lease */
};

/* The simulated daemon. Zero it before the options are set. */
struct fake_daemon {
    /* Options, set before fake_daemon_start. */
    fake_hook hook;         /* sees requests first; may be NULL */
    void *hook_arg;         /* the last argument of `hook` */
    uint32_t credits;       /* credits of a session; 0: 8 */
    uint32_t max_batch;     /* most items of a batch; 0: 64 */
    uint32_t n_blocks;      /* blocks in the pool; 0: 6 */
    uint64_t staging_bytes; /* size of the staging memory; 0: 4096 */
    const char *device;     /* device of the job's pool; NULL: the host */
    /* If positive, the worker copies weights itself. The weights of chunk c are row c / n_arenas of
     * arena c % n_arenas, and must be in the block when the block is released. */
    uint32_t n_arenas;
    /* If not 0, the state of a generator that sometimes flips a few bits of a reply. */
    uint64_t corrupt;

    /* Written by the daemon's thread. Tests read these fields while they hold `mutex`. */
    pthread_mutex_t mutex; /* held while a request is served */
    /* Served items in order: W1 fetch weight of chunk 1, W1+ prefetch of the weight, G1 fetch
     * gradient, r1 release, R1 hand in, A end of a micro-batch, P prepare, S step. */
    char log[4096];
    uint32_t n_requests[128]; /* number of requests per message type */
    uint32_t n_connections;   /* number of connections accepted */
    uint32_t n_tensors;       /* number of tensors declared */
    uint64_t attempt, step;   /* attempt and step of the last Synced */
    /* First elements of each chunk's first tensor, which are copied into blocks. */
    uint16_t weight[FAKE_MAX_CHUNKS][4];
    uint16_t *grads[FAKE_MAX_CHUNKS]; /* per chunk: the gradient that was handed in */
    Cistern__Hyper hyper;             /* hyper-parameters of the last step, or of a later prepare */
    struct fake_block blocks[FAKE_MAX_BLOCKS]; /* the blocks of the pool */

    /* Used by the daemon's thread only. */
    char directory[64];             /* temporary directory of the socket */
    char path[80];                  /* path of the socket */
    pthread_t thread;               /* the thread that serves */
    int listener;                   /* listening socket */
    int sock;                       /* the connection, or -1 */
    int slab_fds[FAKE_MAX_BLOCKS];  /* memfds of the pool's slabs */
    char *slabs[FAKE_MAX_BLOCKS];   /* the slabs, mapped */
    uint32_t n_slabs;               /* number of slabs */
    int arena_fds[FAKE_MAX_ARENAS]; /* memfds of the weight rows */
    char *arenas[FAKE_MAX_ARENAS];  /* the arenas, mapped */
    int staging_fd;                 /* memfd of the staging memory */
    char *staging;                  /* the staging memory, mapped */
    /* What tests read and write as a tensor's state: all rows of all tensors share this memory. */
    char *states;
    struct cst_frame_buf in; /* the current request */
};

/* Start the daemon on a socket in a new directory; fake->path is the socket. Fails the test on an
 * error. */
void fake_daemon_start(struct fake_daemon *fake);

/* Stop the thread and remove the socket and the directory. */
void fake_daemon_stop(struct fake_daemon *fake);

/* For hooks: answer @request with @type, @body (NULL: none) and the descriptors @fds; or with an
 * Error; or close the connection. */
void fake_daemon_reply(struct fake_daemon *fake, const struct cst_frame *request, uint16_t type,
                       const ProtobufCMessage *body, const int *fds, unsigned n_fds);
void fake_daemon_error(struct fake_daemon *fake, const struct cst_frame *request, int status,
                       const char *text);
void fake_daemon_hang_up(struct fake_daemon *fake);

/* Address of the weights of @chunk in the arenas. */
char *fake_daemon_row(struct fake_daemon *fake, uint32_t chunk);

/* For hooks: answer the request as if there were no hook. */
void fake_daemon_serve(struct fake_daemon *fake, const struct cst_frame *request);

/* A copy of the log so far, which the caller frees. The test should ping before: requests are
 * served in order. */
char *fake_daemon_log(struct fake_daemon *fake);

/* Make a memfd of @bytes. If @sealed, it can neither shrink nor grow. */
int fake_memfd(uint64_t bytes, bool sealed);

#endif
