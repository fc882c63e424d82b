/* SPDX-License-Identifier: Apache-2.0 */
/* READ of a tensor's rows, through a staging segment.
 *
 * No other command waits for a read. If the row is written while a read's copy is in flight, the
 * copy is discarded and made again after the write. */
#include "offload/core/states.h"

#include "offload/books/chunk_update.h"
#include "offload/core/core_state.h"
#include "offload/core/open_writes.h"
#include "offload/core/state_rows.h"
#include "offload/update/overlap.h"
#include "offload/update/staged_rows.h"
#include "offload/core/save.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

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
    enum cst_dtype dtype = cst_state_dtype(core, request->chunk);

    if (cst_state_is_coded(core, request->row) && request->raw) {
        copy->src[copy->n_src++] = cst_state_raw_place(core, request->chunk, request->row,
                                                       request->exponents, request->first);
        copy->bytes = cst_core_io_bytes(&core->layout->states, dtype, request->row, true,
                                        request->exponents, request->n_elems);
        return;
    }
    if (cst_state_is_coded(core, request->row)) {
        copy->kind = CST_COMMAND_DECODE;
        copy->src[copy->n_src++] = cst_state_code(core, request->chunk, request->row,
                                                  request->first, request->n_elems, copy);
        return;
    }
    if (request->row == CST_ROW_MASTER && cst_state_is_split(core, request->chunk)) {
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
    return row == CST_ROW_MASTER && cst_state_dtype(core, c) == CST_FP32;
}

/* Read a row that is staged: bring it to a buffer, and convert it from there. */
static void issue_staged_read(struct cst_core *core, const struct cst_request *request,
                              struct cst_flight *flight)
{
    const uint32_t c = request->chunk;
    struct cst_staged_rows rows = cst_staged_rows_take(core, c, request->first, request->n_elems);
    bool coded = cst_state_is_coded(core, request->row);
    struct cst_command *command;

    cst_staged_rows_bring(core, &rows, request->row);
    command = cst_core_command(core, coded ? CST_COMMAND_DECODE : CST_COMMAND_JOIN,
                               core->layout->chunks[c].node, flight);
    if (coded) {
        (void)cst_state_code(core, c, request->row, request->first, request->n_elems, command);
    } else {
        command->n_elems = request->n_elems;
        command->src[command->n_src++] =
            cst_core_row_place(core, c, cst_weight_row_newest(core, c), request->first);
    }
    command->src[command->n_src++] =
        cst_staged_rows_place(core, &rows, request->row, coded ? 0 : request->first);
    command->dst[command->n_dst++] = request->dst;
    command->io = true;
    command->may_fail = true; /* The next user of the buffer does not need it. */
    cst_staged_rows_use(core, &rows, command);
}

static void issue_read(struct cst_core *core, uint32_t i)
{
    struct cst_request *request = &core->requests.v[i];
    struct cst_chunk *chunk = &core->chunks[request->chunk];
    struct cst_flight flight = {.kind = CST_FLIGHT_READ, .chunk = request->chunk, .request = i};
    struct cst_command *copy;

    request->version = cst_weight_row_version(core, request->chunk, request->row);
    if (cst_state_is_staged(core, request->chunk, request->row, request->raw)) {
        issue_staged_read(core, request, &flight);
        return;
    }
    copy = cst_core_command(core, CST_COMMAND_COPY,
                            cst_core_keeper(core, request->chunk, request->row), &flight);
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
}

void cst_states_read(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_layout_tensor *tensor;
    struct cst_request *request;
    struct cst_err err;
    uint32_t i;

    if (cst_state_check_io(core, event, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
        return;
    }
    tensor = &core->model->tensors[event->tensor];
    if (check_row(core, tensor->chunk, event->row, &err) != CST_OK ||
        cst_open_writes_check_read(core, tensor->chunk, &err) != CST_OK) {
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
