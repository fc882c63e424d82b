/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/stream.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/settings.h"

#include <pthread.h>
#include <stdlib.h>

struct cst_fake_stream *cst_fake_streams;

static unsigned n_made;

/* -- the thread ----------------------------------------------------------------------------- */

/* xorshift64*, see Marsaglia, "Xorshift RNGs". */
static uint64_t draw(struct cst_fake_stream *stream)
{
    stream->random ^= stream->random >> 12;
    stream->random ^= stream->random << 25;
    stream->random ^= stream->random >> 27;
    return stream->random * 0x2545f4914f6cdd1dULL >> 32;
}

/* Usually below the limit, and one time in eight up to eight times the limit, so that whole queues
 * overtake each other. */
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

static void take_op(struct cst_fake_stream *stream)
{
    struct cst_fake_op *op = stream->head;

    stream->head = op->next;
    if (stream->head == NULL) {
        stream->tail = &stream->head;
    }
    stream->running = op;
    cst_fake_op_execute(op, draw_delay(stream));
    stream->running = NULL;
    stream->progress->done = op->seq;
    cst_fake_op_drop(op);
    cst_fake_changed();
}

static void unlink_stream(struct cst_fake_stream *stream)
{
    struct cst_fake_stream **at = &cst_fake_streams;

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

/* -- creation and lookup -------------------------------------------------------------------- */

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
    *stream = (struct cst_fake_stream){.next = cst_fake_streams,
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
    cst_fake_streams = stream;
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
    for (struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
        if ((CUstream)s == handle && !s->gone && !s->legacy) {
            *out = s;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

struct cst_fake_point cst_fake_stream_point(const struct cst_fake_stream *stream)
{
    return (struct cst_fake_point){.progress = stream->progress,
                                   .seq = stream->progress->submitted};
}

bool cst_fake_stream_is_busy(const struct cst_fake_stream *stream)
{
    return stream->head != NULL || stream->running != NULL;
}

/* -- submitting ----------------------------------------------------------------------------- */

/* The default stream waits for blocking streams, and they wait for it. */
static CUresult add_legacy_waits(struct cst_fake_stream *stream, struct cst_fake_op *op)
{
    CUresult result = CUDA_SUCCESS;

    for (struct cst_fake_stream *s = cst_fake_streams; s != NULL && result == CUDA_SUCCESS;
         s = s->next) {
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
    op->context = stream->context;
    op->number = stream->number;
    op->seq = ++stream->progress->submitted;
    *stream->tail = op;
    stream->tail = &op->next;
    cst_fake_changed();
    return CUDA_SUCCESS;
}

/* -- entry points --------------------------------------------------------------------------- */

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct cst_fake_stream *stream;

    (void)priority; /* a priority out of range is no error: the nearest one is used */
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
        stream->gone = true; /* the call returns at once, and the stream's work goes on */
        cst_fake_changed();
    }
    return cst_fake_end(result);
}

static CUresult nothing(struct cst_fake_op *op)
{
    (void)op;
    return CUDA_SUCCESS;
}

/* The end of the default stream is also the end of all streams that it waits for. */
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
        for (struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
            if ((s == stream || (stream->legacy && s->blocking && s->context == stream->context)) &&
                cst_fake_stream_is_busy(s)) {
                result = CUDA_ERROR_NOT_READY;
            }
        }
    }
    return cst_fake_end(result);
}
