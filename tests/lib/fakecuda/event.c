/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fakecuda/event.h"
#include "tests/lib/fakecuda/fault.h"
#include "tests/lib/fakecuda/stream.h"

#include <stdlib.h>
#include <time.h>

/* The time at which a record was reached. The event and the operation share it. */
struct stamp {
    unsigned refs;
    double ms; /* time of the monotonic clock */
};

struct CUevent_st {
    struct CUevent_st *next;
    CUcontext context;
    bool timing;
    struct cst_fake_point point; /* point of the last record; progress is NULL if there was none */
    struct stamp *stamp;         /* stamp of the last record; a reference */
};

struct record {
    struct cst_fake_op op;
    struct stamp *stamp; /* a reference */
};

static struct CUevent_st *events;

size_t cst_fake_n_events(void)
{
    size_t n = 0;

    for (const struct CUevent_st *e = events; e != NULL; e = e->next) {
        n++;
    }
    return n;
}

static void put_stamp(struct stamp *stamp)
{
    if (stamp != NULL && --stamp->refs == 0) {
        free(stamp);
    }
}

static void forget(CUevent event)
{
    cst_fake_progress_put(event->point.progress);
    put_stamp(event->stamp);
    event->point.progress = NULL;
    event->stamp = NULL;
}

static void destroy(CUevent event)
{
    struct CUevent_st **at = &events;

    while (*at != event) {
        at = &(*at)->next;
    }
    *at = event->next;
    forget(event);
    free(event);
}

void cst_fake_events_end(CUcontext context)
{
    struct CUevent_st *next;

    for (struct CUevent_st *e = events; e != NULL; e = next) {
        next = e->next;
        if (e->context == context) {
            cst_fake_leak("an event of device %d", context->device);
            destroy(e);
        }
    }
}

static bool is_event(CUevent event)
{
    for (const struct CUevent_st *e = events; e != NULL; e = e->next) {
        if (e == event) {
            return true;
        }
    }
    return false;
}

/* The frame of entry points that take an event. */
static CUresult begin_with(const char *name, CUevent event)
{
    CUresult result = cst_fake_begin(name, CST_FAKE_CONTEXT);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return is_event(event) ? CUDA_SUCCESS : cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
}

/* -- entry points --------------------------------------------------------------------------- */

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUresult result = cst_fake_begin(__func__, CST_FAKE_CONTEXT);
    struct CUevent_st *event;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (phEvent == NULL ||
        (Flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) != 0) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    event = calloc(1, sizeof *event);
    if (event == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *event = (struct CUevent_st){.next = events,
                                 .context = cst_fake_context_current(),
                                 .timing = (Flags & CU_EVENT_DISABLE_TIMING) == 0};
    events = event;
    *phEvent = event;
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent hEvent)
{
    CUresult result = begin_with(__func__, hEvent);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* An event that is not reached yet can be destroyed, too: streams that wait for it go on
     * waiting. */
    destroy(hEvent);
    return cst_fake_end(CUDA_SUCCESS);
}

static CUresult run_record(struct cst_fake_op *op)
{
    struct record *record = (struct record *)op;
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    record->stamp->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    return CUDA_SUCCESS;
}

static void finish_record(struct cst_fake_op *op)
{
    put_stamp(((struct record *)op)->stamp);
}

static CUresult submit_record(CUevent event, struct cst_fake_stream *stream)
{
    struct record *record =
        (struct record *)cst_fake_op_new(sizeof(struct record), "event", run_record);
    struct stamp *stamp = calloc(1, sizeof *stamp);
    CUresult result;

    if (record == NULL || stamp == NULL) {
        free(stamp);
        free(record);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stamp->refs = 2;
    record->stamp = stamp;
    record->op.finish = finish_record;
    result = cst_fake_stream_submit(stream, &record->op);
    if (result != CUDA_SUCCESS) {
        put_stamp(stamp);
        return result;
    }
    forget(event);
    event->point = cst_fake_stream_point(stream);
    event->point.progress->refs++;
    event->stamp = stamp;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    CUresult result = begin_with(__func__, hEvent);
    struct cst_fake_stream *stream;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS && stream->context != hEvent->context) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    return cst_fake_end(result == CUDA_SUCCESS ? submit_record(hEvent, stream) : result);
}

CUresult cuEventQuery(CUevent hEvent)
{
    CUresult result = begin_with(__func__, hEvent);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (hEvent->context->broken != CUDA_SUCCESS) {
        result = hEvent->context->broken;
    } else if (hEvent->point.progress != NULL && !cst_fake_point_reached(hEvent->point)) {
        result = CUDA_ERROR_NOT_READY;
    }
    return cst_fake_end(result);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    CUresult result = begin_with(__func__, hEvent);
    struct cst_fake_point point;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* Later records, and the event's end, do not change what is waited for. */
    point = hEvent->point;
    if (point.progress != NULL) {
        point.progress->refs++;
        result = cst_fake_point_await(point, hEvent->context);
        cst_fake_progress_put(point.progress);
    }
    return cst_fake_end(result);
}

/* The forms before and since CUDA 12.8 differ in nothing that is imitated here. */
static CUresult elapsed(const char *name, float *ms, CUevent start, CUevent end)
{
    CUresult result = begin_with(name, start);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (ms == NULL) {
        return cst_fake_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!is_event(end) || start->point.progress == NULL || end->point.progress == NULL ||
        !start->timing || !end->timing) {
        return cst_fake_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (!cst_fake_point_reached(start->point) || !cst_fake_point_reached(end->point)) {
        return cst_fake_end(CUDA_ERROR_NOT_READY);
    }
    *ms = (float)(end->stamp->ms - start->stamp->ms);
    return cst_fake_end(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return elapsed(__func__, pMilliseconds, hStart, hEnd);
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd);

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return elapsed(__func__, pMilliseconds, hStart, hEnd);
}

static CUresult nothing(struct cst_fake_op *op)
{
    (void)op;
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    CUresult result = begin_with(__func__, hEvent);
    struct cst_fake_stream *stream;
    struct cst_fake_op *op;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cst_fake_stream_find(hStream, &stream);
    if (result == CUDA_SUCCESS && Flags != CU_EVENT_WAIT_DEFAULT) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS || hEvent->point.progress == NULL) {
        return cst_fake_end(result); /* nothing waits for an event that was never recorded */
    }
    op = cst_fake_op_new(sizeof *op, "wait", nothing);
    if (op == NULL) {
        return cst_fake_end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    result = cst_fake_op_wait(op, hEvent->point);
    if (result != CUDA_SUCCESS) {
        cst_fake_op_drop(op);
        return cst_fake_end(result);
    }
    return cst_fake_end(cst_fake_stream_submit(stream, op));
}
