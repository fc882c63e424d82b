/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a job whose ranks ask for units of work: an addend is the contribution of one
 * unit, one micro-batch of one of the stages that use the chunk, from whichever rank has done it.
 * Which units are done, and which may be next, is in the table of dispatch.h.
 *
 * With M micro-batches, a chunk that the stages 0 and 2 use has the addends
 *
 *   stage 2: 0 .. M - 1 | stage 0: M .. 2 M - 1
 *
 * Units are given out in this order, and the next one when the last one is done, so that an addend
 * comes before its unit is done, or never.
 *
 * Rank blocks (offload/base/machines.h): M is the number of micro-batches of each of them. With B
 * rank blocks here, the step has B M micro-batches here, and those of rank block b are b M to
 * (b + 1) M - 1, whichever ranks do them. Their contributions come to the row of the rank block in
 * the order in which they would come if it were alone. */
#include "offload/schedule/step_schedule.h"

#include "offload/core/core_state.h"
#include "offload/layout/edge.h"
#include "offload/schedule/dispatch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(CST_DISPATCH_MAX_STAGES == CST_LAYOUT_MAX_STAGES, "all stages can be dispatched");
_Static_assert(CST_DISPATCH_NONE == CST_NONE, "no rank is the same in the core");

/* The state of the schedule. */
struct dispatched {
    struct cst_dispatch table;
    uint64_t *stages; /* Per chunk: the stages that use it, one bit each. */
};

static struct dispatched *state_of(const struct cst_core *core)
{
    return core->schedule_state;
}

static struct cst_dispatch *table_of(const struct cst_core *core)
{
    return &state_of(core)->table;
}

/* Micro-batches of the step here: those of all rank blocks. */
static uint32_t n_micro(const struct cst_core *core)
{
    return core->micro_batches * (core->partials.on ? core->partials.n_here : 1);
}

/* -- which jobs ------------------------------------------------------------------------------- */

static bool serves(const struct cst_model *model)
{
    return model->n_stages > 0;
}

static int check_edges(const struct cst_model *model, struct cst_err *err)
{
    for (uint32_t i = 0; i < model->n_edges; i++) {
        const struct cst_layout_edge *edge = &model->edges[i];

        if (edge->from != edge->to) {
            return cst_err_set(err, CST_EINVAL,
                               "edge '%s' from rank %" PRIu32 " to rank %" PRIu32
                               ": in a model that is cut into stages any rank may die, and an edge "
                               "is that of all ranks or leads to the rank that puts",
                               edge->name, edge->from, edge->to);
        }
    }
    return CST_OK;
}

static int check(const struct cst_model *model, uint32_t micro_batches, enum cst_overlap overlap,
                 struct cst_err *err)
{
    if (micro_batches < 2) {
        return cst_err_set(err, CST_EINVAL,
                           "a model that is cut into stages needs 2 or more micro-batches a step");
    }
    if (overlap == CST_OVERLAP_EARLY) {
        return cst_err_set(err, CST_EINVAL,
                           "early updates are not possible in a model that is cut into stages");
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const struct cst_layout_tensor *tensor = &model->tensors[t];

        if (tensor->group != 0 || tensor->box != NULL || cst_pattern(tensor->pattern)->sparse) {
            return cst_err_set(err, CST_EINVAL,
                               "tensor '%s': in a model that is cut into stages all ranks hold all "
                               "tensors whole",
                               tensor->name);
        }
    }
    return check_edges(model, err);
}

/* -- open and close --------------------------------------------------------------------------- */

static void find_stages(const struct cst_core *core, uint64_t *stages)
{
    for (uint32_t i = 0; i < core->model->n_operators; i++) {
        const struct cst_layout_use *use = &core->layout->uses[i];

        for (uint32_t k = 0; k < use->n_chunks; k++) {
            stages[use->chunks[k]] |= 1ull << core->model->operators[i].stage;
        }
    }
}

/* Find the later stages with which each stage shares a gradient. */
static void find_sharers(const struct cst_core *core, const uint64_t *stages, uint64_t *after)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        for (uint64_t rest = core->chunks[c].has_states ? stages[c] : 0; rest != 0;
             rest &= rest - 1) {
            after[__builtin_ctzll(rest)] |= rest & (rest - 1);
        }
    }
}

static void close(struct cst_core *core)
{
    struct dispatched *state = state_of(core);

    if (state != NULL) {
        cst_dispatch_close(&state->table);
        free(state->stages);
        free(state);
        core->schedule_state = NULL;
    }
}

static int open(struct cst_core *core, struct cst_err *err)
{
    uint64_t after[CST_DISPATCH_MAX_STAGES] = {0};
    struct dispatched *state = calloc(1, sizeof *state);
    bool ok = state != NULL;

    core->schedule_state = state;
    if (ok) {
        state->stages = calloc(core->n_chunks, sizeof *state->stages);
        ok = state->stages != NULL;
    }
    if (ok) {
        find_stages(core, state->stages);
        find_sharers(core, state->stages, after);
        ok = cst_dispatch_init(&state->table, core->model->n_stages, n_micro(core), core->world,
                               after) == CST_OK;
    }
    if (!ok) {
        close(core);
        return cst_err_set(err, CST_ENOMEM, "no memory for %" PRIu32 " stages",
                           core->model->n_stages);
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        core->chunks[c].n_in_sum = 1;
        core->chunks[c].n_addends =
            (uint32_t)__builtin_popcountll(state->stages[c]) * n_micro(core);
    }
    return CST_OK;
}

static void begin(struct cst_core *core)
{
    cst_dispatch_reset(table_of(core));
}

/* -- addends ---------------------------------------------------------------------------------- */

static uint32_t addend_of(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    uint64_t stages = state_of(core)->stages[c];
    struct cst_work_unit unit;

    if (!cst_dispatch_unit(table_of(core), rank, &unit) || !unit.backward ||
        (stages >> unit.stage & 1) == 0) {
        return CST_NONE;
    }
    return (uint32_t)__builtin_popcountll(stages >> unit.stage >> 1) * n_micro(core) + unit.micro;
}

/* The stage of @addend: the highest one, after those before it are left out. */
static uint32_t stage_of(const struct cst_core *core, uint32_t c, uint32_t addend)
{
    uint64_t stages = state_of(core)->stages[c];

    for (uint32_t n = addend / n_micro(core); n > 0; n--) {
        stages &= ~(1ull << (63 - __builtin_clzll(stages)));
    }
    return 63 - (uint32_t)__builtin_clzll(stages);
}

static enum cst_addend_state state(const struct cst_core *core, uint32_t c, uint32_t first,
                                   uint32_t rank)
{
    (void)rank;
    return cst_dispatch_has_done(table_of(core), stage_of(core, c, first), first % n_micro(core))
               ? CST_ADDEND_NEVER
               : CST_ADDEND_EXPECTED;
}

static uint32_t block_of(const struct cst_core *core, uint32_t c, uint32_t rank)
{
    (void)rank;
    return core->chunks[c].gradient.next % n_micro(core) / core->micro_batches;
}

static void say(const struct cst_core *core, uint32_t c, uint32_t addend,
                char text[CST_ADDEND_TEXT])
{
    (void)snprintf(text, CST_ADDEND_TEXT, "stage %" PRIu32 ", micro-batch %" PRIu32,
                   stage_of(core, c, addend), addend % n_micro(core) + 1);
}

/* The mean of a rank block's micro-batches: it does not become longer with their number, and goes
 * to other machines. */
static uint32_t n_losses(const struct cst_core *core)
{
    (void)core;
    return 1;
}

static void losses(const struct cst_core *core, double *out)
{
    for (uint32_t at = 0; at < n_micro(core); at += core->micro_batches) {
        *out++ = cst_dispatch_loss(table_of(core)->losses + at, core->micro_batches);
    }
}

/* -- units ------------------------------------------------------------------------------------ */

static bool unit(const struct cst_core *core, uint32_t rank, struct cst_work_unit *out)
{
    return cst_dispatch_unit(table_of(core), rank, out);
}

static enum cst_work_report report(const struct cst_core *core, uint32_t rank, uint64_t number)
{
    return cst_dispatch_report(table_of(core), rank, number);
}

static uint64_t last(const struct cst_core *core, uint32_t rank)
{
    return table_of(core)->ended[rank];
}

static void done(struct cst_core *core, uint32_t rank, double value)
{
    cst_dispatch_done(table_of(core), rank, value);
}

static bool take(struct cst_core *core, uint32_t rank, struct cst_work_unit *out)
{
    return cst_dispatch_take(table_of(core), rank, out);
}

static void leave(struct cst_core *core, uint32_t rank)
{
    cst_dispatch_leave(table_of(core), rank);
}

static bool gone(struct cst_core *core, uint32_t rank, struct cst_work_unit *lost)
{
    return cst_dispatch_gone(table_of(core), rank, lost);
}

static bool is_complete(const struct cst_core *core)
{
    return cst_dispatch_is_complete(table_of(core));
}

static bool first(const struct cst_core *core, struct cst_work_unit *out, uint32_t *rank)
{
    return cst_dispatch_first(table_of(core), out, rank);
}

/* Each pass that a rank keeps goes on, and with it the step. */
static const char *check_state(const struct cst_core *core)
{
    const struct cst_dispatch *table = table_of(core);
    struct cst_work_unit has;

    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (table->kept[rank] != CST_DISPATCH_NONE && !cst_dispatch_unit(table, rank, &has) &&
            core->ranks[rank].next == CST_NO_REQUEST) {
            return "a rank that keeps a pass has a unit of it or waits for one";
        }
    }
    return cst_dispatch_check(table);
}

static const struct cst_step_work work = {.exists = true,
                                          .unit = unit,
                                          .report = report,
                                          .last = last,
                                          .done = done,
                                          .take = take,
                                          .leave = leave,
                                          .gone = gone,
                                          .is_complete = is_complete,
                                          .first = first};

const struct cst_step_schedule cst_dispatched = {.elastic = true,
                                                 .work = &work,
                                                 .serves = serves,
                                                 .check = check,
                                                 .open = open,
                                                 .close = close,
                                                 .begin = begin,
                                                 .addend_of = addend_of,
                                                 .state = state,
                                                 .block_of = block_of,
                                                 .say = say,
                                                 .n_losses = n_losses,
                                                 .losses = losses,
                                                 .mean_loss = cst_dispatch_loss,
                                                 .check_state = check_state};
