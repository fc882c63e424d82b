/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for jobs that leave the choice to the daemon: when all ranks have committed, capacities,
 * the depth of prefetch and, where ranks ask for it, rooms for updates and states that stay on
 * accelerators are searched for in a thread (searches.h), with what is known of the machine, for as
 * long as [plan] search_time allows; the best plan by then is taken. A search that nobody waits for
 * any more is cancelled. When a job's steps drift, the depth is searched for again with what its
 * engines were seen to do, and takes effect between two steps. Everything else of a plan is for
 * `cistern plan` alone.
 *
 *   no plan --commit--> searching --> planned --drift--> searching --> planned, other depth
 *                        |      \--> none: the layout chooses as it can
 *                        \--cancel--> no plan */
#ifndef CST_PLANNER_H
#define CST_PLANNER_H

#include "daemon/planner_rates.h"
#include "offload/plan/plan.h"

struct cst_job;
struct cst_plan_search;

/* What was planned for a job. */
struct cst_job_plan {
    struct cst_plan_search *search; /* that waits for its turn or runs; NULL: none */
    bool valid;                     /* the rest counts */
    struct cst_plan_choice choice;  /* without rows: those are where they always were */
    double step_s;   /* predicted; 0: the rates do not say how fast the workers are */
    char words[192]; /* for people */
    char states_why[CST_PLAN_WORDS]; /* as cst_plans; there without a valid plan, too */
};

typedef void (*cst_planner_fn)(struct cst_job *job);

/* Search for @job, whose model is complete. True: @done comes later, never from within, unless the
 * search is cancelled or another one is begun by then; job->plan tells what came of it. False:
 * there is nothing to choose, or no way to; job->plan is not valid. */
bool cst_planner_start(struct cst_job *job, cst_planner_fn done);

/* Nobody waits for the search of @job any more, if there is one: its ranks or the job itself are
 * gone. */
void cst_planner_cancel(struct cst_job *job);

/* @job's plan cannot be had as it is, for @why: do without the rooms and states on accelerators
 * that it chose or, if there are none, without all of it. Ranks' rooms are settled anew. False:
 * there is no plan, or it was given and is not changed. */
bool cst_planner_forgo(struct cst_job *job, const struct cst_err *why);

/* The steps of @job have drifted: see whether another depth is better now. */
void cst_planner_drifted(struct cst_job *job);

/* Write sentences for a person into @lines, at most @max: why the chunks of size class @size_class
 * are of that size. How many were written. */
unsigned cst_planner_explain(const struct cst_job *job, uint32_t size_class, char lines[][192],
                             unsigned max);

#endif
