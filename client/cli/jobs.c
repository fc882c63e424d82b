/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern jobs`, and the table of jobs, which `cistern stat` also prints. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"

#include <math.h>

bool cli_each_jobs(struct cli *cli, cli_jobs_fn fn, void *arg)
{
    uint32_t first = 0;
    bool more = true, good = true;

    while (more && good) {
        Cistern__JobListGet msg = CISTERN__JOB_LIST_GET__INIT;
        const Cistern__JobListPart *part;
        struct cstc_call call = {0};

        msg.first = first;
        if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_JOB_LIST, &msg.base,
                     CISTERN__MSG_TYPE__MSG_JOB_LIST_PART, &cistern__job_list_part__descriptor)) {
            return false;
        }
        part = (const Cistern__JobListPart *)call.reply;
        more = part->more && part->n_jobs > 0; /* An empty page would repeat for ever. */
        first += (uint32_t)part->n_jobs;
        good = fn(part, arg);
        cstc_call_reset(&call);
    }
    return good;
}

void cli_jobs_begin(struct cli_table *table)
{
    static const char *const titles[] = {"JOB",     "UID",      "STATE",    ">RANKS", ">STEP",
                                         ">PARAMS", ">MEMORY",  ">B/PARAM", ">LOSS",  ">STEP TIME",
                                         ">K",      ">EXPOSED", ">HIDDEN",  ">AHEAD", ">DROPPED",
                                         ">IDLE",   NULL};

    cli_table_init(table, titles);
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
 *   - every how many chunks one is updated on a device,
 *   - the exposed time of the last step's updates, and the rest of their time, which was hidden,
 *   - the number of chunks whose update was early, and of the gradients dropped because of it. */
static void add_updates(struct cli_table *table, const Cistern__JobInfo *job)
{
    bool has = job->has_last_update_seconds && job->has_last_exposed_seconds;

    add_number(table, job->has_interleave, job->interleave);
    add_seconds(table, has, job->last_exposed_seconds);
    add_seconds(table, has, fmax(job->last_update_seconds - job->last_exposed_seconds, 0));
    add_number(table, job->has_chunks_ahead, job->chunks_ahead);
    add_number(table, job->has_grads_dropped, job->grads_dropped);
}

static void add_progress(struct cli_table *table, const Cistern__JobInfo *job)
{
    if (job->has_last_loss && job->step > 0) {
        cli_table_cell(table, "%.4f", job->last_loss);
    } else {
        cli_table_cell(table, "-");
    }
    add_seconds(table, job->has_step_seconds && job->step_seconds > 0, job->step_seconds);
    add_updates(table, job);
    add_seconds(table, job->has_idle_s && job->idle_s > 0, job->idle_s);
}

bool cli_jobs_rows(const Cistern__JobListPart *part, void *arg)
{
    struct cli_table *table = arg;
    char text[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < part->n_jobs; i++) {
        const Cistern__JobInfo *job = part->jobs[i];

        cli_table_cell(table, "%s", job->name);
        cli_table_cell(table, "%u", job->uid);
        cli_table_cell(table, "%s", job->state);
        cli_table_cell(table, "%u", job->world);
        cli_table_cell(table, "%llu", (unsigned long long)job->step);
        cli_table_cell(table, "%s", cli_count(job->n_params, text));
        cli_table_cell(table, "%s", cli_bytes(job->arena_bytes, text));
        if (job->n_params > 0) {
            cli_table_cell(table, "%.2f", (double)job->arena_bytes / (double)job->n_params);
        } else {
            cli_table_cell(table, "-");
        }
        add_progress(table, job);
    }
    return true;
}

bool cli_jobs_json(const Cistern__JobListPart *part, void *array)
{
    bool good = true;

    for (size_t i = 0; good && i < part->n_jobs; i++) {
        good = json_array_append_new(array, cli_json(&part->jobs[i]->base)) == 0;
    }
    return good;
}

static bool draw(struct cli *cli, void *arg)
{
    struct cli_table table;
    bool good;

    (void)arg;
    if (cli->json) {
        json_t *array = json_array();

        good = array != NULL && cli_each_jobs(cli, cli_jobs_json, array);
        if (!good) {
            json_decref(array);
        }
        return good && cli_json_print(array);
    }
    cli_jobs_begin(&table);
    good = cli_each_jobs(cli, cli_jobs_rows, &table);
    if (good && table.n_cells == 0 && !table.failed) {
        (void)printf("no jobs\n");
        return true;
    }
    /* After a failure, the pages received before go to stderr: stdout has complete lists only. */
    return cli_table_print(&table, good ? stdout : stderr) && good;
}

int cli_jobs(struct cli *cli)
{
    return cli_watch(cli, draw, NULL);
}
