/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/advice.h"

#include <stdio.h>
#include <string.h>

/* What is different, and whether --reshape changes it in a job that has no worker. The daemon's
 * error about WORLD says that itself. */
static const struct {
    enum cst_reason reason;
    bool reshapes;
} rows[] = {
    {CST_REASON_OPTION, true},         {CST_REASON_POOL, true},
    {CST_REASON_FIXED_OPTION, false},  {CST_REASON_WORLD, false},
    {CST_REASON_MODEL, false},         {CST_REASON_DTYPE, false},
    {CST_REASON_PATTERN, false},       {CST_REASON_PARAM_GROUP, false},
    {CST_REASON_TENSOR_UPDATE, false}, {CST_REASON_OPERATORS, false},
};

void gpt_advise(const char *job, struct cst_err *err)
{
    const size_t used = strlen(err->text);

    for (size_t i = 0; err->status == CST_EMISMATCH && i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].reason == err->reason) {
            (void)snprintf(err->text + used, sizeof err->text - used,
                           ". Give all ranks the same options%s. If an earlier run made the job, "
                           "take another name (--job), or remove it: cistern rm %s",
                           rows[i].reshapes ? ", or --reshape, which changes the job" : "", job);
        }
    }
}
