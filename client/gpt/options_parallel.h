/* SPDX-License-Identifier: Apache-2.0 */
/* The options of cistern-gpt that say how ranks share the work. The section `parallel` of a file
 * also has keys that other programs use (cistern-job.json(5)). */
#ifndef GPT_OPTIONS_PARALLEL_H
#define GPT_OPTIONS_PARALLEL_H

#include "client/gpt/options.h"

/* Choose what follows from the degrees in the file, and the defaults of stages and schedule. */
void gpt_options_choose_parallel(struct gpt_options *options);

/* True if the file says that no layer of any stage repeats its forward pass. */
static inline bool gpt_options_repeats_none(const struct gpt_options *options)
{
    bool none = options->recompute_layers.n > 0;

    for (uint32_t i = 0; i < options->recompute_layers.n; i++) {
        none = none && options->recompute_layers.v[i] == 0;
    }
    return none;
}

/* CST_EINVAL: the options contradict each other, or cistern-gpt cannot do what they ask for; the
 * words say what it can. */
int gpt_options_check_parallel(const struct gpt_options *options, struct cst_err *err);

#endif
