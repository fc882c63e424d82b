/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a finished run: as one rank of a job in the daemon, or as all ranks of the local
 * store, one thread each. */
#ifndef GPT_RUN_H
#define GPT_RUN_H

#include "client/gpt/options.h"

/* Train as @options say and write what they ask for. All statuses that training has; those of the
 * data file and of the store. */
int gpt_run(const struct gpt_options *options, struct cst_err *err);

#endif
