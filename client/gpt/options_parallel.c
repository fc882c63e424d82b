/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/options_parallel.h"

#include "client/gpt/model.h"

void gpt_options_choose_parallel(struct gpt_options *o)
{
    if (o->pp > 1 && o->parallel == GPT_PARALLEL_DATA) {
        o->parallel = GPT_PARALLEL_PIPELINE;
    }
    if (o->stages == 0 && o->borders.n > 0 && o->parallel != GPT_PARALLEL_DATA) {
        o->stages = o->borders.n + 1;
    }
    if (o->parallel == GPT_PARALLEL_DISPATCH && o->stages == 0) {
        o->stages = o->layers < GPT_MAX_STAGES ? o->layers : GPT_MAX_STAGES;
    }
    if (o->parallel == GPT_PARALLEL_PIPELINE && o->schedule == NULL) {
        o->schedule = "1f1b";
    }
    o->job.planning.recompute = o->recompute_layers.is_all;
}

/* What no rank of cistern-gpt does. */
static int check_abilities(const struct gpt_options *o, struct cst_err *err)
{
    static const char others[] = "cistern-gpt can do data parallelism (dp) or a pipeline (pp); "
                                 "ct.parallelize of Python can do the others";

    if (o->parallel == GPT_PARALLEL_AUTO) {
        return cst_err_set(err, CST_EINVAL,
                           "--parallel auto is for cistern plan and ct.parallelize: cistern-gpt "
                           "can do data, dispatch and pipeline");
    }
    if (o->tp > 1 || o->cp > 1) {
        return cst_err_set(err, CST_EINVAL, "section parallel, %s %u: %s", o->tp > 1 ? "tp" : "cp",
                           o->tp > 1 ? o->tp : o->cp, others);
    }
    if (o->tensor != GPT_TENSOR_1D) {
        return cst_err_set(err, CST_EINVAL, "section parallel, tensor: %s", others);
    }
    if (o->recompute_layers.n > 0 &&
        (o->parallel != GPT_PARALLEL_DATA || !gpt_options_repeats_none(o))) {
        return cst_err_set(err, CST_EINVAL,
                           "section parallel, recompute: cistern-gpt cannot choose layers; with "
                           "stages it computes all of them again, which is true");
    }
    return 0;
}

/* The degrees in the file are those of the ranks. */
static int check_degrees(const struct gpt_options *o, struct cst_err *err)
{
    const bool is_data = o->dp > 1, is_pipeline = o->pp > 1;
    const uint32_t degree = is_data ? o->dp : is_pipeline ? o->pp : o->job.world;

    if (is_data && is_pipeline) {
        return cst_err_set(err, CST_EINVAL,
                           "section parallel, dp %u and pp %u: cistern-gpt does one of them", o->dp,
                           o->pp);
    }
    if ((is_data && o->parallel != GPT_PARALLEL_DATA) ||
        (is_pipeline && o->parallel != GPT_PARALLEL_PIPELINE)) {
        return cst_err_set(err, CST_EINVAL, "section parallel, %s %u: that is --parallel %s",
                           is_data ? "dp" : "pp", degree, is_data ? "data" : "pipeline");
    }
    if (degree != o->job.world) {
        return cst_err_set(
            err, CST_EINVAL,
            "section parallel, %s %u: there are --world %u ranks; that needs --world %u",
            is_data ? "dp" : "pp", degree, o->job.world, degree);
    }
    return 0;
}

static int check_borders(const struct gpt_options *o, struct cst_err *err)
{
    uint32_t last = 0;

    if (o->borders.n > 0 && o->parallel == GPT_PARALLEL_DATA) {
        return cst_err_set(err, CST_EINVAL, "--borders needs --parallel dispatch or pipeline");
    }
    for (uint32_t i = 0; i < o->borders.n; i++) {
        if (o->borders.v[i] <= last || o->borders.v[i] >= o->layers) {
            return cst_err_set(err, CST_EINVAL,
                               "--borders: %u: wanted ascending numbers below --layers %u",
                               o->borders.v[i], o->layers);
        }
        last = o->borders.v[i];
    }
    if (o->borders.n > 0 && o->borders.n + 1 != o->stages) {
        return cst_err_set(err, CST_EINVAL, "--borders has %u numbers: --stages %u needs %u",
                           o->borders.n, o->stages, o->stages - 1);
    }
    return 0;
}

/* Check the options of models that are cut into stages. */
static int check_stages(const struct gpt_options *o, struct cst_err *err)
{
    const char *how = o->parallel == GPT_PARALLEL_PIPELINE ? "pipeline" : "dispatch";

    if (o->schedule != NULL && o->parallel != GPT_PARALLEL_PIPELINE) {
        return cst_err_set(err, CST_EINVAL, "--schedule %s needs --parallel pipeline", o->schedule);
    }
    if (o->parallel == GPT_PARALLEL_DATA) {
        return o->stages == 0
                   ? 0
                   : cst_err_set(err, CST_EINVAL,
                                 "--stages %u needs --parallel dispatch or pipeline", o->stages);
    }
    if (o->stages > o->layers) {
        return cst_err_set(err, CST_EINVAL,
                           "--stages %u is more than --layers %u: a stage has a block or more, "
                           "hence at most --stages %u",
                           o->stages, o->layers, o->layers);
    }
    if (o->job.updates.micro_batches < 2) {
        return cst_err_set(err, CST_EINVAL,
                           "--parallel %s needs --micro-batches 2 or more: with one, there "
                           "is never work for two workers",
                           how);
    }
    if (o->experts > 0 || o->store == GPT_STORE_LOCAL || o->activation_memory > 0 ||
        o->job.updates.overlap == CST_OVERLAP_EARLY) {
        return cst_err_set(err, CST_EINVAL,
                           "--parallel %s cannot be combined with --experts, --store=local, "
                           "--activation-memory or --overlap early",
                           how);
    }
    return 0;
}

int gpt_options_check_parallel(const struct gpt_options *o, struct cst_err *err)
{
    int rc = check_abilities(o, err);

    rc = rc == 0 ? check_degrees(o, err) : rc;
    rc = rc == 0 ? check_borders(o, err) : rc;
    return rc == 0 ? check_stages(o, err) : rc;
}
