/* SPDX-License-Identifier: Apache-2.0 */
/* A thread pool is a group of threads that run the pieces of tasks. An engine has a team (a pool
 * for arithmetic) and one or more thread pools of lanes (copies, populating segments). There are no
 * barriers: when all pieces of the first task are taken, a thread goes on with the next task. Many
 * small tasks therefore cost no more than one large one. A thread pool does not know what a piece
 * does, and does not choose processors.
 *
 *   class 0  [task: piece piece piece]->[task]->[task: piece piece]
 *   class 1  [task: piece]
 *   ...
 *
 * A thread takes the next piece of the first task in the lowest class. A task with newest_first set
 * goes before the tasks of its class that have not begun. Every CSTE_THREAD_POOL_TURN-th piece is
 * taken from the highest class that has one, which keeps classes from starving.
 *
 * A piece that a device executes can be under way while its thread begins other pieces. Each thread
 * has a window of such pieces, of any tasks. The thread waits for the oldest one when the window is
 * full, or when there is no other piece to begin:
 *
 *   begin 0, begin 1, begin 2, begin 3, finish 0, begin 4, finish 1, ... finish 4 */
#ifndef CSTE_THREAD_POOL_H
#define CSTE_THREAD_POOL_H

#include "cistern/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Number of priority classes: demand, prefetch, eviction, background. */
#define CSTE_THREAD_POOL_CLASSES 4
/* Every CSTE_THREAD_POOL_TURN-th piece is taken from the highest class. */
#define CSTE_THREAD_POOL_TURN 16
#define CSTE_THREAD_POOL_MAX_THREADS 1000
/* Largest window: number of pieces that a thread has under way. */
#define CSTE_THREAD_POOL_MAX_WINDOW 8

struct cste_task;

/* Run piece number @piece of @task on thread number @thread. Several pieces of a task run at the
 * same time. */
typedef void (*cste_task_piece_fn)(struct cste_task *task, uint64_t piece, unsigned thread);

/* Begin piece number @piece of @task on thread number @thread. Returns whether the piece is under
 * way. If it is not, it is done. */
typedef bool (*cste_task_begin_fn)(struct cste_task *task, uint64_t piece, unsigned thread);

/* Called when all pieces of @task have been done, on the thread that did the last one. Everything
 * that the pieces wrote is visible. The thread pool does not use the task after this call; the
 * owner may free it or submit it again. */
typedef void (*cste_task_done_fn)(struct cste_task *task);

/* A task, embedded in the object that it works on. The owner sets the fields from piece to
 * newest_first. The thread pool uses the other fields. */
struct cste_task {
    cste_task_piece_fn piece; /* Runs one piece. NULL: begin and finish are set instead. */
    cste_task_begin_fn begin; /* Begins one piece. */
    /* Waits for a piece that is under way and ends it. A thread finishes its pieces in the order in
     * which it began them. */
    cste_task_piece_fn finish;
    cste_task_done_fn done; /* Called after the last piece. */
    uint64_t n_pieces;      /* Number of pieces, at least 1. */
    /* Priority class, 0 to CSTE_THREAD_POOL_CLASSES - 1. The lowest class goes first. */
    unsigned class;
    bool newest_first;      /* The task goes before the tasks of its class that have not begun. */
    uint64_t next;          /* Number of the piece that is taken next. */
    uint64_t left;          /* Number of pieces that are not done. */
    uint64_t began_ns;      /* Monotonic time when the first piece was taken. */
    struct cste_task *link; /* Next task of the class. */
};

/* Settings of a thread pool. */
struct cste_thread_pool_config {
    /* Name of the threads, at most 9 characters; they are called "name-0" and so on. */
    const char *name;
    unsigned n_threads; /* Number of threads, 1 to CSTE_THREAD_POOL_MAX_THREADS. */
    unsigned first;     /* Number of the first thread; the other threads follow. */
    /* Number of pieces that a thread may have under way, at most CSTE_THREAD_POOL_MAX_WINDOW. With
     * 0 or 1, a thread finishes a piece before it takes the next one. */
    unsigned window;
    /* Called first on each thread, for example to pin it. May be NULL. */
    void (*start)(void *arg, unsigned thread);
    void *arg; /* Argument of start. */
};

/* The tasks of one class, in the order in which they are run. */
struct cste_thread_pool_queue {
    /* Task whose pieces are being taken. NULL: no task of the class has pieces left to take. No
     * other task of the class has begun. */
    struct cste_task *head;
    struct cste_task *tail; /* Last task of the queue. Valid if head is not NULL. */
};

/* A thread pool. Private to thread_pool.c, except for config and n_started. */
struct cste_thread_pool {
    struct cste_thread_pool_config config;
    pthread_mutex_t mutex; /* Guards the fields below, and the thread pool's fields of tasks. */
    pthread_cond_t wake;   /* Signalled when there is a piece to take or stop is set. */
    struct cste_thread_pool_queue queues[CSTE_THREAD_POOL_CLASSES];
    unsigned n_idle;    /* Number of threads that wait. */
    unsigned n_started; /* Number of threads that were started. */
    unsigned turn;      /* Number of pieces taken, modulo CSTE_THREAD_POOL_TURN. */
    bool stop;          /* The threads are to end. */
    pthread_t *threads; /* Owned array of n_started threads. */
};

/* Start the threads. CST_EINVAL: n_threads or window is out of range; CST_ENOMEM: the system gives
 * no more threads, and none is left running. */
int cste_thread_pool_open(struct cste_thread_pool *pool,
                          const struct cste_thread_pool_config *config, struct cst_err *err);

/* End the threads after the pieces that they are running, under way or not. Tasks with pieces left
 * are abandoned: their done function is not called. */
void cste_thread_pool_close(struct cste_thread_pool *pool);

/* Queue the task @task. Never fails and blocks only for the mutex. Any thread, also from a done
 * function. */
void cste_thread_pool_submit(struct cste_thread_pool *pool, struct cste_task *task);

#endif
