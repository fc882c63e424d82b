#include "client/cli/plan_report.h"

#include "client/cli/table.h"

#include <stdio.h>
#include <string.h>

static const char *const row_names[CLI_PLAN_ROWS] = {"weight",  "gradient",   "master",
                                                     "exp_avg", "exp_avg_sq", "weight_other"};

/* -- rows ------------------------------------------------------------------------------------- */

static void add_chunk(struct cli_plan_rows *out, const struct cst_plan_choice *choice,
                      const struct cst_layout *layout, uint32_t c)
{
    const struct cst_layout_chunk *chunk = &layout->chunks[c];
    struct cst_layout_states states = layout->states;
    bool trained = cst_pattern(chunk->pattern)->has_states;

    states.grad_over_weight = states.grad_over_weight || choice->grad == CST_PLAN_GRAD_OVER;
    for (int row = 0; row < CLI_PLAN_ROWS; row++) {
        uint64_t more = row == CST_ROW_WEIGHT || trained
                            ? cst_layout_row_bytes(&states, layout->grad_bytes, row, chunk->n_elems)
                            : 0;

        if (choice->device_rows != NULL && (choice->device_rows[c] >> row & 1) != 0) {
            out->device[row] += more;
        } else if (choice->disk_rows != NULL && (choice->disk_rows[c] >> row & 1) != 0) {
            out->disk[row] += more;
        } else {
            out->host[row] += more;
        }
    }
}

int cli_plan_rows(struct cli_plan_rows *out, const struct cli_plan_input *input,
                  const struct cst_plan_choice *choice, struct cst_err *err)
{
    struct cst_layout layout;
    int rc = cst_layout_build(&layout, input->config.model, &choice->layout, err);

    if (rc != CST_OK) {
        return rc;
    }
    *out = (struct cli_plan_rows){.device = {0}};
    for (uint32_t c = 0; c < layout.n_chunks && c < choice->n_chunks; c++) {
        add_chunk(out, choice, &layout, c);
    }
    cst_layout_close(&layout);
    return CST_OK;
}

/* -- tables ----------------------------------------------------------------------------------- */

static void bytes_or_dash(struct cli_table *table, uint64_t bytes)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", bytes > 0 ? cli_bytes(bytes, text) : "-");
}

static void memory_line(struct cli_table *table, const char *name, uint64_t device, uint64_t host,
                        uint64_t disk)
{
    cli_table_cell(table, "%s", name);
    bytes_or_dash(table, device);
    bytes_or_dash(table, host);
    bytes_or_dash(table, disk);
}

/* A limit, and @more; 0: there is none. */
static uint64_t given(uint64_t limit, uint64_t more)
{
    return limit == CST_PLAN_NO_LIMIT ? 0 : limit + more;
}

/* A device's part of what all of them have together. */
static uint64_t each(const struct cli_plan_input *input, uint64_t bytes)
{
    return bytes / input->config.world;
}

static uint64_t sum(const uint64_t *rows)
{
    uint64_t all = 0;

    for (unsigned row = 0; row < CLI_PLAN_ROWS; row++) {
        all += rows[row];
    }
    return all;
}

/* On the host, a device's pool is memory of the host. */
static bool print_memory(const struct cli_plan_input *input, const struct cst_plan_choice *best,
                         const struct cli_plan_rows *rows)
{
    static const char *const titles[] = {"MEMORY", ">EACH DEVICE", ">HOST", ">DISK", NULL};
    bool on_host = strcmp(input->rates.devices[input->config.device].name, "host") == 0;
    uint64_t blocks = on_host ? best->pool_bytes * input->config.world : 0;
    uint64_t host = sum(rows->host) + blocks;
    struct cli_table table;

    cli_table_init(&table, titles);
    memory_line(&table, "blocks", best->pool_bytes, blocks, 0);
    for (unsigned row = 0; row < CLI_PLAN_ROWS; row++) {
        if (row != CST_ROW_WEIGHT_OTHER || input->config.states.two_weights) {
            memory_line(&table, row_names[row], each(input, rows->device[row]), rows->host[row],
                        rows->disk[row]);
        }
    }
    memory_line(&table, "activations", best->activation_bytes, 0, 0);
    if (input->update_room > 0) {
        memory_line(&table, "room for updates", input->update_room, 0, 0);
    }
    if (best->host_bytes > host) {
        memory_line(&table, "table, rounding", 0, best->host_bytes - host, 0);
    }
    memory_line(&table, "together",
                best->pool_bytes + best->state_bytes + best->activation_bytes + input->update_room,
                best->host_bytes, best->disk_bytes);
    memory_line(&table, "of", given(input->budget.device_bytes, input->update_room),
                given(input->budget.host_bytes, 0), input->budget.disk_bytes);
    return cli_table_print(&table, stdout, 0);
}

static void time_line(struct cli_table *table, const char *name, uint64_t ns, uint64_t step_ns)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", name);
    cli_table_cell(table, "%s", cli_seconds((double)ns * 1e-9, text));
    cli_table_cell(table, "%s", cli_percent(ns, step_ns, text));
}

static bool print_time(const struct cst_replay_result *p)
{
    static const char *const titles[] = {"STEP", ">TIME", ">SHARE", NULL};
    struct cli_table table;

    cli_table_init(&table, titles);
    time_line(&table, "compute", p->compute_ns, p->step_ns);
    time_line(&table, "waits for updates", p->update_exposed_ns, p->step_ns);
    time_line(&table, "waits for weights, blocks", p->wait_ns - p->update_exposed_ns, p->step_ns);
    time_line(&table, "tail, to the commit", p->tail_ns, p->step_ns);
    time_line(&table, "together", p->step_ns, p->step_ns);
    return cli_table_print(&table, stdout, 0);
}

static void describe_blocks(const struct cst_plan_choice *choice, char *out, size_t n)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < choice->n_classes && used < n; i++) {
        char text[CLI_HUMAN_BYTES];
        uint64_t elems = i == 0 ? choice->layout.chunk_elems : choice->layout.class_elems[i - 1];
        int more = snprintf(out + used, n - used, "%s%u x %s", i > 0 ? " + " : "",
                            choice->n_blocks[i], cli_bytes(2 * elems, text));

        used += more > 0 ? (size_t)more : 0;
    }
}

static const char *describe_depth(const struct cst_plan_choice *choice, char out[16])
{
    if (choice->prefetch_depth == CST_CORE_NO_PREFETCH) {
        (void)snprintf(out, 16, "none");
    } else {
        (void)snprintf(out, 16, choice->prefetch_depth > 0 ? "%u" : "as it fits",
                       choice->prefetch_depth);
    }
    return out;
}

static const char *eviction_name(const struct cst_plan_choice *choice)
{
    return choice->eviction == CST_EVICT_LRU ? "what was used longest ago"
                                             : "what is wanted again last";
}

static void print_choice(const struct cli_plan_input *input, const struct cst_plan_choice *best)
{
    char blocks[128], depth[16], a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];
    uint64_t weights = 2 * input->model.model.n_params;

    describe_blocks(best, blocks, sizeof blocks);
    (void)printf("chunks    %u of up to %s elements, %s wasted\n", best->n_chunks,
                 cli_count(best->layout.chunk_elems, a),
                 cli_percent(best->padding_bytes, weights, b));
    (void)printf("pool      %s on each device, prefetch depth %s, evicts %s\n", blocks,
                 describe_depth(best, depth), eviction_name(best));
    (void)printf("gradient  %s%s\n",
                 best->grad == CST_PLAN_GRAD_OVER ? "in the weight's place" : "beside the weight",
                 input->config.micro_batches == 1 ? ""
                 : best->reduce_each              ? ", summed after each micro-batch"
                                                  : ", summed once a step");
}

static bool print_losers(const struct cst_plans *plans)
{
    static const char *const titles[] = {"RUNNER-UP", ">STEP",   ">CHUNK", "POOL",
                                         "PREFETCH",  "WHY NOT", NULL};
    struct cli_table table;
    char text[128], depth[16];

    cli_table_init(&table, titles);
    for (uint32_t i = 0; i < plans->n_runners_up; i++) {
        const struct cst_plan_choice *plan = &plans->runners_up[i].plan;

        cli_table_cell(&table, "%u", i + 1);
        cli_table_cell(&table, "%s", cli_seconds((double)plan->predicted.step_ns * 1e-9, text));
        cli_table_cell(&table, "%s", cli_count(plan->layout.chunk_elems, text));
        describe_blocks(plan, text, sizeof text);
        cli_table_cell(&table, "%s", text);
        cli_table_cell(&table, "%s", describe_depth(plan, depth));
        cli_table_cell(&table, "%s", plans->runners_up[i].why);
    }
    return cli_table_print(&table, stdout, 0);
}

static void print_head(const struct cli_plan_input *input)
{
    const struct cst_model *model = &input->model.model;
    char a[CLI_HUMAN_BYTES];

    (void)printf("model     %s: %s parameters in %u tensors, %u operators\n", input->model.name,
                 cli_count(model->n_params, a), model->n_tensors, model->n_operators);
    (void)printf("machine   %u rank%s on %s, %u NUMA node%s; rates of %s\n", input->config.world,
                 input->config.world == 1 ? "" : "s",
                 input->rates.devices[input->config.device].name, input->rates.n_nodes,
                 input->rates.n_nodes == 1 ? "" : "s", input->rates_from);
}

static void print_traffic(const struct cst_replay_result *p)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES], d[CLI_HUMAN_BYTES];

    (void)printf("traffic   up %s, down %s, between devices %s; hit rate %s, %llu evictions\n",
                 cli_bytes(p->bytes_up, a), cli_bytes(p->bytes_down, b),
                 cli_bytes(p->bytes_peer, c), cli_percent(p->hits, p->hits + p->misses, d),
                 (unsigned long long)p->evictions);
}

bool cli_plan_print(const struct cli_plan_input *input, const struct cst_plans *plans,
                    const struct cli_plan_rows *rows)
{
    const struct cst_plan_choice *best = &plans->best;
    char words[CST_PATTERN_COUNT][192], a[CLI_HUMAN_BYTES];
    unsigned n_words = cli_plan_input_warn(input, words, CST_PATTERN_COUNT);

    print_head(input);
    for (unsigned i = 0; i < n_words; i++) {
        (void)printf("warning   %s\n", words[i]);
    }
    print_choice(input, best);
    (void)printf("\n");
    if (!print_memory(input, best, rows)) {
        return false;
    }
    (void)printf("\n");
    if (!print_time(&best->predicted)) {
        return false;
    }
    (void)printf("\n");
    print_traffic(&best->predicted);
    (void)printf("binds     %s\n", best->binds);
    (void)printf("searched  %llu plans, %llu of them played, %s events\n\n",
                 (unsigned long long)plans->n_candidates, (unsigned long long)plans->n_replayed,
                 cli_count(plans->n_events, a));
    return plans->n_runners_up == 0 || print_losers(plans);
}

/* -- JSON ------------------------------------------------------------------------------------- */

static json_t *rows_json(const uint64_t *rows, uint64_t divisor)
{
    json_t *object = json_object();

    for (unsigned row = 0; object != NULL && row < CLI_PLAN_ROWS; row++) {
        if (json_object_set_new(object, row_names[row],
                                json_integer((json_int_t)(rows[row] / divisor))) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static json_t *classes_json(const struct cst_plan_choice *choice)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < choice->n_classes; i++) {
        uint64_t elems = i == 0 ? choice->layout.chunk_elems : choice->layout.class_elems[i - 1];

        if (json_array_append_new(list, json_pack("{s:I, s:i}", "chunk_elems", (json_int_t)elems,
                                                  "n_blocks", (int)choice->n_blocks[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *cli_plan_step_json(const struct cst_replay_result *p)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "step_s",
                     (double)p->step_ns * 1e-9, "compute_s", (double)p->compute_ns * 1e-9, "wait_s",
                     (double)p->wait_ns * 1e-9, "update_exposed_s",
                     (double)p->update_exposed_ns * 1e-9, "tail_s", (double)p->tail_ns * 1e-9,
                     "bytes_up", (json_int_t)p->bytes_up, "bytes_down", (json_int_t)p->bytes_down,
                     "bytes_peer", (json_int_t)p->bytes_peer, "hits", (json_int_t)p->hits, "misses",
                     (json_int_t)p->misses, "evictions", (json_int_t)p->evictions, "prefetches",
                     (json_int_t)p->prefetches);
}

static json_t *choice_json(const struct cst_plan_choice *choice)
{
    return json_pack(
        "{s:i, s:o, s:i, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:o}", "n_chunks",
        (int)choice->n_chunks, "classes", classes_json(choice), "prefetch_depth",
        choice->prefetch_depth == CST_CORE_NO_PREFETCH ? -1 : (int)choice->prefetch_depth,
        "eviction", choice->eviction == CST_EVICT_LRU ? "oldest" : "next use", "gradient",
        choice->grad == CST_PLAN_GRAD_OVER ? "over" : "beside", "reduce_each",
        (int)choice->reduce_each, "pool_bytes", (json_int_t)choice->pool_bytes, "state_bytes",
        (json_int_t)choice->state_bytes, "activation_bytes", (json_int_t)choice->activation_bytes,
        "host_bytes", (json_int_t)choice->host_bytes, "disk_bytes", (json_int_t)choice->disk_bytes,
        "padding_bytes", (json_int_t)choice->padding_bytes, "binds", choice->binds, "predicted",
        cli_plan_step_json(&choice->predicted));
}

static json_t *losers_json(const struct cst_plans *plans)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list != NULL && i < plans->n_runners_up; i++) {
        if (json_array_append_new(list,
                                  json_pack("{s:s, s:o}", "why", plans->runners_up[i].why, "plan",
                                            choice_json(&plans->runners_up[i].plan))) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *model_summary(const struct cli_plan_input *input)
{
    const struct cst_model *model = &input->model.model;

    return json_pack("{s:s, s:i, s:I, s:i, s:i, s:i}", "name", input->model.name, "world",
                     (int)input->config.world, "n_params", (json_int_t)model->n_params, "n_tensors",
                     (int)model->n_tensors, "n_operators", (int)model->n_operators, "micro_batches",
                     (int)input->config.micro_batches);
}

static json_t *warnings_json(const struct cli_plan_input *input)
{
    char words[CST_PATTERN_COUNT][192];
    unsigned n = cli_plan_input_warn(input, words, CST_PATTERN_COUNT);
    json_t *list = json_array();

    for (unsigned i = 0; list != NULL && i < n; i++) {
        if (json_array_append_new(list, json_string(words[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* null: no limit. */
static json_t *limit_json(uint64_t bytes)
{
    return bytes == CST_PLAN_NO_LIMIT ? json_null() : json_integer((json_int_t)bytes);
}

json_t *cli_plan_json(const struct cli_plan_input *input, const struct cst_plans *plans,
                      const struct cli_plan_rows *rows)
{
    return json_pack(
        "{s:o, s:o, s:{s:s, s:s}, s:{s:o, s:o, s:I}, s:o, s:{s:o, s:o, s:o}, s:o, s:{s:I, s:I, "
        "s:I}}",
        "model", model_summary(input), "warnings", warnings_json(input), "rates", "from",
        input->rates_from, "device", input->rates.devices[input->config.device].name, "budget",
        "device_bytes", limit_json(input->budget.device_bytes), "host_bytes",
        limit_json(input->budget.host_bytes), "disk_bytes", (json_int_t)input->budget.disk_bytes,
        "plan", choice_json(&plans->best), "rows", "each_device",
        rows_json(rows->device, input->config.world), "host", rows_json(rows->host, 1), "disk",
        rows_json(rows->disk, 1), "runners_up", losers_json(plans), "searched", "candidates",
        (json_int_t)plans->n_candidates, "played", (json_int_t)plans->n_replayed, "events",
        (json_int_t)plans->n_events);
}
