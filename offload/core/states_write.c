/* SPDX-License-Identifier: Apache-2.0 */
/* WRITE of a tensor's rows, through a staging segment. Writes of one chunk are executed one after
 * the other. */
#include "offload/core/states.h"

#include "offload/books/chunk_update.h"
#include "offload/core/commit.h"
#include "offload/core/core_state.h"
#include "offload/core/open_writes.h"
#include "offload/core/state_rows.h"
#include "offload/update/overlap.h"
#include "offload/update/staged_rows.h"
#include "offload/core/ranks.h"
#include "offload/core/save.h"
#include "offload/weights/residency.h"
#include "offload/books/weight_row.h"

#include <inttypes.h>

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
 * cleared. The weights are all of a chunk that is frozen, or whose states are on other machines:
 * the latter are rounded as those machines do. */
static void add_rows(const struct cst_core *core, uint32_t chunk, uint64_t at, uint64_t n_elems,
                     struct cst_command *command)
{
    command->n_elems = n_elems;
    command->split = cst_state_is_split(core, chunk) && core->chunks[chunk].has_states;
    command->fp32 = cst_state_dtype(core, chunk) == CST_FP32;
    for (int k = 0; k < 2 + CST_MAX_MOMENTS; k++) {
        enum cst_row row = k == 0   ? CST_ROW_MASTER
                           : k == 1 ? CST_ROW_WEIGHT
                                    : (enum cst_row)(CST_ROW_MOMENT + k - 2);

        if (!cst_state_has_row(core, chunk, (int)row) ||
            (cst_table_is_moment((int)row) && !clears_moments(core, chunk))) {
            continue;
        }
        command->dst[command->n_dst++] =
            cst_state_is_coded(core, row)
                ? cst_state_code(core, chunk, row, at, n_elems, command)
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
        if (cst_state_has_row(core, c, (int)row) && clears_moments(core, c)) {
            part = write_part(core, c, row, at, CST_COMMAND_FILL);
            part->bytes = 4 * event->n_elems;
            tickets[i + 1] = part->ticket;
        }
    }
}

/* Find the rows of chunk @c in a tier that is apart which a write of master weights changes: first
 * moments, which it clears, then master weights. Returns their number. */
static uint32_t rows_changed(const struct cst_core *core, uint32_t c,
                             enum cst_row out[1 + CST_MAX_MOMENTS])
{
    uint32_t n = 0;

    for (int k = 0; k < CST_MAX_MOMENTS && clears_moments(core, c); k++) {
        if (cst_state_has_row(core, c, CST_ROW_MOMENT + k)) {
            out[n++] = (enum cst_row)(CST_ROW_MOMENT + k);
        }
    }
    if (cst_state_has_row(core, c, CST_ROW_MASTER)) {
        out[n++] = CST_ROW_MASTER;
    }
    return n;
}

/* Write master weights of chunk @c, and clear their moments if that is to be done, in a buffer from
 * which they are brought to the tier. The weights are written to their row. There is at least one
 * row in the tier. Returns the last command. */
static struct cst_command *write_staged_masters(struct cst_core *core,
                                                const struct cst_event *event, uint32_t c,
                                                uint64_t at, struct cst_flight *flight)
{
    struct cst_flight part = {.kind = CST_FLIGHT_PART, .chunk = c};
    struct cst_staged_rows rows = cst_staged_rows_take(core, c, at, event->n_elems);
    enum cst_row changed[1 + CST_MAX_MOMENTS];
    const uint32_t n = rows_changed(core, c, changed);
    struct cst_command *command, *last = NULL;

    for (uint32_t i = 0; i < n && changed[i] != CST_ROW_MASTER; i++) {
        cst_staged_rows_bring(core, &rows, changed[i]);
    }
    command = cst_core_command(core, CST_COMMAND_SET_MASTER, core->layout->chunks[c].node, &part);
    command->src[command->n_src++] = event->place;
    command->io = true;
    command->from_bf16 = event->bf16;
    command->split = cst_state_is_split(core, c);
    command->fp32 = cst_state_dtype(core, c) == CST_FP32;
    command->n_elems = event->n_elems;
    if (!command->fp32) {
        command->dst[command->n_dst++] = cst_staged_rows_place(core, &rows, CST_ROW_MASTER, at);
    }
    command->dst[command->n_dst++] =
        cst_core_row_place(core, c, written_row(core, c, CST_ROW_WEIGHT), at);
    for (uint32_t i = 0; i < n && changed[i] != CST_ROW_MASTER; i++) {
        bool coded = cst_state_is_coded(core, changed[i]);

        if (coded) {
            (void)cst_state_code(core, c, changed[i], at, event->n_elems, command);
        }
        command->dst[command->n_dst++] =
            cst_staged_rows_place(core, &rows, changed[i], coded ? 0 : at);
    }
    cst_staged_rows_use(core, &rows, command);
    for (uint32_t i = 0; i < n; i++) {
        last = cst_staged_rows_store(core, &rows, changed[i], i + 1 < n ? NULL : flight);
    }
    return last;
}

/* Encode moments of chunk @c in a buffer, beside what else is in their blocks, and bring them to
 * the tier. Returns the last command. */
static struct cst_command *write_staged_moments(struct cst_core *core,
                                                const struct cst_event *event, uint32_t c,
                                                uint64_t at, struct cst_flight *flight)
{
    struct cst_flight part = {.kind = CST_FLIGHT_PART, .chunk = c};
    struct cst_staged_rows rows = cst_staged_rows_take(core, c, at, event->n_elems);
    struct cst_command *command;

    cst_staged_rows_bring(core, &rows, event->row);
    command = cst_core_command(core, CST_COMMAND_ENCODE, core->layout->chunks[c].node, &part);
    command->src[command->n_src++] = event->place;
    command->io = true;
    (void)cst_state_code(core, c, event->row, at, event->n_elems, command);
    command->dst[command->n_dst++] = cst_staged_rows_place(core, &rows, event->row, 0);
    cst_staged_rows_use(core, &rows, command);
    return cst_staged_rows_store(core, &rows, event->row, flight);
}

/* Write master weights in a tier that is apart as they are, and make the weights of them. */
static struct cst_command *write_on_device(struct cst_core *core, const struct cst_event *event,
                                           uint32_t c, uint64_t at, struct cst_flight *flight)
{
    uint64_t tickets[1 + CST_MAX_MOMENTS];
    struct cst_command *command;

    write_device(core, event, c, at, tickets);
    command = cst_core_command(core, CST_COMMAND_ROUND, core->layout->chunks[c].node, flight);
    command->src[command->n_src++] = event->place;
    command->io = true;
    command->dst[command->n_dst++] =
        cst_core_row_place(core, c, written_row(core, c, CST_ROW_WEIGHT), at);
    command->n_elems = event->n_elems;
    for (int k = 0; k < 1 + CST_MAX_MOMENTS; k++) {
        cst_command_after(command, tickets[k]);
    }
    return command;
}

/* Write a row where it is. */
static struct cst_command *write_there(struct cst_core *core, const struct cst_event *event,
                                       uint32_t c, uint64_t at, struct cst_flight *flight)
{
    enum cst_dtype dtype = cst_state_dtype(core, c);
    struct cst_command *command =
        cst_core_command(core, CST_COMMAND_COPY, cst_core_keeper(core, c, event->row), flight);

    command->src[command->n_src++] = event->place;
    command->io = true;
    if (event->row == CST_ROW_MASTER) {
        command->from_bf16 = event->bf16;
        add_rows(core, c, at, event->n_elems, command);
        if (command->kind == CST_COMMAND_ROUND && event->bf16 && !command->split) {
            /* The weights of a chunk whose states are on other machines have these values. */
            command->kind = CST_COMMAND_COPY;
            command->from_bf16 = false;
            command->bytes = cst_dtype_bytes(dtype) * event->n_elems;
        }
    } else if (cst_state_is_coded(core, event->row) && event->raw) {
        command->dst[command->n_dst++] =
            cst_state_raw_place(core, c, event->row, event->exponents, at);
        command->bytes = cst_core_io_bytes(&core->layout->states, dtype, event->row, true,
                                           event->exponents, event->n_elems);
    } else if (cst_state_is_coded(core, event->row)) {
        command->kind = CST_COMMAND_ENCODE;
        command->dst[command->n_dst++] =
            cst_state_code(core, c, event->row, at, event->n_elems, command);
    } else {
        command->dst[command->n_dst++] =
            cst_core_row_place(core, c, written_row(core, c, event->row), at);
        command->bytes = cst_core_io_bytes(&core->layout->states, dtype, event->row, false, false,
                                           event->n_elems);
    }
    cst_chunk_update_before(command, &core->chunks[c].update);
    cst_command_after(command, core->chunks[c].writes.ticket);
    return command;
}

/* True if values of @event, which are master weights of chunk @c, are not what its rows have. */
static bool converts_masters(const struct cst_core *core, const struct cst_event *event, uint32_t c)
{
    return cst_state_is_split(core, c) || cst_state_dtype(core, c) == CST_FP32 || event->bf16 ||
           (clears_moments(core, c) && core->layout->states.moments != CST_MOMENTS_FP32);
}

static struct cst_command *write_row(struct cst_core *core, const struct cst_event *event,
                                     uint32_t c, uint64_t at, struct cst_flight *flight)
{
    enum cst_row changed[1 + CST_MAX_MOMENTS];

    if (event->row == CST_ROW_MASTER && cst_tier_is_apart(core->chunks[c].tier) &&
        rows_changed(core, c, changed) > 0) {
        return converts_masters(core, event, c) ? write_staged_masters(core, event, c, at, flight)
                                                : write_on_device(core, event, c, at, flight);
    }
    return cst_state_is_staged(core, c, event->row, event->raw)
               ? write_staged_moments(core, event, c, at, flight)
               : write_there(core, event, c, at, flight);
}

static void issue_write(struct cst_core *core, const struct cst_event *event, uint32_t i)
{
    const struct cst_layout_tensor *tensor = &core->model->tensors[event->tensor];
    struct cst_chunk *chunk = &core->chunks[tensor->chunk];
    struct cst_flight flight = {.kind = CST_FLIGHT_WRITE, .chunk = tensor->chunk, .request = i};
    bool weights = event->row == CST_ROW_MASTER || event->row == CST_ROW_WEIGHT;

    cst_open_writes_add(core, event, tensor->chunk, tensor->offset + event->first, i);
    cst_staged_ahead_forget(core, tensor->chunk);
    if (weights) {
        /* The written weights are used from now on, so all updates are, too. */
        cst_overlap_flush(core);
    }
    chunk->writes.ticket =
        write_row(core, event, tensor->chunk, tensor->offset + event->first, &flight)->ticket;
    chunk->moments_are_new = chunk->moments_are_new && !cst_table_is_moment((int)event->row);
    chunk->writes.n++;
    cst_weight_row_write(chunk, weights);
    core->writes.n++;
    if (weights) {
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

    if (cst_state_check_io(core, event, &err) != CST_OK) {
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
        cst_seal_check_write(core, &err) != CST_OK || cst_save_check_write(core, &err) != CST_OK) {
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
    /* All machines are told to write the same values: those that have the row write them. */
    if (core->chunks[tensor->chunk].away && cst_table_is_moment((int)event->row)) {
        (void)cst_core_reply(core, event->tag);
        return;
    }
    if (!cst_table_is_moment((int)event->row)) {
        cst_versions_written(core, tensor->chunk);
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
    /* What else is in the blocks may have changed, too. */
    bool staged = cst_state_is_staged(core, flight->chunk, request->row, request->raw);
    struct cst_err why;

    cst_open_writes_end(core, flight->request, event->status == CST_OK);
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
    if (event->status != CST_OK && (master || staged)) {
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
