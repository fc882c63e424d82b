/* SPDX-License-Identifier: Apache-2.0 */
/* Which worker runs which part of a step, in a job whose operators are cut into stages. This module
 * has the table of what is done and decides what may run next. It knows neither chunks nor
 * requests.
 *
 * A step is a row of passes: the forward passes of all stages but the last, then the backward
 * passes of all stages in reverse order. (The forward pass of the last stage is the first part of
 * its backward pass.) Each pass is run once for each micro-batch: this is a unit, the work that a
 * worker gets. With S stages there are 2 S - 1 passes. For S = 3:
 *
 *   pass          0            1            2             3             4
 *            forward of 0  forward of 1  backward of 2  backward of 1  backward of 0
 *   micro 0      done         done          done        rank 1 has it
 *   micro 1      done         done       rank 0 has it
 *   micro 2      done      rank 2 has it
 *
 * Forward passes are cut like backward passes, although they are shorter. With the times of
 * tests/unit/check_dispatch_times, eight ranks are 7.68 times as fast as one; where forward passes
 * run two or three stages in a unit, which then takes as long as a backward unit, they are 7.64 and
 * 7.46 times as fast. Units that are given out when they are ready need not take equally long, and
 * after a longer unit the next rank begins later.
 *
 * The rules:
 *   1. The units of a pass are done in the order of micro-batches. Therefore the contributions to a
 *      gradient come in one order, whoever computes them.
 *   2. A unit may begin when the pass before it has done the same micro-batch: its inputs are then
 *      complete. They stay until the step ends, so that a unit can be done again.
 *   3. If a stage shares a gradient with a later stage, its backward pass begins when the later
 *      stage's has done all micro-batches.
 *   4. A rank keeps a pass, and with it the weights of a stage, until the pass is done. It is given
 *      another one only if its own has no unit ready and an earlier pass has one that nobody has.
 *   5. A rank that has no unit keeps its pass only while it waits for the next one.
 *   6. The unit of a rank that is gone can be given to another rank. So can the pass. (The unit of
 *      one that hung up and lives is done again in a new attempt.)
 *   7. Each unit that is given to a rank gets a number, the next one of the job. A rank names the
 *      unit that it has done. If it names the one before, the answer with its present unit has not
 *      reached it, and it gets this unit again. All other numbers are stale.
 *
 * There is always a unit that may begin or is under way: rules 2 and 3 refer to earlier passes
 * only, and the first pass that is not done is either kept by a rank, which has a unit of it or
 * waits for one (rule 5), or free for everybody (rule 4).
 *
 *   of a rank:  NOTHING --take--> HAS A UNIT --done--> NOTHING, keeping the pass while it waits
 *               any --gone, reset--> NOTHING, without a pass */
#ifndef CST_CORE_DISPATCH_H
#define CST_CORE_DISPATCH_H

#include "offload/base/work_unit.h"
#include "cistern/status.h"

#define CST_DISPATCH_MAX_STAGES 64
#define CST_DISPATCH_NONE UINT32_MAX

struct cst_dispatch {
    uint32_t n_stages; /* 0: the job is not dispatched; the table is empty. */
    uint32_t n_passes; /* 2 n_stages - 1. */
    uint32_t n_micro;  /* Micro-batches of a step. */
    uint32_t n_ranks;
    /* Per pass: number of micro-batches that are done. Owned, as all arrays. */
    uint32_t *done;
    uint32_t *keeper; /* Per pass: the rank that keeps it; CST_DISPATCH_NONE: nobody does. */
    uint64_t *after;  /* Per stage: later stages with which it shares a gradient, one bit each. */
    uint32_t *kept;   /* Per rank: the pass that it keeps; CST_DISPATCH_NONE: none. */
    bool *runs;       /* Per rank: it has a unit of the pass that it keeps. */
    uint64_t n_given; /* Units given to ranks: the number of the last one. */
    uint64_t *given;  /* Per rank: number of the unit that it has, if it has one. */
    uint64_t *ended;  /* Per rank: number of the last unit that it has done; 0: none. */
    double *losses;   /* Per micro-batch: the loss, once the last stage has done it. */
};

/* Make the table of a job with @n_stages stages, at most CST_DISPATCH_MAX_STAGES, @n_micro
 * micro-batches and @n_ranks ranks. @after has an entry per stage, as in the struct; it is copied.
 * With @n_stages 0 nothing is allocated. CST_ENOMEM: nothing is allocated. */
int cst_dispatch_init(struct cst_dispatch *dispatch, uint32_t n_stages, uint32_t n_micro,
                      uint32_t n_ranks, const uint64_t *after);
void cst_dispatch_close(struct cst_dispatch *dispatch);

/* True if the job is dispatched. */
static inline bool cst_dispatch_is_on(const struct cst_dispatch *dispatch)
{
    return dispatch->n_stages > 0;
}

/* Begin a step or an attempt: nothing is done, and no rank has anything. */
void cst_dispatch_reset(struct cst_dispatch *dispatch);

/* Give @rank, which has no unit, the next one. False: none may begin now. */
bool cst_dispatch_take(struct cst_dispatch *dispatch, uint32_t rank, struct cst_work_unit *out);

/* The unit of @rank; false: it has none. */
bool cst_dispatch_unit(const struct cst_dispatch *dispatch, uint32_t rank,
                       struct cst_work_unit *out);

/* What @rank says when it names unit @number, 0: none, as the last one that it has done. */
enum cst_work_report cst_dispatch_report(const struct cst_dispatch *dispatch, uint32_t rank,
                                         uint64_t number);

/* @rank has done its unit. @loss counts if the unit is of the last stage. */
void cst_dispatch_done(struct cst_dispatch *dispatch, uint32_t rank, double loss);

/* @rank, which has no unit, waits no more for one: its pass can be given to others. */
void cst_dispatch_leave(struct cst_dispatch *dispatch, uint32_t rank);

/* @rank does nothing more of what it has, which can be given to others. If it comes back, it has
 * done no unit. True: it had a unit, *lost. */
bool cst_dispatch_gone(struct cst_dispatch *dispatch, uint32_t rank, struct cst_work_unit *lost);

/* True if all passes are done. */
bool cst_dispatch_is_complete(const struct cst_dispatch *dispatch);

/* True if the backward pass of @stage has done micro-batch @micro. */
bool cst_dispatch_has_done(const struct cst_dispatch *dispatch, uint32_t stage, uint32_t micro);

/* The first pass that is not done, its next micro-batch, and the rank that keeps it or
 * CST_DISPATCH_NONE: what others wait for. False: all passes are done. */
bool cst_dispatch_first(const struct cst_dispatch *dispatch, struct cst_work_unit *out,
                        uint32_t *rank);

/* Mean of @n losses, of micro-batches or of rank blocks, summed in their order. */
double cst_dispatch_loss(const double *losses, uint32_t n);

/* NULL, or the name of an invariant that does not hold. For tests. */
const char *cst_dispatch_check(const struct cst_dispatch *dispatch);

#endif
