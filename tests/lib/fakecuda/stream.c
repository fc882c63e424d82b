#include "tests/lib/fakecuda/stream.h"
#include "tests/lib/fakecuda/address.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/settings.h"
#include "tests/lib/fakecuda/trap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct cst_fake_stream {
    struct cst_fake_stream *next;
    CUcontext context;
    bool blocking;                      /* with the default stream */
    bool legacy;                        /* it is that one */
    bool gone;                          /* destroyed: ends when its queue is empty */
    unsigned number;                    /* in the process, for words and for the seed */
    uint64_t random;                    /* state of the delays */
    struct cst_fake_progress *progress; /* a reference */
    struct cst_fake_op *head, **tail;   /* queued */
    struct cst_fake_op *running;        /* NULL: none */
};

static struct cst_fake_stream *streams;
static unsigned n_made;

/* -- points --------------------------------------------------------------------------------- */

void cst_fake_progress_put(struct cst_fake_progress *progress)
{
    if (progress != NULL && --progress->refs == 0) {
        free(progress);
    }
}

struct cst_fake_point cst_fake_stream_point(const struct cst_fake_stream *stream)
{
    return (struct cst_fake_point){.progress = stream->progress,
                                   .seq = stream->progress->submitted};
}

bool cst_fake_point_reached(struct cst_fake_point point)
{
    return point.progress->done >= point.seq;
}

CUresult cst_fake_point_await(struct cst_fake_point point, CUcontext context)
{
    while (!cst_fake_point_reached(point)) {
        cst_fake_wait();
    }
    return context->broken;
}

/* -- operations ----------------------------------------------------------------------------- */

struct cst_fake_op *cst_fake_op_new(size_t bytes, const char *kind,
                                    CUresult (*run)(struct cst_fake_op *op))
{
    struct cst_fake_op *op = calloc(1, bytes);

    if (op != NULL) {
        op->kind = kind;
        op->run = run;
    }
    return op;
}

void cst_fake_op_drop(struct cst_fake_op *op)
{
    if (op->finish != NULL) {
        op->finish(op);
    }
    for (size_t i = 0; i < op->n_waits; i++) {
        cst_fake_progress_put(op->waits[i].progress);
    }
    free(op->waits);
    free(op);
}

CUresult cst_fake_op_wait(struct cst_fake_op *op, struct cst_fake_point point)
{
    struct cst_fake_point *waits = realloc(op->waits, (op->n_waits + 1) * sizeof *waits);

    if (waits == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->waits = waits;
    op->waits[op->n_waits++] = point;
    point.progress->refs++;
    return CUDA_SUCCESS;
}

static bool is_void(const struct cst_fake_op *op)
{
    return op->stream->context->broken != CUDA_SUCCESS || op->stream->context->dying;
}

bool cst_fake_op_is_void(const struct cst_fake_op *op)
{
    bool answer;

    cst_fake_lock();
    answer = is_void(op);
    cst_fake_unlock();
    return answer;
}

/* -- the thread ----------------------------------------------------------------------------- */

/* xorshift64*, see Marsaglia, "Xorshift RNGs". */
static uint64_t draw(struct cst_fake_stream *stream)
{
    stream->random ^= stream->random >> 12;
    stream->random ^= stream->random << 25;
    stream->random ^= stream->random >> 27;
    return stream->random * 0x2545f4914f6cdd1dULL >> 32;
}

/* Usually up to the limit, one time in eight up to eight times that: whole queues overtake each
 * other. */
static uint64_t draw_delay(struct cst_fake_stream *stream)
{
    uint64_t limit = cst_fake_settings()->delay_us;

    if (limit == 0) {
        return 0;
    }
    if (draw(stream) % 8 == 0) {
        limit *= 8;
    }
    return draw(stream) % (limit + 1);
}

/* Without the lock. */
static void sleep_us(uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};

    if (us > 0) {
        (void)nanosleep(&t, NULL);
    }
}

static CUresult check_touches(const struct cst_fake_op *op)
{
    enum cst_fake_verdict verdict;

    for (size_t i = 0; i < sizeof op->touches / sizeof op->touches[0]; i++) {
        const struct cst_fake_touch *t = &op->touches[i];

        if (t->bytes == 0) {
            continue;
        }
        verdict = cst_fake_classify(t->addr, t->bytes, op->stream->context->device, t->write);
        if (verdict == CST_FAKE_IS_ILLEGAL || verdict == CST_FAKE_STRADDLES) {
            fprintf(stderr, "fakecuda: stream %u: %s %s %zu bytes at %#zx, which it may not\n",
                    op->stream->number, op->kind, t->write ? "writes" : "reads", t->bytes,
                    (size_t)t->addr);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

/* With the lock, which it gives up while it waits and works. */
static void execute(struct cst_fake_stream *stream, struct cst_fake_op *op)
{
    uint64_t delay = draw_delay(stream);
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < op->n_waits; i++) {
        while (!cst_fake_point_reached(op->waits[i]) && !is_void(op)) {
            cst_fake_wait();
        }
    }
    cst_fake_unlock();
    sleep_us(delay);
    cst_fake_lock();
    if (!is_void(op)) {
        result = cst_fake_fault(op->kind);
        if (result == CUDA_SUCCESS) {
            result = check_touches(op);
        }
        if (result == CUDA_SUCCESS) {
            cst_fake_unlock();
            result = cst_fake_trap(op);
            cst_fake_lock();
        }
        if (result != CUDA_SUCCESS) {
            cst_fake_context_break(stream->context, result);
        }
    }
}

static void take_op(struct cst_fake_stream *stream)
{
    struct cst_fake_op *op = stream->head;

    stream->head = op->next;
    if (stream->head == NULL) {
        stream->tail = &stream->head;
    }
    stream->running = op;
    execute(stream, op);
    stream->running = NULL;
    stream->progress->done = op->seq;
    cst_fake_op_drop(op);
    cst_fake_changed();
}

static void unlink_stream(struct cst_fake_stream *stream)
{
    struct cst_fake_stream **at = &streams;

    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    cst_fake_progress_put(stream->progress);
    free(stream);
    cst_fake_changed();
}

static void *run_stream(void *arg)
{
    struct cst_fake_stream *stream = arg;

    cst_fake_lock();
    while (stream->head != NULL || !stream->gone) {
        if (stream->head != NULL) {
            take_op(stream);
        } else {
            cst_fake_wait();
        }
    }
    unlink_stream(stream);
    cst_fake_unlock();
    return NULL;
}

/* -- making and finding --------------------------------------------------------------------- */

static int start_thread(struct cst_fake_stream *stream)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc = pthread_attr_init(&attr);

    if (rc == 0) {
        rc = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    }
    if (rc == 0) {
        rc = pthread_create(&thread, &attr, run_stream, stream);
    }
    (void)pthread_attr_destroy(&attr);
    return rc;
}

static CUresult make_stream(CUcontext context, bool legacy, bool blocking,
                            struct cst_fake_stream **out)
{
    struct cst_fake_stream *stream = calloc(1, sizeof *stream);
    struct cst_fake_progress *progress = calloc(1, sizeof *progress);

    if (stream == NULL || progress == NULL) {
        goto err;
    }
    progress->refs = 1;
    *stream = (struct cst_fake_stream){.next = streams,
                                       .context = context,
                                       .blocking = blocking,
                                       .legacy = legacy,
                                       .number = n_made,
                                       .progress = progress};
    stream->tail = &stream->head;
    stream->random = (cst_fake_settings()->seed + n_made + 1) * 0x9e3779b97f4a7c15ULL | 1;
    if (start_thread(stream) != 0) {
        goto err;
    }
    n_made++;
    streams = stream;
    *out = stream;
    return CUDA_SUCCESS;
err:
    free(progress);
    free(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult find_legacy(struct cst_fake_stream **out)
{
    CUcontext context = cst_fake_context_current();
    CUresult result = CUDA_SUCCESS;

    if (context->legacy == NULL) {
        result = make_stream(context, true, false, &context->legacy);
    }
    if (result == CUDA_SUCCESS) {
        *out = context->legacy;
    }
    return result;
}

CUresult cst_fake_stream_find(CUstream handle, struct cst_fake_stream **out)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        return find_legacy(out);
    }
    for (struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
        if ((CUstream)s == handle && !s->gone && !s->legacy) {
            *out = s;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

CUcontext cst_fake_stream_context(const struct cst_fake_stream *stream)
{
    return stream->context;
}

size_t cst_fake_n_streams(void)
{
    size_t n = 0;

    for (const struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
        n += !s->gone && !s->legacy;
    }
    return n;
}

/* -- submitting ----------------------------------------------------------------------------- */

/* The default stream waits for the blocking ones, they for it. */
static CUresult add_legacy_waits(struct cst_fake_stream *stream, struct cst_fake_op *op)
{
    CUresult result = CUDA_SUCCESS;

    for (struct cst_fake_stream *s = streams; s != NULL && result == CUDA_SUCCESS; s = s->next) {
        if (s->context == stream->context &&
            ((stream->legacy && s->blocking) || (stream->blocking && s->legacy)) &&
            !cst_fake_point_reached(cst_fake_stream_point(s))) {
            result = cst_fake_op_wait(op, cst_fake_stream_point(s));
        }
    }
    return result;
}

CUresult cst_fake_stream_submit(struct cst_fake_stream *stream, struct cst_fake_op *op)
{
    CUresult result = add_legacy_waits(stream, op);

    if (result != CUDA_SUCCESS) {
        cst_fake_op_drop(op);
        return result;
    }
    op->stream = stream;
    op->seq = ++stream->progress->submitted;
    *stream->tail = op;
    stream->tail = &op->next;
    cst_fake_changed();
    return CUDA_SUCCESS;
}

/* -- all of them ---------------------------------------------------------------------------- */

static bool has_work(const struct cst_fake_stream *stream)
{
    return stream->head != NULL || stream->running != NULL;
}

CUresult cst_fake_streams_drain(CUcontext context)
{
    struct cst_fake_point point;
    struct cst_fake_stream *s = streams;

    while (s != NULL) {
        point = cst_fake_stream_point(s);
        if (s->context != context || cst_fake_point_reached(point)) {
            s = s->next;
            continue;
        }
        point.progress->refs++;
        (void)cst_fake_point_await(point, context);
        cst_fake_progress_put(point.progress);
        s = streams; /* the list has changed meanwhile */
    }
    return context->broken;
}

static bool touches(const struct cst_fake_op *op, uintptr_t addr, size_t bytes)
{
    for (size_t i = 0; i < sizeof op->touches / sizeof op->touches[0]; i++) {
        if (op->touches[i].addr < addr + bytes &&
            addr < op->touches[i].addr + op->touches[i].bytes) {
            return true;
        }
    }
    return false;
}

static bool queue_touches(const struct cst_fake_stream *stream, uintptr_t addr, size_t bytes)
{
    for (const struct cst_fake_op *op = stream->head; op != NULL; op = op->next) {
        if (touches(op, addr, bytes)) {
            return true;
        }
    }
    return stream->running != NULL && touches(stream->running, addr, bytes);
}

/* A stream whose running operation touches the range, or may: a kernel's pointers are not known. */
static bool runs_on(uintptr_t addr, size_t bytes)
{
    for (const struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
        if (s->running != NULL && (touches(s->running, addr, bytes) || s->running->blind)) {
            return true;
        }
    }
    return false;
}

void cst_fake_streams_revoke(uintptr_t addr, size_t bytes, const char *call)
{
    for (const struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
        if (queue_touches(s, addr, bytes) && s->context->broken == CUDA_SUCCESS) {
            cst_fake_misuse("%s of memory that stream %u is to touch", call, s->number);
            cst_fake_context_break(s->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    while (runs_on(addr, bytes)) {
        cst_fake_wait();
    }
}

/* Any stream of @context but the default one, that was not destroyed. */
static struct cst_fake_stream *first_left(CUcontext context)
{
    struct cst_fake_stream *s = streams;

    while (s != NULL && (s->context != context || s->gone)) {
        s = s->next;
    }
    return s;
}

static bool any_left(CUcontext context)
{
    for (const struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
        if (s->context == context) {
            return true;
        }
    }
    return false;
}

void cst_fake_streams_end(CUcontext context)
{
    struct cst_fake_stream *s;

    context->dying = true;
    while ((s = first_left(context)) != NULL) {
        if (has_work(s) && context->broken == CUDA_SUCCESS) {
            cst_fake_misuse("the context of device %d ends, stream %u has work", context->device,
                            s->number);
        }
        if (!s->legacy) {
            fprintf(stderr, "fakecuda: leak: stream %u of device %d\n", s->number, context->device);
        }
        s->gone = true;
    }
    cst_fake_changed();
    while (any_left(context)) {
        cst_fake_wait();
    }
    context->legacy = NULL;
    context->dying = false;
}

/* -- entry points --------------------------------------------------------------------------- */

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;

    (void)priority; /* out of range is not an error: it is taken as the nearest */
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (phStream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = make_stream(cst_fake_context_current(), false, (flags & CU_STREAM_NON_BLOCKING) == 0,
                         &stream);
    if (result == CUDA_SUCCESS) {
        *phStream = (CUstream)stream;
    }
    return cst_fake_end(result);
}

CUresult cuStreamDestroy(CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS && stream->legacy) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS) {
        stream->gone = true; /* returns at once; the work goes on */
        cst_fake_changed();
    }
    return cst_fake_end(result);
}

static CUresult nothing(struct cst_fake_op *op)
{
    (void)op;
    return CUDA_SUCCESS;
}

/* The default stream's end is where all that it waits for is over. */
static CUresult end_of(struct cst_fake_stream *stream, struct cst_fake_point *out)
{
    CUresult result = CUDA_SUCCESS;
    struct cst_fake_op *op;

    if (stream->legacy) {
        op = cst_fake_op_new(sizeof *op, "mark", nothing);
        result = op != NULL ? cst_fake_stream_submit(stream, op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        *out = cst_fake_stream_point(stream);
        out->progress->refs++;
    }
    return result;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;
    struct cst_fake_point point;
    CUcontext context;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        context = stream->context;
        result = end_of(stream, &point);
    }
    if (result == CUDA_SUCCESS) {
        result = cst_fake_point_await(point, context);
        cst_fake_progress_put(point.progress);
    }
    return cst_fake_end(result);
}

CUresult cuStreamQuery(CUstream hStream)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS && stream->context->broken != CUDA_SUCCESS) {
        result = stream->context->broken;
    } else if (result == CUDA_SUCCESS) {
        for (struct cst_fake_stream *s = streams; s != NULL; s = s->next) {
            if ((s == stream || (stream->legacy && s->blocking && s->context == stream->context)) &&
                has_work(s)) {
                result = CUDA_ERROR_NOT_READY;
            }
        }
    }
    return cst_fake_end(result);
}
