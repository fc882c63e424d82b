/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `cistern plan` from the file of a job, which cistern-gpt reads, too. */
#include "client/cli/plan_input.h"
#include "client/gpt/options.h"
#include "client/gpt/options_parallel.h"
#include "offload/parallel/schedule.h"
#include "offload/plan/plan.h"
#include "proto/options_file.h"

#include <string.h>

/* Take what restricts the products of plans with --parallel. The micro-batches of a file are those
 * of each replica, and those of a plan of all of them. */
static int take_degrees(struct cli_plan_request *plan, const struct gpt_options *job,
                        struct cst_err *err)
{
    const struct cst_schedule_kind *kind = NULL;
    const uint64_t all = (uint64_t)job->job.updates.micro_batches * (job->dp > 0 ? job->dp : 1);

    if (job->cp > 1) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: section parallel, cp %u: plan does not share sequences; it has dp, "
                           "tp and pp",
                           plan->config, job->cp);
    }
    if (job->schedule != NULL && cst_schedule_find(&kind, job->schedule, err) != CST_OK) {
        err->status = CST_EINVAL;
        return cst_err_prefix(err, "%s: section parallel, schedule", plan->config);
    }
    plan->parallel = CLI_PARALLEL_AUTO;
    plan->dp = job->dp;
    plan->tp = job->tp;
    plan->pp = job->pp;
    plan->kind = kind != NULL ? kind->name : NULL;
    if (all > CLI_PLAN_MICRO_BATCHES) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: section parallel: %u micro_batches of each of dp %u replicas: plan "
                           "takes at most %d in all",
                           plan->config, job->job.updates.micro_batches, job->dp,
                           CLI_PLAN_MICRO_BATCHES);
    }
    plan->job.updates.micro_batches = (uint32_t)all;
    return CST_OK;
}

int cli_plan_config(struct cli *cli, struct cst_err *err)
{
    struct cli_plan_request *plan = &cli->plan;
    /* Zero is "not given" to plan, so the defaults of cistern-gpt are not needed. */
    struct gpt_options job = {.job = {.rank = 0}};
    struct cst_options_given given = {.first = 0};
    json_t *file;
    int rc = cst_options_load(gpt_options_table, &job, plan->config, &given, &file, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (job.job.updates.micro_batches > CLI_PLAN_MICRO_BATCHES) {
        json_decref(file);
        return cst_err_set(err, CST_EINVAL, "%s: plan takes at most %d micro_batches, not %u",
                           plan->config, CLI_PLAN_MICRO_BATCHES, job.job.updates.micro_batches);
    }
    if (job.recompute_layers.n > 0 && !gpt_options_repeats_none(&job)) {
        json_decref(file);
        return cst_err_set(err, CST_EINVAL,
                           "%s: section parallel, recompute: plan chooses the layers itself: leave "
                           "it out, or set it to true",
                           plan->config);
    }
    if (job.job.states.disk != NULL) {
        rc = cli_plan_count_drives(job.job.states.disk, &plan->n_drives, err);
        if (rc != CST_OK) {
            json_decref(file);
            return cst_err_prefix(err, "%s: section memory", plan->config);
        }
    }
    plan->ranks = job.job.world;
    /* Without the texts, which belong to the file. */
    plan->job = (struct cst_job_spec){.memory = job.job.memory,
                                      .states = job.job.states,
                                      .updates = job.job.updates,
                                      .planning = {.chunk_elems = job.job.planning.chunk_elems,
                                                   .recompute = job.recompute_layers.is_all}};
    plan->job.states.disk = NULL;
    if (plan->parallel != CLI_PARALLEL_NONE || job.parallel == GPT_PARALLEL_AUTO) {
        rc = take_degrees(plan, &job, err);
    }
    json_decref(file);
    return rc;
}
