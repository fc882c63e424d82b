/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a thread of the test, for libcistern alone: one rank, one connection at a time, all
 * memory in two arrays. It answers as proto/cistern.proto says; a test's hook sees each request
 * first and may answer in its stead, wrongly if it likes.
 *
 * Layout: tensor i lies in chunk i / 2 at element (i % 2) x FAKE_TENSOR_ELEMS; so tensors have at
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
#define FAKE_ARENA_ROWS 8     /* weight rows in each */
#define FAKE_ARENA_SEGMENT 70 /* id of the first */

struct fake_daemon;

/* Return true if the request was dealt with. Runs in the daemon's thread. */
typedef bool (*fake_hook)(struct fake_daemon *fake, const struct cst_frame *request, void *arg);

struct fake_block {
    bool used;           /* leased */
    bool is_grad;        /* else weights */
    uint32_t chunk;      /* whose */
    uint64_t generation; /* of the lease */
};

struct fake_daemon {
    /* Set before fake_daemon_start. */
    fake_hook hook;         /* sees requests first; may be NULL */
    void *hook_arg;         /* its argument */
    bool old;               /* knows no features: batches with WANT are refused */
    uint32_t credits;       /* 0: 8 */
    uint32_t max_batch;     /* 0: 64 */
    uint32_t n_blocks;      /* 0: 6 */
    uint64_t staging_bytes; /* 0: 4096 */
    const char *device;     /* of the job; NULL: the host */
    uint32_t n_arenas; /* > 0: the worker copies weights itself. Chunk c's are row c / n_arenas of
                          arena c % n_arenas; they are in the block when it is released */
    uint64_t corrupt;  /* not 0: random state; now and then a few bits of a reply are wrong */

    /* The daemon thread's; a test looks under the mutex. */
    pthread_mutex_t mutex; /* held while a request is served */
    char log[4096]; /* items in order: W1 fetch weight, W1+ ahead, G1 fetch grad, r1 release, R1
                       hand in, A end of a micro-batch, P step prepared, S step */
    uint32_t n_requests[64]; /* by type */
    uint32_t n_connections;  /* accepted */
    uint32_t n_tensors;      /* declared */
    uint64_t attempt, step;  /* as in Synced */
    uint16_t weight[FAKE_MAX_CHUNKS]
                   [4]; /* first elements of each chunk's first tensor, copied into blocks */
    uint16_t *grads[FAKE_MAX_CHUNKS];          /* handed in: a chunk each */
    Cistern__Hyper hyper;                      /* of the last step, or prepared since */
    struct fake_block blocks[FAKE_MAX_BLOCKS]; /* of the pool */

    /* The thread's own. */
    char directory[64];             /* temporary */
    char path[80];                  /* of the socket */
    pthread_t thread;               /* serves */
    int listener;                   /* listening socket */
    int sock;                       /* the connection, or -1 */
    int slab_fds[FAKE_MAX_BLOCKS];  /* memfds of the pool */
    char *slabs[FAKE_MAX_BLOCKS];   /* mapped */
    uint32_t n_slabs;               /* entries in both */
    int arena_fds[FAKE_MAX_ARENAS]; /* memfds of weight rows */
    char *arenas[FAKE_MAX_ARENAS];  /* mapped */
    int staging_fd;                 /* memfd */
    char *staging;                  /* mapped, staging_bytes */
    char *states; /* what reads and writes of tensors see: all rows of all tensors are this */
    struct cst_frame_buf in; /* request under way */
};

/* Start it on a socket in a new directory; fake->path. Aborts the test on failure. */
void fake_daemon_start(struct fake_daemon *fake);

/* Stop the thread, remove socket and directory. */
void fake_daemon_stop(struct fake_daemon *fake);

/* For hooks: answer @request with @type and @body (NULL: none) and @n_fds of @fds; or with an
 * Error; or close the connection. */
void fake_daemon_reply(struct fake_daemon *fake, const struct cst_frame *request, uint16_t type,
                       const ProtobufCMessage *body, const int *fds, unsigned n_fds);
void fake_daemon_error(struct fake_daemon *fake, const struct cst_frame *request, int status,
                       const char *text);
void fake_daemon_hang_up(struct fake_daemon *fake);

/* The weights of @chunk in the arenas. */
char *fake_daemon_row(struct fake_daemon *fake, uint32_t chunk);

/* For hooks: answer as if there were no hook. */
void fake_daemon_serve(struct fake_daemon *fake, const struct cst_frame *request);

/* Copy of the log so far; the caller's, to free. Ping first: requests are served in order. */
char *fake_daemon_log(struct fake_daemon *fake);

/* A memfd of @bytes, sealed against shrinking and growing if @sealed. */
int fake_memfd(uint64_t bytes, bool sealed);

#endif
