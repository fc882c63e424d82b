/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern schedule`: makes pipeline schedules, and verifies those of files. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/schedule_file.h"
#include "client/cli/table.h"
#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_time.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 8 }; /* Stages of a rank in the table; the JSON has all. */

/* What is shown of a schedule. */
struct facts {
    const char *name;                /* Its kind, or its file. */
    uint32_t *in_flight;             /* Most micro-batches in flight, for each stage. Owned. */
    struct cst_schedule_times times; /* The unit of time is a forward pass of a stage. */
};

/* -- schedules -------------------------------------------------------------------------------- */

static int make(struct cst_schedule *out, const struct cli *cli, struct cst_err *err)
{
    const struct cst_schedule_kind *kind;
    struct cst_schedule_size size = {.n_stages = (uint32_t)cli->stages,
                                     .n_ranks = (uint32_t)cli->plan.ranks,
                                     .n_micro = (uint32_t)cli->plan.job.updates.micro_batches};
    bool *recomputes = NULL;
    int rc = cst_schedule_find(&kind, cli->args[0], err);

    if (rc != CST_OK) {
        return rc;
    }
    if (size.n_ranks == 0) {
        size.n_ranks = size.n_stages;
    }
    if (cli->plan.job.planning.recompute) {
        recomputes = malloc(size.n_stages * sizeof *recomputes);
        if (recomputes == NULL) {
            return cst_err_set(err, CST_ENOMEM, "%" PRIu32 " stages", size.n_stages);
        }
        memset(recomputes, true, size.n_stages * sizeof *recomputes);
        size.recomputes = recomputes;
    }
    rc = cst_schedule_make(out, kind, &size, err);
    free(recomputes);
    return rc == CST_OK ? cst_schedule_check(out, err) : rc;
}

static int find_facts(struct facts *facts, const struct cst_schedule *schedule, struct cst_err *err)
{
    struct cst_stage_cost *costs = calloc(schedule->n_stages, sizeof *costs);
    int rc;

    facts->in_flight = calloc(schedule->n_stages, sizeof *facts->in_flight);
    if (costs == NULL || facts->in_flight == NULL) {
        free(costs);
        return cst_err_set(err, CST_ENOMEM, "%" PRIu32 " stages", schedule->n_stages);
    }
    for (uint32_t s = 0; s < schedule->n_stages; s++) {
        costs[s] =
            (struct cst_stage_cost){.forward = 1, .backward = 1, .weight = 1, .recompute = 1};
    }
    rc = cst_schedule_in_flight(schedule, facts->in_flight, NULL, err);
    if (rc == CST_OK) {
        rc = cst_schedule_time(&facts->times, schedule, costs, NULL, NULL, err);
    }
    free(costs);
    return rc;
}

/* -- output ----------------------------------------------------------------------------------- */

static void add_rank(struct cli_table *table, const struct cst_schedule *schedule,
                     const struct facts *facts, uint32_t rank)
{
    char stages[96] = "", in_flight[96] = "";
    uint32_t n = 0;

    for (uint32_t s = 0; s < schedule->n_stages; s++) {
        const size_t a = strlen(stages), b = strlen(in_flight);

        if (schedule->rank_of[s] == rank && n++ < MOST_SHOWN) {
            (void)snprintf(stages + a, sizeof stages - a, "%s%" PRIu32, a > 0 ? " " : "", s);
            (void)snprintf(in_flight + b, sizeof in_flight - b, "%s%" PRIu32, b > 0 ? " " : "",
                           facts->in_flight[s]);
        }
    }
    if (n > MOST_SHOWN) {
        (void)snprintf(stages + strlen(stages), sizeof stages - strlen(stages), " and %" PRIu32,
                       n - MOST_SHOWN);
    }
    cli_table_cell(table, "%" PRIu32, rank);
    cli_table_cell(table, "%s", stages);
    cli_table_cell(table, "%s", in_flight);
    cli_table_cell(table, "%" PRIu32, schedule->first[rank + 1] - schedule->first[rank]);
}

static bool print(const struct cst_schedule *schedule, const struct facts *facts)
{
    static const char *const titles[] = {"RANK", "STAGES", "IN FLIGHT", ">ACTIONS", NULL};
    struct cli_table table;

    (void)printf(
        "schedule  %s: %" PRIu32 " rank%s, %" PRIu32 " stage%s, %" PRIu32 " micro-batch%s\n"
        "legal     yes: every message pairs, and no rank waits for ever\n"
        "step      %.0f times as long as a stage's forward pass, if a backward pass takes "
        "twice as long; ranks wait %.1f %% of it\n\n",
        facts->name, schedule->n_ranks, schedule->n_ranks == 1 ? "" : "s", schedule->n_stages,
        schedule->n_stages == 1 ? "" : "s", schedule->n_micro, schedule->n_micro == 1 ? "" : "es",
        facts->times.makespan, 100 * facts->times.bubble);
    cli_table_init(&table, titles);
    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        add_rank(&table, schedule, facts, rank);
    }
    return cli_table_print(&table, stdout);
}

static bool append(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0;
}

/* Return the actions of @rank, recompute actions included, as "2F0"; NULL: out of memory. */
static json_t *rank_json(const struct cst_schedule *schedule, uint32_t rank)
{
    json_t *list = json_array();
    char words[CST_STAGE_ACTION_WORDS];
    bool good = list != NULL;

    for (uint32_t i = schedule->first[rank]; good && i < schedule->first[rank + 1]; i++) {
        good = append(list, json_string(cst_stage_action_words(schedule->actions[i], words)));
    }
    if (!good) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

static json_t *schedule_json(const struct cst_schedule *schedule, const struct facts *facts)
{
    json_t *ranks = json_array(), *stages = json_array();
    json_t *root =
        json_pack("{s:s, s:i, s:f, s:f, s:o, s:o}", "schedule", facts->name, "micro_batches",
                  (int)schedule->n_micro, "makespan", facts->times.makespan, "bubble",
                  facts->times.bubble, "stages", stages, "ranks", ranks);
    bool good = root != NULL;

    for (uint32_t s = 0; good && s < schedule->n_stages; s++) {
        good = append(stages, json_pack("{s:i, s:i, s:b}", "rank", (int)schedule->rank_of[s],
                                        "in_flight", (int)facts->in_flight[s], "recompute",
                                        (int)schedule->recomputes[s]));
    }
    for (uint32_t rank = 0; good && rank < schedule->n_ranks; rank++) {
        good = append(ranks, rank_json(schedule, rank));
    }
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* -- the command ------------------------------------------------------------------------------ */

static int report(const struct cli *cli, const struct cst_schedule *schedule, const char *name,
                  struct cst_err *err)
{
    struct facts facts = {.name = name};
    int rc = cli->output != NULL ? cli_schedule_write(schedule, cli->output, err) : CST_OK;

    if (rc != CST_OK || (cli->output != NULL && strcmp(cli->output, "-") == 0)) {
        return rc;
    }
    rc = find_facts(&facts, schedule, err);
    if (rc == CST_OK &&
        !(cli->json ? cli_json_print(schedule_json(schedule, &facts)) : print(schedule, &facts))) {
        rc = cst_err_set(err, CST_ENOMEM, "the schedule could not be printed");
    }
    free(facts.in_flight);
    return rc;
}

int cli_schedule(struct cli *cli)
{
    const bool of_file = strcmp(cli->args[0], "check") == 0;
    struct cst_schedule schedule = {0};
    struct cst_err err = {0};
    int rc;

    if (of_file != (cli->n_args == 2)) {
        return cli_usage("wanted the name of a schedule, or 'check' and a file", "schedule");
    }
    if (!of_file && (cli->stages == 0 || cli->plan.job.updates.micro_batches == 0)) {
        return cli_usage("a schedule needs --stages N and --micro-batches N", cli->args[0]);
    }
    if (of_file && (cli->stages != 0 || cli->plan.ranks != 0 ||
                    cli->plan.job.updates.micro_batches != 0 || cli->plan.job.planning.recompute)) {
        return cli_usage("the file of a schedule has its own stages, ranks and micro-batches",
                         cli->args[1]);
    }
    rc = of_file ? cli_schedule_read(&schedule, cli->args[1], &err) : make(&schedule, cli, &err);
    if (rc == CST_OK) {
        rc = report(cli, &schedule, cli->args[of_file ? 1 : 0], &err);
    }
    cst_schedule_close(&schedule);
    return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
}
