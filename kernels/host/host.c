#include "kernels/host/host.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

struct host {
    const struct cst_kernels *kernels; /* the best that this processor has */
    const struct cst_cpus *cpus;       /* borrowed */
    size_t page_bytes;                 /* of the system */
};

static int host_open(void **state, const struct cst_cpus *cpus, const char **isa,
                     struct cst_err *err)
{
    struct host *host = calloc(1, sizeof *host);

    if (host == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the host device");
    }
    *host = (struct host){.kernels = cst_kernels_get(NULL),
                          .cpus = cpus,
                          .page_bytes = (size_t)sysconf(_SC_PAGESIZE)};
    if (host->kernels == NULL) {
        free(host);
        return cst_err_set(err, CST_EUNSUPPORTED, "no kernels for this processor");
    }
    *state = host;
    *isa = host->kernels->isa;
    return CST_OK;
}

static void host_close(void *state)
{
    free(state);
}

static int host_map(void *state, int fd, uint64_t bytes, int node, void **base,
                    struct cst_err *note, struct cst_err *err)
{
    struct host *host = state;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        return cst_err_errno(err, errno == ENOMEM ? CST_ENOMEM : CST_EINVAL, errno,
                             "mapping %" PRIu64 " bytes", bytes);
    }
    /* Advice: it matters only where the system allows large pages in shared memory. */
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    if (node >= 0) {
        (void)cst_cpus_bind(host->cpus, at, bytes, (unsigned)node, note);
    }
    *base = at;
    return CST_OK;
}

static void host_unmap(void *state, void *base, uint64_t bytes)
{
    (void)state;
    (void)munmap(base, bytes);
}

/* Write to each page without changing it, where the kernel cannot do it for us. */
static void touch(char *at, uint64_t bytes, size_t page_bytes)
{
    for (uint64_t i = 0; i < bytes; i += page_bytes) {
        (void)__atomic_fetch_or(at + i, 0, __ATOMIC_RELAXED);
    }
}

static int host_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                         struct cst_err *err)
{
    const struct host *host = state;
    uint64_t start = offset - offset % host->page_bytes;
    char *at = (char *)base + start;

    bytes += offset - start;
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)bytes) != 0) {
        int status = errno == ENOSPC || errno == ENOMEM ? CST_ENOMEM : CST_EIO;

        return cst_err_errno(err, status, errno, "backing %" PRIu64 " bytes at %" PRIu64, bytes,
                             start);
    }
    if (madvise(at, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) {
            return cst_err_errno(err, CST_ENOMEM, errno, "touching %" PRIu64 " bytes at %" PRIu64,
                                 bytes, start);
        }
        touch(at, bytes, host->page_bytes);
    }
    return CST_OK;
}

static int host_lock(void *state, void *base, uint64_t bytes, struct cst_err *err)
{
    (void)state;
    if (mlock(base, bytes) != 0) {
        return cst_err_errno(err, CST_EDENIED, errno, "locking %" PRIu64 " bytes", bytes);
    }
    return CST_OK;
}

static int host_copy(void *state, void *dst, const void *src, uint64_t bytes, struct cst_err *err)
{
    (void)state;
    (void)err;
    memcpy(dst, src, bytes);
    return CST_OK;
}

static int host_fill(void *state, void *dst, uint64_t bytes, struct cst_err *err)
{
    (void)state;
    (void)err;
    memset(dst, 0, bytes);
    return CST_OK;
}

static int host_convert(void *state, const struct cst_device_states *states, uint64_t n_elems,
                        struct cst_err *err)
{
    const struct host *host = state;

    (void)err;
    memcpy(states->master, states->src, n_elems * sizeof(float));
    host->kernels->cast(n_elems, states->src, states->weight);
    memset(states->exp_avg, 0, n_elems * sizeof(float));
    memset(states->exp_avg_sq, 0, n_elems * sizeof(float));
    return CST_OK;
}

static int host_reduce(void *state, const struct cst_tile_work *work, uint32_t n_src,
                       const uint16_t *const *src, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_err *err)
{
    const struct host *host = state;
    struct cst_tile_work mine = *work;

    (void)err;
    mine.kernels = host->kernels;
    (void)cst_tile_reduce_range(&mine, n_src, src, first, count, undo);
    return CST_OK;
}

static int host_update(void *state, const struct cst_tile_work *work,
                       const struct cst_tile_hyper *hyper, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_err *err)
{
    const struct host *host = state;
    struct cst_tile_work mine = *work;

    (void)err;
    mine.kernels = host->kernels;
    (void)cst_tile_update_range(&mine, hyper, first, count, undo);
    return CST_OK;
}

static int host_restore(void *state, struct cst_undo_slot *undo, const struct cst_tile_work *work,
                        uint64_t chunk_elems, struct cst_err *err)
{
    const struct host *host = state;
    struct cst_tile_work mine = *work;
    uint64_t tile = undo->tile;

    mine.kernels = host->kernels;
    if (cst_undo_restore(undo, &mine, chunk_elems) != CST_OK) {
        return cst_err_set(err, CST_EINVAL, "undo slot of tile %" PRIu64 " cannot be right", tile);
    }
    return CST_OK;
}

const struct cst_device_ops cst_host_ops = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .map = host_map,
    .unmap = host_unmap,
    .populate = host_populate,
    .lock = host_lock,
    .copy = host_copy,
    .fill = host_fill,
    .convert = host_convert,
    .reduce = host_reduce,
    .update = host_update,
    .restore = host_restore,
};
