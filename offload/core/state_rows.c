/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/state_rows.h"

#include "offload/core/core_state.h"
#include "offload/update/staged_rows.h"

#include <inttypes.h>

/* An fp32 grad row of a bf16 tensor is read as bf16. */
uint64_t cst_core_io_bytes(const struct cst_layout_states *states, enum cst_dtype dtype,
                           enum cst_row row, bool raw, bool exponents, uint64_t n_elems)
{
    if (row == CST_ROW_WEIGHT || row == CST_ROW_GRAD) {
        return cst_dtype_bytes(dtype) * n_elems;
    }
    if (!cst_table_is_moment((int)row) || !raw || states->moments == CST_MOMENTS_FP32) {
        return 4 * n_elems;
    }
    if (states->moments == CST_MOMENTS_BF16) {
        return 2 * n_elems;
    }
    return exponents ? (n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK : n_elems;
}

bool cst_state_is_coded(const struct cst_core *core, enum cst_row row)
{
    return cst_table_is_moment((int)row) && core->layout->states.moments != CST_MOMENTS_FP32;
}

enum cst_dtype cst_state_dtype(const struct cst_core *core, uint32_t c)
{
    return core->layout->chunks[c].dtype;
}

bool cst_state_has_row(const struct cst_core *core, uint32_t c, int row)
{
    return core->layout->chunks[c].rows[row].segment != CST_LAYOUT_NO_ROW;
}

bool cst_state_is_split(const struct cst_core *core, uint32_t c)
{
    return core->layout->states.masters == CST_MASTERS_SPLIT &&
           cst_state_dtype(core, c) == CST_BF16;
}

struct cst_place cst_state_code(const struct cst_core *core, uint32_t c, enum cst_row row,
                                uint64_t first, uint64_t n_elems, struct cst_command *command)
{
    command->row = row;
    command->moments = core->layout->states.moments;
    command->first = first;
    command->n_elems = n_elems;
    command->row_elems = core->layout->chunks[c].n_elems;
    return cst_core_row_place(core, c, row, 0);
}

struct cst_place cst_state_raw_place(const struct cst_core *core, uint32_t c, enum cst_row row,
                                     bool exponents, uint64_t first)
{
    struct cst_place place = cst_core_row_place(core, c, row, 0);

    if (exponents) {
        place.offset += core->layout->chunks[c].n_elems + first / CST_MX8_BLOCK;
    } else {
        place.offset += cst_core_io_bytes(&core->layout->states, cst_state_dtype(core, c), row,
                                          true, false, first);
    }
    return place;
}

/* Check that `raw` and `exponents` of @event suit the row. */
static int check_raw(const struct cst_core *core, const struct cst_event *event,
                     const struct cst_layout_tensor *tensor, struct cst_err *err)
{
    uint64_t end = event->first + event->n_elems;

    if (!event->raw && !event->exponents) {
        return CST_OK;
    }
    if (!cst_table_is_moment((int)event->row) || !event->raw ||
        (event->exponents && core->layout->states.moments != CST_MOMENTS_MX8)) {
        return cst_err_set(err, CST_EINVAL, "row %u has no %s of its own", (unsigned)event->row,
                           event->exponents ? "exponents" : "format");
    }
    if (event->first % CST_MX8_BLOCK != 0 || (end % CST_MX8_BLOCK != 0 && end != tensor->n_elems)) {
        return cst_err_set(err, CST_EINVAL,
                           "elements %" PRIu64 " to %" PRIu64
                           " of tensor '%s': moments in their own format are read and written in "
                           "blocks of %d",
                           event->first, end, tensor->name, CST_MX8_BLOCK);
    }
    return CST_OK;
}

/* A frozen tensor has weights only. A WRITE of its master weights sets them. */
static int check_frozen(const struct cst_core *core, const struct cst_event *event,
                        struct cst_err *err)
{
    const struct cst_layout_tensor *tensor = &core->model->tensors[event->tensor];

    if (core->chunks[tensor->chunk].has_states || event->row == CST_ROW_WEIGHT ||
        (event->row == CST_ROW_MASTER && event->kind == CST_EV_WRITE)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EUNSUPPORTED,
                       "tensor '%s' is frozen: it has only weights, no row %u", tensor->name,
                       (unsigned)event->row);
}

/* Check that `bf16` of @event suits the row and the engine that writes it. */
static int check_bf16(const struct cst_core *core, const struct cst_event *event,
                      const struct cst_layout_tensor *tensor, struct cst_err *err)
{
    const struct cst_chunk *chunk = &core->chunks[tensor->chunk];

    if (!event->bf16) {
        return CST_OK;
    }
    if (event->kind != CST_EV_WRITE || event->row != CST_ROW_MASTER) {
        return cst_err_set(err, CST_EINVAL, "only writes of master weights can be from bf16");
    }
    if (!chunk->has_states ||
        (cst_tier_is_apart(chunk->tier) && !cst_staged_rows_serve(core, tensor->chunk))) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "tensor '%s' %s: its master weights cannot be written from bf16%s",
                           tensor->name,
                           chunk->has_states ? "has states on an accelerator" : "is frozen",
                           chunk->has_states ? ", only from fp32" : "");
    }
    return CST_OK;
}

bool cst_state_is_staged(const struct cst_core *core, uint32_t c, enum cst_row row, bool raw)
{
    bool converts =
        cst_state_is_coded(core, row) ? !raw : row == CST_ROW_MASTER && cst_state_is_split(core, c);

    return converts && cst_staged_rows_serve(core, c);
}

int cst_state_check_io(const struct cst_core *core, const struct cst_event *event,
                       struct cst_err *err)
{
    const struct cst_layout_tensor *tensor;

    if (core->attempt.phase == CST_PHASE_FAILED && event->kind == CST_EV_WRITE) {
        *err = core->attempt.why;
        return err->status;
    }
    if (event->tensor >= core->model->n_tensors || (unsigned)event->row >= CST_ROW_COUNT) {
        return cst_err_set(err, CST_EINVAL,
                           "tensor %" PRIu32 ", row %u: there are %" PRIu32 " tensors and %d rows",
                           event->tensor, (unsigned)event->row, core->model->n_tensors,
                           CST_ROW_COUNT);
    }
    tensor = &core->model->tensors[event->tensor];
    if (core->chunks[tensor->chunk].weight.broken) {
        *err = core->attempt.why;
        return err->status;
    }
    if (event->n_elems == 0 || event->first >= tensor->n_elems ||
        event->n_elems > tensor->n_elems - event->first) {
        return cst_err_set(err, CST_EINVAL,
                           "elements %" PRIu64 " and %" PRIu64
                           " following: tensor '%s' has %" PRIu64,
                           event->first, event->n_elems, tensor->name, tensor->n_elems);
    }
    if (core->chunks[tensor->chunk].away && event->row != CST_ROW_WEIGHT &&
        event->kind != CST_EV_WRITE) {
        return cst_err_set(
            err, CST_EUNSUPPORTED,
            "tensor '%s': only its weights are on this machine; ask machine %" PRIu32 " for row %u",
            tensor->name, cst_layout_keeper(&core->layout->machines, tensor->chunk, 0),
            (unsigned)event->row);
    }
    if (cst_table_is_moment((int)event->row) && core->chunks[tensor->chunk].has_states &&
        !core->chunks[tensor->chunk].away &&
        !cst_state_has_row(core, tensor->chunk, (int)event->row)) {
        return cst_err_set(err, CST_EUNSUPPORTED, "tensor '%s': its optimizer has no moment %s",
                           tensor->name, cst_moment_names[event->row - CST_ROW_MOMENT]);
    }
    if (check_raw(core, event, tensor, err) != CST_OK ||
        check_bf16(core, event, tensor, err) != CST_OK) {
        return err->status;
    }
    return check_frozen(core, event, err);
}
