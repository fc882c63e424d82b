/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/plan_parallel.h"

#include "client/cli/json.h"
#include "client/cli/schedule_file.h"
#include "client/cli/table.h"
#include "offload/parallel/degrees.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCHES_PER_RANK = 8 /* Without --micro-batches. */ };

/* The units of the model: its operators, as far as cuts do not separate them. */
struct parts {
    struct cst_degrees_unit *units;
    uint32_t *last_operators; /* The last operator of each unit. */
    struct cst_unit_tie *ties;
    uint32_t n_units, n_ties;
};

/* -- units ------------------------------------------------------------------------------------ */

static void parts_close(struct parts *parts)
{
    free(parts->units);
    free(parts->last_operators);
    free(parts->ties);
}

/* Add the tensors of an operator to the unit @number. @holders has, for each tensor, the number of
 * the last unit that has it, plus 1. */
static void add_tensors(struct parts *parts, const struct cst_model *model,
                        const struct cst_layout_operator *op, uint32_t *holders)
{
    const uint32_t number = parts->n_units;

    for (uint32_t i = 0; i < op->n_tensors; i++) {
        const uint32_t t = op->tensors[i];

        if (holders[t] == number + 1) {
            continue;
        }
        if (holders[t] != 0) {
            parts->ties[parts->n_ties++] =
                (struct cst_unit_tie){holders[t] - 1, number, model->tensors[t].n_elems};
        }
        parts->units[number].n_params += model->tensors[t].n_elems;
        holders[t] = number + 1;
    }
}

static void add_operators(struct parts *parts, const struct cst_model *model, uint32_t *holders)
{
    for (uint32_t i = 0; i < model->n_operators; i++) {
        const struct cst_layout_operator *op = &model->operators[i];
        struct cst_degrees_unit *unit = &parts->units[parts->n_units];

        unit->flops += op->flops;
        unit->kept_bytes += op->activation_bytes;
        unit->sum_bytes += op->sum_bytes;
        add_tensors(parts, model, op, holders);
        if (op->out_bytes > 0 || i + 1 == model->n_operators) {
            unit->out_bytes = op->out_bytes;
            unit[1].input_bytes = op->out_bytes;
            parts->last_operators[parts->n_units++] = i;
        }
    }
}

/* Bytes of a weight and its gradient in the pool, as most of the parameters have them. */
static uint32_t param_bytes(const struct cst_model *model)
{
    return 2 * (uint32_t)((model->weight_bytes + model->n_params / 2) / model->n_params);
}

/* Check that the model says how long its units take. */
static int check_flops(const struct parts *parts, struct cst_err *err)
{
    double flops = 0;

    for (uint32_t i = 0; i < parts->n_units; i++) {
        flops += parts->units[i].flops;
    }
    return flops > 0 ? CST_OK
                     : cst_err_set(err, CST_EINVAL,
                                   "the model does not say the flops of any "
                                   "operator, which --parallel needs");
}

static int parts_open(struct parts *parts, const struct cst_model *model, struct cst_err *err)
{
    uint32_t *holders = calloc(model->n_tensors, sizeof *holders);

    *parts = (struct parts){
        .units = calloc(model->n_operators + 1U, sizeof *parts->units),
        .last_operators = calloc(model->n_operators, sizeof *parts->last_operators),
        .ties = calloc(model->n_uses, sizeof *parts->ties),
    };
    if (holders == NULL || parts->units == NULL || parts->last_operators == NULL ||
        parts->ties == NULL) {
        free(holders);
        parts_close(parts);
        return cst_err_set(err, CST_ENOMEM, "the units of the model");
    }
    add_operators(parts, model, holders);
    free(holders);
    return CST_OK;
}

/* -- rates ------------------------------------------------------------------------------------ */

/* Return the number of hosts: each has as many ranks as the rates have devices of the kind. Ranks
 * that compute on the processor share one. */
static uint32_t count_hosts(const struct cst_rates *rates, const struct cst_rates_device *device,
                            uint32_t n_ranks)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < rates->n_devices; i++) {
        n += strcmp(rates->devices[i].name, device->name) == 0;
    }
    return strcmp(device->name, "host") == 0 ? 1 : (n_ranks + n - 1) / n;
}

static void add_rates(struct cst_degrees_input *out, const struct cli_plan_input *input)
{
    const struct cst_rates *rates = &input->rates;
    const struct cst_rates_device *device = &rates->devices[input->config.device];
    const double share = input->config.flops_share > 0 ? input->config.flops_share : 1;
    const uint32_t n_hosts = count_hosts(rates, device, out->n_ranks);

    out->flops = device->flops * share;
    if (strcmp(device->name, "host") == 0) {
        out->flops /= out->n_ranks;
    }
    out->link = device->peer > 0 ? device->peer : 1 / (1 / device->down + 1 / device->up);
    out->link_latency = device->copy_latency_s;
    out->to_host = device->down;
    out->to_rank = device->up;
    for (uint32_t i = 0; i < rates->n_nodes; i++) {
        out->sums += n_hosts * rates->nodes[i].reduce;
        out->updates += n_hosts * rates->nodes[i].update;
    }
    out->rank_bytes = input->budget.device_bytes == CST_PLAN_NO_LIMIT ? UINT64_MAX / 4
                                                                      : input->budget.device_bytes;
}

/* -- output: text ----------------------------------------------------------------------------- */

static void add_product(struct cli_table *table, const struct cst_product *p)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%" PRIu32, p->dp);
    cli_table_cell(table, "%" PRIu32, p->tp);
    cli_table_cell(table, "%" PRIu32, p->pp);
    cli_table_cell(table, "%s%s", p->pp > 1 ? p->kind->name : "-",
                   p->n_stages > p->pp ? ", 2 stages per rank" : "");
    cli_table_cell(table, "%s", cli_seconds(p->step, text));
    cli_table_cell(table, "%.1f %%", 100 * p->bubble);
    cli_table_cell(table, "%s", cli_seconds(p->commit, text));
    cli_table_cell(table, "%s", cli_bytes(p->rank_bytes, text));
    cli_table_cell(table, "%s", cli_bytes(p->sum_bytes, text));
    cli_table_cell(table, "%s", cli_bytes(p->message_bytes, text));
    cli_table_cell(table, "%s", cli_bytes(p->weight_bytes, text));
}

static bool print_products(const struct cst_products *products)
{
    static const char *const titles[] = {"DATA",  "TENSOR",    "PIPELINE", "SCHEDULE",
                                         ">STEP", ">WAITS",    ">COMMIT",  ">MEMORY",
                                         ">SUMS", ">MESSAGES", ">WEIGHTS", NULL};
    struct cli_table table;

    cli_table_init(&table, titles);
    for (uint32_t i = 0; i < products->n_working; i++) {
        add_product(&table, &products->products[i]);
    }
    return cli_table_print(&table, stdout);
}

/* The first operator of the unit @unit. */
static uint32_t first_operator(const struct parts *parts, uint32_t unit)
{
    return unit > 0 ? parts->last_operators[unit - 1] + 1 : 0;
}

static bool print_stages(const struct cst_product *p, const struct parts *parts,
                         const struct cst_model *model)
{
    static const char *const titles[] = {"STAGE",     "RANK",     "FROM",      "TO", ">UNITS",
                                         ">REPEATED", ">FORWARD", ">BACKWARD", NULL};
    struct cli_table table;
    char text[CLI_HUMAN_BYTES];

    cli_table_init(&table, titles);
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const struct cst_stage_cut *cut = &p->cuts[s];
        const uint32_t last = cut->first + cut->n_units - 1;

        cli_table_cell(&table, "%" PRIu32, s);
        cli_table_cell(&table, "%" PRIu32, s % p->pp);
        cli_table_cell(&table, "%.40s", model->operators[first_operator(parts, cut->first)].name);
        cli_table_cell(&table, "%.40s", model->operators[parts->last_operators[last]].name);
        cli_table_cell(&table, "%" PRIu32, cut->n_units);
        cli_table_cell(&table, "%" PRIu32, cut->n_recomputed);
        cli_table_cell(&table, "%s", cli_seconds(cut->forward, text));
        cli_table_cell(&table, "%s", cli_seconds(cut->backward, text));
    }
    (void)printf("\n");
    return cli_table_print(&table, stdout);
}

static bool print_refused(const struct cst_products *products)
{
    static const char *const titles[] = {"DATA", "TENSOR", "PIPELINE", "REFUSED BECAUSE", NULL};
    struct cli_table table;

    if (products->n_working == products->n) {
        return true;
    }
    cli_table_init(&table, titles);
    for (uint32_t i = products->n_working; i < products->n; i++) {
        const struct cst_product *p = &products->products[i];

        cli_table_cell(&table, "%" PRIu32, p->dp);
        cli_table_cell(&table, "%" PRIu32, p->tp);
        cli_table_cell(&table, "%" PRIu32, p->pp);
        cli_table_cell(&table, "%s", p->err.text);
    }
    (void)printf("\n");
    return cli_table_print(&table, stdout);
}

static bool print(const struct cli_plan_input *input, const struct cst_degrees_input *degrees,
                  const struct cst_products *products, const struct parts *parts)
{
    const struct cst_product *best = &products->products[0];
    const double tokens = (double)input->model.tokens * degrees->n_micro / best->step;
    char step[CLI_HUMAN_BYTES], rate[CLI_HUMAN_BYTES], count[CLI_HUMAN_BYTES];

    (void)printf(
        "model     %s: %s parameters, %" PRIu32 " units\n"
        "machine   %" PRIu32 " ranks on %s, %" PRIu32 " micro-batches of all replicas together\n",
        input->model.name, cli_count(input->model.model.n_params, count), parts->n_units,
        degrees->n_ranks, input->rates.devices[input->config.device].name, degrees->n_micro);
    (void)printf("predicted data %" PRIu32 " x tensor %" PRIu32 " x pipeline %" PRIu32 ": %s",
                 best->dp, best->tp, best->pp, cli_seconds(best->step, step));
    if (tokens > 0) {
        (void)printf(", %s tokens/s", cli_count((uint64_t)tokens, rate));
    }
    (void)printf(
        "\nassumed   flop/s as in the rates, twice for the backward pass; links that nobody "
        "shares; sums, commits and updates that nothing hides; %" PRIu32 " bytes per parameter on "
        "a rank, states on the host\n\n",
        degrees->param_bytes);
    return print_products(products) && print_stages(best, parts, &input->model.model) &&
           print_refused(products);
}

/* -- output: JSON ----------------------------------------------------------------------------- */

static bool append(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) == 0;
}

static json_t *stages_json(const struct cst_product *p, const struct parts *parts,
                           const struct cst_model *model)
{
    json_t *list = json_array();
    bool good = list != NULL;

    for (uint32_t s = 0; good && s < p->n_stages; s++) {
        const struct cst_stage_cut *cut = &p->cuts[s];
        const uint32_t last = cut->first + cut->n_units - 1;

        good = append(list, json_pack("{s:i, s:s, s:s, s:i, s:i, s:f, s:f, s:f}", "rank",
                                      (int)(s % p->pp), "from",
                                      model->operators[first_operator(parts, cut->first)].name,
                                      "to", model->operators[parts->last_operators[last]].name,
                                      "units", (int)cut->n_units, "recomputed",
                                      (int)cut->n_recomputed, "forward_s", cut->forward,
                                      "backward_s", cut->backward, "recompute_s", cut->recompute));
    }
    if (!good) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

static json_t *product_json(const struct cst_product *p, const struct parts *parts,
                            const struct cst_model *model)
{
    return json_pack("{s:i, s:i, s:i, s:s, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:o}",
                     "data", (int)p->dp, "tensor", (int)p->tp, "pipeline", (int)p->pp, "schedule",
                     p->kind->name, "micro_batches", (int)p->n_micro, "step_s", p->step,
                     "pipeline_s", p->pipeline, "commit_s", p->commit, "bubble", p->bubble,
                     "rank_bytes", (json_int_t)p->rank_bytes, "sum_bytes", (json_int_t)p->sum_bytes,
                     "message_bytes", (json_int_t)p->message_bytes, "weight_bytes",
                     (json_int_t)p->weight_bytes, "stages", stages_json(p, parts, model));
}

static bool print_json(const struct cli_plan_input *input, const struct cst_products *products,
                       const struct parts *parts)
{
    json_t *working = json_array(), *refused = json_array();
    json_t *root = json_pack("{s:s, s:o, s:o}", "model", input->model.name, "products", working,
                             "refused", refused);
    bool good = root != NULL;

    for (uint32_t i = 0; good && i < products->n; i++) {
        const struct cst_product *p = &products->products[i];

        good = i < products->n_working
                   ? append(working, product_json(p, parts, &input->model.model))
                   : append(refused,
                            json_pack("{s:i, s:i, s:i, s:s}", "data", (int)p->dp, "tensor",
                                      (int)p->tp, "pipeline", (int)p->pp, "why", p->err.text));
    }
    if (!good) {
        json_decref(root);
        root = NULL;
    }
    return cli_json_print(root);
}

/* -- the command ------------------------------------------------------------------------------ */

/* Write the schedule of a product, for PyTorch. */
static int write_schedule(const struct cst_product *p, const char *path, struct cst_err *err)
{
    const struct cst_schedule_size size = {p->pp, p->n_stages, p->n_micro, NULL};
    struct cst_schedule schedule;
    int rc = cst_schedule_make(&schedule, p->kind, &size, err);

    if (rc == CST_OK) {
        rc = cli_schedule_write(&schedule, path, err);
        cst_schedule_close(&schedule);
    }
    return rc;
}

/* Return the number of the layer that the unit @unit belongs to, which is the largest number in the
 * names of its operators ("h3.qkv", "model.layers.3.mlp"); -1: there is none. */
static long layer_of(const struct parts *parts, const struct cst_model *model, uint32_t unit)
{
    long layer = -1;

    for (uint32_t i = first_operator(parts, unit); i <= parts->last_operators[unit]; i++) {
        const char *digits = strpbrk(model->operators[i].name, "0123456789");
        const long number = digits != NULL ? strtol(digits, NULL, 10) : -1;

        layer = number > layer ? number : layer;
    }
    return layer;
}

/* Write to *border the layer with which stage @s begins, if it is not the first stage, and to
 * *repeated the number of its layers whose forward pass is repeated. CST_EINVAL: the stage begins
 * within a layer, or the names do not tell the layers. */
static int find_layers(const struct cst_product *p, const struct parts *parts,
                       const struct cst_model *model, uint32_t s, long *border, long *repeated,
                       struct cst_err *err)
{
    const struct cst_stage_cut *cut = &p->cuts[s];
    const uint32_t n = cut->n_recomputed;
    const long last = n > 0 ? layer_of(parts, model, cut->first + n - 1) : 0;

    *border = s > 0 ? layer_of(parts, model, cut->first) : 0;
    if (last < 0 || (s > 0 && (*border < 0 || *border <= layer_of(parts, model, cut->first - 1)))) {
        return cst_err_set(err, CST_EINVAL,
                           "--save: stage %" PRIu32 " begins at operator '%.40s', which does not "
                           "begin a layer by its name: files have numbers of layers; --json has "
                           "the stages",
                           s, model->operators[first_operator(parts, cut->first)].name);
    }
    *repeated = n > 0 ? last - *border + 1 : 0;
    return CST_OK;
}

/* The section `parallel` of a job's file for a product, which the caller releases. */
static int make_section(json_t **out, const struct cst_product *p, const struct parts *parts,
                        const struct cst_model *model, struct cst_err *err)
{
    json_t *borders = json_array(), *recompute = json_array();
    json_t *section =
        json_pack("{s:i, s:i, s:i, s:i, s:o}", "dp", (int)p->dp, "tp", (int)p->tp, "pp", (int)p->pp,
                  "micro_batches", (int)p->n_micro, "recompute", recompute);
    bool good = section != NULL;
    int rc = CST_OK;

    for (uint32_t s = 0; rc == CST_OK && good && s < p->n_stages; s++) {
        long border = 0, repeated = 0;

        rc = find_layers(p, parts, model, s, &border, &repeated, err);
        good = rc != CST_OK || ((s == 0 || append(borders, json_integer(border))) &&
                                append(recompute, json_integer(repeated)));
    }
    if (good && p->n_stages > 1) {
        good = json_object_set(section, "borders", borders) == 0 &&
               json_object_set_new(section, "schedule", json_string(p->kind->name)) == 0;
    }
    json_decref(borders);
    if (rc == CST_OK && !good) {
        rc = cst_err_set(err, CST_ENOMEM, "the section of a file");
    }
    if (rc != CST_OK) {
        json_decref(section);
        return rc;
    }
    *out = json_pack("{s:o}", "parallel", section);
    return *out != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "the section of a file");
}

/* Write a file of a job whose section `parallel` has a product: cistern-job.json(5). */
static int write_job(const struct cst_product *p, const struct parts *parts,
                     const struct cst_model *model, const char *path, struct cst_err *err)
{
    json_t *root;
    FILE *file;
    int rc = make_section(&root, p, parts, model, err);

    if (rc != CST_OK) {
        return rc;
    }
    file = fopen(path, "we");
    if (file == NULL || json_dumpf(root, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF) {
        rc = cst_err_errno(err, CST_EIO, errno, "--save '%.255s'", path);
    }
    if (file != NULL && fclose(file) != 0 && rc == CST_OK) {
        rc = cst_err_errno(err, CST_EIO, errno, "--save '%.255s'", path);
    }
    json_decref(root);
    return rc;
}

static int report(const struct cli *cli, const struct cli_plan_input *input,
                  const struct cst_degrees_input *degrees, const struct cst_products *products,
                  const struct parts *parts, struct cst_err *err)
{
    /* The one with the longest pipeline, whose ranks need least memory. */
    const struct cst_product *last = &products->products[products->n - 1];
    int rc = CST_OK;

    if (products->n_working == 0) {
        if (cli->json) {
            (void)print_json(input, products, parts);
        }
        return cst_err_set(err, CST_EBUDGET,
                           "no product of %" PRIu32 " ranks works; data %" PRIu32
                           " x tensor %" PRIu32 " x pipeline %" PRIu32 ": %.400s",
                           degrees->n_ranks, last->dp, last->tp, last->pp, last->err.text);
    }
    if (cli->plan.schedule != NULL) {
        rc = write_schedule(&products->products[0], cli->plan.schedule, err);
    }
    if (rc == CST_OK && cli->plan.save != NULL) {
        rc = write_job(&products->products[0], parts, &input->model.model, cli->plan.save, err);
    }
    if (rc == CST_OK && !(cli->json ? print_json(input, products, parts)
                                    : print(input, degrees, products, parts))) {
        rc = cst_err_set(err, CST_ENOMEM, "the plan could not be printed");
    }
    return rc;
}

static int check_options(const struct cli *cli, const struct cli_plan_input *input,
                         struct cst_err *err)
{
    const struct cli_plan_request *wish = &cli->plan;

    if (wish->timeline != NULL || wish->simulate) {
        return cst_err_set(err, CST_EINVAL,
                           "--parallel cannot be combined with --timeline and --simulate, which "
                           "are for jobs without a pipeline");
    }
    if (input->model.model.n_groups > 1) {
        return cst_err_set(err, CST_EINVAL,
                           "--parallel plans whole models, and this one is divided among ranks: "
                           "describe it for one rank");
    }
    return CST_OK;
}

int cli_plan_parallel(const struct cli *cli, const struct cli_plan_input *input,
                      struct cst_err *err)
{
    struct cst_products products = {0};
    struct parts parts;
    struct cst_degrees_input degrees = {.n_ranks = input->model.world,
                                        .heads = input->model.heads,
                                        .dp = (uint32_t)cli->plan.dp,
                                        .tp = (uint32_t)cli->plan.tp,
                                        .pp = (uint32_t)cli->plan.pp,
                                        .recompute = cli->plan.job.planning.recompute,
                                        .param_bytes = param_bytes(&input->model.model)};
    int rc = check_options(cli, input, err);

    if (rc == CST_OK && cli->plan.kind != NULL) {
        rc = cst_schedule_find(&degrees.kind, cli->plan.kind, err);
    }
    rc = rc == CST_OK ? parts_open(&parts, &input->model.model, err) : rc;
    if (rc != CST_OK) {
        return rc;
    }
    degrees.units = parts.units;
    degrees.n_units = parts.n_units;
    degrees.ties = parts.ties;
    degrees.n_ties = parts.n_ties;
    degrees.n_micro = cli->plan.job.updates.micro_batches > 0
                          ? (uint32_t)cli->plan.job.updates.micro_batches
                          : MICRO_BATCHES_PER_RANK * degrees.n_ranks;
    add_rates(&degrees, input);
    rc = check_flops(&parts, err);
    rc = rc == CST_OK ? cst_degrees_search(&products, &degrees, err) : rc;
    if (rc == CST_OK) {
        rc = report(cli, input, &degrees, &products, &parts, err);
        cst_products_close(&products);
    }
    parts_close(&parts);
    return rc;
}
