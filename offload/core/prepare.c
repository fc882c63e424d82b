/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-parameters that ranks announce by PREPARE and repeat in STEP. All ranks must name the same
 * ones, and those with which updates of the step have begun. */
#include "offload/core/prepare.h"

#include "offload/core/core_state.h"
#include "offload/base/hyper.h"
#include "offload/core/ranks.h"
#include "offload/update/overlap.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* CST_EMISMATCH if @hyper of @rank differs from what other ranks announced, or from the updates
 * that were begun. */
static int check_promise(const struct cst_core *core, uint32_t rank, const struct cst_hyper *hyper,
                         struct cst_err *err)
{
    char mine[32], theirs[48];

    (void)snprintf(mine, sizeof mine, "rank %" PRIu32, rank);
    for (uint32_t other = 0; other < core->world; other++) {
        const struct cst_rank *r = &core->ranks[other];

        (void)snprintf(theirs, sizeof theirs, "rank %" PRIu32, other);
        if (other != rank && r->prepared &&
            cst_hyper_same(&r->promised, hyper, theirs, mine, err) != CST_OK) {
            return err->status;
        }
    }
    if (!cst_overlap_has_begun(core)) {
        return CST_OK;
    }
    return cst_hyper_same(&core->early.hyper, hyper, "the updates that have begun", mine, err);
}

int cst_prepare_check_step(const struct cst_core *core, uint32_t rank, struct cst_err *err)
{
    const struct cst_rank *r = &core->ranks[rank];
    int status = CST_OK;

    if (r->prepared) {
        status = cst_hyper_same(&r->promised, &r->hyper, "what was prepared", "what is asked", err);
    } else if (cst_overlap_has_begun(core)) {
        status = check_promise(core, rank, &r->hyper, err);
    }
    return status == CST_OK
               ? CST_OK
               : cst_err_prefix(err, "step %" PRIu64 " of rank %" PRIu32, core->step, rank);
}

int cst_prepare_compare_steps(const struct cst_core *core, struct cst_err *err)
{
    char first[32], name[32];
    const struct cst_rank *asked = NULL; /* The first rank that has asked for the step. */

    for (uint32_t rank = 0; rank < core->world; rank++) {
        const struct cst_rank *r = &core->ranks[rank];

        (void)snprintf(name, sizeof name, "rank %" PRIu32, rank);
        if (asked == NULL && r->stepped) {
            asked = r;
            memcpy(first, name, sizeof first);
        } else if (r->stepped &&
                   cst_hyper_same(&asked->hyper, &r->hyper, first, name, err) != CST_OK) {
            return cst_err_prefix(err, "step %" PRIu64, core->step);
        }
    }
    return CST_OK;
}

void cst_prepare(struct cst_core *core, const struct cst_event *event)
{
    struct cst_rank *r = &core->ranks[event->rank];
    struct cst_err err;

    if (!cst_ranks_admit_before_step(core, event)) {
        return;
    }
    if (cst_hyper_check(&event->hyper, &err) != CST_OK) {
        cst_core_refuse_err(core, event->tag, &err);
    } else if (r->prepared && cst_hyper_same(&r->promised, &event->hyper, "what was prepared",
                                             "what is prepared now", &err) != CST_OK) {
        /* A rank that contradicts itself has made an error; the attempt goes on. */
        err.status = CST_EINVAL;
        cst_core_refuse_err(core, event->tag, &err);
    } else if (core->policy.overlap == CST_OVERLAP_EARLY &&
               check_promise(core, event->rank, &event->hyper, &err) != CST_OK) {
        (void)cst_err_prefix(&err, "step %" PRIu64, core->step);
        cst_core_refuse_err(core, event->tag, &err);
        cst_ranks_interrupt(core, &err);
    } else {
        /* Without EARLY a PREPARE is accepted and has no effect. */
        if (core->policy.overlap == CST_OVERLAP_EARLY) {
            cst_rank_promise(r, &event->hyper);
            cst_hyper_take_factors(core, event);
        }
        (void)cst_core_reply(core, event->tag);
    }
}
