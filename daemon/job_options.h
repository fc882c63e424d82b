/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's states are kept and when they are updated: the fields of JobOpen that are the same in
 * every rank, from `optimizer` on. Pure. */
#ifndef CST_JOB_OPTIONS_H
#define CST_JOB_OPTIONS_H

#include "offload/layout.h"
#include "proto/cistern.pb-c.h"

struct cst_job_options {
    enum cst_optimizer optimizer;
    enum cst_moments moments;   /* format of exp_avg and exp_avg_sq */
    enum cst_rounding rounding; /* of moments that are not fp32 */
    uint64_t seed;              /* of stochastic rounding */
    enum cst_overlap overlap;   /* when chunks are updated */
    uint64_t delay_from;        /* DELAYED: the first step that is */
    bool grad_over_weight;      /* gradients take the place of weights */
};

/* Those of @message. CST_EINVAL: a number that means nothing, or what cannot go together. */
int cst_job_options_read(const Cistern__JobOpen *message, struct cst_job_options *out,
                         struct cst_err *err);

/* CST_EMISMATCH: @wish, that of rank @rank, is not what job @name was opened with: the option and
 * both values. */
int cst_job_options_same(const struct cst_job_options *options, const struct cst_job_options *wish,
                         const char *name, uint32_t rank, struct cst_err *err);

/* The rows that follow. */
struct cst_layout_states cst_job_options_states(const struct cst_job_options *options);

#endif
