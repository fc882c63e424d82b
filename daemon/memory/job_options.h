/* SPDX-License-Identifier: Apache-2.0 */
/* Options for a job's states and updates: the fields of JobOpen, from `optimizer` on, that must be
 * equal in all ranks. Pure computation. */
#ifndef CST_JOB_OPTIONS_H
#define CST_JOB_OPTIONS_H

#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"

struct cstd_job_options {
    enum cst_optimizer optimizer;
    enum cst_masters masters;   /* Where the bits of master weights are stored. */
    enum cst_moments moments;   /* Storage format of exp_avg and exp_avg_sq. */
    enum cst_rounding rounding; /* Rounding of moments that are not stored in fp32. */
    uint64_t seed;              /* Seed of stochastic rounding. */
    enum cst_overlap overlap;   /* When chunks are updated: at the commit, early or delayed. */
    uint64_t delay_from;        /* The first step with delayed updates, for delayed updates only. */
    /* Gradient in weight row: gradients take the place of weights in host memory. */
    bool grad_over_weight;
    enum cst_unused unused; /* What happens to tensors without a gradient. */
};

/* Read the options of @message into *out. CST_EINVAL: a number is out of range, or options cannot
 * be combined. */
int cstd_job_options_read(const Cistern__JobOpen *message, struct cstd_job_options *out,
                          struct cst_err *err);

/* Compare the options of a job with @request, those of rank @rank. CST_EMISMATCH: they differ; @err
 * has the job's @name, the option and both values. */
int cstd_job_options_same(const struct cstd_job_options *options,
                          const struct cstd_job_options *request, const char *name, uint32_t rank,
                          struct cst_err *err);

/* Returns the rows of host memory that the options require. */
struct cst_layout_states cstd_job_options_states(const struct cstd_job_options *options);

#endif
