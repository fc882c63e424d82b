/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/flight.h"

#include "kernels/engine/thread_pool.h"

#include <assert.h>
#include <stdlib.h>

_Static_assert(CSTE_GPU_WINDOW <= CSTE_THREAD_POOL_MAX_WINDOW,
               "a thread pool's window holds the flights of a thread");
_Static_assert(CSTE_GPU_STAGING_BYTES >= CSTE_GPU_PIECE_BYTES,
               "staging buffers hold a piece of a copy");
_Static_assert(CSTE_GPU_STAGING_BYTES % 64 == 0, "each of several staging buffers is aligned");

/* -- opening -------------------------------------------------------------------------------- */

static int open_stream(struct cste_gpu *gpu, unsigned number, int priority, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    CUstream stream;
    int rc = cst_cuda_check(
        driver, driver->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority), err,
        "stream %u of %u", number + 1, gpu->n_threads);

    if (rc == CST_OK) {
        gpu->threads[number].stream = stream;
    }
    return rc;
}

/* Create the event of @flight. A thread that waits for it sleeps, because the workers need the
 * processors. */
static int open_event(struct cste_gpu *gpu, struct cste_gpu_flight *flight, struct cst_err *err)
{
    CUevent event;
    int rc = cst_cuda_check(
        &gpu->driver,
        gpu->driver.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), err,
        "an event of %s", gpu->uuid);

    if (rc == CST_OK) {
        flight->event = event;
    }
    return rc;
}

/* Allocate the staging buffers of all flights of @thread, one after the other. */
static int open_staging(struct cste_gpu *gpu, struct cste_gpu_thread *thread, struct cst_err *err)
{
    const size_t bytes = CSTE_GPU_WINDOW * CSTE_GPU_STAGING_BYTES;
    const struct cst_cuda_driver *driver = &gpu->driver;
    CUdeviceptr device;
    void *host;
    int rc = cst_cuda_check(driver, driver->cuMemAlloc(&device, bytes), err,
                            "%zu bytes of %s for sums", bytes, gpu->uuid);

    if (rc != CST_OK) {
        return rc;
    }
    thread->staging = device;
    rc = cst_cuda_check(driver, driver->cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE), err,
                        "%zu pinned bytes for sums", bytes);
    if (rc != CST_OK) {
        return rc;
    }
    thread->pinned = host;
    for (unsigned i = 0; i < CSTE_GPU_WINDOW; i++) {
        struct cste_gpu_staging *staging = &thread->flights[i].staging;

        staging->device = (struct cste_mem){.device = device + i * CSTE_GPU_STAGING_BYTES,
                                            .bytes = CSTE_GPU_STAGING_BYTES};
        staging->host = (struct cste_mem){.base = (char *)host + i * CSTE_GPU_STAGING_BYTES,
                                          .bytes = CSTE_GPU_STAGING_BYTES,
                                          .locked = true};
        thread->flights[i].pinned = staging->host;
        staging->batch = calloc(CSTE_GPU_STAGING_TILES, sizeof *staging->batch);
        if (staging->batch == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for a list of tiles");
        }
    }
    return CST_OK;
}

int cste_gpu_open_threads(struct cste_gpu *gpu, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &gpu->driver;
    int least = 0, greatest = 0;
    int rc = cst_cuda_check(driver, driver->cuCtxGetStreamPriorityRange(&least, &greatest), err,
                            "priorities of streams");

    gpu->threads = calloc(gpu->n_threads, sizeof *gpu->threads);
    if (rc == CST_OK && gpu->threads == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for %u threads", gpu->n_threads);
    }
    for (unsigned i = 0; i < gpu->n_threads && rc == CST_OK; i++) {
        struct cste_gpu_thread *thread = &gpu->threads[i];

        rc = open_stream(gpu, i, greatest, err);
        for (unsigned k = 0; k < CSTE_GPU_WINDOW && rc == CST_OK; k++) {
            rc = open_event(gpu, &thread->flights[k], err);
        }
        if (rc == CST_OK && i < gpu->n_team) {
            rc = open_staging(gpu, thread, err);
        }
    }
    return rc;
}

bool cste_gpu_pin(struct cste_gpu *gpu, unsigned thread)
{
    struct cste_gpu_thread *t = &gpu->threads[thread];
    void *host;

    if (t->pinned != NULL || t->cannot_pin) {
        return t->pinned != NULL;
    }
    if (gpu->driver.cuMemHostAlloc(&host, (size_t)CSTE_GPU_WINDOW * CSTE_GPU_PIECE_BYTES,
                                   CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) {
        t->cannot_pin = true;
        return false;
    }
    t->pinned = host;
    for (unsigned i = 0; i < CSTE_GPU_WINDOW; i++) {
        t->flights[i].pinned =
            (struct cste_mem){.base = (char *)host + (size_t)i * CSTE_GPU_PIECE_BYTES,
                              .bytes = CSTE_GPU_PIECE_BYTES,
                              .locked = true};
    }
    return true;
}

/* An incompletely opened thread is closed as well: each part may be missing. */
static void close_thread(struct cste_gpu *gpu, struct cste_gpu_thread *thread)
{
    const struct cst_cuda_driver *driver = &gpu->driver;

    for (unsigned i = 0; i < CSTE_GPU_WINDOW; i++) {
        free(thread->flights[i].staging.batch);
        if (thread->flights[i].event != NULL) {
            (void)driver->cuEventDestroy(thread->flights[i].event);
        }
    }
    if (thread->pinned != NULL) {
        (void)driver->cuMemFreeHost(thread->pinned);
    }
    if (thread->staging != 0) {
        (void)driver->cuMemFree(thread->staging);
    }
    if (thread->values != 0) {
        (void)driver->cuMemFree(thread->values);
    }
    if (thread->stream != NULL) {
        (void)driver->cuStreamDestroy(thread->stream);
    }
}

void cste_gpu_close_threads(struct cste_gpu *gpu)
{
    for (unsigned i = gpu->threads != NULL ? gpu->n_threads : 0; i-- > 0;) {
        close_thread(gpu, &gpu->threads[i]);
    }
    free(gpu->threads);
}

/* -- flights -------------------------------------------------------------------------------- */

CUstream cste_gpu_stream(const struct cste_gpu *gpu, unsigned thread)
{
    return gpu->threads[thread].stream;
}

struct cste_gpu_flight *cste_gpu_take_flight(struct cste_gpu *gpu, unsigned thread)
{
    struct cste_gpu_thread *t = &gpu->threads[thread];
    struct cste_gpu_flight *flight;

    assert(t->n_under_way < CSTE_GPU_WINDOW);
    flight = &t->flights[(t->oldest + t->n_under_way) % CSTE_GPU_WINDOW];
    flight->end = NULL;
    flight->tally = (struct cst_tile_done){0};
    return flight;
}

int cste_gpu_depart(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight, int rc,
                    struct cst_err *err)
{
    if (rc == CST_OK) {
        rc = cst_cuda_check(&gpu->driver,
                            gpu->driver.cuEventRecord(flight->event, cste_gpu_stream(gpu, thread)),
                            err, "recording an event of %s", gpu->uuid);
    }
    if (rc != CST_OK) {
        return cste_gpu_settle(gpu, thread, rc, err);
    }
    flight->departed = true;
    return CST_OK;
}

/* Turn @result of a wait into a status. */
static int check_wait(struct cste_gpu *gpu, unsigned thread, CUresult result, struct cst_err *err)
{
    if (result != CUDA_SUCCESS) {
        gpu->threads[thread].lost = true;
        (void)cst_cuda_check(&gpu->driver, result, err, "waiting for %s", gpu->uuid);
        err->status = CST_EGPU;
        return CST_EGPU;
    }
    return gpu->threads[thread].lost
               ? cst_err_set(err, CST_EGPU, "an earlier operation of %s failed", gpu->uuid)
               : CST_OK;
}

int cste_gpu_land(struct cste_gpu *gpu, unsigned thread, struct cste_gpu_flight *flight,
                  struct cst_tile_done *done, struct cst_err *err)
{
    int rc;

    if (!flight->departed) {
        return CST_OK;
    }
    rc = check_wait(gpu, thread, gpu->driver.cuEventSynchronize(flight->event), err);
    flight->departed = false;
    if (rc != CST_OK) {
        return rc;
    }
    if (flight->end != NULL) {
        flight->end(gpu, flight, done);
    }
    done->n_elems += flight->tally.n_elems;
    done->bytes += flight->tally.bytes;
    return CST_OK;
}

int cste_gpu_leave_under_way(struct cste_gpu *gpu, unsigned thread, int rc)
{
    gpu->threads[thread].n_under_way += rc == CST_OK;
    return rc;
}

int cste_gpu_finish(void *state, unsigned thread, struct cst_tile_done *done, struct cst_err *err)
{
    struct cste_gpu *gpu = state;
    struct cste_gpu_thread *t = &gpu->threads[thread];
    struct cste_gpu_flight *flight = &t->flights[t->oldest];

    /* The call that began the flight has made the context current on this thread. */
    assert(t->n_under_way > 0);
    t->oldest = (t->oldest + 1) % CSTE_GPU_WINDOW;
    t->n_under_way--;
    return cste_gpu_land(gpu, thread, flight, done, err);
}

int cste_gpu_settle(struct cste_gpu *gpu, unsigned thread, int rc, struct cst_err *err)
{
    int waited =
        check_wait(gpu, thread, gpu->driver.cuStreamSynchronize(cste_gpu_stream(gpu, thread)), err);

    return waited == CST_OK ? rc : waited;
}
