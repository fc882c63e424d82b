/* SPDX-License-Identifier: Apache-2.0 */
/* What errors of the daemon say in addition: what to do, in words of the options of cistern-gpt. */
#ifndef GPT_ADVICE_H
#define GPT_ADVICE_H

#include "cistern/status.h"

/* If @err says that the job @job, or another rank, has something else than this rank, append what
 * to do about its reason. */
void gpt_advise(const char *job, struct cst_err *err);

#endif
