/* SPDX-License-Identifier: Apache-2.0 */
/* A crew: threads that take pieces of jobs. The engine has a team (arithmetic) and one or more
 * crews of lanes (copies, populating). There are no barriers: a thread that finds the first job's
 * pieces all taken goes on with the next job, so many small jobs cost no more than one large one.
 * Knows nothing of what a piece is, and nothing of processors.
 *
 *   class 0  [job: piece piece piece]->[job]->[job: piece piece]
 *   class 1  [job: piece]
 *   ...
 *
 * A thread takes the next piece of the first job of the lowest class; a job that wants to goes
 * before those of its class that are not begun. Each CST_CREW_TURN-th piece comes from the highest
 * class that has one, so that no class waits for ever. */
#ifndef CST_CREW_H
#define CST_CREW_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CST_CREW_CLASSES 4 /* demand, prefetch, eviction, background */
#define CST_CREW_TURN 16   /* pieces */
#define CST_CREW_MAX_THREADS 1000

struct cst_job;

/* Do piece number @piece of @job on thread number @thread. Several pieces run at the same time. */
typedef void (*cst_job_piece_fn)(struct cst_job *job, uint64_t piece, unsigned thread);

/* All pieces have been done; everything that they wrote is visible here. On the thread that did the
 * last one. The crew does not touch the job again: it may be freed or submitted anew. */
typedef void (*cst_job_done_fn)(struct cst_job *job);

/* Embedded in what it works on. The first five are set by the owner, the rest is the crew's. */
struct cst_job {
    cst_job_piece_fn piece; /* the work */
    cst_job_done_fn done;   /* its end */
    uint64_t n_pieces;      /* at least 1 */
    unsigned class;         /* 0..CST_CREW_CLASSES-1, lowest first */
    bool newest_first;      /* before those of its class that are not begun */
    uint64_t next;          /* number of the piece that is taken next */
    uint64_t left;          /* pieces that are not done */
    uint64_t began_ns;      /* monotonic time when the first piece was taken */
    struct cst_job *link;   /* next job of its class */
};

struct cst_crew_config {
    const char *name;   /* of the threads: "name-0", at most 9 characters */
    unsigned n_threads; /* 1..CST_CREW_MAX_THREADS */
    unsigned first;     /* number of its first thread: the others follow */
    void (*start)(void *arg,
                  unsigned thread); /* first thing on each thread (pinning); may be NULL */
    void *arg;                      /* for start */
};

struct cst_crew_queue {
    struct cst_job *head; /* whose pieces are taken; NULL: none has any left. No other is begun */
    struct cst_job *tail; /* last in turn, where there is a head */
};

struct cst_crew {
    struct cst_crew_config config;
    pthread_mutex_t mutex; /* guards all below and the crew's part of jobs */
    pthread_cond_t wake;   /* there is a piece to take, or stop */
    struct cst_crew_queue queues[CST_CREW_CLASSES];
    unsigned n_idle;    /* threads that wait */
    unsigned n_started; /* threads that exist */
    unsigned turn;      /* pieces taken, mod CST_CREW_TURN */
    bool stop;          /* threads leave */
    pthread_t *threads; /* n_started of them */
};

/* Start the threads. CST_EINVAL: number of threads; CST_ENOMEM: the system gives no more threads
 * (none is left running). */
int cst_crew_open(struct cst_crew *crew, const struct cst_crew_config *config, struct cst_err *err);

/* End the threads after the pieces that they have in hand. Jobs that have pieces left are
 * forgotten: their done is not called. */
void cst_crew_close(struct cst_crew *crew);

/* Queue @job. Never blocks for long, never fails. Any thread, also from a done. */
void cst_crew_submit(struct cst_crew *crew, struct cst_job *job);

/* Nanoseconds of the monotonic clock. */
uint64_t cst_crew_now(void);

#endif
