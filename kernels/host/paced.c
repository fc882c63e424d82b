/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/paced.h"

#include "kernels/engine/thread_pool.h"
#include "kernels/host/host.h"
#include "kernels/engine/segments.h"
#include "proto/clock.h"
#include "proto/fallocate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct paced {
    /* State of the host device, which computes and keeps the rate of updates. */
    void *host;
    struct cste_rate_limit up;     /* Rate of copies to the accelerator's memory. */
    struct cste_rate_limit down;   /* Rate of copies and sums to the host. */
    struct cste_rate_limit within; /* Copies that stay on one side; no rate is kept. */
};

static int paced_open(void **state, const struct cste_device_spec *spec,
                      struct cste_device_about *about, struct cst_err *err)
{
    struct paced *paced = calloc(1, sizeof *paced);
    int rc;

    if (paced == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a simulated accelerator");
    }
    rc = cste_host_ops.open(&paced->host, spec, about, err);
    if (rc != CST_OK) {
        free(paced);
        return rc;
    }
    cste_rate_limit_init(&paced->up, spec->pace.up);
    cste_rate_limit_init(&paced->down, spec->pace.down);
    cste_rate_limit_init(&paced->within, 0);
    about->name = "paced";
    about->bytes = spec->pace.memory;
    about->granularity = (uint64_t)sysconf(_SC_PAGESIZE);
    *state = paced;
    return CST_OK;
}

static void paced_close(void *state)
{
    struct paced *paced = state;

    cste_host_ops.close(paced->host);
    cste_rate_limit_close(&paced->up);
    cste_rate_limit_close(&paced->down);
    cste_rate_limit_close(&paced->within);
    free(paced);
}

/* -- memory --------------------------------------------------------------------------------- */

static int paced_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                     struct cst_err *err)
{
    return cste_host_ops.memory->map(((struct paced *)state)->host, fd, node, mem, note, err);
}

static int paced_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                          struct cst_err *err)
{
    return cste_host_ops.memory->populate(((struct paced *)state)->host, fd, base, offset, bytes,
                                          err);
}

static int paced_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    return cste_host_ops.memory->lock(((struct paced *)state)->host, mem, err);
}

/* Returns the accelerator's memory as the host device sees it. */
static struct cste_mem as_host(const struct cste_mem *mem)
{
    struct cste_mem view = *mem;

    if (mem->device != 0) {
        view.base = (void *)(uintptr_t)mem->device;
        view.device = 0;
    }
    return view;
}

/* Create memory of the accelerator. A worker maps the memory, too. Seals prevent the worker from
 * shrinking the memory. All pages are allocated, because access to a page that could not be
 * allocated would cause a signal. */
static int make(uint64_t bytes, int *out, struct cst_err *err)
{
    int fd = memfd_create("cistern-paced", MFD_CLOEXEC | MFD_ALLOW_SEALING), saved;

    if (fd < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "memfd_create");
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || fchmod(fd, 0600) != 0 ||
        cst_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        saved = errno;
        (void)close(fd);
        return cst_err_errno(err, CST_ENOMEM, saved, "making %" PRIu64 " bytes", bytes);
    }
    *out = fd;
    return CST_OK;
}

static int paced_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                        struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_mem view = {.bytes = mem->bytes};
    struct cst_err note;
    int made = -1, rc;

    (void)thread;
    rc = *fd < 0 ? make(mem->bytes, &made, err) : cste_segments_check_fd(*fd, mem->bytes, err);
    if (rc != CST_OK) {
        return rc;
    }
    rc = paced_map(paced, made >= 0 ? made : *fd, -1, &view, &note, err);
    if (rc != CST_OK) {
        goto err_after_make;
    }
    if (made >= 0) {
        rc = paced_populate(paced, made, view.base, 0, view.bytes, err);
        if (rc != CST_OK) {
            goto err_after_map;
        }
        *fd = made;
    }
    mem->device = (uint64_t)(uintptr_t)view.base;
    return CST_OK;

err_after_map:
    cste_host_ops.memory->unmap(paced->host, &view);
err_after_make:
    if (made >= 0) {
        (void)close(made);
    }
    return rc;
}

static void paced_unmap(void *state, struct cste_mem *mem)
{
    struct cste_mem view = as_host(mem);

    cste_host_ops.memory->unmap(((struct paced *)state)->host, &view);
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* Returns the pace of copies from @src to @dst. */
static struct cste_rate_limit *way(struct paced *paced, const struct cste_mem *dst,
                                   const struct cste_mem *src)
{
    if ((dst->device != 0) == (src->device != 0)) {
        return &paced->within;
    }
    return dst->device != 0 ? &paced->up : &paced->down;
}

static int paced_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                      uint64_t bytes, struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_mem to = as_host(dst.mem), from = as_host(src.mem);
    struct cste_rate_limit *pace = way(paced, dst.mem, src.mem);
    int rc;

    cste_rate_limit_enter(pace, cst_clock_ns());
    rc = cste_host_ops.memory->copy(paced->host, thread, (struct cste_addr){&to, dst.offset},
                                    (struct cste_addr){&from, src.offset}, bytes, err);

    cste_rate_limit_wait(pace, bytes);
    return rc;
}

static int paced_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                      struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_mem to = as_host(dst.mem);

    /* Filling does not use the link. */
    return cste_host_ops.memory->fill(paced->host, thread, (struct cste_addr){&to, dst.offset},
                                      bytes, err);
}

/* -- arithmetic ----------------------------------------------------------------------------- */

/* Convert values to weights. The fp32 values go over the link. */
static int paced_convert(void *state, unsigned thread, const struct cste_device_convert *convert,
                         struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_device_convert inside = *convert;
    struct cste_rate_limit *pace = way(paced, convert->dst[0].mem, convert->src.mem);
    struct cste_mem to = as_host(convert->dst[0].mem);
    int rc;

    if (convert->what != CSTE_CONVERT_WEIGHT || convert->split) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "conversions of states must go to the engine of a node");
    }
    inside.dst[0].mem = &to;
    cste_rate_limit_enter(pace, cst_clock_ns());
    rc = cste_host_ops.compute->convert(paced->host, thread, &inside, err);
    cste_rate_limit_wait(pace, convert->n_elems * sizeof(float));
    return rc;
}

/* Convert addresses to those of the host device. Their memory is described in @mems. */
static void all_as_host(const struct cste_addr *from, uint32_t n, struct cste_mem *mems,
                        struct cste_addr *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = from[i];
        if (from[i].mem != NULL) {
            mems[i] = as_host(from[i].mem);
            out[i].mem = &mems[i];
        }
    }
}

/* Sum on the accelerator. The sums go over the link to the host. */
static int paced_reduce(void *state, unsigned thread, const struct cst_tile_work *work,
                        uint32_t n_src, const struct cste_addr *src, uint64_t first, uint64_t count,
                        struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_mem mems[CST_TILE_MAX_SRC];
    struct cste_addr from[CST_TILE_MAX_SRC];
    uint64_t size = work->rows.grad_f32 != NULL ? sizeof(float) : sizeof(uint16_t);
    int rc;

    cste_rate_limit_enter(&paced->down, cst_clock_ns());
    all_as_host(src, n_src, mems, from);
    rc = cste_host_ops.compute->reduce(paced->host, thread, work, n_src, from, first, count, undo,
                                       done, err);
    cste_rate_limit_wait(&paced->down, done->n_elems * size);
    return rc;
}

static bool is_own(const struct cste_addr *addr, uint32_t n)
{
    bool own = true;

    for (uint32_t i = 0; i < n; i++) {
        own = own && (addr[i].mem == NULL || addr[i].mem->device != 0);
    }
    return own;
}

/* Check that the update is out of place and entirely in the accelerator's memory. An update in
 * place would need undo slots there. */
static int check_update(const struct cste_device_update *update, struct cst_err *err)
{
    if (cste_device_is_in_place(update)) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "UPDATE in place must go to the engine of a node");
    }
    if (!is_own(update->in, CST_ROW_COUNT) || !is_own(update->out, CST_ROW_COUNT) ||
        !is_own(update->src, update->n_src)) {
        return cst_err_set(err, CST_EINVAL,
                           "UPDATE of chunk %u: a row or a contribution is in host memory",
                           update->work->chunk);
    }
    return CST_OK;
}

/* Rows in the accelerator's memory as the host device sees them. */
struct rows {
    struct cste_mem in[CST_ROW_COUNT], out[CST_ROW_COUNT];
};

static void place_rows(struct cste_device_update *mine, struct rows *rows,
                       const struct cste_device_update *update)
{
    *mine = *update;
    all_as_host(update->in, CST_ROW_COUNT, rows->in, mine->in);
    all_as_host(update->out, CST_ROW_COUNT, rows->out, mine->out);
}

/* Update in the accelerator's memory. The host device keeps the rate. */
static int paced_update(void *state, unsigned thread, const struct cste_device_update *update,
                        uint64_t first, uint64_t count, struct cst_undo_slot *undo,
                        struct cst_tile_done *done, struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_mem mems[CST_TILE_MAX_SRC];
    struct cste_addr src[CST_TILE_MAX_SRC];
    struct cste_device_update mine;
    struct rows rows;
    int rc = check_update(update, err);

    if (rc != CST_OK) {
        return rc;
    }
    place_rows(&mine, &rows, update);
    all_as_host(update->src, update->n_src, mems, src);
    mine.src = src;
    return cste_host_ops.compute->update(paced->host, thread, &mine, first, count, undo, done, err);
}

/* Products in the accelerator's memory, at the speed of the host. */
static int paced_orthogonalise(void *state, unsigned thread,
                               const struct cste_device_update *update, unsigned phase,
                               uint64_t first, uint64_t count, struct cst_err *err)
{
    struct paced *paced = state;
    struct cste_device_update mine;
    struct rows rows;
    int rc = check_update(update, err);

    if (rc != CST_OK) {
        return rc;
    }
    place_rows(&mine, &rows, update);
    return cste_host_ops.compute->orthogonalise(paced->host, thread, &mine, phase, first, count,
                                                err);
}

static const struct cste_memory_ops memory_ops = {
    /* One lane sleeps while the bytes of the other move. */
    .max_lanes = 2,
    /* The size of the overlap of a copy with the end of the previous one. */
    .piece_bytes = 256u << 10,
    .map = paced_map,
    .import = paced_import,
    .unmap = paced_unmap,
    .populate = paced_populate,
    .lock = paced_lock,
    .copy = paced_copy,
    .fill = paced_fill,
};

static const struct cste_compute_ops compute_ops = {
    .max_team = CSTE_THREAD_POOL_MAX_THREADS,
    /* As on the host. */
    .max_tiles = 64,
    .max_products = 1,
    .convert = paced_convert,
    .reduce = paced_reduce,
    .update = paced_update,
    .orthogonalise = paced_orthogonalise,
};

const struct cste_device_ops cste_paced_ops = {
    .name = "paced",
    .open = paced_open,
    .close = paced_close,
    .memory = &memory_ops,
    .compute = &compute_ops,
};
