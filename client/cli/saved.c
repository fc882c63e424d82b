/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a save that was completed. */
#include "cistern/checkpoint.h"
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"

#include <stdio.h>

bool cli_saved_print(const struct cli *cli, const struct cst_save_result *result, const char *job,
                     const char *dir)
{
    char size[CLI_HUMAN_BYTES];
    bool good = true;

    if (cli->json) {
        good = cli_json_print(json_pack("{s:s, s:I, s:s, s:I, s:f, s:f}", "job", job, "step",
                                        (json_int_t)result->step, "dir", dir, "bytes",
                                        (json_int_t)result->bytes, "seconds", result->seconds,
                                        "read_seconds", result->read_seconds));
    } else {
        (void)printf("saved step %llu of %s to %s: %s in %.2f s\n",
                     (unsigned long long)result->step, job, dir, cli_bytes(result->bytes, size),
                     result->seconds);
    }
    (void)fflush(stdout);
    return good;
}
