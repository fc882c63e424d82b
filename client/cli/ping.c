/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern ping`: measures round trips to the daemon. */
#include "client/cli/cli.h"
#include "client/cli/json.h"

#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static double us(const uint64_t *sorted, uint64_t n, double share)
{
    return (double)sorted[(uint64_t)(share * (double)(n - 1))] / 1000;
}

static bool print(const struct cli *cli, const uint64_t *ns, uint64_t n)
{
    double p50 = us(ns, n, 0.5), p99 = us(ns, n, 0.99), least = us(ns, n, 0), most = us(ns, n, 1);

    if (cli->json) {
        return cli_json_print(json_pack("{s:I, s:f, s:f, s:f, s:f}", "count", (json_int_t)n,
                                        "min_us", least, "p50_us", p50, "p99_us", p99, "max_us",
                                        most));
    }
    (void)printf("%llu round trips: p50 %.1f us, p99 %.1f us, least %.1f us, most %.1f us\n",
                 (unsigned long long)n, p50, p99, least, most);
    return true;
}

int cli_ping(struct cli *cli)
{
    struct cst_err err = {0};
    uint64_t *ns = calloc(cli->count, sizeof *ns);
    int rc = CLI_EXIT_OK;

    if (ns == NULL) {
        (void)cst_err_set(&err, CST_ENOMEM, "no memory for %llu durations",
                          (unsigned long long)cli->count);
        return cli_fail(&err);
    }
    for (uint64_t i = 0; rc == CLI_EXIT_OK && i < cli->count; i++) {
        if (cst_ping(cli->client, &ns[i], &err) != CST_OK) {
            rc = cli_fail(&err);
        }
    }
    if (rc == CLI_EXIT_OK) {
        qsort(ns, cli->count, sizeof *ns, compare);
        rc = print(cli, ns, cli->count) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    }
    free(ns);
    return rc;
}
