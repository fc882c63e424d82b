/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/schedule/dispatch.h"

#include <stdlib.h>
#include <string.h>

/* -- passes ----------------------------------------------------------------------------------- */

static bool is_backward(const struct cst_dispatch *d, uint32_t pass)
{
    return pass + 1 >= d->n_stages;
}

static uint32_t stage_of(const struct cst_dispatch *d, uint32_t pass)
{
    return is_backward(d, pass) ? d->n_passes - 1 - pass : pass;
}

static uint32_t backward_of(const struct cst_dispatch *d, uint32_t stage)
{
    return d->n_passes - 1 - stage;
}

static struct cst_work_unit next_of(const struct cst_dispatch *d, uint32_t pass)
{
    return (struct cst_work_unit){.pass = pass,
                                  .stage = stage_of(d, pass),
                                  .micro = d->done[pass],
                                  .backward = is_backward(d, pass)};
}

/* True if all stages whose gradients @pass shares have done all micro-batches. */
static bool gradients_are_free(const struct cst_dispatch *d, uint32_t pass)
{
    uint64_t rest = is_backward(d, pass) ? d->after[stage_of(d, pass)] : 0;

    for (; rest != 0; rest &= rest - 1) {
        if (d->done[backward_of(d, (uint32_t)__builtin_ctzll(rest))] < d->n_micro) {
            return false;
        }
    }
    return true;
}

/* True if the next unit of @pass may begin. */
static bool is_ready(const struct cst_dispatch *d, uint32_t pass)
{
    return d->done[pass] < d->n_micro && (pass == 0 || d->done[pass - 1] > d->done[pass]) &&
           gradients_are_free(d, pass);
}

/* -- open and close --------------------------------------------------------------------------- */

int cst_dispatch_init(struct cst_dispatch *d, uint32_t n_stages, uint32_t n_micro, uint32_t n_ranks,
                      const uint64_t *after)
{
    *d = (struct cst_dispatch){0};
    if (n_stages == 0) {
        return CST_OK;
    }
    d->n_stages = n_stages;
    d->n_passes = 2 * n_stages - 1;
    d->n_micro = n_micro;
    d->n_ranks = n_ranks;
    d->done = calloc(d->n_passes, sizeof *d->done);
    d->keeper = calloc(d->n_passes, sizeof *d->keeper);
    d->after = calloc(n_stages, sizeof *d->after);
    d->kept = calloc(n_ranks, sizeof *d->kept);
    d->runs = calloc(n_ranks, sizeof *d->runs);
    d->given = calloc(n_ranks, sizeof *d->given);
    d->ended = calloc(n_ranks, sizeof *d->ended);
    d->losses = calloc(n_micro, sizeof *d->losses);
    if (d->done == NULL || d->keeper == NULL || d->after == NULL || d->kept == NULL ||
        d->runs == NULL || d->given == NULL || d->ended == NULL || d->losses == NULL) {
        cst_dispatch_close(d);
        return CST_ENOMEM;
    }
    memcpy(d->after, after, n_stages * sizeof *after);
    cst_dispatch_reset(d);
    return CST_OK;
}

void cst_dispatch_close(struct cst_dispatch *d)
{
    free(d->done);
    free(d->keeper);
    free(d->after);
    free(d->kept);
    free(d->runs);
    free(d->given);
    free(d->ended);
    free(d->losses);
    *d = (struct cst_dispatch){0};
}

void cst_dispatch_reset(struct cst_dispatch *d)
{
    for (uint32_t pass = 0; pass < d->n_passes; pass++) {
        d->done[pass] = 0;
        d->keeper[pass] = CST_DISPATCH_NONE;
    }
    for (uint32_t rank = 0; rank < d->n_ranks; rank++) {
        d->kept[rank] = CST_DISPATCH_NONE;
        d->runs[rank] = false;
        d->ended[rank] = 0;
    }
}

/* -- units ------------------------------------------------------------------------------------ */

/* @rank does not keep a pass any more. */
static void give_up(struct cst_dispatch *d, uint32_t rank)
{
    if (d->kept[rank] != CST_DISPATCH_NONE) {
        d->keeper[d->kept[rank]] = CST_DISPATCH_NONE;
        d->kept[rank] = CST_DISPATCH_NONE;
    }
}

/* The pass whose next unit @rank should run; CST_DISPATCH_NONE: none is ready. */
static uint32_t choose(const struct cst_dispatch *d, uint32_t rank)
{
    uint32_t own = d->kept[rank];
    uint32_t end = own == CST_DISPATCH_NONE ? d->n_passes : own;

    if (own != CST_DISPATCH_NONE && is_ready(d, own)) {
        return own;
    }
    for (uint32_t pass = 0; pass < end; pass++) {
        if (d->keeper[pass] == CST_DISPATCH_NONE && is_ready(d, pass)) {
            return pass;
        }
    }
    return CST_DISPATCH_NONE;
}

bool cst_dispatch_take(struct cst_dispatch *d, uint32_t rank, struct cst_work_unit *out)
{
    uint32_t pass = choose(d, rank);
    bool begins = pass != d->kept[rank];

    if (pass == CST_DISPATCH_NONE) {
        return false;
    }
    give_up(d, rank);
    d->keeper[pass] = rank;
    d->kept[rank] = pass;
    d->runs[rank] = true;
    d->given[rank] = ++d->n_given;
    *out = next_of(d, pass);
    out->number = d->given[rank];
    out->begins = begins;
    return true;
}

bool cst_dispatch_unit(const struct cst_dispatch *d, uint32_t rank, struct cst_work_unit *out)
{
    if (d->n_stages == 0 || !d->runs[rank]) {
        return false;
    }
    *out = next_of(d, d->kept[rank]);
    out->number = d->given[rank];
    return true;
}

enum cst_work_report cst_dispatch_report(const struct cst_dispatch *d, uint32_t rank,
                                         uint64_t number)
{
    if (d->runs[rank] && number == d->given[rank]) {
        return CST_WORK_DONE;
    }
    return number == d->ended[rank] ? CST_WORK_KNOWN : CST_WORK_STALE;
}

void cst_dispatch_done(struct cst_dispatch *d, uint32_t rank, double loss)
{
    uint32_t pass = d->kept[rank];

    if (pass == d->n_stages - 1) {
        d->losses[d->done[pass]] = loss;
    }
    d->runs[rank] = false;
    d->ended[rank] = d->given[rank];
    if (++d->done[pass] == d->n_micro) {
        give_up(d, rank);
    }
}

void cst_dispatch_leave(struct cst_dispatch *d, uint32_t rank)
{
    give_up(d, rank);
}

bool cst_dispatch_gone(struct cst_dispatch *d, uint32_t rank, struct cst_work_unit *lost)
{
    bool had = cst_dispatch_unit(d, rank, lost);

    if (d->n_stages > 0) {
        d->runs[rank] = false;
        d->ended[rank] = 0;
        give_up(d, rank);
    }
    return had;
}

/* -- what is done ----------------------------------------------------------------------------- */

bool cst_dispatch_is_complete(const struct cst_dispatch *d)
{
    return d->done[d->n_passes - 1] == d->n_micro;
}

bool cst_dispatch_has_done(const struct cst_dispatch *d, uint32_t stage, uint32_t micro)
{
    return d->done[backward_of(d, stage)] > micro;
}

bool cst_dispatch_first(const struct cst_dispatch *d, struct cst_work_unit *out, uint32_t *rank)
{
    for (uint32_t pass = 0; pass < d->n_passes; pass++) {
        if (d->done[pass] < d->n_micro) {
            *out = next_of(d, pass);
            *rank = d->keeper[pass];
            return true;
        }
    }
    return false;
}

double cst_dispatch_loss(const double *losses, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += losses[i];
    }
    return sum / n;
}

/* -- invariants ------------------------------------------------------------------------------- */

/* Rules 2 and 3 never hold the first pass up that is not done. */
static bool can_go_on(const struct cst_dispatch *d)
{
    struct cst_work_unit first;
    uint32_t keeper;

    return !cst_dispatch_first(d, &first, &keeper) || is_ready(d, first.pass);
}

const char *cst_dispatch_check(const struct cst_dispatch *d)
{
    if (!can_go_on(d)) {
        return "somebody can go on";
    }
    for (uint32_t pass = 0; pass < d->n_passes; pass++) {
        if (d->done[pass] > d->n_micro) {
            return "a pass has as many units as there are micro-batches";
        }
        if (pass > 0 && d->done[pass] > d->done[pass - 1]) {
            return "no pass overtakes the one before it";
        }
        if (d->keeper[pass] != CST_DISPATCH_NONE && d->kept[d->keeper[pass]] != pass) {
            return "who keeps a pass knows it";
        }
        if (d->done[pass] > 0 && !gradients_are_free(d, pass)) {
            return "gradients of later stages are complete before earlier stages add to them";
        }
    }
    for (uint32_t rank = 0; rank < d->n_ranks; rank++) {
        if (d->kept[rank] != CST_DISPATCH_NONE && d->keeper[d->kept[rank]] != rank) {
            return "a pass has one keeper";
        }
        if (d->runs[rank] && (d->kept[rank] == CST_DISPATCH_NONE || !is_ready(d, d->kept[rank]))) {
            return "a unit that is under way was ready";
        }
        if (d->runs[rank] && (d->given[rank] > d->n_given || d->ended[rank] >= d->given[rank])) {
            return "a unit that is under way has a number, later than that of the one before";
        }
    }
    return NULL;
}
