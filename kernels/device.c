#include "kernels/device.h"

#include <inttypes.h>

int cst_device_open(struct cst_device *device, const struct cst_device_ops *ops,
                    const struct cst_device_spec *spec, struct cst_err *err)
{
    *device = (struct cst_device){.ops = ops};
    return ops->open(&device->state, spec, &device->about, err);
}

void cst_device_close(struct cst_device *device)
{
    device->ops->close(device->state);
}

/* Does [addr.offset, addr.offset + bytes) lie in its memory, at a multiple of @align? */
static int check(struct cst_addr addr, uint64_t bytes, uint64_t align, struct cst_err *err)
{
    const struct cst_mem *mem = addr.mem;

    if (mem->base == NULL && mem->device == 0) {
        return cst_err_set(err, CST_EINVAL, "memory that is not mapped");
    }
    if (addr.offset > mem->bytes || bytes > mem->bytes - addr.offset) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu64 " bytes at %" PRIu64 " of memory of %" PRIu64, bytes,
                           addr.offset, mem->bytes);
    }
    if (addr.offset % align != 0) {
        return cst_err_set(err, CST_EINVAL, "offset %" PRIu64 " is no multiple of %" PRIu64,
                           addr.offset, align);
    }
    return CST_OK;
}

/* Same for what must be host memory. */
static int check_host(struct cst_addr addr, uint64_t bytes, uint64_t align, struct cst_err *err)
{
    int rc = check(addr, bytes, align, err);

    if (rc == CST_OK && addr.mem->base == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "memory of a device, where the host's is needed");
    }
    return rc;
}

/* Checked address of @n_elems elements of @size bytes at @addr. */
static int resolve(struct cst_addr addr, uint64_t n_elems, uint64_t size, void **out,
                   struct cst_err *err)
{
    int rc;

    if (n_elems > UINT64_MAX / size) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu64 " elements", n_elems);
    }
    rc = check_host(addr, n_elems * size, size, err);
    if (rc == CST_OK) {
        *out = (char *)addr.mem->base + addr.offset;
    }
    return rc;
}

int cst_device_map(struct cst_device *device, int fd, int node, struct cst_mem *mem,
                   struct cst_err *note, struct cst_err *err)
{
    note->status = CST_OK;
    return device->ops->map(device->state, fd, node, mem, note, err);
}

int cst_device_import(struct cst_device *device, unsigned thread, int *fd, struct cst_mem *mem,
                      struct cst_err *err)
{
    uint64_t granularity = device->about.granularity;

    if (granularity > 0 && (mem->bytes == 0 || mem->bytes % granularity != 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu64 " bytes of the device's memory, which comes in multiples of "
                           "%" PRIu64,
                           mem->bytes, granularity);
    }
    return device->ops->import(device->state, thread, fd, mem, err);
}

void cst_device_unmap(struct cst_device *device, struct cst_mem *mem)
{
    if (mem->base != NULL || mem->device != 0) {
        device->ops->unmap(device->state, mem);
        mem->base = NULL;
        mem->device = 0;
        mem->locked = false;
    }
}

int cst_device_populate(struct cst_device *device, int fd, const struct cst_mem *mem,
                        uint64_t offset, uint64_t bytes, struct cst_err *err)
{
    int rc = check_host((struct cst_addr){.mem = mem, .offset = offset}, bytes, 1, err);

    return rc != CST_OK ? rc
                        : device->ops->populate(device->state, fd, mem->base, offset, bytes, err);
}

int cst_device_lock(struct cst_device *device, struct cst_mem *mem, struct cst_err *err)
{
    int rc = check_host((struct cst_addr){.mem = mem}, mem->bytes, 1, err);

    if (rc == CST_OK) {
        rc = device->ops->lock(device->state, mem, err);
    }
    if (rc == CST_OK) {
        mem->locked = true;
    }
    return rc;
}

enum cst_device_lane cst_device_lane(const struct cst_mem *dst, const struct cst_mem *src)
{
    return src->device != 0 && dst->device == 0 ? CST_LANE_DOWN : CST_LANE_UP;
}

int cst_device_copy(struct cst_device *device, unsigned thread, struct cst_addr dst,
                    struct cst_addr src, uint64_t bytes, struct cst_err *err)
{
    int rc = check(dst, bytes, 1, err);

    if (rc == CST_OK) {
        rc = check(src, bytes, 1, err);
    }
    return rc != CST_OK ? rc : device->ops->copy(device->state, thread, dst, src, bytes, err);
}

int cst_device_fill(struct cst_device *device, unsigned thread, struct cst_addr dst, uint64_t bytes,
                    struct cst_err *err)
{
    int rc = check(dst, bytes, 1, err);

    return rc != CST_OK ? rc : device->ops->fill(device->state, thread, dst, bytes, err);
}

int cst_device_cast(struct cst_device *device, struct cst_addr src, struct cst_addr dst,
                    uint64_t n_elems, struct cst_err *err)
{
    void *from = NULL, *to = NULL;
    int rc = resolve(src, n_elems, sizeof(float), &from, err);

    if (rc == CST_OK) {
        rc = resolve(dst, n_elems, sizeof(uint16_t), &to, err);
    }
    return rc != CST_OK
               ? rc
               : device->ops->convert(device->state,
                                      &(struct cst_device_states){.src = from, .weight = to},
                                      n_elems, err);
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

int cst_device_reduce(struct cst_device *device, unsigned thread, const struct cst_tile_work *work,
                      uint32_t n_src, const struct cst_addr *src, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err)
{
    const struct cst_rows *r = &work->rows;

    if (n_src > CST_TILE_MAX_SRC || work->mark == 0 || (r->grad == NULL) == (r->grad_f32 == NULL) ||
        (work->accumulate && r->grad_f32 == NULL)) {
        return cst_err_set(err, CST_EINVAL, "reduce of %u sources, mark %" PRIu64, n_src,
                           work->mark);
    }
    return device->ops->reduce(device->state, thread, work, n_src, src, first, count, undo, err);
}

int cst_device_update(struct cst_device *device, const struct cst_tile_work *work,
                      const struct cst_tile_hyper *hyper, uint64_t first, uint64_t count,
                      struct cst_undo_slot *undo, struct cst_err *err)
{
    const struct cst_rows *r = &work->rows;

    if (work->mark == 0 || r->weight == NULL || (r->grad == NULL) == (r->grad_f32 == NULL) ||
        r->master == NULL || r->moments[0].values == NULL || r->moments[1].values == NULL) {
        return cst_err_set(err, CST_EINVAL, "update with mark %" PRIu64 " or without a row",
                           work->mark);
    }
    return device->ops->update(device->state, work, hyper, first, count, undo, err);
}
