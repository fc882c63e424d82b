/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern probe`: measures the rates of this machine and writes them to a file. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/measure.h"
#include "client/cli/rates.h"
#include "client/cli/table.h"
#include "proto/rates_json.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cli_rates_path(char *out, size_t n)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int length;

    if (geteuid() == 0) {
        length = snprintf(out, n, "/var/lib/cistern/rates.json");
    } else if (state != NULL && state[0] == '/') {
        length = snprintf(out, n, "%s/cistern/rates.json", state);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(out, n, "%s/.local/state/cistern/rates.json", home);
    } else {
        return false;
    }
    return length > 0 && (size_t)length < n;
}

/* Add a cell as "19.9 GB/s", or "-" for 0. */
static void rate(struct cli_table *table, double value, const char *unit)
{
    static const char prefixes[] = " kMGTP";
    unsigned i = 0;

    if (value == 0) {
        cli_table_cell(table, "-");
        return;
    }
    while (value >= 1000 && i + 2 < sizeof prefixes) {
        value /= 1000;
        i++;
    }
    cli_table_cell(table, "%.3g %.*s%s", value, i > 0 ? 1 : 0, prefixes + i, unit);
}

static bool print_nodes(const struct cst_rates *rates)
{
    static const char *const titles[] = {"NODE",    ">CORES",  ">MEMORY",   ">PASS", ">COPY",
                                         ">REDUCE", ">UPDATE", ">PRODUCTS", NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        const struct cst_rates_node *node = &rates->nodes[i];

        cli_table_cell(&table, "host %u", i);
        cli_table_cell(&table, "%u", node->cores);
        cli_table_cell(&table, "%s", cli_bytes(node->memory_bytes, text));
        rate(&table, node->pass, "B/s");
        rate(&table, node->copy, "B/s");
        rate(&table, node->reduce, "/s");
        rate(&table, node->update, "/s");
        rate(&table, node->products, "/s");
    }
    return cli_table_print(&table, stdout);
}

static bool print_devices(const struct cst_rates *rates)
{
    static const char *const titles[] = {"DEVICE",    ">MEMORY",     ">UP",      ">DOWN",
                                         ">UP, BOTH", ">DOWN, BOTH", ">LATENCY", ">PEER",
                                         ">FLOPS",    ">UPDATE",     ">WITHIN",  NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    for (uint32_t i = 0; i < rates->n_devices; i++) {
        const struct cst_rates_device *device = &rates->devices[i];

        cli_table_cell(&table, "%s", device->name);
        cli_table_cell(&table, "%s", cli_bytes(device->memory_bytes, text));
        rate(&table, device->up, "B/s");
        rate(&table, device->down, "B/s");
        rate(&table, device->up_both, "B/s");
        rate(&table, device->down_both, "B/s");
        cli_table_cell(&table, "%s",
                       device->copy_latency_s > 0 ? cli_seconds(device->copy_latency_s, text)
                                                  : "-");
        rate(&table, device->peer, "B/s");
        rate(&table, device->flops, "/s");
        rate(&table, device->update, "/s");
        rate(&table, device->memory, "B/s");
    }
    return cli_table_print(&table, stdout);
}

static bool print_disk(const struct cst_rates *rates, const char *directory, uint64_t bytes)
{
    static const char *const titles[] = {"DISK",   ">FILE",  ">READ", ">WRITE",
                                         ">MIXED", ">FLUSH", NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    cli_table_cell(&table, "%s", directory);
    cli_table_cell(&table, "%s", cli_bytes(bytes, text));
    rate(&table, rates->disk_read, "B/s");
    rate(&table, rates->disk_write, "B/s");
    rate(&table, rates->disk_mixed, "B/s");
    cli_table_cell(&table, "%s", cli_seconds(rates->disk_flush_s, text));
    return cli_table_print(&table, stdout);
}

/* Print the rates to stdout as tables. False: out of memory; the error was printed to stderr. */
static bool print_rates(const struct cli *cli, const struct cli_measured *measured)
{
    const struct cst_rates *rates = &measured->rates;
    char a[CLI_HUMAN_BYTES];

    if (!print_nodes(rates)) {
        return false;
    }
    (void)printf("\n");
    if (!print_devices(rates)) {
        return false;
    }
    (void)printf("\n");
    if (cli->disk != NULL) {
        if (!print_disk(rates, cli->disk, measured->disk_bytes)) {
            return false;
        }
        (void)printf("\n");
    }
    if (rates->request_s > 0) {
        (void)printf("request   round trip %s\n", cli_seconds(rates->request_s, a));
    }
    if (rates->spread > 0) {
        (void)printf("spread    %.1f %% at most, of repeated measurements of a rate\n",
                     100 * rates->spread);
    }
    (void)printf("machine   %s\n", rates->fingerprint[0] != '\0' ? rates->fingerprint : "unknown");
    return true;
}

/* Create the directories of @path, because even $XDG_STATE_HOME itself may be missing. */
static void make_state_home(const char *path)
{
    char copy[PATH_MAX];

    (void)snprintf(copy, sizeof copy, "%s", path);
    for (char *p = copy + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(copy, 0755);
            *p = '/';
        }
    }
}

static int measure(const struct cli *cli, struct cli_measured *out, struct cst_err *err)
{
    struct cli_busy busy;
    int rc = CST_OK;

    /* The engines take longest: a drive that cannot be measured is reported before them. */
    if (cli->disk != NULL) {
        rc = cli_measure_disk(out, cli->disk, cli->bytes, err);
    }
    if (rc == CST_OK && cli->client != NULL) {
        rc = cli_measure_request(out, cli->client, err);
    }
    if (rc != CST_OK) {
        return rc;
    }
    cli_busy_begin(&busy);
    rc = cli_measure_engines(out, err);
    if (rc == CST_OK) {
        cli_measure_flops(out);
        cli_busy_end(&busy, out);
    }
    return rc;
}

static bool print(const struct cli *cli, const struct cli_measured *measured, const char *path)
{
    if (cli->json) {
        for (unsigned i = 0; i < measured->n_notes; i++) {
            (void)fprintf(stderr, "cistern: %s\n", measured->notes[i]);
        }
        return cli_json_print(cst_rates_to_json(&measured->rates));
    }
    if (!print_rates(cli, measured)) {
        return false;
    }
    for (unsigned i = 0; i < measured->n_notes; i++) {
        (void)printf("note      %s\n", measured->notes[i]);
    }
    (void)printf("written   %s\n", path);
    return true;
}

int cli_probe(struct cli *cli)
{
    struct cli_measured measured = {.n_notes = 0};
    struct cst_err err = {0};
    char standard[PATH_MAX];
    const char *path = cli->output;
    int rc;

    if (path == NULL) {
        if (!cli_rates_path(standard, sizeof standard)) {
            (void)cst_err_set(&err, CST_ENOTFOUND, "no place for the rates: use -o FILE");
            return cli_fail(&err);
        }
        make_state_home(standard);
        path = standard;
    }
    rc = cst_rates_may_write(path, &err);
    if (rc == CST_OK) {
        rc = measure(cli, &measured, &err);
    }
    if (rc == CST_OK) {
        rc = cst_rates_write(&measured.rates, path, &err);
    }
    if (rc != CST_OK) {
        return cli_fail(&err);
    }
    return print(cli, &measured, path) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
