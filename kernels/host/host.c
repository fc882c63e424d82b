/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/host.h"

#include "kernels/engine/populate.h"
#include "kernels/engine/thread_pool.h"
#include "kernels/host/convert.h"
#include "proto/clock.h"
#include "proto/segment_map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct host {
    const struct cst_kernels *kernels; /* The best kernels for this processor. */
    const struct cste_cpus *cpus;      /* Processors of the engine; borrowed. */
    /* Memory for products, one for each thread of the team; NULL: the thread has made none. */
    struct cst_product_space **spaces;
    unsigned n_spaces;
    struct cste_rate_limit update; /* Rate of updates. */
};

static int host_open(void **state, const struct cste_device_spec *spec,
                     struct cste_device_about *about, struct cst_err *err)
{
    struct host *host = calloc(1, sizeof *host);

    if (host == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the host device");
    }
    *host = (struct host){.kernels = cst_kernels_get(NULL),
                          .cpus = spec->cpus,
                          .spaces = calloc(spec->n_team, sizeof *host->spaces),
                          .n_spaces = spec->n_team};
    if (host->spaces == NULL) {
        free(host);
        return cst_err_set(err, CST_ENOMEM, "no memory for the host device");
    }
    if (host->kernels == NULL) {
        free(host->spaces);
        free(host);
        return cst_err_set(err, CST_EUNSUPPORTED, "no kernels for this processor");
    }
    cste_rate_limit_init(&host->update, spec->pace.update);
    *state = host;
    *about = (struct cste_device_about){.isa = host->kernels->isa};
    return CST_OK;
}

static void host_close(void *state)
{
    struct host *host = state;

    cste_rate_limit_close(&host->update);
    for (unsigned i = 0; i < host->n_spaces; i++) {
        free(host->spaces[i]);
    }
    free(host->spaces);
    free(host);
}

static int host_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                    struct cst_err *err)
{
    struct host *host = state;
    void *at = cst_segment_map(fd, mem->bytes);

    if (at == MAP_FAILED) {
        return cst_err_errno(err, errno == ENOMEM ? CST_ENOMEM : CST_EINVAL, errno,
                             "mapping %" PRIu64 " bytes", mem->bytes);
    }
    /* Large pages for kernels without MADV_COLLAPSE, where the administrator allows them. */
    (void)madvise(at, mem->bytes, MADV_HUGEPAGE);
    if (node >= 0) {
        (void)cste_cpus_bind(host->cpus, at, mem->bytes, (unsigned)node, note);
    }
    mem->base = at;
    return CST_OK;
}

static int host_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                       struct cst_err *err)
{
    (void)state;
    (void)thread;
    (void)fd;
    (void)mem;
    return cst_err_set(err, CST_EUNSUPPORTED, "the host has no memory of a GPU");
}

static void host_unmap(void *state, struct cste_mem *mem)
{
    (void)state;
    (void)munmap(mem->base, mem->bytes);
}

static int host_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                         struct cst_err *err)
{
    const int errnum = cste_populate(fd, base, offset, bytes);

    (void)state;
    return errnum == 0 ? CST_OK
                       : cst_err_errno(err, CST_ENOMEM, errnum,
                                       "backing %" PRIu64 " bytes at %" PRIu64, bytes, offset);
}

static int host_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    /* Sanitizers make mlock and munlock do nothing, but not mlock2, whose pages could not be
     * unlocked then. */
    int rc =
        mem->sparse ? mlock2(mem->base, mem->bytes, MLOCK_ONFAULT) : mlock(mem->base, mem->bytes);

    (void)state;
    if (rc != 0) {
        return cst_err_errno(err, errno == EPERM ? CST_EDENIED : CST_ENOMEM, errno,
                             "locking %" PRIu64 " bytes", mem->bytes);
    }
    return CST_OK;
}

static int host_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                     uint64_t bytes, struct cst_err *err)
{
    (void)state;
    (void)thread;
    (void)err;
    memcpy(cste_addr_host(dst), cste_addr_host(src), bytes);
    return CST_OK;
}

static int host_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                     struct cst_err *err)
{
    (void)state;
    (void)thread;
    (void)err;
    memset(cste_addr_host(dst), 0, bytes);
    return CST_OK;
}

static int host_convert(void *state, unsigned thread, const struct cste_device_convert *convert,
                        struct cst_err *err)
{
    const struct host *host = state;

    (void)thread;
    (void)err;
    cste_host_convert(host->kernels, convert);
    return CST_OK;
}

static int host_reduce(void *state, unsigned thread, const struct cst_tile_work *work,
                       uint32_t n_src, const struct cste_addr *src, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    const struct host *host = state;
    const void *at[CST_TILE_MAX_SRC];
    struct cst_tile_work mine = *work;

    (void)thread;
    (void)err;
    for (uint32_t i = 0; i < n_src; i++) {
        at[i] = cste_addr_host(src[i]);
    }
    mine.kernels = host->kernels;
    *done = cst_tile_reduce_range(&mine, n_src, at, first, count, undo);
    return CST_OK;
}

/* Check that all rows and contributions are in host memory. */
static int check_memory(const struct cste_device_update *update, struct cst_err *err)
{
    bool ours = true;

    for (int row = 0; row < CST_ROW_COUNT; row++) {
        const struct cste_mem *in = update->in[row].mem, *out = update->out[row].mem;

        ours = ours && (in == NULL || in->base != NULL) && (out == NULL || out->base != NULL);
    }
    for (uint32_t i = 0; i < update->n_src; i++) {
        ours = ours && update->src[i].mem->base != NULL;
    }
    return ours ? CST_OK
                : cst_err_set(err, CST_EINVAL,
                              "UPDATE of chunk %u with memory of a device, on the host",
                              update->work->chunk);
}

static void place(struct cst_tile_work *work, const struct cste_device_update *update)
{
    cste_device_rows(&work->rows, work, update->in, update->row_elems);
    cste_device_rows(&work->out, work, update->out, update->row_elems);
    work->elsewhere = !cste_device_is_in_place(update);
    /* In place, the tile loop takes all rows from `rows`, also the weight row that is written. */
    if (!work->elsewhere) {
        work->rows.weight = work->out.weight;
        work->rows.master = work->out.master;
    }
    work->guard = update->guard;
    work->n_src = update->n_src;
}

static int host_update(void *state, unsigned thread, const struct cste_device_update *update,
                       uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                       struct cst_tile_done *done, struct cst_err *err)
{
    struct host *host = state;
    const uint16_t *src[CST_TILE_MAX_SRC];
    struct cst_tile_work mine = *update->work;
    int rc = check_memory(update, err);

    (void)thread;
    if (rc != CST_OK) {
        return rc;
    }
    cste_rate_limit_enter(&host->update, cst_clock_ns());
    for (uint32_t i = 0; i < update->n_src; i++) {
        src[i] = cste_addr_host(update->src[i]);
    }
    place(&mine, update);
    mine.kernels = host->kernels;
    mine.src = src;
    *done = cst_tile_update_range(&mine, update->hyper, first, count, undo);
    cste_rate_limit_wait(&host->update, done->n_elems);
    return CST_OK;
}

/* Returns the memory for products of this thread; NULL: there is no memory. */
static struct cst_product_space *space_of(struct host *host, unsigned thread)
{
    struct cst_product_space **space = &host->spaces[thread];

    if (*space == NULL) {
        *space = aligned_alloc(64, sizeof **space);
    }
    return *space;
}

static int host_orthogonalise(void *state, unsigned thread, const struct cste_device_update *update,
                              unsigned phase, uint64_t first, uint64_t count, struct cst_err *err)
{
    struct host *host = state;
    struct cst_tile_work mine = *update->work;
    struct cst_product_space *space = space_of(host, thread);
    int rc = check_memory(update, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (space == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for products: %zu bytes", sizeof *space);
    }
    place(&mine, update);
    mine.kernels = host->kernels;
    if (phase == CST_MUON_DIRECTIONS) {
        (void)cst_tile_direct_range(&mine, update->hyper, first, count);
        return CST_OK;
    }
    for (uint64_t i = first; i < first + count; i++) {
        cst_muon_piece(mine.batch, host->kernels, phase, i, space);
    }
    return CST_OK;
}

static const struct cste_memory_ops memory_ops = {
    .one_pool = true,
    /* More lanes do not copy faster within the memory of one node. */
    .max_lanes = 4,
    .piece_bytes = 4u << 20,
    .map = host_map,
    .import = host_import,
    .unmap = host_unmap,
    .populate = host_populate,
    .lock = host_lock,
    .copy = host_copy,
    .fill = host_fill,
};

static const struct cste_compute_ops compute_ops = {
    .max_team = CSTE_THREAD_POOL_MAX_THREADS,
    /* A piece takes less than a millisecond. */
    .max_tiles = 64,
    .max_products = 1,
    .convert = host_convert,
    .reduce = host_reduce,
    .update = host_update,
    .orthogonalise = host_orthogonalise,
};

const struct cste_device_ops cste_host_ops = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .memory = &memory_ops,
    .compute = &compute_ops,
};
