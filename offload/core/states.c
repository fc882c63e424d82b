/* SPDX-License-Identifier: Apache-2.0 */
/* READ and WRITE of a tensor's rows, through a staging segment.
 *
 * No other command waits for a read. If the row is written while a read's copy is in flight, the
 * copy is discarded and made again after the write. Writes of one chunk are executed one after the
 * other. */
#include "offload/core/states.h"

#include "offload/books/chunk_update.h"
#include "offload/core/commit.h"
#include "offload/core/core_state.h"
#include "offload/update/overlap.h"
#include "offload/core/ranks.h"
#include "offload/core/save.h"
#include "offload/weights/residency.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

static bool is_moment(enum cst_row row)
{
    return cst_table_is_moment((int)row);
}

/* An fp32 grad row of a bf16 tensor is read as bf16. */
uint64_t cst_core_io_bytes(const struct cst_layout_states *states, enum cst_dtype dtype,
                           enum cst_row row, bool raw, bool exponents, uint64_t n_elems)
{
    if (row == CST_ROW_WEIGHT || row == CST_ROW_GRAD) {
        return cst_dtype_bytes(dtype) * n_elems;
    }
    if (!is_moment(row) || !raw || states->moments == CST_MOMENTS_FP32) {
        return 4 * n_elems;
    }
    if (states->moments == CST_MOMENTS_BF16) {
        return 2 * n_elems;
    }
    return exponents ? (n_elems + CST_MX8_BLOCK - 1) / CST_MX8_BLOCK : n_elems;
}

/* True if the row has another format in the arena than in a staging segment, where moments are
 * fp32. */
static bool is_coded(const struct cst_core *core, enum cst_row row)
{
    return is_moment(row) && core->layout->states.moments != CST_MOMENTS_FP32;
}

static enum cst_dtype dtype_of(const struct cst_core *core, uint32_t c)
{
    return core->layout->chunks[c].dtype;
}

static bool is_split(const struct cst_core *core, uint32_t c)
{
    return core->layout->states.masters == CST_MASTERS_SPLIT && dtype_of(core, c) == CST_BF16;
}

/* Let @command encode, decode or clear the elements [@first, @first + @n_elems) of a moments row of
 * chunk @c.
 * Returns the place where the row begins. */
static struct cst_place code(const struct cst_core *core, uint32_t c, enum cst_row row,
                             uint64_t first, uint64_t n_elems, struct cst_command *command)
{
    command->row = row;
    command->moments = core->layout->states.moments;
    command->first = first;
    command->n_elems = n_elems;
    command->row_elems = core->layout->chunks[c].n_elems;
    return cst_core_row_place(core, c, row, 0);
}

/* The place of the elements [@first, ...) of a moments row of chunk @c that is not fp32, as
 * cst_table_moment_bytes lays it out, or of their exponents. */
static struct cst_place raw_place(const struct cst_core *core, uint32_t c, enum cst_row row,
                                  bool exponents, uint64_t first)
{
    struct cst_place place = cst_core_row_place(core, c, row, 0);

    if (exponents) {
        place.offset += core->layout->chunks[c].n_elems + first / CST_MX8_BLOCK;
    } else {
        place.offset +=
            cst_core_io_bytes(&core->layout->states, dtype_of(core, c), row, true, false, first);
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
    if (!is_moment(event->row) || !event->raw ||
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
    if (!chunk->has_states || cst_tier_is_apart(chunk->tier)) {
        return cst_err_set(
            err, CST_EUNSUPPORTED, "tensor '%s' %s: its master weights cannot be written from bf16",
            tensor->name, chunk->has_states ? "has states on an accelerator" : "is frozen");
    }
    return CST_OK;
}

/* Check that row and range exist, and that the job's states are intact. */
static int check_io(const struct cst_core *core, const struct cst_event *event, struct cst_err *err)
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
    if (is_moment(event->row) && core->chunks[tensor->chunk].has_states &&
        core->layout->chunks[tensor->chunk].rows[event->row].segment == CST_LAYOUT_NO_ROW) {
        return cst_err_set(err, CST_EUNSUPPORTED, "tensor '%s': its optimizer has no moment %s",
                           tensor->name, cst_moment_names[event->row - CST_ROW_MOMENT]);
    }
    if (check_raw(core, event, tensor, err) != CST_OK ||
        check_bf16(core, event, tensor, err) != CST_OK) {
        return err->status;
    }
    return check_frozen(core, event, err);
}

/* Check that @row holds, now or soon, what is to be read. A grad row with contributions, but no
 * sum, does not. */
static int check_row(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                     struct cst_err *err)
{
    if (row == CST_ROW_GRAD && core->chunks[chunk].gradient.row == CST_GRAD_ROW_PARTIAL) {
        return cst_err_set(err, CST_EBUSY,
                           "gradients of chunk %" PRIu32 " are being collected in step %" PRIu64,
                           chunk, core->step);
    }
    if (cst_overlap_check_read(core, chunk, row, err) != CST_OK) {
        return err->status;
    }
    return cst_weight_row_check_read(core, chunk, row, err);
}

static void read_row(const struct cst_core *core, const struct cst_request *request,
                     struct cst_command *copy)
{
    enum cst_dtype dtype = dtype_of(core, request->chunk);

    if (is_coded(core, request->row) && request->raw) {
        copy->src[copy->n_src++] =
            raw_place(core, request->chunk, request->row, request->exponents, request->first);
        copy->bytes = cst_core_io_bytes(&core->layout->states, dtype, request->row, true,
                                        request->exponents, request->n_elems);
        return;
    }
    if (is_coded(core, request->row)) {
        copy->kind = CST_COMMAND_DECODE;
        copy->src[copy->n_src++] =
            code(core, request->chunk, request->row, request->first, request->n_elems, copy);
        return;
    }
    if (request->row == CST_ROW_MASTER && is_split(core, request->chunk)) {
        copy->kind = CST_COMMAND_JOIN;
        copy->n_elems = request->n_elems;
        copy->src[copy->n_src++] = cst_core_row_place(
            core, request->chunk, cst_weight_row_newest(core, request->chunk), request->first);
    }
    copy->src[copy->n_src++] =
        cst_core_row_place(core, request->chunk, request->row, request->first);
    if (copy->kind == CST_COMMAND_JOIN) {
        return;
    }
    if (request->row == CST_ROW_GRAD && core->grad_fp32 && dtype == CST_BF16) {
        copy->kind = CST_COMMAND_ROUND;
        copy->n_elems = request->n_elems;
    } else {
        copy->bytes = cst_core_io_bytes(&core->layout->states, dtype, request->row, false, false,
                                        request->n_elems);
    }
}

/* True if @row is the master row of an fp32 tensor, whose weights are its master weights. */
static bool is_weight(const struct cst_core *core, uint32_t c, enum cst_row row)
{
    return row == CST_ROW_MASTER && dtype_of(core, c) == CST_FP32;
}

static void issue_read(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_chunk *chunk = &core->chunks[request->chunk];
    struct cst_flight flight = {.kind = CST_FLIGHT_READ, .chunk = request->chunk, .request = i};
    struct cst_command *copy = cst_core_command(
        core, CST_COMMAND_COPY, cst_core_keeper(core, request->chunk, request->row), &flight);

    if (request->row == CST_ROW_WEIGHT || is_weight(core, request->chunk, request->row)) {
        cst_weight_row_read(core, request->chunk, cst_weight_row_newest(core, request->chunk),
                            request->first, request->n_elems, copy);
    } else {
        read_row(core, request, copy);
    }
    copy->dst[copy->n_dst++] = request->dst;
    copy->io = true;
    cst_chunk_update_before(copy, &chunk->update);
    cst_command_after(copy, chunk->writes.ticket);
    if (request->row == CST_ROW_GRAD) {
        cst_command_after(copy, chunk->gradient.reduce_ticket);
    }
    request->version = cst_weight_row_version(core, request->chunk, request->row);
}

void cst_states_read(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_layout_tensor *tensor;
    struct cst_request *request;
    struct cst_err err;
    uint32_t i;

    if (check_io(core, event, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    tensor = &core->model->tensors[event->tensor];
    if (check_row(core, tensor->chunk, event->row, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    cst_save_note_read(core);
    i = cst_requests_add(&core->requests, event, CST_REQUEST_IO);
    request = &core->requests.v[i];
    request->chunk = tensor->chunk;
    request->dst = event->place;
    request->first = tensor->offset + event->first;
    request->n_elems = event->n_elems;
    issue_read(core, i);
}

void cst_states_read_done(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    const struct cst_request *request = &core->requests.v[flight->request];
    struct cst_err err;

    if (core->chunks[request->chunk].weight.broken) {
        cst_core_refuse_err(core, request->tag, &core->attempt.why);
    } else if (event->status != CST_OK) {
        cst_core_refuse(core, request->tag, event->status, "read failed: %s",
                        cst_event_words(event));
        /* The row was not written during the copy, so the copy is valid. */
    } else if (request->version == cst_weight_row_version(core, request->chunk, request->row)) {
        (void)cst_core_reply(core, request->tag);
    } else if (check_row(core, request->chunk, request->row, &err) != CST_OK) {
        cst_core_refuse_err(core, request->tag, &err);
    } else {
        issue_read(core, flight->request);
        return;
    }
    cst_requests_remove(&core->requests, flight->request);
}

static enum cst_row written_row(const struct cst_core *core, uint32_t chunk, enum cst_row row)
{
    return row == CST_ROW_WEIGHT ? cst_weight_row_side(core, chunk) : row;
}

/* True if a write of master weights clears the moments of chunk @c. Before the job has begun, the
 * write is the beginning of its tensor, and the rows may have what an attempt at a beginning has
 * left that was given up. Afterwards moments stay until they are written themselves. */
static bool clears_moments(const struct cst_core *core, uint32_t c)
{
    return !core->attempt.initialised && !core->chunks[c].moments_are_new;
}

/* Make @command a write of master weights: add their rows, the weights, and moments that are
 * cleared. The weights are all of a frozen chunk. */
static void add_rows(const struct cst_core *core, uint32_t chunk, uint64_t at, uint64_t n_elems,
                     struct cst_command *command)
{
    const struct cst_layout_chunk *layout = &core->layout->chunks[chunk];

    command->n_elems = n_elems;
    command->split = is_split(core, chunk) && core->chunks[chunk].has_states;
    command->fp32 = dtype_of(core, chunk) == CST_FP32;
    for (int k = 0; k < 2 + CST_MAX_MOMENTS; k++) {
        enum cst_row row = k == 0   ? CST_ROW_MASTER
                           : k == 1 ? CST_ROW_WEIGHT
                                    : (enum cst_row)(CST_ROW_MOMENT + k - 2);

        if (layout->rows[row].segment == CST_LAYOUT_NO_ROW ||
            (is_moment(row) && !clears_moments(core, chunk))) {
            continue;
        }
        command->dst[command->n_dst++] =
            is_coded(core, row)
                ? code(core, chunk, row, at, n_elems, command)
                : cst_core_row_place(core, chunk, written_row(core, chunk, row), at);
    }
    command->kind =
        command->n_dst > 1 || command->fp32 ? CST_COMMAND_SET_MASTER : CST_COMMAND_ROUND;
}

/* Issue one command of a write to states on an accelerator, whose engine does not convert. */
static struct cst_command *write_part(struct cst_core *core, uint32_t c, enum cst_row row,
                                      uint64_t at, enum cst_command_kind kind)
{
    struct cst_flight flight = {.kind = CST_FLIGHT_PART, .chunk = c};
    struct cst_command *part = cst_core_command(core, kind, cst_core_keeper(core, c, row), &flight);

    part->io = kind == CST_COMMAND_COPY;
    part->dst[part->n_dst++] = cst_core_row_place(core, c, row, at);
    cst_chunk_update_before(part, &core->chunks[c].update);
    cst_command_after(part, core->chunks[c].writes.ticket);
    return part;
}

/* Write master weights on an accelerator, and clear their moments if the job has not begun. The
 * caller's command, which waits for @tickets, makes the weights. */
static void write_device(struct cst_core *core, const struct cst_event *event, uint32_t c,
                         uint64_t at, uint64_t tickets[1 + CST_MAX_MOMENTS])
{
    struct cst_command *part = write_part(core, c, CST_ROW_MASTER, at, CST_COMMAND_COPY);

    part->src[part->n_src++] = event->place;
    part->bytes = 4 * event->n_elems;
    tickets[0] = part->ticket;
    for (unsigned i = 0; i < CST_MAX_MOMENTS; i++) {
        enum cst_row row = (enum cst_row)(CST_ROW_MOMENT + i);

        tickets[i + 1] = 0;
        if (core->layout->chunks[c].rows[row].segment != CST_LAYOUT_NO_ROW &&
            !core->attempt.initialised) {
            part = write_part(core, c, row, at, CST_COMMAND_FILL);
            part->bytes = 4 * event->n_elems;
            tickets[i + 1] = part->ticket;
        }
    }
}

static void issue_write(struct cst_core *core, const struct cst_event *event, uint32_t i)
{
    const struct cst_layout_tensor *tensor = &core->model->tensors[event->tensor];
    struct cst_chunk *chunk = &core->chunks[tensor->chunk];
    struct cst_flight flight = {.kind = CST_FLIGHT_WRITE, .chunk = tensor->chunk, .request = i};
    enum cst_dtype dtype = dtype_of(core, tensor->chunk);
    bool master = event->row == CST_ROW_MASTER;
    uint64_t at = tensor->offset + event->first;
    bool parts = master && cst_tier_is_apart(chunk->tier);
    uint64_t tickets[1 + CST_MAX_MOMENTS] = {0};
    struct cst_command *command;

    if (master || event->row == CST_ROW_WEIGHT) {
        /* The written weights are used from now on, so all updates are, too. */
        cst_overlap_flush(core);
    }
    if (parts) {
        write_device(core, event, tensor->chunk, at, tickets);
    }
    command = cst_core_command(core, parts ? CST_COMMAND_ROUND : CST_COMMAND_COPY,
                               parts ? core->layout->chunks[tensor->chunk].node
                                     : cst_core_keeper(core, tensor->chunk, event->row),
                               &flight);

    command->src[command->n_src++] = event->place;
    command->io = true;
    if (parts) {
        command->dst[command->n_dst++] = cst_core_row_place(
            core, tensor->chunk, written_row(core, tensor->chunk, CST_ROW_WEIGHT), at);
        command->n_elems = event->n_elems;
        for (int k = 0; k < 1 + CST_MAX_MOMENTS; k++) {
            cst_command_after(command, tickets[k]);
        }
    } else if (master) {
        command->from_bf16 = event->bf16;
        add_rows(core, tensor->chunk, at, event->n_elems, command);
    } else if (is_coded(core, event->row) && event->raw) {
        command->dst[command->n_dst++] =
            raw_place(core, tensor->chunk, event->row, event->exponents, at);
        command->bytes = cst_core_io_bytes(&core->layout->states, dtype, event->row, true,
                                           event->exponents, event->n_elems);
    } else if (is_coded(core, event->row)) {
        command->kind = CST_COMMAND_ENCODE;
        command->dst[command->n_dst++] =
            code(core, tensor->chunk, event->row, at, event->n_elems, command);
    } else {
        command->dst[command->n_dst++] = cst_core_row_place(
            core, tensor->chunk, written_row(core, tensor->chunk, event->row), at);
        command->bytes = cst_core_io_bytes(&core->layout->states, dtype, event->row, false, false,
                                           event->n_elems);
    }
    if (!parts) { /* Otherwise the parts wait. */
        cst_chunk_update_before(command, &chunk->update);
        cst_command_after(command, chunk->writes.ticket);
    }
    chunk->moments_are_new = chunk->moments_are_new && !is_moment(event->row);
    chunk->writes.ticket = command->ticket;
    chunk->writes.n++;
    cst_weight_row_write(chunk, master || event->row == CST_ROW_WEIGHT);
    core->writes.n++;
    if (master || event->row == CST_ROW_WEIGHT) {
        cst_residency_expire(core, tensor->chunk);
    }
}

bool cst_states_is_base(const struct cst_core *core, uint32_t chunk)
{
    uint32_t segment = core->layout->chunks[chunk].rows[CST_ROW_WEIGHT].segment;

    return core->layout->segments[segment].is_base;
}

void cst_states_write(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_layout_tensor *tensor;
    struct cst_err err;
    uint32_t i;

    if (check_io(core, event, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    tensor = &core->model->tensors[event->tensor];
    if (event->row == CST_ROW_GRAD) {
        cst_core_refuse(core, event->tag, CST_EINVAL, "gradients can be read, not written");
        return;
    }
    if (cst_weight_row_check_write(core, tensor->chunk, event->row, &err) != CST_OK ||
        cst_overlap_check_write(core, &err) != CST_OK ||
        cst_save_check_write(core, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    if (cst_states_is_base(core, tensor->chunk)) {
        cst_core_refuse(
            core, event->tag, CST_EDENIED,
            "tensor '%s' belongs to the base job: it can be read here, but written only there",
            tensor->name);
        return;
    }
    if (core->attempt.phase == CST_PHASE_RUNNING && cst_rank_furthest(core) != CST_BEGUN_NOTHING) {
        cst_core_refuse(core, event->tag, CST_EBUSY,
                        "step %" PRIu64 " is running: states can be written only between steps",
                        core->step);
        return;
    }
    i = cst_requests_add(&core->requests, event, CST_REQUEST_IO);
    core->requests.v[i].chunk = tensor->chunk;
    issue_write(core, event, i);
}

void cst_states_written(struct cst_core *core, const struct cst_flight *flight,
                        const struct cst_event *event)
{
    struct cst_chunk *chunk = &core->chunks[flight->chunk];
    const struct cst_request *request = &core->requests.v[flight->request];
    bool master = request->row == CST_ROW_MASTER;
    struct cst_err why;

    core->writes.n--;
    chunk->writes.n--;
    if (chunk->writes.ticket == flight->ticket) {
        chunk->writes.ticket = 0;
    }
    if (event->status == CST_OK) {
        (void)cst_core_reply(core, request->tag);
    } else {
        (void)cst_err_set(&why, event->status, "write to chunk %" PRIu32 " failed: %s",
                          flight->chunk, cst_event_words(event));
        cst_core_refuse_err(core, request->tag, &why);
    }
    cst_requests_remove(&core->requests, flight->request);
    if (event->status != CST_OK && master) {
        cst_weight_row_break(chunk);
        why.status = event->status == CST_ELOST ? CST_ELOST : CST_EENGINE;
        cst_ranks_fail(core, &why);
        return;
    }
    for (uint32_t rank = 0; rank < core->world && chunk->writes.n == 0; rank++) {
        cst_pool_wake(&core->ranks[rank].pool); /* Fetches of the chunk waited for its WRITEs. */
    }
    cst_commit_close(core);
}
