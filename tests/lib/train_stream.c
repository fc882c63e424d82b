/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/train_stream.h"

#include "cistern/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

struct work {
    void (*fn)(struct train_stream *stream, void *arg);
    void *arg;
    uint64_t number;   /* number of the fence or copy that is reached when this work is done */
    struct work *next; /* next in the queue */
};

/* A thread that executes work in order. */
struct queue {
    struct train_stream *stream; /* the stream to which the queue belongs */
    pthread_t thread;
    pthread_mutex_t mutex; /* protects the fields below */
    pthread_cond_t more;   /* signalled when work was enqueued or done, and when the queue ends */
    struct work *first, **last;
    bool ends;       /* the thread ends when the queue is empty */
    uint64_t passed; /* largest number of the work that is done */
    uint64_t newest; /* the last number that was given */
    unsigned seed;   /* state of the random delays */
};

struct train_stream {
    struct cst_device_calls calls; /* the calls that the job receives */
    struct queue work;             /* the stream; its numbers are fences */
    struct queue copies;           /* copies of weights */
    unsigned delay_us;             /* largest delay */
};

/* -- the threads ------------------------------------------------------------------------------ */

static struct work *next_work(struct queue *queue)
{
    struct work *work;

    (void)pthread_mutex_lock(&queue->mutex);
    while (queue->first == NULL && !queue->ends) {
        (void)pthread_cond_wait(&queue->more, &queue->mutex);
    }
    work = queue->first;
    if (work != NULL) {
        queue->first = work->next;
        queue->last = queue->first == NULL ? &queue->first : queue->last;
    }
    (void)pthread_mutex_unlock(&queue->mutex);
    return work;
}

static void pass(struct queue *queue, uint64_t number)
{
    (void)pthread_mutex_lock(&queue->mutex);
    queue->passed = number > queue->passed ? number : queue->passed;
    (void)pthread_cond_broadcast(&queue->more);
    (void)pthread_mutex_unlock(&queue->mutex);
}

static void *run_thread(void *arg)
{
    struct queue *queue = arg;
    struct train_stream *stream = queue->stream;
    struct work *work;

    while ((work = next_work(queue)) != NULL) {
        if (stream->delay_us > 0) {
            (void)usleep((unsigned)rand_r(&queue->seed) % stream->delay_us);
        }
        work->fn(stream, work->arg);
        pass(queue, work->number);
        if (queue == &stream->work && work->number > 0) {
            uint64_t one = 1;

            if (write(stream->calls.fd, &one, sizeof one) != sizeof one) {
                abort();
            }
        }
        free(work);
    }
    return NULL;
}

static int enqueue(struct queue *queue, struct work like, struct cst_err *err)
{
    struct work *work = malloc(sizeof *work);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *work = like;
    work->next = NULL;
    (void)pthread_mutex_lock(&queue->mutex);
    *queue->last = work;
    queue->last = &work->next;
    (void)pthread_cond_broadcast(&queue->more);
    (void)pthread_mutex_unlock(&queue->mutex);
    return CST_OK;
}

static int open_queue(struct queue *queue, struct train_stream *stream, struct cst_err *err)
{
    queue->stream = stream;
    queue->last = &queue->first;
    queue->seed = (unsigned)getpid();
    (void)pthread_mutex_init(&queue->mutex, NULL);
    (void)pthread_cond_init(&queue->more, NULL);
    if (pthread_create(&queue->thread, NULL, run_thread, queue) != 0) {
        return cst_err_set(err, CST_ENOMEM, "no thread for a stream");
    }
    return CST_OK;
}

/* End the thread after it has done all enqueued work. */
static void close_queue(struct queue *queue)
{
    (void)pthread_mutex_lock(&queue->mutex);
    queue->ends = true;
    (void)pthread_cond_broadcast(&queue->more);
    (void)pthread_mutex_unlock(&queue->mutex);
    (void)pthread_join(queue->thread, NULL);
}

/* -- calls of libcistern ----------------------------------------------------------------------- */

static int map(void *arg, int fd, uint64_t bytes, void **base, struct cst_err *err)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    (void)arg;
    if (at == MAP_FAILED) {
        return cst_err_set(err, CST_ENOMEM, "mmap of a slab");
    }
    *base = at;
    return CST_OK;
}

static void unmap(void *arg, void *base, uint64_t bytes)
{
    (void)arg;
    (void)munmap(base, bytes);
}

struct stretch {
    void *at;
    uint64_t bytes;
};

static void clear(struct train_stream *stream, void *arg)
{
    struct stretch *stretch = arg;

    (void)stream;
    for (uint64_t i = 0; i < stretch->bytes; i++) {
        ((char *)stretch->at)[i] = 0;
    }
    free(stretch);
}

static int zero(void *arg, void *at, uint64_t bytes, struct cst_err *err)
{
    struct train_stream *stream = arg;
    struct stretch *stretch = malloc(sizeof *stretch);

    if (stretch == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *stretch = (struct stretch){.at = at, .bytes = bytes};
    return enqueue(&stream->work, (struct work){.fn = clear, .arg = stretch}, err);
}

static void do_nothing(struct train_stream *stream, void *arg)
{
    (void)stream;
    (void)arg;
}

static int fence(void *arg, uint64_t *number, struct cst_err *err)
{
    struct train_stream *stream = arg;

    *number = ++stream->work.newest;
    return enqueue(&stream->work, (struct work){.fn = do_nothing, .number = *number}, err);
}

static int done(void *arg, uint64_t *passed, struct cst_err *err)
{
    struct train_stream *stream = arg;
    uint64_t count;

    (void)err;
    if (read(stream->calls.fd, &count, sizeof count) < 0) {
        count = 0;
    }
    (void)pthread_mutex_lock(&stream->work.mutex);
    *passed = stream->work.passed;
    (void)pthread_mutex_unlock(&stream->work.mutex);
    return CST_OK;
}

/* -- copies of weights ------------------------------------------------------------------------ */

static int map_host(void *arg, void *base, uint64_t bytes, struct cst_err *err)
{
    (void)arg;
    (void)base;
    (void)bytes;
    (void)err;
    return CST_OK;
}

static void unmap_host(void *arg, void *base, uint64_t bytes)
{
    (void)arg;
    (void)base;
    (void)bytes;
}

struct copy {
    void *dst;
    const void *src;
    uint64_t bytes;
};

/* Copy in two halves, so that reading too early, or writing, is more likely to be detected. */
static void do_copy(struct train_stream *stream, void *arg)
{
    struct copy *c = arg;
    uint64_t half = c->bytes / 2;

    memcpy(c->dst, c->src, half);
    if (stream->delay_us > 0) {
        (void)usleep((unsigned)rand_r(&stream->copies.seed) % stream->delay_us);
    }
    memcpy((char *)c->dst + half, (const char *)c->src + half, c->bytes - half);
    free(c);
}

static int copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                struct cst_err *err)
{
    struct train_stream *stream = arg;
    struct copy *c = malloc(sizeof *c);

    if (c == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *c = (struct copy){.dst = dst, .src = src, .bytes = bytes};
    *number = ++stream->copies.newest;
    return enqueue(&stream->copies, (struct work){.fn = do_copy, .arg = c, .number = *number}, err);
}

static void await_copy(struct train_stream *stream, void *arg)
{
    struct queue *copies = &stream->copies;

    (void)pthread_mutex_lock(&copies->mutex);
    while (copies->passed < (uintptr_t)arg) {
        (void)pthread_cond_wait(&copies->more, &copies->mutex);
    }
    (void)pthread_mutex_unlock(&copies->mutex);
}

static int await(void *arg, uint64_t number, struct cst_err *err)
{
    struct train_stream *stream = arg;

    return enqueue(&stream->work, (struct work){.fn = await_copy, .arg = (void *)(uintptr_t)number},
                   err);
}

/* -- open and close --------------------------------------------------------------------------- */

static int open_thread(struct train_stream **out, struct cst_job *job, struct cst_err *err)
{
    const char *delay = getenv("TRAIN_STREAM_DELAY_US");
    struct train_stream *stream = calloc(1, sizeof *stream);
    int rc;

    if (stream == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a stream");
    }
    stream->calls = (struct cst_device_calls){.map = map,
                                              .unmap = unmap,
                                              .zero = zero,
                                              .fence = fence,
                                              .done = done,
                                              .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                              .map_host = map_host,
                                              .unmap_host = unmap_host,
                                              .copy = copy,
                                              .await = await};
    stream->delay_us = delay != NULL ? (unsigned)atoi(delay) : 0;
    rc = open_queue(&stream->work, stream, err);
    if (rc == CST_OK) {
        rc = open_queue(&stream->copies, stream, err);
    }
    if (rc != CST_OK) {
        return rc; /* the process ends after this */
    }
    *out = stream;
    return cst_job_use_device(job, &stream->calls, stream, err);
}

struct task {
    void (*fn)(void *arg);
    void *arg;
};

static void run_task(struct train_stream *stream, void *arg)
{
    struct task *task = arg;

    (void)stream;
    task->fn(task->arg);
    free(task);
}

static int run_on_thread(struct train_stream *stream, void (*fn)(void *arg), void *arg,
                         struct cst_err *err)
{
    struct task *task = malloc(sizeof *task);

    if (task == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *task = (struct task){.fn = fn, .arg = arg};
    return enqueue(&stream->work, (struct work){.fn = run_task, .arg = task}, err);
}

static int check_thread(struct train_stream *stream, struct cst_err *err)
{
    (void)stream;
    (void)err;
    return CST_OK;
}

static void close_thread(struct train_stream *stream)
{
    close_queue(&stream->work);
    close_queue(&stream->copies);
    (void)close(stream->calls.fd);
    free(stream);
}

const struct train_stream_kind train_thread = {
    .open = open_thread, .run = run_on_thread, .check = check_thread, .close = close_thread};
