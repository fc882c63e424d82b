#include "kernels/device.h"

#include "kernels/host/host.h"

#include <inttypes.h>
#include <string.h>

static const struct cst_device_ops *const rows[] = {
    &cst_host_ops,
};

const struct cst_device_ops *cst_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i]->name, name) == 0) {
            return rows[i];
        }
    }
    return NULL;
}

int cst_device_open(struct cst_device *device, const struct cst_device_ops *ops,
                    const struct cst_cpus *cpus, struct cst_err *err)
{
    *device = (struct cst_device){.ops = ops};
    return ops->open(&device->state, cpus, &device->isa, err);
}

void cst_device_close(struct cst_device *device)
{
    device->ops->close(device->state);
}

/* Does [offset, offset + bytes) lie in @mem, at a multiple of @align? */
static int check(const struct cst_mem *mem, uint64_t offset, uint64_t bytes, uint64_t align,
                 struct cst_err *err)
{
    if (mem->base == NULL) {
        return cst_err_set(err, CST_EINVAL, "memory that is not mapped");
    }
    if (offset > mem->bytes || bytes > mem->bytes - offset) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu64 " bytes at %" PRIu64 " of memory of %" PRIu64, bytes, offset,
                           mem->bytes);
    }
    if (offset % align != 0) {
        return cst_err_set(err, CST_EINVAL, "offset %" PRIu64 " is no multiple of %" PRIu64, offset,
                           align);
    }
    return CST_OK;
}

/* Checked address of @n_elems elements of @size bytes at @addr. */
static int resolve(struct cst_addr addr, uint64_t n_elems, uint64_t size, void **out,
                   struct cst_err *err)
{
    int rc;

    if (n_elems > UINT64_MAX / size) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu64 " elements", n_elems);
    }
    rc = check(addr.mem, addr.offset, n_elems * size, size, err);
    if (rc == CST_OK) {
        *out = (char *)addr.mem->base + addr.offset;
    }
    return rc;
}

int cst_device_map(struct cst_device *device, int fd, uint64_t bytes, int node, struct cst_mem *mem,
                   struct cst_err *note, struct cst_err *err)
{
    void *base;
    int rc;

    note->status = CST_OK;
    rc = device->ops->map(device->state, fd, bytes, node, &base, note, err);
    if (rc == CST_OK) {
        *mem = (struct cst_mem){.base = base, .bytes = bytes};
    }
    return rc;
}

void cst_device_unmap(struct cst_device *device, struct cst_mem *mem)
{
    if (mem->base != NULL) {
        device->ops->unmap(device->state, mem->base, mem->bytes);
        mem->base = NULL;
    }
}

int cst_device_populate(struct cst_device *device, int fd, const struct cst_mem *mem,
                        uint64_t offset, uint64_t bytes, struct cst_err *err)
{
    int rc = check(mem, offset, bytes, 1, err);

    return rc != CST_OK ? rc
                        : device->ops->populate(device->state, fd, mem->base, offset, bytes, err);
}

int cst_device_lock(struct cst_device *device, const struct cst_mem *mem, struct cst_err *err)
{
    int rc = check(mem, 0, mem->bytes, 1, err);

    return rc != CST_OK ? rc : device->ops->lock(device->state, mem->base, mem->bytes, err);
}

int cst_device_copy(struct cst_device *device, struct cst_addr dst, struct cst_addr src,
                    uint64_t bytes, struct cst_err *err)
{
    void *to = NULL, *from = NULL;

    if (resolve(dst, bytes, 1, &to, err) != CST_OK ||
        resolve(src, bytes, 1, &from, err) != CST_OK) {
        return CST_EINVAL;
    }
    return device->ops->copy(device->state, to, from, bytes, err);
}

int cst_device_fill(struct cst_device *device, struct cst_addr dst, uint64_t bytes,
                    struct cst_err *err)
{
    void *to = NULL;
    int rc = resolve(dst, bytes, 1, &to, err);

    return rc != CST_OK ? rc : device->ops->fill(device->state, to, bytes, err);
}

int cst_device_convert(struct cst_device *device, struct cst_addr src, const struct cst_addr dst[4],
                       uint64_t n_elems, struct cst_err *err)
{
    static const uint64_t sizes[4] = {sizeof(float), sizeof(uint16_t), sizeof(float),
                                      sizeof(float)};
    void *from = NULL, *to[4] = {NULL};
    int rc = resolve(src, n_elems, sizeof(float), &from, err);

    for (int i = 0; i < 4 && rc == CST_OK; i++) {
        rc = resolve(dst[i], n_elems, sizes[i], &to[i], err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    return device->ops->convert(
        device->state,
        &(struct cst_device_states){
            .src = from, .master = to[0], .weight = to[1], .exp_avg = to[2], .exp_avg_sq = to[3]},
        n_elems, err);
}

int cst_device_reduce(struct cst_device *device, const struct cst_tile_work *work, uint32_t n_src,
                      const uint16_t *const *src, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err)
{
    if (n_src > CST_TILE_MAX_SRC || work->mark == 0 || work->rows.grad == NULL) {
        return cst_err_set(err, CST_EINVAL, "reduce of %u sources, mark %" PRIu64, n_src,
                           work->mark);
    }
    return device->ops->reduce(device->state, work, n_src, src, first, count, undo, err);
}

int cst_device_update(struct cst_device *device, const struct cst_tile_work *work,
                      const struct cst_tile_hyper *hyper, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err)
{
    const struct cst_rows *r = &work->rows;

    if (work->mark == 0 || r->weight == NULL || r->grad == NULL || r->master == NULL ||
        r->exp_avg == NULL || r->exp_avg_sq == NULL) {
        return cst_err_set(err, CST_EINVAL, "update with mark %" PRIu64 " or without a row",
                           work->mark);
    }
    return device->ops->update(device->state, work, hyper, first, count, undo, err);
}

int cst_device_restore(struct cst_device *device, struct cst_undo_slot *undo,
                       const struct cst_tile_work *work, uint64_t chunk_elems, struct cst_err *err)
{
    return device->ops->restore(device->state, undo, work, chunk_elems, err);
}
