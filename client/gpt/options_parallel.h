/* SPDX-License-Identifier: Apache-2.0 */
/* The options of cistern-gpt that say how ranks share the work. The section `parallel` of a file
 * also has keys that other programs use (cistern-job.json(5)). Private to options.c. */
#ifndef GPT_OPTIONS_PARALLEL_H
#define GPT_OPTIONS_PARALLEL_H

#include "client/gpt/options.h"

/* Choose what follows from the degrees in the file, and the defaults of stages and schedule. */
void gpt_options_choose_parallel(struct gpt_options *options);

/* CST_EINVAL: the options contradict each other, or cistern-gpt cannot do what they ask for; the
 * words say what it can. */
int gpt_options_check_parallel(const struct gpt_options *options, struct cst_err *err);

#endif
