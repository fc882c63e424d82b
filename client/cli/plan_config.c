/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `cistern plan` from the file of a job, which cistern-gpt reads, too. */
#include "client/cli/cli.h"
#include "client/gpt/options.h"
#include "client/gpt/options_parallel.h"
#include "offload/parallel/schedule.h"
#include "offload/plan/plan.h"
#include "proto/options_file.h"

#include <string.h>

/* Return the size of a device's memory as plan has it. */
static uint64_t device_bytes(uint64_t bytes)
{
    return bytes == CST_DEVICE_UPDATE_AUTO ? CST_PLAN_DEVICE_UPDATE_AUTO : bytes;
}

/* Take what restricts the products of plans with --parallel. The micro-batches of a file are those
 * of each replica, and those of a plan of all of them. */
static int take_degrees(struct cli_plan_request *plan, const struct gpt_options *job,
                        struct cst_err *err)
{
    const struct cst_schedule_kind *kind = NULL;

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
    plan->micro_batches = (uint64_t)job->micro_batches * (job->dp > 0 ? job->dp : 1);
    if (plan->micro_batches > CLI_PLAN_MICRO_BATCHES) {
        return cst_err_set(err, CST_EINVAL,
                           "%s: section parallel: %u micro_batches of each of dp %u replicas: plan "
                           "takes at most %d in all",
                           plan->config, job->micro_batches, job->dp, CLI_PLAN_MICRO_BATCHES);
    }
    return CST_OK;
}

int cli_plan_config(struct cli *cli, struct cst_err *err)
{
    struct cli_plan_request *plan = &cli->plan;
    /* Zero is "not given" to plan, so the defaults of cistern-gpt are not needed. */
    struct gpt_options job = {.rank = 0};
    struct cst_options_given given = {.first = 0};
    json_t *file;
    int rc = cst_options_load(gpt_options_table, &job, plan->config, &given, &file, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (job.micro_batches > CLI_PLAN_MICRO_BATCHES) {
        json_decref(file);
        return cst_err_set(err, CST_EINVAL, "%s: plan takes at most %d micro_batches, not %u",
                           plan->config, CLI_PLAN_MICRO_BATCHES, job.micro_batches);
    }
    if (job.recompute_layers.n > 0 && !gpt_options_repeats_none(&job)) {
        json_decref(file);
        return cst_err_set(err, CST_EINVAL,
                           "%s: section parallel, recompute: plan chooses the layers itself: leave "
                           "it out, or set it to true",
                           plan->config);
    }
    plan->ranks = job.world;
    plan->micro_batches = job.micro_batches;
    plan->chunk_elems = job.chunk;
    plan->optimizer = job.optimizer;
    plan->masters = job.masters;
    plan->moments = job.moments;
    plan->overlap = job.overlap;
    plan->unused = job.unused;
    plan->device_update_bytes = device_bytes(job.device_update_bytes);
    plan->device_states = device_bytes(job.device_states);
    plan->grad_over_weight = job.grad_over_weight;
    plan->recompute = job.recompute_layers.is_all;
    if (plan->parallel != CLI_PARALLEL_NONE || job.parallel == GPT_PARALLEL_AUTO) {
        rc = take_degrees(plan, &job, err);
    }
    json_decref(file); /* None of these is a text of it. */
    return rc;
}
