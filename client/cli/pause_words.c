/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/cli.h"
#include "client/cli/table.h"

#include <stdio.h>
#include <time.h>

void cli_pause_words(const Cistern__JobInfo *job, char *out, size_t size)
{
    char since[32] = "", released[64] = "", bytes[CLI_HUMAN_BYTES];
    const time_t then = time(NULL) - (time_t)job->paused_s;
    struct tm tm;

    if (!job->has_paused_s) {
        (void)snprintf(out, size, "%s",
                       job->has_pausing && job->pausing ? "will be paused after the step" : "");
        return;
    }
    if (localtime_r(&then, &tm) != NULL) {
        (void)strftime(since, sizeof since, job->paused_s < 86400 ? "%H:%M:%S" : "%F %H:%M", &tm);
    }
    if (job->has_released_bytes) {
        (void)snprintf(released, sizeof released, ", %s of pools released",
                       cli_bytes(job->released_bytes, bytes));
    }
    (void)snprintf(out, size, "paused since %s%s", since, released);
}
