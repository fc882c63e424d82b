/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern report`: writes a page about the run of a job. */
#include "client/cli/report.h"

#include "client/cli/job_nodes.h"
#include "proto/new_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* -- getting them ----------------------------------------------------------------------------- */

static bool append(struct cli_report *report, const Cistern__HistoryPart *part)
{
    const size_t n = report->n_history + part->n_entries;
    Cistern__HistoryEntry *more = realloc(report->history, (n + 1) * sizeof *more);

    if (more == NULL) {
        (void)cli_fail(&(struct cst_err){.text = "no memory for the job's history"});
        return false;
    }
    report->history = more;
    for (size_t i = 0; i < part->n_entries; i++) {
        more[report->n_history++] = *part->entries[i];
    }
    return true;
}

static bool get_history(struct cli *cli, struct cli_report *report)
{
    Cistern__HistoryGet msg = CISTERN__HISTORY_GET__INIT;
    bool more = true, good = true;

    msg.name = cli->args[0];
    msg.has_uid = cli->uid != CLI_NO_UID;
    msg.uid = cli->uid;
    while (more && good) {
        struct cstc_call call = {0};
        const Cistern__HistoryPart *part;

        if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_HISTORY, &msg.base,
                     CISTERN__MSG_TYPE__MSG_HISTORY_PART, &cistern__history_part__descriptor)) {
            return false;
        }
        part = (const Cistern__HistoryPart *)call.reply;
        good = append(report, part);
        more = part->more && part->n_entries > 0;
        if (good && more) {
            const Cistern__HistoryEntry *last = &report->history[report->n_history - 1];

            msg.first = last->first + last->n_steps;
        }
        cstc_call_reset(&call);
    }
    return good;
}

/* -- writing ---------------------------------------------------------------------------------- */

static int write_page(const struct cli_report *report, FILE *to, struct cst_err *err)
{
    cli_report_head(report, to);
    cli_job_nodes_report(report->job, to);
    cli_report_run(report, to);
    if (!cli_report_recent(report, to)) {
        return cst_err_set(err, CST_ENOMEM, "no memory for the report");
    }
    (void)fputs("</main></body></html>\n", to);
    if (fflush(to) != 0 || ferror(to) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "the report could not be written");
    }
    return CST_OK;
}

static int save(const struct cli_report *report, const char *path, struct cst_err *err)
{
    struct cst_new_file file;
    int rc;

    if (path == NULL || strcmp(path, "-") == 0) {
        return write_page(report, stdout, err);
    }
    rc = cst_new_file_open(&file, path, err);
    return rc == CST_OK ? cst_new_file_close(&file, write_page(report, file.to, err), err) : rc;
}

int cli_report(struct cli *cli)
{
    struct cli_report report = {.history = NULL};
    struct cstc_call job = {0}, stat = {0};
    struct cst_err err = {0};
    int rc = CLI_EXIT_FAILURE;

    if (cli_ask_job(cli, &job) &&
        cli_ask(cli, &stat, CISTERN__MSG_TYPE__MSG_STAT, NULL, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                &cistern__stat_reply__descriptor) &&
        get_history(cli, &report) && cli_intervals_get(cli, &report.intervals)) {
        report.job = ((const Cistern__JobInfoReply *)job.reply)->job;
        report.stat = (const Cistern__StatReply *)stat.reply;
        rc = save(&report, cli->output, &err) == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
    }
    cli_intervals_close(&report.intervals);
    free(report.history);
    cstc_call_reset(&stat);
    cstc_call_reset(&job);
    return rc;
}
