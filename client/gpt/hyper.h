/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of an optimizer step, which follow from the options. Pure; any thread. */
#ifndef GPT_HYPER_H
#define GPT_HYPER_H

#include "cistern/step.h"
#include "client/gpt/options.h"

/* Learning rate of step @step (from 0): linear warm-up, then half a cosine from --lr to
 * --min-lr. */
double gpt_hyper_lr(const struct gpt_options *options, uint64_t step);

/* Number of batches of --batch sequences in a step, and how many come before those of the ranks on
 * this node. */
uint32_t gpt_hyper_batches(const struct gpt_options *options);
uint32_t gpt_hyper_first_batch(const struct gpt_options *options);

/* The parameters of step @step (from 0), in which each batch takes @n_passes passes. */
struct cst_hyper_params gpt_hyper_params(const struct gpt_options *options, uint32_t n_passes,
                                         uint64_t step);

#endif
