/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/thread_pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct start {
    struct cste_thread_pool *crew; /* Crew of the new thread. */
    unsigned thread; /* Number of the thread, counted from the first thread of the crew. */
};

uint64_t cste_thread_pool_now(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Returns the queue from which the next piece is taken, or NULL. */
static struct cste_thread_pool_queue *pick(struct cste_thread_pool *crew)
{
    bool last_first = crew->turn == CSTE_THREAD_POOL_TURN - 1;

    for (unsigned i = 0; i < CSTE_THREAD_POOL_CLASSES; i++) {
        struct cste_thread_pool_queue *queue =
            &crew->queues[last_first ? CSTE_THREAD_POOL_CLASSES - 1 - i : i];

        if (queue->head != NULL) {
            return queue;
        }
    }
    return NULL;
}

/* Wait for a piece if there is none, and take it. NULL: the crew ends. Called and left with the
 * mutex held. */
static struct cste_task *take(struct cste_thread_pool *crew, uint64_t *piece_out)
{
    struct cste_thread_pool_queue *queue;
    struct cste_task *job;

    while (!crew->stop && (queue = pick(crew)) == NULL) {
        crew->n_idle++;
        (void)pthread_cond_wait(&crew->wake, &crew->mutex);
        crew->n_idle--;
    }
    if (crew->stop) {
        return NULL;
    }
    job = queue->head;
    if (job->next == 0) {
        job->began_ns = cste_thread_pool_now();
    }
    *piece_out = job->next++;
    if (job->next == job->n_pieces) {
        queue->head = job->link;
    }
    crew->turn = (crew->turn + 1) % CSTE_THREAD_POOL_TURN;
    return job;
}

static void *thread_main(void *arg)
{
    struct start start = *(struct start *)arg;
    struct cste_thread_pool *crew = start.crew;
    unsigned number = crew->config.first + start.thread;
    struct cste_task *job;
    uint64_t piece;

    free(arg);
    if (crew->config.start != NULL) {
        crew->config.start(crew->config.arg, number);
    }
    (void)pthread_mutex_lock(&crew->mutex);
    while ((job = take(crew, &piece)) != NULL) {
        (void)pthread_mutex_unlock(&crew->mutex);
        job->piece(job, piece, number);
        (void)pthread_mutex_lock(&crew->mutex);
        if (--job->left == 0) {
            (void)pthread_mutex_unlock(&crew->mutex);
            job->done(job);
            /* Let the thread run that the done function notified. If all cores are busy, that
             * thread would wait for the end of a time slice, and so would the client that waits for
             * the task. */
            (void)sched_yield();
            (void)pthread_mutex_lock(&crew->mutex);
        }
    }
    (void)pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

static int start_thread(struct cste_thread_pool *crew, unsigned thread)
{
    struct start *start = malloc(sizeof *start);
    char name[16];

    if (start == NULL) {
        return -1;
    }
    *start = (struct start){.crew = crew, .thread = thread};
    if (pthread_create(&crew->threads[thread], NULL, thread_main, start) != 0) {
        free(start);
        return -1;
    }
    /* The system limits the name of a thread to 15 characters. */
    (void)snprintf(name, sizeof name, "%.9s-%u", crew->config.name,
                   thread % CSTE_THREAD_POOL_MAX_THREADS);
    (void)pthread_setname_np(crew->threads[thread], name);
    return 0;
}

int cste_thread_pool_open(struct cste_thread_pool *crew,
                          const struct cste_thread_pool_config *config, struct cst_err *err)
{
    if (config->n_threads < 1 || config->n_threads > CSTE_THREAD_POOL_MAX_THREADS) {
        return cst_err_set(err, CST_EINVAL, "crew %s of %u threads, allowed 1 to %d", config->name,
                           config->n_threads, CSTE_THREAD_POOL_MAX_THREADS);
    }
    *crew = (struct cste_thread_pool){.config = *config};
    (void)pthread_mutex_init(&crew->mutex, NULL);
    (void)pthread_cond_init(&crew->wake, NULL);
    crew->threads = calloc(config->n_threads, sizeof *crew->threads);
    while (crew->threads != NULL && crew->n_started < config->n_threads) {
        if (start_thread(crew, crew->n_started) != 0) {
            break;
        }
        crew->n_started++;
    }
    if (crew->n_started < config->n_threads) {
        unsigned n = crew->n_started;

        cste_thread_pool_close(crew);
        return cst_err_set(err, CST_ENOMEM, "crew %s: thread %u of %u could not be started",
                           config->name, n + 1, config->n_threads);
    }
    return CST_OK;
}

void cste_thread_pool_close(struct cste_thread_pool *crew)
{
    (void)pthread_mutex_lock(&crew->mutex);
    crew->stop = true;
    (void)pthread_cond_broadcast(&crew->wake);
    (void)pthread_mutex_unlock(&crew->mutex);
    for (unsigned i = 0; i < crew->n_started; i++) {
        (void)pthread_join(crew->threads[i], NULL);
    }
    free(crew->threads);
    (void)pthread_cond_destroy(&crew->wake);
    (void)pthread_mutex_destroy(&crew->mutex);
}

/* Put @job into @queue. A task that has begun keeps its place at the head. */
static void enqueue(struct cste_thread_pool_queue *queue, struct cste_task *job)
{
    struct cste_task **at = &queue->head;

    if (*at != NULL && !job->newest_first) {
        at = &queue->tail->link;
    } else if (*at != NULL && (*at)->next > 0) {
        at = &(*at)->link;
    }
    job->link = *at;
    *at = job;
    queue->tail = job->link == NULL ? job : queue->tail;
}

void cste_thread_pool_submit(struct cste_thread_pool *crew, struct cste_task *job)
{
    uint64_t n_wake;

    job->next = 0;
    job->left = job->n_pieces;
    (void)pthread_mutex_lock(&crew->mutex);
    enqueue(&crew->queues[job->class], job);
    /* No more threads are woken than there are pieces. */
    n_wake = job->n_pieces < crew->n_idle ? job->n_pieces : crew->n_idle;
    while (n_wake-- > 0) {
        (void)pthread_cond_signal(&crew->wake);
    }
    (void)pthread_mutex_unlock(&crew->mutex);
}
