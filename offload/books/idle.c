/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are idle in a step, and the Adam steps that each tensor has missed. */
#include "offload/books/idle.h"

#include "offload/core/core_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- tensors and spans ------------------------------------------------------------------------ */

/* A walk through the tensors with states, in the order of their spans in the job table. */
struct walk {
    const struct cst_core *core;
    uint32_t chunk;  /* Chunk of the tensor. */
    uint32_t place;  /* Place of the tensor within its chunk. */
    uint32_t tensor; /* Its number. */
    uint64_t span;   /* Number of its span. */
};

/* Move @walk on to a tensor with states, if it is at the end of its chunk. False: there is none. */
static bool settle(struct walk *walk)
{
    const struct cst_layout *layout = walk->core->layout;

    while (walk->chunk < walk->core->n_chunks &&
           (!walk->core->chunks[walk->chunk].has_states ||
            walk->place == layout->chunks[walk->chunk].n_tensors)) {
        walk->chunk++;
        walk->place = 0;
    }
    if (walk->chunk == walk->core->n_chunks) {
        return false;
    }
    walk->tensor = layout->order[layout->chunks[walk->chunk].first_tensor + walk->place];
    return true;
}

static bool begin(struct walk *walk, const struct cst_core *core)
{
    *walk = (struct walk){.core = core};
    return settle(walk);
}

static bool next(struct walk *walk)
{
    walk->place++;
    walk->span++;
    return settle(walk);
}

/* -- opening ---------------------------------------------------------------------------------- */

static int check(const struct cst_core *core, struct cst_err *err)
{
    if (core->policy.overlap == CST_OVERLAP_EARLY) {
        return cst_err_set(err, CST_EINVAL,
                           "tensors without a gradient cannot be skipped with early updates, which "
                           "begin before it is known: unused zero, or overlap commit");
    }
    if (core->model->n_stages > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "tensors without a gradient cannot be skipped in a model that is cut into "
            "stages: unused zero");
    }
    return CST_OK;
}

int cst_idle_open(struct cst_core *core, struct cst_err *err)
{
    struct cst_idle *idle = &core->idle;
    uint32_t n = core->model->n_tensors;

    if (!core->layout->states.skips_unused) {
        return CST_OK;
    }
    if (check(core, err) != CST_OK) {
        return err->status;
    }
    idle->on = true;
    idle->n_bytes = (n + 7) / 8;
    idle->without = calloc(core->world, idle->n_bytes);
    idle->discarded = calloc(core->world, idle->n_bytes);
    idle->steps = calloc(n, sizeof *idle->steps);
    idle->next = calloc(n, sizeof *idle->next);
    idle->missed = calloc(n, sizeof *idle->missed);
    if (cst_idle_union_open(&idle->all, n) != CST_OK || idle->without == NULL ||
        idle->discarded == NULL || idle->steps == NULL || idle->next == NULL ||
        idle->missed == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the steps of %" PRIu32 " tensors", n);
    }
    return CST_OK;
}

void cst_idle_close(struct cst_core *core)
{
    cst_idle_union_close(&core->idle.all);
    free(core->idle.without);
    free(core->idle.discarded);
    free(core->idle.steps);
    free(core->idle.next);
    free(core->idle.missed);
}

/* -- what ranks say ---------------------------------------------------------------------------- */

/* Copy the @n bytes of @bits to @to. What they leave out is 0. */
static void take_bits(const struct cst_idle *idle, uint8_t *to, const uint8_t *bits, size_t n)
{
    memset(to, 0, idle->n_bytes);
    if (bits != NULL) {
        memcpy(to, bits, n < idle->n_bytes ? n : idle->n_bytes);
    }
}

void cst_idle_ask(struct cst_core *core, const struct cst_event *event)
{
    const struct cst_idle *idle = &core->idle;

    if (idle->on) {
        take_bits(idle, idle->without + event->rank * idle->n_bytes, event->without,
                  event->n_without);
        take_bits(idle, idle->discarded + event->rank * idle->n_bytes, event->discarded,
                  event->n_discarded);
    }
}

static bool bit_of(const struct cst_idle *idle, const uint8_t *bits, uint32_t rank, uint32_t tensor)
{
    return (bits[rank * idle->n_bytes + tensor / 8] >> tensor % 8 & 1) != 0;
}

/* The first rank of the group of chunk @c that has a gradient of @tensor; CST_NONE: none has. */
static uint32_t find_contributor(const struct cst_core *core, uint32_t c, uint32_t tensor)
{
    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (!bit_of(&core->idle, core->idle.without, rank, tensor) &&
            !bit_of(&core->idle, core->idle.discarded, rank, tensor)) {
            return rank;
        }
    }
    return CST_NONE;
}

static int check_discarded(const struct cst_core *core, uint32_t c, uint32_t tensor,
                           struct cst_err *err)
{
    uint32_t with = find_contributor(core, c, tensor);

    if (with == CST_NONE) {
        return CST_OK;
    }
    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (bit_of(&core->idle, core->idle.discarded, rank, tensor)) {
            return cst_err_set(err, CST_EMISMATCH,
                               "step %" PRIu64 ": rank %" PRIu32
                               " discards its gradient of tensor '%s', and rank %" PRIu32
                               " does not: all ranks that have one discard it",
                               core->step, rank, core->model->tensors[tensor].name, with);
        }
    }
    return CST_OK;
}

int cst_idle_check(const struct cst_core *core, struct cst_err *err)
{
    struct walk walk;

    if (!core->idle.on) {
        return CST_OK;
    }
    for (bool any = begin(&walk, core); any; any = next(&walk)) {
        if (check_discarded(core, walk.chunk, walk.tensor, err) != CST_OK) {
            return err->status;
        }
    }
    return CST_OK;
}

/* -- what machines say ------------------------------------------------------------------------ */

static void set_bit(uint8_t *bits, uint32_t tensor, bool on)
{
    bits[tensor / 8] = (uint8_t)(bits[tensor / 8] | (unsigned)on << tensor % 8);
}

/* Find out what the ranks here say together. */
static void sum_up(struct cst_core *core)
{
    struct cst_idle_union *all = &core->idle.all;
    struct walk walk;

    memset(all->own, 0, all->n_bytes);
    for (bool any = begin(&walk, core); any; any = next(&walk)) {
        set_bit(all->own, walk.tensor, find_contributor(core, walk.chunk, walk.tensor) == CST_NONE);
    }
}

/* True if all machines have told about the step that runs. */
static bool all_told(const struct cst_core *core)
{
    const struct cst_when now = cst_membership_now(core);

    return cst_idle_union_has(&core->idle.all, core->membership.members, &now);
}

/* The first rank of the group of chunk @c that discards its gradient of @tensor; CST_NONE: none
 * does.
 */
static uint32_t find_discarding(const struct cst_core *core, uint32_t c, uint32_t tensor)
{
    CST_SET_EACH (rank, core->chunks[c].ranks) {
        if (bit_of(&core->idle, core->idle.discarded, rank, tensor)) {
            return rank;
        }
    }
    return CST_NONE;
}

/* CST_EMISMATCH: a rank here discards a gradient, and one on another machine does not. All machines
 * have told about the step. */
static int compare(const struct cst_core *core, struct cst_err *err)
{
    struct walk walk;

    for (bool any = begin(&walk, core); any; any = next(&walk)) {
        uint32_t rank = find_discarding(core, walk.chunk, walk.tensor);

        if (rank != CST_NONE && !bit_of(&core->idle, core->idle.all.idle, 0, walk.tensor)) {
            return cst_err_set(err, CST_EMISMATCH,
                               "step %" PRIu64 ": rank %" PRIu32
                               " discards its gradient of tensor '%s', and a rank on another "
                               "machine does not: all ranks that have one discard it",
                               core->step, rank, core->model->tensors[walk.tensor].name);
        }
    }
    return CST_OK;
}

/* Take @what, an UNUSED of machine @m. If it was the last one that was missing, and contradicts the
 * ranks here, the attempt ends. */
static void take(struct cst_core *core, uint32_t m, const struct cst_machine_message *what)
{
    struct cst_err why;

    if (cst_idle_union_take(&core->idle.all, m, what, &why) != CST_OK) {
        cst_fact_job_failed(&core->facts, &why);
    } else if (core->attempt.phase == CST_PHASE_RUNNING && all_told(core) &&
               compare(core, &why) != CST_OK) {
        cst_fact_attempt_lost(&core->facts, &why);
    }
}

void cst_idle_tell(struct cst_core *core)
{
    struct cst_machine_message own;

    if (!core->idle.on) {
        return;
    }
    sum_up(core);
    memset(&own, 0, sizeof own);
    own.epoch = core->membership.epoch;
    own.attempt = core->attempt.number;
    own.step = core->step;
    cst_idle_union_fill(&core->idle.all, &own);
    take(core, core->machines != NULL ? core->machines->self : 0, &own);
    if (core->machines != NULL) {
        cst_idle_union_fill(&core->idle.all,
                            cst_membership_tell(core, CST_MACHINES_ALL, CST_MESSAGE_UNUSED, 0));
    }
}

void cst_idle_told(struct cst_core *core, const struct cst_event *event)
{
    if (!core->idle.on) {
        cst_core_log(core, CST_EPROTO,
                     "machine %" PRIu32 " tells tensors without a gradient, which this job does "
                     "not skip",
                     event->machine);
        return;
    }
    take(core, event->machine, event->message);
    cst_fact_idle_known(&core->facts);
}

bool cst_idle_is_known(const struct cst_core *core)
{
    struct cst_err why;

    return !core->idle.on || (all_told(core) && compare(core, &why) == CST_OK);
}

/* -- counts ------------------------------------------------------------------------------------ */

/* A chunk is idle in the step with the mark @mark if its tensors are, by the counts up to it. */
static void see_chunks(struct cst_core *core, uint64_t mark)
{
    struct walk walk;

    for (uint32_t c = 0; c < core->n_chunks; c++) {
        core->chunks[c].idle = core->idle.on;
    }
    for (bool any = core->idle.on && begin(&walk, core); any; any = next(&walk)) {
        if (core->idle.next[walk.span].last == mark) {
            core->chunks[walk.chunk].idle = false;
        }
    }
}

void cst_idle_decide(struct cst_core *core, uint64_t mark)
{
    struct cst_idle *idle = &core->idle;
    struct walk walk;

    for (bool any = idle->on && begin(&walk, core); any; any = next(&walk)) {
        struct cst_table_steps *steps = &idle->next[walk.span];
        bool is_idle = bit_of(idle, idle->all.idle, 0, walk.tensor);

        *steps = idle->steps[walk.span];
        steps->missed += is_idle;
        steps->last = is_idle ? steps->last : mark;
        if (core->table != NULL) {
            *cst_table_steps(core->table, walk.span, mark) = *steps;
        }
    }
    see_chunks(core, mark);
}

void cst_idle_commit(struct cst_core *core)
{
    struct cst_table_steps *steps = core->idle.steps;

    core->idle.steps = core->idle.next;
    core->idle.next = steps;
}

uint64_t cst_idle_last_update(const struct cst_core *core, struct cst_table_header *table,
                              uint32_t c, uint64_t adam_step)
{
    const struct cst_table_chunk *chunk = &cst_table_chunks(table)[c];
    uint64_t last = 0;

    /* With two weight rows, the update of an idle chunk copies the weights to the other row. */
    if (!core->idle.on || core->two_weights) {
        return adam_step;
    }
    for (uint32_t i = 0; i < chunk->n_spans; i++) {
        uint64_t of_span = cst_table_steps(table, chunk->first_span + i, adam_step)->last;

        last = of_span > last ? of_span : last;
    }
    return last;
}

void cst_idle_revive(struct cst_core *core, const struct cst_table_header *table,
                     uint64_t adam_step)
{
    for (uint32_t i = 0; core->idle.on && i < table->n_spans; i++) {
        core->idle.steps[i] = *cst_table_steps(table, i, adam_step);
        core->idle.next[i] = *cst_table_steps(table, i, adam_step + 1);
    }
    see_chunks(core, adam_step + 1);
}

void cst_idle_take_missed(struct cst_core *core, const struct cst_event *event)
{
    uint32_t n = core->model->n_tensors;

    if (event->first > n || event->n_elems > n - event->first) {
        cst_core_refuse(core, event->tag, CST_EINVAL,
                        "steps missed by %" PRIu64 " tensors from %" PRIu64
                        " on, the job has %" PRIu32,
                        event->n_elems, event->first, n);
        return;
    }
    if (core->idle.on && event->first == 0) {
        memset(core->idle.missed, 0, n * sizeof *core->idle.missed);
    }
    for (uint64_t i = 0; core->idle.on && i < event->n_elems; i++) {
        core->idle.missed[event->first + i] = event->missed[i];
    }
    (void)cst_core_reply(core, event->tag);
}

void cst_idle_restore(struct cst_core *core, uint64_t adam_step)
{
    struct cst_idle *idle = &core->idle;
    struct walk walk;

    if (!idle->on) {
        return;
    }
    for (bool any = begin(&walk, core); any; any = next(&walk)) {
        uint64_t missed = idle->missed[walk.tensor];

        idle->steps[walk.span] =
            (struct cst_table_steps){.missed = missed < adam_step ? missed : adam_step};
        if (core->table != NULL) {
            *cst_table_steps(core->table, walk.span, adam_step) = idle->steps[walk.span];
        }
    }
    memset(idle->missed, 0, core->model->n_tensors * sizeof *idle->missed);
}

void cst_core_missed_steps(const struct cst_core *core, uint64_t *missed)
{
    struct walk walk;

    memset(missed, 0, core->model->n_tensors * sizeof *missed);
    for (bool any = core->idle.on && begin(&walk, core); any; any = next(&walk)) {
        missed[walk.tensor] = core->idle.steps[walk.span].missed;
    }
}
