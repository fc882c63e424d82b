/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- kinds ------------------------------------------------------------------------------------ */

static const struct cst_schedule_kind kinds[] = {
    {"gpipe", "all forward passes, then all backward passes (GPipe)", .all_forward = true},
    {"1f1b", "one forward, one backward (PipeDream-Flush)", .per_hop = 1},
    {"interleaved", "1f1b with several stages per rank (Megatron-LM)", .per_hop = 2,
     .interleaves = true},
    {"zb-h1", "1f1b, weight gradients fill the end (zero bubble, ZB-H1)", .per_hop = 1,
     .interleaves = true, .splits = true, .late_ranks = true},
    {"early", "1f1b that recomputes before the gradient arrives (Merak)", .per_hop = 1,
     .early = true},
    {"shifted", "early, with the shifted critical path of Merak", .per_hop = 1, .shifted = true,
     .early = true},
};

const struct cst_schedule_kind *cst_schedule_kind(uint32_t i)
{
    return i < sizeof kinds / sizeof *kinds ? &kinds[i] : NULL;
}

int cst_schedule_find(const struct cst_schedule_kind **out, const char *name, struct cst_err *err)
{
    char known[256] = "";

    for (uint32_t i = 0; cst_schedule_kind(i) != NULL; i++) {
        const size_t used = strlen(known);

        if (strcmp(kinds[i].name, name) == 0) {
            *out = &kinds[i];
            return CST_OK;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", kinds[i].name);
    }
    return cst_err_set(err, CST_ENOTFOUND, "no schedule '%.63s'; there are %s", name, known);
}

/* -- memory ----------------------------------------------------------------------------------- */

static int check_size(const struct cst_schedule_size *size, struct cst_err *err)
{
    if (size->n_ranks == 0 || size->n_stages == 0 || size->n_micro == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " ranks, %" PRIu32 " stages, %" PRIu32
                           " micro-batches: each must be at least 1",
                           size->n_ranks, size->n_stages, size->n_micro);
    }
    if (size->n_ranks > size->n_stages) {
        return cst_err_set(err, CST_EINVAL,
                           "%" PRIu32 " ranks for %" PRIu32 " stages: each rank needs a stage",
                           size->n_ranks, size->n_stages);
    }
    if (size->n_stages > CST_SCHEDULE_MAX_STAGES || size->n_micro > CST_SCHEDULE_MAX_MICRO ||
        (uint64_t)size->n_stages * size->n_micro > CST_SCHEDULE_MAX_UNITS) {
        return cst_err_set(
            err, CST_EINVAL,
            "%" PRIu32 " stages, %" PRIu32
            " micro-batches: there can be at most %d and %d, and their product can be at most %d",
            size->n_stages, size->n_micro, CST_SCHEDULE_MAX_STAGES, CST_SCHEDULE_MAX_MICRO,
            CST_SCHEDULE_MAX_UNITS);
    }
    return CST_OK;
}

int cst_schedule_open(struct cst_schedule *out, const struct cst_schedule_size *size,
                      size_t n_actions, struct cst_err *err)
{
    struct cst_schedule schedule = {
        .n_ranks = size->n_ranks, .n_stages = size->n_stages, .n_micro = size->n_micro};
    int rc = check_size(size, err);

    if (rc != CST_OK) {
        return rc;
    }
    schedule.actions = calloc(n_actions > 0 ? n_actions : 1, sizeof *schedule.actions);
    schedule.first = calloc((size_t)size->n_ranks + 1, sizeof *schedule.first);
    schedule.rank_of = calloc(size->n_stages, sizeof *schedule.rank_of);
    schedule.recomputes = calloc(size->n_stages, sizeof *schedule.recomputes);
    if (schedule.actions == NULL || schedule.first == NULL || schedule.rank_of == NULL ||
        schedule.recomputes == NULL) {
        cst_schedule_close(&schedule);
        return cst_err_set(err, CST_ENOMEM, "a schedule of %zu actions", n_actions);
    }
    *out = schedule;
    return CST_OK;
}

void cst_schedule_close(struct cst_schedule *schedule)
{
    free(schedule->actions);
    free(schedule->first);
    free(schedule->rank_of);
    free(schedule->recomputes);
    *schedule = (struct cst_schedule){0};
}

/* -- lists ------------------------------------------------------------------------------------ */

/* What the list of one rank is made from. */
struct making {
    struct cst_schedule *schedule;
    const struct cst_schedule_kind *kind;
    uint32_t rank;
    uint32_t n_own;   /* Number of stages of the rank. */
    uint32_t group;   /* Micro-batches of a stage that follow each other before the next stage's. */
    uint32_t total;   /* Forward passes of the rank. */
    uint32_t warm_up; /* Micro-batches in flight after which backward passes begin. */
    uint32_t end;     /* Number of actions so far, of all ranks. */
};

/* The stage and micro-batch of a rank's @n-th forward pass, or of its @n-th backward pass. */
static struct cst_stage_action unit(const struct making *m, uint32_t n, bool backward)
{
    const uint32_t turn = n / m->group, own = turn % m->n_own;

    return (struct cst_stage_action){
        .stage = (uint16_t)((backward ? m->n_own - 1 - own : own) * m->schedule->n_ranks + m->rank),
        .micro = turn / m->n_own * m->group + n % m->group,
    };
}

static void add(struct making *m, struct cst_stage_action action, enum cst_stage_action_kind kind)
{
    action.kind = (uint16_t)kind;
    m->schedule->actions[m->end++] = action;
}

static void add_backward(struct making *m, uint32_t n)
{
    const struct cst_stage_action action = unit(m, n, true);

    if (m->kind->early && m->schedule->recomputes[action.stage]) {
        add(m, action, CST_STAGE_RECOMPUTE);
    }
    add(m, action, m->kind->splits ? CST_STAGE_BACKWARD_INPUT : CST_STAGE_BACKWARD);
}

static uint32_t warm_up(const struct making *m)
{
    const uint32_t hops = m->schedule->n_ranks - 1 - m->rank;

    return m->kind->all_forward ? m->total : (m->n_own - 1) * m->group + m->kind->per_hop * hops;
}

static void make_rank(struct making *m)
{
    const struct cst_schedule_kind *kind = m->kind;
    const bool shifted = kind->shifted && m->rank + 2 == m->schedule->n_ranks;
    const uint32_t delay = kind->late_ranks ? m->rank : 0;
    uint32_t n_forward = 0, n_backward = 0, n_weight = kind->splits ? 0 : m->total;

    m->warm_up = warm_up(m);
    while (n_backward < m->total) {
        const uint32_t more = shifted && n_backward == 0 ? 1 : 0;

        if (n_forward < m->total && n_forward - n_backward <= m->warm_up + more) {
            add(m, unit(m, n_forward++, false), CST_STAGE_FORWARD);
            continue;
        }
        add_backward(m, n_backward++);
        if (n_weight + delay < n_backward) {
            add(m, unit(m, n_weight++, true), CST_STAGE_BACKWARD_WEIGHT);
        }
    }
    while (n_weight < m->total) {
        add(m, unit(m, n_weight++, true), CST_STAGE_BACKWARD_WEIGHT);
    }
}

/* Return the number of micro-batches in a round, of which each stage does all before the rank goes
 * on with its next stage; 0: they do not divide into rounds. A round has at least as many as there
 * are ranks, if there are so many. */
static uint32_t find_group(const struct cst_schedule_size *size)
{
    const uint32_t n_rounds = size->n_micro / size->n_ranks > 0 ? size->n_micro / size->n_ranks : 1;

    return size->n_micro % n_rounds == 0 ? size->n_micro / n_rounds : 0;
}

static int check_kind(const struct cst_schedule_kind *kind, const struct cst_schedule_size *size,
                      struct cst_err *err)
{
    if (!kind->interleaves && size->n_stages != size->n_ranks) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: %" PRIu32 " stages for %" PRIu32
                           " ranks: it has one stage per rank; interleaved and zb-h1 can have more",
                           kind->name, size->n_stages, size->n_ranks);
    }
    if (size->n_stages % size->n_ranks != 0) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: %" PRIu32 " stages for %" PRIu32
                           " ranks: wanted a multiple of the ranks, such as %" PRIu32,
                           kind->name, size->n_stages, size->n_ranks,
                           size->n_stages / size->n_ranks * size->n_ranks);
    }
    if (size->n_stages > size->n_ranks && find_group(size) == 0) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: %" PRIu32 " micro-batches for %" PRIu32
                           " ranks: wanted a multiple of the rounds (%" PRIu32
                           "), such as %" PRIu32,
                           kind->name, size->n_micro, size->n_ranks, size->n_micro / size->n_ranks,
                           size->n_micro / size->n_ranks * size->n_ranks);
    }
    return CST_OK;
}

int cst_schedule_make(struct cst_schedule *out, const struct cst_schedule_kind *kind,
                      const struct cst_schedule_size *size, struct cst_err *err)
{
    struct making m = {.schedule = out, .kind = kind};
    int rc = check_size(size, err);

    rc = rc == CST_OK ? check_kind(kind, size, err) : rc;
    if (rc == CST_OK) {
        rc = cst_schedule_open(out, size, (size_t)3 * size->n_stages * size->n_micro, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    m.n_own = size->n_stages / size->n_ranks;
    m.group = m.n_own > 1 ? find_group(size) : size->n_micro;
    m.total = m.n_own * size->n_micro;
    for (uint32_t s = 0; s < size->n_stages; s++) {
        out->rank_of[s] = s % size->n_ranks;
        out->recomputes[s] =
            size->recomputes != NULL ? size->recomputes[s] : kind->early && s + 1 < size->n_stages;
    }
    for (m.rank = 0; m.rank < size->n_ranks; m.rank++) {
        out->first[m.rank] = m.end;
        make_rank(&m);
    }
    out->first[size->n_ranks] = m.end;
    return CST_OK;
}
