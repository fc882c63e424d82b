/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern plan`: predicts the time of a step, and decides what is stored where, before
 * anything runs. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/plan_nodes.h"
#include "client/cli/plan_parallel.h"
#include "client/cli/plan_report.h"
#include "client/cli/table.h"
#include "client/cli/timeline.h"
#include "offload/plan/saved.h"
#include "proto/rates_json.h"

#include <stdio.h>
#include <string.h>

enum { SIMULATED_STEPS = 6 };

/* -- timeline --------------------------------------------------------------------------------- */

struct drawing {
    struct cli_timeline timeline;
    const struct cst_model *model;
    uint32_t n_nodes; /* Number of the nodes' engines; the devices' engines follow. */
    bool on_host;     /* Ranks compute on the host, hence the nodes' engines make the copies. */
};

/* Return the lane of an interval. The process is a rank, a node or a device. */
static uint32_t lane_of(struct drawing *drawing, const struct cst_interval *interval)
{
    static const struct {
        const char *lane;
        /* Meaning of interval->number: a rank, or an engine. Neither: a device, or a node if ranks
         * compute on the host. */
        bool of_rank, of_engine;
        bool of_device; /* The number is a device even if ranks compute on the host. */
        bool of_drive;  /* The number is a drive. */
    } lanes[] = {
        [CST_LANE_COMPUTE] = {.lane = "compute", .of_rank = true},
        [CST_LANE_UP] = {.lane = CLI_LANE_UP},
        [CST_LANE_DOWN] = {.lane = CLI_LANE_DOWN},
        [CST_LANE_PEER] = {.lane = "copies between devices"},
        [CST_LANE_STATES_UP] = {.lane = CLI_LANE_UP, .of_device = true},
        [CST_LANE_STATES_DOWN] = {.lane = CLI_LANE_DOWN, .of_device = true},
        [CST_LANE_REDUCE] = {.lane = CLI_LANE_SUMS, .of_engine = true},
        [CST_LANE_UPDATE] = {.lane = CLI_LANE_UPDATES, .of_engine = true},
        [CST_LANE_WAIT] = {.lane = "wait", .of_rank = true},
        [CST_LANE_READ] = {.lane = "reads", .of_drive = true},
        [CST_LANE_WRITE] = {.lane = "writes", .of_drive = true},
    };
    char process[CLI_TIMELINE_NAME_BYTES];
    uint32_t number = interval->number;
    bool device = !drawing->on_host || lanes[interval->lane].of_device;

    if (lanes[interval->lane].of_engine) {
        device = number >= drawing->n_nodes;
        number -= device ? drawing->n_nodes : 0;
    }
    (void)snprintf(process, sizeof process, "%s %u",
                   lanes[interval->lane].of_rank    ? "rank"
                   : lanes[interval->lane].of_drive ? "drive"
                   : device                         ? "device"
                                                    : "node",
                   number);
    return cli_timeline_lane(&drawing->timeline, process, lanes[interval->lane].lane);
}

static void on_interval(void *arg, const struct cst_interval *interval)
{
    struct drawing *drawing = arg;
    bool is_operator = interval->lane == CST_LANE_COMPUTE || interval->lane == CST_LANE_WAIT;
    struct cli_span span = {
        .lane = lane_of(drawing, interval),
        .begin = interval->begin,
        .end = interval->end,
        .step = interval->step,
        .chunk = is_operator ? CLI_TIMELINE_NONE : interval->what,
        .bytes = CLI_TIMELINE_NONE,
        .queued_ns = CLI_TIMELINE_NONE,
    };

    if (is_operator && interval->what < drawing->model->n_operators) {
        (void)snprintf(span.name, sizeof span.name, "%.50s, %s",
                       drawing->model->operators[interval->what].name,
                       interval->backward ? "backward" : "forward");
    } else {
        (void)snprintf(span.name, sizeof span.name, "chunk %u", interval->what);
    }
    cli_timeline_add(&drawing->timeline, &span);
}

static int draw(const struct cli_plan_input *input, const struct cst_plan_choice *choice,
                const char *path, struct cst_err *err)
{
    const char *device = input->rates.devices[input->config.device].name;
    struct drawing drawing = {.model = input->config.model,
                              .n_nodes = input->config.n_nodes > 0 ? input->config.n_nodes : 1,
                              .on_host = strcmp(device, "host") == 0};
    struct cst_replay_result unused;
    int rc;

    cli_timeline_init(&drawing.timeline);
    (void)cli_timeline_lane(&drawing.timeline, "rank 0", "compute"); /* Is drawn first. */
    rc = cst_plan_replay(&input->config, choice, 0, on_interval, &drawing, &unused, err);
    if (rc == CST_OK) {
        rc = cli_timeline_save(&drawing.timeline, path, err);
    }
    cli_timeline_close(&drawing.timeline);
    return rc;
}

/* -- simulation ------------------------------------------------------------------------------- */

/* Results of steps 1, 2, ... of a plan. */
struct simulation {
    struct cst_replay_result steps[SIMULATED_STEPS];
};

/* Simulate the first steps of the plan one by one. They show how the core learns the order of a
 * step. */
static int simulate(struct simulation *out, const struct cli_plan_input *input,
                    const struct cst_plan_choice *choice, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t n = 0; n < SIMULATED_STEPS && rc == CST_OK; n++) {
        rc = cst_plan_replay(&input->config, choice, n + 1, NULL, NULL, &out->steps[n], err);
    }
    return rc;
}

static void add_step(struct cli_table *table, uint32_t step, const struct cst_replay_result *result)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%u", step);
    cli_table_cell(table, "%s", cli_seconds((double)result->step_ns * 1e-9, text));
    cli_table_cell(table, "%s", cli_seconds((double)result->wait_ns * 1e-9, text));
    cli_table_cell(table, "%s",
                   cli_percent(result->hits, result->hits + result->late + result->misses, text));
    cli_table_cell(table, "%s",
                   cli_percent(result->late, result->hits + result->late + result->misses, text));
    cli_table_cell(table, "%llu", (unsigned long long)result->prefetches);
    cli_table_cell(table, "%llu", (unsigned long long)result->evictions);
    cli_table_cell(table, "%s", cli_bytes(result->bytes_up, text));
    cli_table_cell(table, "%s", cli_bytes(result->bytes_down, text));
    cli_table_cell(table, "%s", cli_count(result->n_events, text));
}

static bool print_simulation(const struct simulation *simulation)
{
    static const char *const titles[] = {"STEP",  ">TIME",       ">WAITS",     ">HITS",
                                         ">LATE", ">PREFETCHES", ">EVICTIONS", ">UP",
                                         ">DOWN", ">EVENTS",     NULL};
    struct cli_table table;

    cli_table_init(&table, titles);
    for (uint32_t n = 0; n < SIMULATED_STEPS; n++) {
        add_step(&table, n + 1, &simulation->steps[n]);
    }
    (void)printf("\n");
    return cli_table_print(&table, stdout);
}

/* Return an array of the steps; NULL: out of memory. */
static json_t *simulation_json(const struct simulation *simulation)
{
    json_t *list = json_array();

    for (int n = 0; list != NULL && n < SIMULATED_STEPS; n++) {
        json_t *step = json_pack("{s:i, s:o}", "step", n + 1, "played",
                                 cli_plan_step_json(&simulation->steps[n]));

        if (json_array_append_new(list, step) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* -- a plan for a job ------------------------------------------------------------------------- */

/* Return a new object with the input of the plan, for people; NULL: out of memory. */
static json_t *made_json(const struct cli_plan_input *input)
{
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:b, s:f, s:i, s:I, s:o}", "by", cst_version(), "model",
        input->model.name, "device", input->rates.devices[input->config.device].name, "rates_from",
        input->rates_from, "device_bytes", cli_limit_json(input->budget.device_bytes), "host_bytes",
        cli_limit_json(input->budget.host_bytes), "recompute", (int)input->config.recompute,
        "flops_share", input->config.flops_share > 0 ? input->config.flops_share : 1.0, "n_drives",
        (int)input->config.n_drives, "disk_bytes", (json_int_t)input->config.drive_bytes, "rates",
        cst_rates_to_json(&input->rates));
}

static int save(const struct cli_plan_input *input, const struct cst_plan_choice *choice,
                const char *path, struct cst_err *err)
{
    struct cst_saved_plan plan;

    cst_plan_saved_make(&plan, &input->config, choice);
    return cst_saved_plan_write(&plan, made_json(input), path, err);
}

/* -- the command ------------------------------------------------------------------------------ */

/* Print the plan; @simulation may be NULL. */
static bool print(const struct cli *cli, const struct cli_plan_input *input,
                  const struct cst_plans *plans, const struct cli_plan_rows *rows,
                  const struct cli_plan_nodes *nodes, const struct simulation *simulation)
{
    json_t *root;

    if (!cli->json) {
        if (!cli_plan_print(input, plans, rows)) {
            return false;
        }
        cli_plan_nodes_print(nodes, input);
        return simulation == NULL || print_simulation(simulation);
    }
    root = cli_plan_json(input, plans, rows);
    if (root != NULL && json_object_set_new(root, "nodes", cli_plan_nodes_json(nodes)) != 0) {
        json_decref(root);
        root = NULL;
    }
    if (root != NULL && simulation != NULL &&
        json_object_set_new(root, "simulated", simulation_json(simulation)) != 0) {
        json_decref(root);
        root = NULL;
    }
    return cli_json_print(root);
}

static int report(const struct cli *cli, const struct cli_plan_input *input,
                  const struct cst_plans *plans, struct cst_err *err)
{
    struct simulation simulation;
    struct cli_plan_nodes nodes;
    struct cli_plan_rows rows;
    int rc = cli_plan_rows(&rows, input, &plans->best, err);

    if (rc == CST_OK) {
        rc = cli_plan_nodes(&nodes, cli, input, &plans->best, err);
    }
    if (rc == CST_OK && cli->plan.timeline != NULL) {
        rc = draw(input, &plans->best, cli->plan.timeline, err);
    }
    if (rc == CST_OK && cli->plan.save != NULL) {
        rc = save(input, &plans->best, cli->plan.save, err);
    }
    if (rc == CST_OK && cli->plan.simulate) {
        rc = simulate(&simulation, input, &plans->best, err);
    }
    if (rc == CST_OK &&
        !print(cli, input, plans, &rows, &nodes, cli->plan.simulate ? &simulation : NULL)) {
        rc = cst_err_set(err, CST_ENOMEM, "the plan could not be printed");
    }
    if (rc == CST_OK && cli->plan.save != NULL && !cli->json) {
        (void)printf("\nsaved     %s: give it to a job as cst_job_spec.plan_file, or with "
                     "cistern-gpt --plan\n",
                     cli->plan.save);
    }
    return rc;
}

/* If nothing fits, add to the error the options with which a plan would fit. Returns @status. */
static int name_options(const struct cli_plan_input *input, int status, struct cst_err *err)
{
    const struct cst_plan_least *least = &input->least;
    char device[48] = "", host[48] = "", text[sizeof err->text];
    char size[CLI_HUMAN_BYTES];
    bool both;

    if (status != CST_EPOOL && status != CST_EBUDGET) {
        return status;
    }
    if (least->device_bytes > input->budget.device_bytes) {
        (void)snprintf(device, sizeof device, "--device %s",
                       cli_size_option(least->device_bytes, size));
    }
    if (least->host_bytes > input->budget.host_bytes) {
        (void)snprintf(host, sizeof host, "--host %s", cli_size_option(least->host_bytes, size));
    }
    both = device[0] != '\0' && host[0] != '\0';
    (void)snprintf(text, sizeof text, "%s", err->text);
    return device[0] == '\0' && host[0] == '\0'
               ? status
               : cst_err_set(err, status, "%.520s: a plan needs %s%s%s", text, device,
                             both ? " and " : "", host);
}

/* Print to stdout that nothing fits, and the budget that a plan would need. */
static void print_misfit(const struct cli_plan_input *input, const struct cst_err *err)
{
    (void)cli_json_print(json_pack("{s:b, s:s, s:{s:o, s:o}}", "fits", 0, "why", err->text, "least",
                                   "device_bytes", cli_limit_json(input->least.device_bytes),
                                   "host_bytes", cli_limit_json(input->least.host_bytes)));
}

int cli_plan(struct cli *cli)
{
    struct cli_plan_input input;
    struct cst_plans plans;
    struct cst_err err = {0};
    int rc;

    if (cli->plan.parallel == CLI_PARALLEL_NONE &&
        (cli->plan.schedule != NULL || cli->plan.kind != NULL || cli->plan.dp != 0 ||
         cli->plan.tp != 0 || cli->plan.pp != 0)) {
        return cli_usage(
            "--schedule, --kind, --dp, --tp and --pp are for plans with --parallel auto", "");
    }
    if (cli_plan_check_drives(cli, &err) != CST_OK || cli_plan_check_nodes(cli, &err) != CST_OK) {
        return cli_usage(err.text, "");
    }
    rc = cli_plan_input_open(&input, cli, &err);
    if (rc != CST_OK) {
        return cli_fail(&err);
    }
    if (cli->plan.parallel != CLI_PARALLEL_NONE) {
        rc = cli_plan_parallel(cli, &input, &err);
        cli_plan_input_close(&input);
        return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
    }
    rc = cst_plan_search(&plans, &input.config, &err);
    if (cli->json && (rc == CST_EPOOL || rc == CST_EBUDGET)) {
        print_misfit(&input, &err);
    }
    rc = name_options(&input, rc, &err);
    rc = rc == CST_OK ? report(cli, &input, &plans, &err) : rc;
    cli_plan_input_close(&input);
    return rc == CST_OK ? CLI_EXIT_OK : cli_fail(&err);
}
