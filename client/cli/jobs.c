/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern jobs`, and the table of jobs, which `cistern stat` also prints. */
#include "client/cli/cli.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"

#include <math.h>

/* Add the share of chunks that are updated on a device. */
static void add_on_device(struct cli_table *table, bool has, uint32_t interleave)
{
    if (has) {
        cli_table_cell(table, "1 in %u", interleave);
    } else {
        cli_table_cell(table, "-");
    }
}

static void add_number(struct cli_table *table, bool has, uint64_t value)
{
    if (has) {
        cli_table_cell(table, "%llu", (unsigned long long)value);
    } else {
        cli_table_cell(table, "-");
    }
}

static void add_seconds(struct cli_table *table, bool has, double seconds)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", has ? cli_seconds(seconds, text) : "-");
}

/* Add the cells about updates:
 *   - the share of chunks that are updated on a device,
 *   - the exposed time of the last step's updates, and the rest of their time, which was hidden,
 *   - the number of chunks whose update was early, and of the gradients dropped because of it. */
static void add_updates(struct cli_table *table, const Cistern__JobInfo *job)
{
    bool has = job->has_last_update_seconds && job->has_last_exposed_seconds;

    add_on_device(table, job->has_interleave, job->interleave);
    add_seconds(table, has, job->last_exposed_seconds);
    add_seconds(table, has, fmax(job->last_update_seconds - job->last_exposed_seconds, 0));
    add_number(table, job->has_chunks_ahead, job->chunks_ahead);
    add_number(table, job->has_grads_dropped, job->grads_dropped);
}

static void add_progress(struct cli_table *table, const Cistern__JobInfo *job)
{
    char text[CLI_HUMAN_BYTES];

    if (job->has_last_loss && job->step > 0) {
        cli_table_cell(table, "%.4f", job->last_loss);
    } else {
        cli_table_cell(table, "-");
    }
    add_seconds(table, job->has_step_seconds && job->step_seconds > 0, job->step_seconds);
    add_updates(table, job);
    add_seconds(table, job->has_idle_s && job->idle_s > 0, job->idle_s);
    cli_table_cell(table, "%s", job->has_drive_bytes ? cli_bytes(job->drive_bytes, text) : "-");
}

static void add_job(struct cli_table *table, const void *item)
{
    const Cistern__JobInfo *job = item;
    char text[CLI_HUMAN_BYTES], pause[CLI_PAUSE_WORDS];

    cli_table_cell(table, "%s", job->name);
    cli_table_cell(table, "%u", job->uid);
    cli_table_cell(table, "%s", job->state);
    if (job->has_all_ranks) {
        cli_table_cell(table, "%u of %u", job->world, job->all_ranks);
    } else {
        cli_table_cell(table, "%u", job->world);
    }
    cli_table_cell(table, "%llu", (unsigned long long)job->step);
    cli_table_cell(table, "%s", cli_count(job->n_params, text));
    cli_table_cell(table, "%s", cli_bytes(job->arena_bytes, text));
    if (job->n_params > 0) {
        cli_table_cell(table, "%.2f", (double)job->arena_bytes / (double)job->n_params);
    } else {
        cli_table_cell(table, "-");
    }
    add_progress(table, job);
    cli_pause_words(job, pause, sizeof pause);
    cli_table_cell(table, "%s", job->node_wait != NULL ? job->node_wait : pause);
}

static size_t items_of(const ProtobufCMessage *page, ProtobufCMessage ***items, bool *more)
{
    const Cistern__JobListPart *part = (const Cistern__JobListPart *)page;

    *items = (ProtobufCMessage **)part->jobs;
    *more = part->more;
    return part->n_jobs;
}

static const char *const titles[] = {"JOB",        "UID",      "STATE",    ">RANKS", ">STEP",
                                     ">PARAMS",    ">MEMORY",  ">B/PARAM", ">LOSS",  ">STEP TIME",
                                     ">ON DEVICE", ">EXPOSED", ">HIDDEN",  ">AHEAD", ">DROPPED",
                                     ">IDLE",      ">DRIVES",  "",         NULL};

const struct cli_list cli_jobs_list = {
    .get = CISTERN__MSG_TYPE__MSG_JOB_LIST,
    .part = CISTERN__MSG_TYPE__MSG_JOB_LIST_PART,
    .form = &cistern__job_list_part__descriptor,
    .titles = titles,
    .none = "no jobs",
    .items = items_of,
    .add = add_job,
};

static bool draw(struct cli *cli, FILE *out, void *arg)
{
    (void)arg;
    return cli_list_print(cli, &cli_jobs_list, out);
}

int cli_jobs(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}
