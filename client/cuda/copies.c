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

/* Register the memory that contains @src. The driver then pins it, which takes milliseconds. Memory
 * is registered by the first copy from it, so that memory without copies is never pinned. If the
 * driver refuses, copies are slower: it copies such memory through pinned memory of its own. */
static int register_host(struct cst_cuda *cuda, const void *src, struct cst_err *err)
{
    struct cstc_host *host = NULL;
    int rc;

    for (uint32_t i = 0; i < cuda->n_hosts && host == NULL; i++) {
        uintptr_t base = (uintptr_t)cuda->hosts[i].base;

        if ((uintptr_t)src >= base && (uintptr_t)src - base < cuda->hosts[i].bytes) {
            host = &cuda->hosts[i];
        }
    }
    if (host == NULL) {
        return cst_err_set(err, CST_EINVAL, "a copy from memory that the daemon has not announced");
    }
    if (host->registered || host->refused) {
        return CST_OK;
    }
    rc = cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuMemHostRegister(host->base, host->bytes, CU_MEMHOSTREGISTER_PORTABLE), err,
        "registering %" PRIu64 " bytes of an arena", host->bytes);
    host->registered = rc == CST_OK;
    host->refused = rc != CST_OK && rc != CST_EGPU;
    return host->refused ? CST_OK : rc;
}

/* -- copies --------------------------------------------------------------------------------- */

static int make_stream(struct cst_cuda *cuda, struct cst_err *err)
{
    const struct cst_cuda_driver *driver = &cuda->driver;
    CUstream stream;
    int rc = CST_OK;

    /* After a failure, the next copy continues here with the events that are still missing. */
    while (rc == CST_OK && cuda->n_copied < CSTC_CUDA_COPIED) {
        rc = cst_cuda_check(
            driver, driver->cuEventCreate(&cuda->copied[cuda->n_copied], CU_EVENT_DISABLE_TIMING),
            err, "an event of %s", cuda->uuid);
        cuda->n_copied += rc == CST_OK;
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver,
                            driver->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                            err, "a stream of %s", cuda->uuid);
    }
    if (rc == CST_OK) {
        cuda->copies = stream;
    }
    return rc;
}

int cstc_cuda_copy(void *arg, void *dst, const void *src, uint64_t bytes, uint64_t *number,
                   struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    const struct cst_cuda_driver *driver = &cuda->driver;
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)dst;
    uint64_t next = cuda->last_copy + 1;
    int rc = cstc_cuda_enter(cuda, err);

    if (rc == CST_OK && cuda->copies == NULL) {
        rc = make_stream(cuda, err);
    }
    if (rc == CST_OK) {
        rc = register_host(cuda, src, err);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(driver, driver->cuMemcpyHtoDAsync(to, src, bytes, cuda->copies), err,
                            "copying %" PRIu64 " bytes of weights", bytes);
    }
    if (rc == CST_OK) {
        rc = cst_cuda_check(
            driver, driver->cuEventRecord(cuda->copied[next % CSTC_CUDA_COPIED], cuda->copies), err,
            "a mark after a copy");
        if (rc != CST_OK) { /* Nobody can wait for a copy without a number: wait here. */
            (void)driver->cuStreamSynchronize(cuda->copies);
        }
    }
    if (rc == CST_OK) {
        cuda->last_copy = *number = next;
    }
    return rc;
}

/* The event of @number may have been recorded again after a later copy. Then the stream waits for
 * that copy, which comes after copy @number. */
int cstc_cuda_await(void *arg, uint64_t number, struct cst_err *err)
{
    struct cst_cuda *cuda = arg;
    int rc = cstc_cuda_enter(cuda, err);

    if (rc != CST_OK) {
        return rc;
    }
    return cst_cuda_check(
        &cuda->driver,
        cuda->driver.cuStreamWaitEvent(cuda->stream, cuda->copied[number % CSTC_CUDA_COPIED], 0),
        err, "a wait for a copy of weights");
}

void cstc_copies_close(struct cst_cuda *cuda)
{
    if (cuda->copies != NULL) {
        (void)cuda->driver.cuStreamSynchronize(cuda->copies);
        (void)cuda->driver.cuStreamDestroy(cuda->copies);
    }
    while (cuda->n_copied > 0) {
        (void)cuda->driver.cuEventDestroy(cuda->copied[--cuda->n_copied]);
    }
    free(cuda->hosts);
    cuda->hosts = NULL;
}
