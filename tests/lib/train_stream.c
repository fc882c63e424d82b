#include "tests/lib/train_stream.h"

#include "client/cistern_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

struct work {
    void (*fn)(void *arg); /* NULL: a fence */
    void *arg;             /* of fn */
    uint64_t fence;        /* its number */
    struct work *next;     /* in the queue */
};

struct train_stream {
    struct cst_device_calls calls; /* what the job is given */
    pthread_t thread;              /* runs the queue */
    pthread_mutex_t mutex;         /* of what follows */
    pthread_cond_t more;           /* something was enqueued, or it ends */
    struct work *first, **last;    /* the queue */
    bool ends;                     /* once the queue is empty */
    uint64_t fences;               /* newest number */
    _Atomic uint64_t passed;       /* the thread is there */
    unsigned delay_us;             /* the longest */
    unsigned seed;                 /* of the delays */
};

/* -- the thread ------------------------------------------------------------------------------- */

static struct work *next_work(struct train_stream *stream)
{
    struct work *work;

    (void)pthread_mutex_lock(&stream->mutex);
    while (stream->first == NULL && !stream->ends) {
        (void)pthread_cond_wait(&stream->more, &stream->mutex);
    }
    work = stream->first;
    if (work != NULL) {
        stream->first = work->next;
        stream->last = stream->first == NULL ? &stream->first : stream->last;
    }
    (void)pthread_mutex_unlock(&stream->mutex);
    return work;
}

static void *run_thread(void *arg)
{
    struct train_stream *stream = arg;
    uint64_t one = 1;
    struct work *work;

    while ((work = next_work(stream)) != NULL) {
        if (stream->delay_us > 0) {
            (void)usleep((unsigned)rand_r(&stream->seed) % stream->delay_us);
        }
        if (work->fn != NULL) {
            work->fn(work->arg);
        } else {
            stream->passed = work->fence;
            if (write(stream->calls.fd, &one, sizeof one) != sizeof one) {
                abort();
            }
        }
        free(work);
    }
    return NULL;
}

static int enqueue(struct train_stream *stream, struct work like, struct cst_err *err)
{
    struct work *work = malloc(sizeof *work);

    if (work == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *work = like;
    work->next = NULL;
    (void)pthread_mutex_lock(&stream->mutex);
    *stream->last = work;
    stream->last = &work->next;
    (void)pthread_cond_signal(&stream->more);
    (void)pthread_mutex_unlock(&stream->mutex);
    return CST_OK;
}

/* -- what libcistern calls ----------------------------------------------------------------------
 */

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

static void clear(void *arg)
{
    struct stretch *stretch = arg;

    for (uint64_t i = 0; i < stretch->bytes; i++) {
        ((char *)stretch->at)[i] = 0;
    }
    free(stretch);
}

static int zero(void *arg, void *at, uint64_t bytes, struct cst_err *err)
{
    struct stretch *stretch = malloc(sizeof *stretch);

    if (stretch == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for work");
    }
    *stretch = (struct stretch){.at = at, .bytes = bytes};
    return enqueue(arg, (struct work){.fn = clear, .arg = stretch}, err);
}

static int fence(void *arg, uint64_t *number, struct cst_err *err)
{
    struct train_stream *stream = arg;

    *number = ++stream->fences;
    return enqueue(stream, (struct work){.fence = *number}, err);
}

static int done(void *arg, uint64_t *passed, struct cst_err *err)
{
    struct train_stream *stream = arg;
    uint64_t count;

    (void)err;
    if (read(stream->calls.fd, &count, sizeof count) < 0) {
        count = 0;
    }
    *passed = stream->passed;
    return CST_OK;
}

/* -- life ------------------------------------------------------------------------------------- */

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
                                              .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    stream->last = &stream->first;
    stream->delay_us = delay != NULL ? (unsigned)atoi(delay) : 0;
    stream->seed = (unsigned)getpid();
    (void)pthread_mutex_init(&stream->mutex, NULL);
    (void)pthread_cond_init(&stream->more, NULL);
    if (pthread_create(&stream->thread, NULL, run_thread, stream) != 0) {
        free(stream);
        return cst_err_set(err, CST_ENOMEM, "no thread for a stream");
    }
    *out = stream;
    rc = cst_job_use_device(job, &stream->calls, stream, err);
    return rc;
}

static int run_on_thread(struct train_stream *stream, void (*fn)(void *arg), void *arg,
                         struct cst_err *err)
{
    return enqueue(stream, (struct work){.fn = fn, .arg = arg}, err);
}

static void close_thread(struct train_stream *stream)
{
    (void)pthread_mutex_lock(&stream->mutex);
    stream->ends = true;
    (void)pthread_cond_signal(&stream->more);
    (void)pthread_mutex_unlock(&stream->mutex);
    (void)pthread_join(stream->thread, NULL);
    (void)close(stream->calls.fd);
    free(stream);
}

const struct train_stream_kind train_thread = {
    .open = open_thread, .run = run_on_thread, .close = close_thread};
