/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for all streams together. */
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/stream.h"

CUresult cst_fake_streams_drain(CUcontext context)
{
    struct cst_fake_point point;
    struct cst_fake_stream *s = cst_fake_streams;

    while (s != NULL) {
        point = cst_fake_stream_point(s);
        if (s->context != context || cst_fake_point_reached(point)) {
            s = s->next;
            continue;
        }
        point.progress->refs++;
        (void)cst_fake_point_await(point, context);
        cst_fake_progress_put(point.progress);
        s = cst_fake_streams; /* the list may have changed */
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

/* True if a stream's running operation accesses the range, or may access it: the pointers of a
 * kernel are unknown. */
static bool runs_on(uintptr_t addr, size_t bytes)
{
    for (const struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
        if (s->running != NULL && (touches(s->running, addr, bytes) || s->running->blind)) {
            return true;
        }
    }
    return false;
}

void cst_fake_streams_revoke(uintptr_t addr, size_t bytes, const char *call)
{
    for (const struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
        if (queue_touches(s, addr, bytes) && s->context->broken == CUDA_SUCCESS) {
            cst_fake_misuse("%s of memory that stream %u is to touch", call, s->number);
            cst_fake_context_break(s->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    while (runs_on(addr, bytes)) {
        cst_fake_wait();
    }
}

/* A stream of @context other than the default one that was not destroyed, or NULL. */
static struct cst_fake_stream *first_left(CUcontext context)
{
    struct cst_fake_stream *s = cst_fake_streams;

    while (s != NULL && (s->context != context || s->gone)) {
        s = s->next;
    }
    return s;
}

static bool any_left(CUcontext context)
{
    for (const struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
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
        if (cst_fake_stream_is_busy(s) && context->broken == CUDA_SUCCESS) {
            cst_fake_misuse("the context of device %d ends, stream %u has work", context->device,
                            s->number);
        }
        if (!s->legacy) {
            cst_fake_leak("stream %u of device %d", s->number, context->device);
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

size_t cst_fake_n_streams(void)
{
    size_t n = 0;

    for (const struct cst_fake_stream *s = cst_fake_streams; s != NULL; s = s->next) {
        n += !s->gone && !s->legacy;
    }
    return n;
}
