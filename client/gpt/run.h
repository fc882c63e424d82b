/* SPDX-License-Identifier: Apache-2.0 */
/* A whole run from the options to its end: as one rank of a job in the daemon, or as all ranks of
 * the local store with one thread each. */
#ifndef GPT_RUN_H
#define GPT_RUN_H

#include "client/gpt/options.h"

/* Train as @options say and write the files that they name. The statuses are those of gpt_train, of
 * gpt_output_check, of the data file, of the device and of the store. */
int gpt_run(const struct gpt_options *options, struct cst_err *err);

#endif
