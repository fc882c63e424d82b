/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for jobs that leave the choice to the daemon. When all ranks have committed, the planner
 * searches in a thread (searches.h) for chunk capacities and the prefetch depth and, if ranks ask
 * for them, for device reservations and states that stay on accelerators. It uses the rates that
 * are known of the machine. It takes the best plan that was found within [plan] search_time. A
 * search is cancelled when its job or the job's ranks are gone. If the times of a job's steps drift
 * from the prediction, the planner searches for the prefetch depth again, with the rates that the
 * engines were seen to reach; a new depth takes effect between two steps. All other choices of a
 * plan are for `cistern plan` alone. Loop thread only.
 *
 *   no plan --commit--> searching --> planned --drift--> searching --> planned, other depth
 *                        |      \--> none: the layout chooses by itself
 *                        \--cancel--> no plan */
#ifndef CST_PLANNER_H
#define CST_PLANNER_H

#include "daemon/job/planner_rates.h"
#include "offload/plan/plan.h"

struct cstd_job;
struct cstd_plan_search;

/* The plan of a job. */
struct cstd_job_plan {
    struct cstd_plan_search *search; /* Search that is queued or runs; NULL: none. */
    bool valid;                      /* choice, step_s and words are valid. */
    /* The plan's decisions, without rows. It does not know of states on drives. */
    struct cst_plan_choice choice;
    /* Predicted time of a step; 0: unknown, because the workers' speed is not known. */
    double step_s;
    char words[192]; /* Description of the plan, for people. */
    /* The reason for device updates in a reservation, in lent memory, or nowhere, as in
     * cst_plans. Set even if there is no valid plan. */
    char update_why[CST_PLAN_WORDS];
    /* The reason for the amount of states on accelerators, as in cst_plans. Set even if there is no
     * valid plan. */
    char states_why[CST_PLAN_WORDS];
};

typedef void (*cstd_planner_fn)(struct cstd_job *job);

/* Start a search for @job, whose model is complete. Returns true if a search was queued: @done is
 * called later, never within this call, unless the search is cancelled or replaced by another one;
 * job->plan then has the result. Returns false if there is nothing to choose or the search cannot
 * be queued; then job->plan is not valid. */
bool cstd_planner_start(struct cstd_job *job, cstd_planner_fn done);

/* Cancel the search of @job, if there is one, because its ranks or the job itself are gone. Its
 * callback is not called. */
void cstd_planner_cancel(struct cstd_job *job);

/* Reduce the plan of @job, which does not fit for the reason @why. If the plan chose device
 * reservations and states on accelerators, they are dropped; otherwise the whole plan is dropped.
 * The ranks' device reservations are decided anew. Returns false if there is no plan, or if it was
 * given by the user and hence is not changed. */
bool cstd_planner_forgo(struct cstd_job *job, const struct cst_err *why);

/* Search for a better prefetch depth, because the times of @job's steps have drifted from the
 * prediction. Does nothing without a valid plan or while a search is queued or runs. */
void cstd_planner_drifted(struct cstd_job *job);

/* Write at most @max sentences for people into @lines: why the chunks of size class @size_class
 * have their size. Returns the number of sentences. */
unsigned cstd_planner_explain(const struct cstd_job *job, uint32_t size_class, char lines[][192],
                              unsigned max);

#endif
