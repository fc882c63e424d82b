/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/cuda.h"

#include <inttypes.h>
#include <stdlib.h>

/* -- host memory ---------------------------------------------------------------------------- */

int cstc_cuda_map_host(void *arg, void *base, uint64_t bytes, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    uint32_t n = cuda->n_hosts;
    struct cstc_host *hosts;

    if (n == cuda->hosts_capacity) {
        uint32_t capacity = n > 0 ? 2 * n : 16;

        hosts = realloc(cuda->hosts, capacity * sizeof *hosts);
        if (hosts == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " arenas", capacity);
        }
        cuda->hosts = hosts;
        cuda->hosts_capacity = capacity;
    }
    cuda->hosts[cuda->n_hosts++] = (struct cstc_host){.base = base, .bytes = bytes};
    return CST_OK;
}

void cstc_cuda_unmap_host(void *arg, void *base, uint64_t bytes)
{
    struct cst_cuda *cuda = arg;
    uint32_t i = 0;

    (void)bytes;
    while (i < cuda->n_hosts && cuda->hosts[i].base != base) {
        i++;
    }
    if (i == cuda->n_hosts) {
        return;
    }
    /* Memory that is still registered must not be unmapped. */
    if (cuda->hosts[i].registered && cstc_cuda_enter(cuda, NULL) == CST_OK) {
        (void)cuda->driver.cuMemHostUnregister(base);
    }
    cuda->hosts[i] = cuda->hosts[--cuda->n_hosts];
}

/* Return the memory that contains the address @at; NULL: none does. */
static struct cstc_host *find_host(struct cst_cuda *cuda, const void *at)
{
    for (uint32_t i = 0; i < cuda->n_hosts; i++) {
        uintptr_t base = (uintptr_t)cuda->hosts[i].base;

        if ((uintptr_t)at >= base && (uintptr_t)at - base < cuda->hosts[i].bytes) {
            return &cuda->hosts[i];
        }
    }
    return NULL;
}

/* Register @host, unless this was done. The driver then pins it, which takes milliseconds. Memory
 * is registered by the first copy, so that memory without copies is never pinned. If the driver
 * refuses, copies are slower: it copies such memory through pinned memory of its own. */
static int register_host(struct cst_cuda *cuda, struct cstc_host *host, struct cst_err *err)
{
    int rc;

    if (host == NULL) {
        return cst_err_set(err, CST_EINVAL, "a copy of memory that the daemon has not announced");
    }
    if (host->registered || host->refused) {
        return CST_OK;
    }
    rc = cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuMemHostRegister(host->base, host->bytes, CU_MEMHOSTREGISTER_PORTABLE), err,
        "registering %" PRIu64 " bytes of host memory", host->bytes);
    host->registered = rc == CST_OK;
    host->refused = rc != CST_OK && rc != CST_EGPU;
    return host->refused ? CST_OK : rc;
}

/* -- queues --------------------------------------------------------------------------------- */

static int make_event(const struct cst_cuda *cuda, CUevent *out, struct cst_err *err)
{
    return cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuEventCreate(out, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC), err,
        "an event of %s", cuda->uuid);
}

static int open_queue(struct cst_cuda *cuda, struct cstc_queue *queue, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    CUstream stream;
    int rc = CST_OK;

    /* After a failure, the next copy continues here with the events that are still missing. */
    while (rc == CST_OK && queue->n_copied < CSTC_CUDA_COPIED) {
        rc = make_event(cuda, &queue->copied[queue->n_copied], err);
        queue->n_copied += rc == CST_OK;
    }
    if (rc == CST_OK && queue->stream == NULL) {
        rc = cst_cuda_check(driver,
                            driver->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                            err, "a stream of %s", cuda->uuid);
        queue->stream = rc == CST_OK ? stream : NULL;
    }
    return rc;
}

/* A copy was enqueued in @queue: record its event, and number it. */
static int number_copy(const struct cst_cuda *cuda, struct cstc_queue *queue, uint64_t *number,
                       struct cst_err *err)
{
    const uint64_t next = queue->last + 1;
    int rc = cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuEventRecord(queue->copied[next % CSTC_CUDA_COPIED], queue->stream), err,
        "a mark after a copy");

    if (rc != CST_OK) { /* Nobody can wait for a copy without a number: wait here. */
        (void)cuda->driver.cuStreamSynchronize(queue->stream);
        return rc;
    }
    queue->last = *number = next;
    return CST_OK;
}

/* Enqueue: the program's stream waits for copy @number of @queue. The event may have been recorded
 * again after a later copy. Then the stream waits for that copy, which comes after @number. */
static int await_copy(struct cst_cuda *cuda, const struct cstc_queue *queue, uint64_t number,
                      struct cst_err *err)
{
    return cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuStreamWaitEvent(cuda->stream, queue->copied[number % CSTC_CUDA_COPIED], 0),
        err, "a wait for a copy");
}

static void close_queue(const struct cst_cuda *cuda, struct cstc_queue *queue)
{
    if (queue->stream != NULL) {
        (void)cuda->driver.cuStreamSynchronize(queue->stream);
        (void)cuda->driver.cuStreamDestroy(queue->stream);
    }
    while (queue->n_copied > 0) {
        (void)cuda->driver.cuEventDestroy(queue->copied[--queue->n_copied]);
    }
}

/* -- weights -------------------------------------------------------------------------------- */

int cstc_cuda_copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                   struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    struct cstc_queue *queue = &cuda->weights;
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)dst;
    int rc = cstc_cuda_enter(cuda, err);

    rc = rc == CST_OK ? open_queue(cuda, queue, err) : rc;
    rc = rc == CST_OK ? register_host(cuda, find_host(cuda, src), err) : rc;
    if (rc == CST_OK) {
        rc = cst_cuda_check(&cuda->driver,
                            cuda->driver.cuMemcpyHtoDAsync(to, src, bytes, queue->stream), err,
                            "copying %" PRIu64 " bytes of weights", bytes);
    }
    return rc == CST_OK ? number_copy(cuda, queue, number, err) : rc;
}

int cstc_cuda_await(void *arg, uint64_t number, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    int rc = cstc_cuda_enter(cuda, err);

    return rc == CST_OK ? await_copy(cuda, &cuda->weights, number, err) : rc;
}

/* -- arrays of edges ------------------------------------------------------------------------ */

/* Enqueue in the queue of arrays: wait for all work that the program's stream has. */
static int follow_stream(struct cst_cuda *cuda, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    int rc = CST_OK;

    if (cuda->put == NULL) {
        CUevent event;

        rc = make_event(cuda, &event, err);
        cuda->put = rc == CST_OK ? event : NULL;
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuEventRecord(cuda->put, cuda->stream), err,
                            "a mark before the copy of an array");
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuStreamWaitEvent(cuda->arrays.stream, cuda->put, 0),
                            err, "a wait for the stream of %s", cuda->uuid);
    }
    return rc;
}

int cstc_cuda_copy_array(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                         struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    struct cstc_queue *queue = &cuda->arrays;
    struct cstc_host *host = find_host(cuda, dst);
    int rc = cstc_cuda_enter(cuda, err);

    host = host != NULL ? host : find_host(cuda, src);
    rc = rc == CST_OK ? open_queue(cuda, queue, err) : rc;
    if (rc == CST_OK && host != NULL) { /* Otherwise the slot is in the memory of a GPU. */
        rc = register_host(cuda, host, err);
    }
    rc = rc == CST_OK ? follow_stream(cuda, err) : rc;
    if (rc == CST_OK && bytes > 0) {
        rc = cst_cuda_check(&cuda->driver,
                            cuda->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)dst,
                                                       (CUdeviceptr)(uintptr_t)src, bytes,
                                                       queue->stream),
                            err, "copying %" PRIu64 " bytes of an array", bytes);
    }
    return rc == CST_OK ? number_copy(cuda, queue, number, err) : rc;
}

int cstc_cuda_await_array(void *arg, uint64_t number, bool blocks, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    int rc = cstc_cuda_enter(cuda, err);

    if (rc != CST_OK || !blocks) {
        return rc == CST_OK ? await_copy(cuda, &cuda->arrays, number, err) : rc;
    }
    return cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuEventSynchronize(cuda->arrays.copied[number % CSTC_CUDA_COPIED]), err,
        "the copy of an array");
}

void cstc_copies_close(struct cst_cuda *cuda)
{
    close_queue(cuda, &cuda->weights);
    close_queue(cuda, &cuda->arrays);
    if (cuda->put != NULL) {
        (void)cuda->driver.cuEventDestroy(cuda->put);
    }
    free(cuda->hosts);
    cuda->hosts = NULL;
}
