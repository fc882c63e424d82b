/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/hyper.h"

#include "proto/job_options.h"

#include <math.h>

double gpt_hyper_lr(const struct gpt_options *o, uint64_t step)
{
    double part;

    if (step < o->warmup) {
        return o->lr * (double)(step + 1) / (double)o->warmup;
    }
    if (step >= o->steps) {
        return o->min_lr;
    }
    part = (double)(step - o->warmup) / (double)(o->steps - o->warmup);
    return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1.0 + cos(part * 3.14159265358979323846));
}

/* Number of ranks that share a batch: with dispatch those of a rank block. A pipeline is that of
 * all ranks of a node. */
static uint32_t batch_ranks(const struct gpt_options *o)
{
    switch (o->parallel) {
    case GPT_PARALLEL_DISPATCH:
        return cst_job_block_ranks(&o->job);
    case GPT_PARALLEL_PIPELINE:
        return o->job.world;
    case GPT_PARALLEL_DATA:
    case GPT_PARALLEL_AUTO:
        break;
    }
    return 1;
}

uint32_t gpt_hyper_batches(const struct gpt_options *o)
{
    return cst_job_all_ranks(&o->job) / batch_ranks(o);
}

uint32_t gpt_hyper_first_batch(const struct gpt_options *o)
{
    return o->job.nodes.first_rank / batch_ranks(o);
}

struct cst_hyper_params gpt_hyper_params(const struct gpt_options *o, uint32_t n_passes,
                                         uint64_t step)
{
    return (struct cst_hyper_params){
        .lr = gpt_hyper_lr(o, step),
        .beta1 = o->beta1 > 0 ? o->beta1 : -1, /* negative: no momentum */
        .beta2 = o->beta2,
        .eps = 1e-8,
        .weight_decay = o->weight_decay,
        .clip_norm = o->clip,
        .grad_scale = 1.0 / (double)(gpt_hyper_batches(o) * n_passes),
    };
}
