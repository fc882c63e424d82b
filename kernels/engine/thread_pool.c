/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/thread_pool.h"

#include "proto/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct start {
    struct cste_thread_pool *pool; /* Thread pool of the new thread. */
    unsigned thread; /* Number of the thread, counted from the first thread of the thread pool. */
};

/* A piece that a thread has taken. */
struct piece {
    struct cste_task *task;
    uint64_t number;
};

/* The pieces that a thread has under way, the oldest first. */
struct window {
    struct piece v[CSTE_THREAD_POOL_MAX_WINDOW];
    unsigned n;
};

/* Returns the queue from which the next piece is taken, or NULL. */
static struct cste_thread_pool_queue *pick(struct cste_thread_pool *pool)
{
    bool last_first = pool->turn == CSTE_THREAD_POOL_TURN - 1;

    for (unsigned i = 0; i < CSTE_THREAD_POOL_CLASSES; i++) {
        struct cste_thread_pool_queue *queue =
            &pool->queues[last_first ? CSTE_THREAD_POOL_CLASSES - 1 - i : i];

        if (queue->head != NULL) {
            return queue;
        }
    }
    return NULL;
}

/* Take a piece. If there is none, wait for one if @wait is true. Returns false if there is none, or
 * if the thread pool ends. Called and left with the mutex held. */
static bool take(struct cste_thread_pool *pool, bool wait, struct piece *out)
{
    struct cste_thread_pool_queue *queue = NULL;
    struct cste_task *task;

    while (!pool->stop && (queue = pick(pool)) == NULL && wait) {
        pool->n_idle++;
        (void)pthread_cond_wait(&pool->wake, &pool->mutex);
        pool->n_idle--;
    }
    if (pool->stop || queue == NULL) {
        return false;
    }
    task = queue->head;
    if (task->next == 0) {
        task->began_ns = cst_clock_ns();
    }
    *out = (struct piece){.task = task, .number = task->next++};
    if (task->next == task->n_pieces) {
        queue->head = task->link;
    }
    pool->turn = (pool->turn + 1) % CSTE_THREAD_POOL_TURN;
    return true;
}

/* Run or begin @piece. Returns whether it is under way. */
static bool begin(const struct piece *piece, unsigned thread)
{
    if (piece->task->piece == NULL) {
        return piece->task->begin(piece->task, piece->number, thread);
    }
    piece->task->piece(piece->task, piece->number, thread);
    return false;
}

/* Finish the oldest piece that is under way. Returns its task. */
static struct cste_task *finish_oldest(struct window *window, unsigned thread)
{
    struct piece piece = window->v[0];

    window->n--;
    memmove(window->v, window->v + 1, window->n * sizeof window->v[0]);
    piece.task->finish(piece.task, piece.number, thread);
    return piece.task;
}

/* Count a piece of @task as done. Called and left with the mutex held. */
static void count_done(struct cste_thread_pool *pool, struct cste_task *task)
{
    if (--task->left > 0) {
        return;
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    task->done(task);
    /* Let the thread run that the done function notified. If all cores are busy, that thread would
     * wait for the end of a time slice, and so would the client that waits for the task. */
    (void)sched_yield();
    (void)pthread_mutex_lock(&pool->mutex);
}

/* Begin the taken @piece (NULL: none was taken), and finish the oldest piece if the window is full
 * or no piece was taken. Called and left with the mutex held. */
static void advance(struct cste_thread_pool *pool, const struct piece *piece, struct window *window,
                    unsigned thread)
{
    struct cste_task *ended[2] = {NULL, NULL};

    (void)pthread_mutex_unlock(&pool->mutex);
    if (piece != NULL && begin(piece, thread)) {
        window->v[window->n++] = *piece;
    } else if (piece != NULL) {
        ended[0] = piece->task;
    }
    if (window->n > 0 && (piece == NULL || window->n >= pool->config.window)) {
        ended[1] = finish_oldest(window, thread);
    }
    (void)pthread_mutex_lock(&pool->mutex);
    for (int i = 0; i < 2; i++) {
        if (ended[i] != NULL) {
            count_done(pool, ended[i]);
        }
    }
}

static void *thread_main(void *arg)
{
    struct start start = *(struct start *)arg;
    struct cste_thread_pool *pool = start.pool;
    unsigned number = pool->config.first + start.thread;
    struct window window = {.n = 0};
    struct piece piece;
    bool taken;

    free(arg);
    if (pool->config.start != NULL) {
        pool->config.start(pool->config.arg, number);
    }
    (void)pthread_mutex_lock(&pool->mutex);
    while ((taken = take(pool, window.n == 0, &piece)) || window.n > 0) {
        advance(pool, taken ? &piece : NULL, &window, number);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static int start_thread(struct cste_thread_pool *pool, unsigned thread)
{
    struct start *start = malloc(sizeof *start);
    char name[16];

    if (start == NULL) {
        return -1;
    }
    *start = (struct start){.pool = pool, .thread = thread};
    if (pthread_create(&pool->threads[thread], NULL, thread_main, start) != 0) {
        free(start);
        return -1;
    }
    /* The system limits the name of a thread to 15 characters. */
    (void)snprintf(name, sizeof name, "%.9s-%u", pool->config.name,
                   thread % CSTE_THREAD_POOL_MAX_THREADS);
    (void)pthread_setname_np(pool->threads[thread], name);
    return 0;
}

int cste_thread_pool_open(struct cste_thread_pool *pool,
                          const struct cste_thread_pool_config *config, struct cst_err *err)
{
    if (config->n_threads < 1 || config->n_threads > CSTE_THREAD_POOL_MAX_THREADS) {
        return cst_err_set(err, CST_EINVAL, "thread pool %s of %u threads, allowed 1 to %d",
                           config->name, config->n_threads, CSTE_THREAD_POOL_MAX_THREADS);
    }
    if (config->window > CSTE_THREAD_POOL_MAX_WINDOW) {
        return cst_err_set(err, CST_EINVAL, "thread pool %s: %u pieces under way, allowed 0 to %d",
                           config->name, config->window, CSTE_THREAD_POOL_MAX_WINDOW);
    }
    *pool = (struct cste_thread_pool){.config = *config};
    (void)pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_cond_init(&pool->wake, NULL);
    pool->threads = calloc(config->n_threads, sizeof *pool->threads);
    while (pool->threads != NULL && pool->n_started < config->n_threads) {
        if (start_thread(pool, pool->n_started) != 0) {
            break;
        }
        pool->n_started++;
    }
    if (pool->n_started < config->n_threads) {
        unsigned n = pool->n_started;

        cste_thread_pool_close(pool);
        return cst_err_set(err, CST_ENOMEM, "thread pool %s: thread %u of %u could not be started",
                           config->name, n + 1, config->n_threads);
    }
    return CST_OK;
}

void cste_thread_pool_close(struct cste_thread_pool *pool)
{
    (void)pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->wake);
    (void)pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->n_started; i++) {
        (void)pthread_join(pool->threads[i], NULL);
    }
    free(pool->threads);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->mutex);
}

/* Put @task into @queue. A task that has begun keeps its place at the head. */
static void enqueue(struct cste_thread_pool_queue *queue, struct cste_task *task)
{
    struct cste_task **at = &queue->head;

    if (*at != NULL && !task->newest_first) {
        at = &queue->tail->link;
    } else if (*at != NULL && (*at)->next > 0) {
        at = &(*at)->link;
    }
    task->link = *at;
    *at = task;
    queue->tail = task->link == NULL ? task : queue->tail;
}

void cste_thread_pool_submit(struct cste_thread_pool *pool, struct cste_task *task)
{
    uint64_t n_wake;

    task->next = 0;
    task->left = task->n_pieces;
    (void)pthread_mutex_lock(&pool->mutex);
    enqueue(&pool->queues[task->class], task);
    /* No more threads are woken than there are pieces. */
    n_wake = task->n_pieces < pool->n_idle ? task->n_pieces : pool->n_idle;
    while (n_wake-- > 0) {
        (void)pthread_cond_signal(&pool->wake);
    }
    (void)pthread_mutex_unlock(&pool->mutex);
}
