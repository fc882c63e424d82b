/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern metrics`: prints what the daemon and its jobs do for Prometheus, writes it
 * to a file, or answers scrapes.
 *
 * Scrapes are answered by this program and not by the daemon. Whatever a scraper sends, the daemon
 * gets a few ordinary requests, at most four times a second, and needs no network. */
#include "client/cli/cli.h"
#include "client/cli/metrics_gather.h"
#include "client/cli/metrics_text.h"
#include "client/cli/scrape_listen.h"
#include "client/cli/scrape_server.h"
#include "proto/new_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Gather and print. Returns the status of the gather, after whose failure only cistern_up is
 * printed. */
static int print_now(const char *path, enum cli_metrics_jobs jobs, bool (*stop)(void), FILE *out,
                     struct cst_err *err)
{
    struct cli_metrics metrics;
    int rc = cli_metrics_gather(path, jobs, stop, &metrics, err);

    if (!cli_metrics_print(&metrics, out)) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory for the metrics of all jobs");
    }
    cli_metrics_close(&metrics);
    return rc;
}

/* Without an answer of the daemon, the file says so, and so does the exit status. */
static int write_file(const struct cli *cli)
{
    struct cst_new_file file;
    struct cst_err err = {0}, file_err = {0};
    int rc, file_rc = cst_new_file_open(&file, cli->output, &file_err);

    if (file_rc != CST_OK) {
        return cli_fail(&file_err);
    }
    rc = print_now(cli->path, CLI_METRICS_ALL_JOBS, NULL, file.to, &err);
    file_rc = cst_new_file_close(&file, rc == CST_ENOMEM ? rc : CST_OK, &file_err);
    if (file_rc != CST_OK && rc == CST_OK) {
        return cli_fail(&file_err);
    }
    return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
}

/* What a scrape is made of. */
struct scrape {
    const char *path;
    enum cli_metrics_jobs jobs;
};

static int make_text(void *arg, char **text, size_t *n)
{
    const struct scrape *scrape = arg;
    struct cst_err err = {0};
    FILE *out = open_memstream(text, n);
    int rc;

    if (out == NULL) {
        return CST_ENOMEM;
    }
    rc = print_now(scrape->path, scrape->jobs, cli_scrape_is_ended, out, &err);
    if (fclose(out) != 0 || rc == CST_ENOMEM) {
        free(*text);
        return CST_ENOMEM;
    }
    return CST_OK; /* Without an answer of the daemon the text says so. */
}

static int serve(const struct cli *cli)
{
    struct scrape scrape = {.path = cli->path, .jobs = CLI_METRICS_ALL_JOBS};
    struct cli_scrape_listen listener;
    struct cst_err err = {0};
    sigset_t mask;
    int rc;

    cli_scrape_catch_signals(&mask);
    rc = cli_scrape_listen_open(&listener, cli->listen, &err);
    if (rc != CST_OK) {
        (void)cli_fail(&err);
        return rc == CST_EINVAL ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
    }
    if (listener.is_port) {
        scrape.jobs = cli->own_jobs ? CLI_METRICS_OWN_JOBS : CLI_METRICS_NO_JOBS;
    }
    (void)printf("listening at %s\n", listener.name);
    (void)fflush(stdout);
    rc = cli_scrape_serve(listener.fd, &mask, CLI_METRICS_CONTENT_TYPE, make_text, &scrape, &err);
    cli_scrape_listen_close(&listener);
    return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
}

int cli_metrics(struct cli *cli)
{
    struct cst_err err = {0};

    if (cli->listen != NULL && cli->output != NULL) {
        return cli_usage("--listen and --output exclude each other", "");
    }
    if (cli->own_jobs && (cli->listen == NULL || cli->listen[0] == '/')) {
        return cli_usage("--own-jobs is for --listen with a port: elsewhere jobs are shown", "");
    }
    if (cli->listen != NULL) {
        return serve(cli);
    }
    if (cli->output != NULL && strcmp(cli->output, "-") != 0) {
        return write_file(cli);
    }
    return print_now(cli->path, CLI_METRICS_ALL_JOBS, NULL, stdout, &err) == CST_OK
               ? CLI_EXIT_OK
               : cli_fail(&err);
}
