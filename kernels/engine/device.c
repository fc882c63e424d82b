/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/device.h"

#include <inttypes.h>

int cste_device_open(struct cste_device *device, const struct cste_device_ops *ops,
                     const struct cste_device_spec *spec, struct cst_err *err)
{
    *device = (struct cste_device){.ops = ops};
    return ops->open(&device->state, spec, &device->about, err);
}

void cste_device_close(struct cste_device *device)
{
    device->ops->close(device->state);
}

int cste_device_finish(struct cste_device *device, unsigned thread, struct cst_tile_done *done,
                       struct cst_err *err)
{
    *done = (struct cst_tile_done){0};
    return device->ops->window == 0 ? CST_OK
                                    : device->ops->finish(device->state, thread, done, err);
}

/* Check that [addr.offset, addr.offset + @bytes) lies in mapped memory and begins at a multiple of
 * @align. */
static int check(struct cste_addr addr, uint64_t bytes, uint64_t align, struct cst_err *err)
{
    const struct cste_mem *mem = addr.mem;

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

/* Make the checks of check(), and check that @addr is host memory. */
static int check_host(struct cste_addr addr, uint64_t bytes, uint64_t align, struct cst_err *err)
{
    int rc = check(addr, bytes, align, err);

    if (rc == CST_OK && addr.mem->base == NULL) {
        rc = cst_err_set(err, CST_EINVAL, "memory of a device, where host memory is required");
    }
    return rc;
}

int cste_device_check_computes(const struct cste_device *device, struct cst_err *err)
{
    return device->ops->compute != NULL
               ? CST_OK
               : cst_err_set(err, CST_EUNSUPPORTED, "device '%s' only copies", device->ops->name);
}

int cste_device_map(struct cste_device *device, int fd, int node, struct cste_mem *mem,
                    struct cst_err *note, struct cst_err *err)
{
    note->status = CST_OK;
    return device->ops->memory->map(device->state, fd, node, mem, note, err);
}

int cste_device_import(struct cste_device *device, unsigned thread, int *fd, struct cste_mem *mem,
                       struct cst_err *err)
{
    uint64_t granularity = device->about.granularity;

    if (granularity > 0 && (mem->bytes == 0 || mem->bytes % granularity != 0)) {
        return cst_err_set(
            err, CST_EINVAL,
            "%" PRIu64 " bytes of the device's memory, which is allocated in multiples of %" PRIu64,
            mem->bytes, granularity);
    }
    return device->ops->memory->import(device->state, thread, fd, mem, err);
}

void cste_device_unmap(struct cste_device *device, struct cste_mem *mem)
{
    if (mem->base != NULL || mem->device != 0) {
        device->ops->memory->unmap(device->state, mem);
        mem->base = NULL;
        mem->device = 0;
        mem->locked = false;
    }
}

int cste_device_populate(struct cste_device *device, int fd, const struct cste_mem *mem,
                         uint64_t offset, uint64_t bytes, struct cst_err *err)
{
    int rc = check_host((struct cste_addr){.mem = mem, .offset = offset}, bytes, 1, err);

    return rc != CST_OK
               ? rc
               : device->ops->memory->populate(device->state, fd, mem->base, offset, bytes, err);
}

int cste_device_lock(struct cste_device *device, struct cste_mem *mem, struct cst_err *err)
{
    int rc = check_host((struct cste_addr){.mem = mem}, mem->bytes, 1, err);

    if (rc == CST_OK) {
        rc = device->ops->memory->lock(device->state, mem, err);
    }
    if (rc == CST_OK) {
        mem->locked = true;
    }
    return rc;
}

enum cste_device_lane cste_device_lane(const struct cste_mem *dst, const struct cste_mem *src)
{
    return src->device != 0 && dst->device == 0 ? CSTE_LANE_DOWN : CSTE_LANE_UP;
}

int cste_device_copy(struct cste_device *device, unsigned thread, struct cste_addr dst,
                     struct cste_addr src, uint64_t bytes, struct cst_err *err)
{
    int rc = check(dst, bytes, 1, err);

    if (rc == CST_OK) {
        rc = check(src, bytes, 1, err);
    }
    return rc != CST_OK ? rc
                        : device->ops->memory->copy(device->state, thread, dst, src, bytes, err);
}

int cste_device_check_late(struct cste_device *device, unsigned *thread, struct cst_err *err)
{
    return device->ops->memory->check != NULL
               ? device->ops->memory->check(device->state, thread, err)
               : CST_OK;
}

int cste_device_fill(struct cste_device *device, unsigned thread, struct cste_addr dst,
                     uint64_t bytes, struct cst_err *err)
{
    int rc = check(dst, bytes, 1, err);

    return rc != CST_OK ? rc : device->ops->memory->fill(device->state, thread, dst, bytes, err);
}

int cste_device_flush(struct cste_device *device, unsigned thread, const struct cste_mem *mem,
                      struct cst_err *err)
{
    if (device->ops->memory->flush == NULL || mem->device == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED, "a flush of memory that is in no file");
    }
    return device->ops->memory->flush(device->state, thread, mem, err);
}

/* -- other machines ------------------------------------------------------------------------- */

int cste_device_check_peers(const struct cste_device *device, struct cst_err *err)
{
    return device->ops->peers != NULL
               ? CST_OK
               : cst_err_set(err, CST_EUNSUPPORTED, "device '%s' reaches no other machine",
                             device->ops->name);
}

int cste_device_add_peer(struct cste_device *device, const struct cste_peer_spec *spec,
                         struct cst_err *err)
{
    int rc = cste_device_check_peers(device, err);

    return rc != CST_OK ? rc : device->ops->peers->add(device->state, spec, err);
}

int cste_device_drop_peer(struct cste_device *device, uint32_t machine, const char *cause,
                          struct cst_err *err)
{
    int rc = cste_device_check_peers(device, err);

    return rc != CST_OK ? rc : device->ops->peers->drop(device->state, machine, cause, err);
}

void cste_device_count_peers(struct cste_device *device,
                             void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                             void *arg)
{
    if (device->ops->peers != NULL) {
        device->ops->peers->count(device->state, each, arg);
    }
}

/* -- conversions ---------------------------------------------------------------------------- */

static int check_values(struct cste_addr addr, uint64_t n_elems, uint64_t size, struct cst_err *err)
{
    return check_host(addr, n_elems * size, size, err);
}

/* Check the whole moments row at @addr. */
static int check_moments(struct cste_addr addr, const struct cste_device_convert *c,
                         struct cst_err *err)
{
    uint64_t align = c->moments == CST_MOMENTS_MX8 ? 1 : cst_table_moment_bytes(c->moments, 1);

    if (c->first > c->row_elems || c->n_elems > c->row_elems - c->first ||
        (c->moments == CST_MOMENTS_MX8 && c->row_elems % CST_MX8_BLOCK != 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "elements %" PRIu64 " and %" PRIu64
                           " following of a moments row of %" PRIu64,
                           c->first, c->n_elems, c->row_elems);
    }
    return check_host(addr, cst_table_moment_bytes(c->moments, c->row_elems), align, err);
}

static int check_states(const struct cste_device_convert *c, struct cst_err *err)
{
    int rc = check_values(c->src, c->n_elems, cste_convert_src_bytes(c), err);

    if (rc == CST_OK) {
        rc = check_values(c->dst[0], c->n_elems, cste_convert_master_bytes(c), err);
    }
    if (rc == CST_OK && !c->fp32) {
        rc = check_values(c->dst[1], c->n_elems, sizeof(uint16_t), err);
    }
    for (uint32_t i = cste_convert_first_moment(c); i < c->n_dst && rc == CST_OK; i++) {
        rc = check_moments(c->dst[i], c, err);
    }
    return rc;
}

static int check_join(const struct cste_device_convert *c, struct cst_err *err)
{
    int rc = check_values(c->src, c->n_elems, sizeof(uint16_t), err);

    if (rc == CST_OK) {
        rc = check_values(c->remainder, c->n_elems, sizeof(int16_t), err);
    }
    return rc == CST_OK ? check_values(c->dst[0], c->n_elems, sizeof(float), err) : rc;
}

static int check_convert(const struct cste_device_convert *c, struct cst_err *err)
{
    bool states = c->what == CSTE_CONVERT_STATES, encode = c->what == CSTE_CONVERT_ENCODE;
    uint32_t least = states ? cste_convert_first_moment(c) : 1;
    int rc;

    /* With these limits, sizes in bytes do not overflow. */
    if (c->n_elems > UINT64_MAX / sizeof(float) || c->row_elems > UINT64_MAX / sizeof(float) ||
        c->moments >= CST_MOMENTS_COUNT || c->n_dst < least ||
        c->n_dst > (states ? least + CST_MAX_MOMENTS : 1) || (c->fp32 && c->split)) {
        return cst_err_set(err, CST_EINVAL,
                           "conversion of %" PRIu64 " elements, moments' format %u, to %u rows",
                           c->n_elems, (unsigned)c->moments, c->n_dst);
    }
    if (states) {
        return check_states(c, err);
    }
    if (c->what == CSTE_CONVERT_JOIN) {
        return check_join(c, err);
    }
    if (c->what != CSTE_CONVERT_WEIGHT && !cst_table_is_moment((int)c->row)) {
        return cst_err_set(err, CST_EINVAL, "conversion of row %u: it holds no moments",
                           (unsigned)c->row);
    }
    if (c->what == CSTE_CONVERT_WEIGHT) {
        rc = check_values(c->src, c->n_elems, cste_convert_src_bytes(c), err);
        return rc != CST_OK
                   ? rc
                   : check(c->dst[0], c->n_elems * sizeof(uint16_t), sizeof(uint16_t), err);
    }
    rc = check_values(encode ? c->src : c->dst[0], c->n_elems, sizeof(float), err);
    return rc != CST_OK ? rc : check_moments(encode ? c->dst[0] : c->src, c, err);
}

int cste_device_convert(struct cste_device *device, unsigned thread,
                        const struct cste_device_convert *convert, struct cst_err *err)
{
    int rc = cste_device_check_computes(device, err);

    rc = rc == CST_OK ? check_convert(convert, err) : rc;
    return rc != CST_OK ? rc : device->ops->compute->convert(device->state, thread, convert, err);
}

/* -- REDUCE, UPDATE ------------------------------------------------------------------------- */

static void *pointer(struct cste_addr at)
{
    return at.mem != NULL && at.mem->base != NULL ? cste_addr_host(at) : NULL;
}

/* Set the master weights and the weights in @out. */
static void point_weights(struct cst_rows *out, const struct cst_table_header *header,
                          enum cst_dtype dtype, const struct cste_addr rows[CST_ROW_COUNT])
{
    if (dtype == CST_FP32) {
        out->master = pointer(rows[CST_ROW_WEIGHT]);
        out->master_in = out->master;
        return;
    }
    out->weight = pointer(rows[CST_ROW_WEIGHT]);
    if (header->masters == CST_MASTERS_SPLIT) {
        out->remainder = pointer(rows[CST_ROW_MASTER]);
        out->weight_in = out->weight;
    } else {
        out->master = pointer(rows[CST_ROW_MASTER]);
    }
}

void cste_device_rows(struct cst_rows *out, const struct cst_tile_work *work,
                      const struct cste_addr rows[CST_ROW_COUNT], uint64_t n_elems)
{
    const struct cst_table_header *header = work->table;
    enum cst_dtype dtype = cst_tile_dtype(work);
    bool wide = cst_table_grad_bytes(header, dtype) == sizeof(float);

    *out = (struct cst_rows){.grad = wide ? NULL : pointer(rows[CST_ROW_GRAD]),
                             .grad_f32 = wide ? pointer(rows[CST_ROW_GRAD]) : NULL};
    point_weights(out, header, dtype, rows);
    for (int i = 0; i < CST_MAX_MOMENTS; i++) {
        uint8_t *values = pointer(rows[CST_ROW_MOMENT + i]);

        out->moments[i].values = values;
        if (values != NULL && header->moments == CST_MOMENTS_MX8) {
            out->moments[i].exponents = values + n_elems;
        }
    }
}

int cste_device_reduce(struct cste_device *device, unsigned thread,
                       const struct cst_tile_work *work, uint32_t n_src,
                       const struct cste_addr *src, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    const struct cst_rows *r = &work->rows;

    *done = (struct cst_tile_done){0};
    if (cste_device_check_computes(device, err) != CST_OK) {
        return err->status;
    }
    if (n_src > CST_TILE_MAX_SRC || !cst_table_is_mark(work->mark) ||
        (r->grad == NULL) == (r->grad_f32 == NULL) || (work->accumulate && r->grad_f32 == NULL)) {
        return cst_err_set(err, CST_EINVAL, "reduce of %u sources, mark %" PRIu64, n_src,
                           work->mark);
    }
    return device->ops->compute->reduce(device->state, thread, work, n_src, src, first, count, undo,
                                        done, err);
}

static enum cst_optimizer optimizer_of(const struct cste_device_update *update)
{
    struct cst_table_header *header = update->work->table;

    return cst_table_optimizer(header, &cst_table_chunks(header)[update->work->chunk]);
}

/* Check that exactly the rows in @rows have a place in @at, and that each lies within its
 * memory. */
static int check_rows(const struct cste_device_update *update, const struct cste_addr *at,
                      unsigned rows, struct cst_err *err)
{
    const struct cst_table_header *header = update->work->table;
    enum cst_dtype dtype = cst_tile_dtype(update->work);
    int rc = CST_OK;

    for (int row = 0; row < CST_ROW_COUNT && rc == CST_OK; row++) {
        if ((at[row].mem != NULL) != ((rows >> row & 1) != 0)) {
            return cst_err_set(err, CST_EINVAL, "UPDATE %s row %d",
                               at[row].mem != NULL ? "of a" : "without", row);
        }
        if (at[row].mem != NULL) {
            rc = check(at[row], cst_table_row_bytes(header, dtype, row, update->row_elems),
                       cst_table_row_align(header, dtype, row), err);
        }
    }
    return rc;
}

int cste_device_update(struct cste_device *device, unsigned thread,
                       const struct cste_device_update *update, uint64_t first, uint64_t count,
                       struct cst_undo_slot *undo, struct cst_tile_done *done, struct cst_err *err)
{
    const struct cst_table_header *header = update->work->table;
    enum cst_optimizer optimizer;
    enum cst_dtype dtype;
    unsigned states = 0, in;
    int rc;

    *done = (struct cst_tile_done){0};
    if (cste_device_check_computes(device, err) != CST_OK) {
        return err->status;
    }
    optimizer = optimizer_of(update);
    dtype = cst_tile_dtype(update->work);
    if (!cst_table_is_mark(update->work->mark) || update->n_src > CST_TILE_MAX_SRC ||
        update->row_elems > UINT64_MAX / sizeof(float) || header->moments >= CST_MOMENTS_COUNT ||
        header->masters >= CST_MASTERS_COUNT ||
        (header->moments == CST_MOMENTS_MX8 && update->row_elems % CST_MX8_BLOCK != 0) ||
        (update->n_src > 0 && dtype == CST_FP32)) {
        return cst_err_set(err, CST_EINVAL, "update of %u sources, mark %" PRIu64, update->n_src,
                           update->work->mark);
    }
    for (int row = CST_ROW_MASTER; row < CST_ROW_COUNT; row++) {
        states |= cst_table_has_row(optimizer, dtype, row) ? 1u << row : 0;
    }
    in = states | (update->n_src == 0 ? 1u << CST_ROW_GRAD : 0) |
         (cst_table_reads_weights(header, dtype) ? 1u << CST_ROW_WEIGHT : 0);
    rc = check_rows(update, update->in, in, err);
    if (rc == CST_OK) {
        rc = check_rows(update, update->out, states | 1u << CST_ROW_WEIGHT, err);
    }
    for (uint32_t i = 0; i < update->n_src && rc == CST_OK; i++) {
        rc = check(update->src[i], update->row_elems * sizeof(uint16_t), sizeof(uint16_t), err);
    }
    return rc != CST_OK ? rc
                        : device->ops->compute->update(device->state, thread, update, first, count,
                                                       undo, done, err);
}

int cste_device_orthogonalise(struct cste_device *device, unsigned thread,
                              const struct cste_device_update *update, unsigned phase,
                              uint64_t first, uint64_t count, struct cst_err *err)
{
    if (cste_device_check_computes(device, err) != CST_OK) {
        return err->status;
    }
    if (update->work->batch == NULL || phase >= CST_MUON_PHASES) {
        return cst_err_set(err, CST_EINVAL, "phase %u of an update by Muon", phase);
    }
    return device->ops->compute->orthogonalise(device->state, thread, update, phase, first, count,
                                               err);
}
