/* Plans for jobs that leave the choice to the daemon: when all ranks have committed, capacities,
 * the depth of prefetch and, where ranks ask for it, rooms for updates and states that stay on
 * accelerators are searched for in a thread of libuv's, with what is known of the machine;
 * when a job's steps drift, the depth is searched for again with what its engines were seen to do,
 * and takes effect between two steps. Everything else of a plan is for `cistern plan` alone.
 *
 *   no plan --commit--> searching --> planned --drift--> searching --> planned, other depth
 *                           \--> none: the layout chooses as it can */
#ifndef CST_PLANNER_H
#define CST_PLANNER_H

#include "daemon/planner_rates.h"
#include "offload/plan/plan.h"

struct cst_job;

/* What was planned for a job. */
struct cst_job_plan {
    uint64_t ticket; /* of the last search: the result of another one comes too late */
    bool searching;  /* it has not come yet */
    bool valid;      /* the rest counts */
    struct cst_plan_choice choice; /* without rows: those are where they always were */
    double step_s;                 /* predicted; 0: the rates do not say how fast the workers are */
    char words[192];               /* for people */
    char states_why[CST_PLAN_WORDS]; /* as cst_plans; there without a valid plan, too */
};

typedef void (*cst_planner_fn)(struct cst_job *job);

/* Search for @job, whose model is complete. True: @done comes later, never from within, unless the
 * job is gone or has begun another search by then; job->plan tells what came of it. False: there is
 * nothing to choose, or no way to; job->plan is not valid. */
bool cst_planner_start(struct cst_job *job, cst_planner_fn done);

/* @job's plan cannot be had as it is, for @why: do without the rooms and states on accelerators
 * that it chose or, if there are none, without all of it. Ranks' rooms are settled anew. False:
 * there is no plan. */
bool cst_planner_forgo(struct cst_job *job, const struct cst_err *why);

/* The steps of @job have drifted: see whether another depth is better now. */
void cst_planner_drifted(struct cst_job *job);

/* Write sentences for a person into @lines, at most @max: why the chunks of size class @size_class
 * are of that size. How many were written. */
unsigned cst_planner_explain(const struct cst_job *job, uint32_t size_class, char lines[][192],
                             unsigned max);

#endif
