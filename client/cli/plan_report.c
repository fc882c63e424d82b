/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/plan_report.h"

#include "client/cli/table.h"
#include "proto/optimizers.h"

#include <stdio.h>
#include <string.h>

const char *cli_plan_row_name(int row)
{
    return row == CST_ROW_WEIGHT      ? "weight"
           : row == CST_ROW_GRAD      ? "gradient"
           : row == CST_ROW_MASTER    ? "master"
           : cst_table_is_moment(row) ? cst_moment_names[row - CST_ROW_MOMENT]
                                      : "weight_other";
}

/* -- rows ------------------------------------------------------------------------------------- */

/* Return the bytes of rows where @row of @chunk is. */
static uint64_t *place_of(struct cli_plan_rows *out, const struct cst_layout_config *config,
                          const struct cst_layout_chunk *chunk, int row)
{
    if (row == CST_ROW_WEIGHT_OTHER && config->states.durable) {
        return &out->drive[row];
    }
    if (!cst_tier_is_apart(chunk->tier) || !cst_table_is_state(row)) {
        return &out->host[row];
    }
    for (uint32_t i = 0; i < config->n_devices; i++) {
        if (config->devices[i].engine == chunk->tier && config->devices[i].in_host) {
            return &out->drive[row];
        }
    }
    return &out->device[row];
}

static void add_chunk(struct cli_plan_rows *out, const struct cst_layout *layout,
                      const struct cst_layout_config *config, const struct cst_layout_chunk *chunk)
{
    bool twice = layout->states.durable && cst_layout_has_states(chunk);
    uint64_t *to;

    for (int row = 0; row < CLI_PLAN_ROWS; row++) {
        uint64_t more = cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems);

        /* Rows of states in the files of a durable job have two places. */
        to = place_of(out, config, chunk, row);
        *to += to == &out->drive[row] && twice ? 2 * more : more;
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
        add_chunk(out, &layout, &choice->layout, &layout.chunks[c]);
    }
    cst_layout_close(&layout);
    return CST_OK;
}

const char *cli_size_option(uint64_t bytes, char out[CLI_HUMAN_BYTES])
{
    static const char units[] = "KMGT";
    unsigned unit = 0;

    /* The largest unit in which the number has at least two digits, so that rounding up adds at
     * most a tenth. */
    while (unit + 1 < sizeof units - 1 && bytes >> (10 * (unit + 2)) >= 10) {
        unit++;
    }
    bytes = bytes == 0 ? 0 : ((bytes - 1) >> (10 * (unit + 1))) + 1;
    (void)snprintf(out, CLI_HUMAN_BYTES, "%llu%c", (unsigned long long)bytes, units[unit]);
    return out;
}

/* -- tables ----------------------------------------------------------------------------------- */

static void bytes_or_dash(struct cli_table *table, uint64_t bytes)
{
    char text[CLI_HUMAN_BYTES];

    cli_table_cell(table, "%s", bytes > 0 ? cli_bytes(bytes, text) : "-");
}

/* Bytes in each column of the table of memory. If ranks compute on the host, the memory of
 * accelerators for updates has a column of its own. */
struct columns {
    uint64_t device, host, accelerator, drive;
};

/* The columns that the table does not always have. */
struct shown {
    bool accelerators, drives;
};

static void memory_line(struct cli_table *table, struct shown shown, const char *name,
                        const struct columns *bytes)
{
    cli_table_cell(table, "%s", name);
    bytes_or_dash(table, bytes->device);
    bytes_or_dash(table, bytes->host);
    if (shown.accelerators) {
        bytes_or_dash(table, bytes->accelerator);
    }
    if (shown.drives) {
        bytes_or_dash(table, bytes->drive);
    }
}

/* Return @limit, or 0 if there is no limit. */
static uint64_t given(uint64_t limit)
{
    return limit == CST_PLAN_NO_LIMIT ? 0 : limit;
}

/* Return the part of one device in the bytes of all devices. */
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

/* Print the table of memory. If ranks compute on the host, pools are counted as memory of the
 * host. */
static bool print_memory(const struct cli_plan_input *input, const struct cst_plan_choice *best,
                         const struct cli_plan_rows *rows)
{
    const char *titles[6] = {"MEMORY", ">EACH DEVICE", ">HOST"};
    bool on_host = strcmp(input->rates.devices[input->config.device].name, "host") == 0;
    bool beside = on_host && best->device_update_bytes > 0;
    const struct shown shown = {.accelerators = beside, .drives = best->n_drives > 0};
    uint64_t blocks = on_host ? best->pool_bytes * input->config.world : 0;
    uint64_t host = sum(rows->host) + blocks + best->window_bytes;
    struct columns line = {.device = best->pool_bytes, .host = blocks};
    struct cli_table table;
    unsigned n = 3;

    if (shown.accelerators) {
        titles[n++] = ">EACH ACCELERATOR";
    }
    if (shown.drives) {
        titles[n++] = ">ALL DRIVES";
    }
    cli_table_init(&table, titles);
    memory_line(&table, shown, "blocks", &line);
    for (unsigned row = 0; row < CLI_PLAN_ROWS; row++) {
        uint64_t there = each(input, rows->device[row]);

        line = (struct columns){.device = beside ? 0 : there,
                                .host = rows->host[row],
                                .accelerator = there,
                                .drive = rows->drive[row]};
        if (row != CST_ROW_WEIGHT_OTHER || line.host + line.drive > 0) {
            memory_line(&table, shown, cli_plan_row_name((int)row), &line);
        }
    }
    line = (struct columns){.device = best->activation_bytes};
    memory_line(&table, shown, "activations", &line);
    if (best->device_update_bytes > 0 || best->window_bytes > 0) {
        line = (struct columns){.device = beside ? 0 : best->device_update_bytes,
                                .host = best->window_bytes,
                                .accelerator = best->device_update_bytes};
        memory_line(&table, shown, "for updates", &line);
    }
    if (best->host_bytes > host || best->drive_bytes > sum(rows->drive)) {
        line = (struct columns){.host = best->host_bytes - host,
                                .drive = best->drive_bytes - sum(rows->drive)};
        memory_line(&table, shown, "table, rounding", &line);
    }
    line = (struct columns){.device = best->pool_bytes + best->activation_bytes,
                            .host = best->host_bytes,
                            .accelerator = best->device_update_bytes + best->state_bytes,
                            .drive = best->drive_bytes};
    line.device += beside ? 0 : line.accelerator;
    memory_line(&table, shown, "together", &line);
    line = (struct columns){.device = given(input->budget.device_bytes),
                            .host = given(input->budget.host_bytes),
                            .accelerator =
                                input->rates.devices[input->config.accelerator].memory_bytes,
                            .drive = input->config.drive_bytes};
    memory_line(&table, shown, "of", &line);
    return cli_table_print(&table, stdout);
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
    time_line(&table, "waits for weights, blocks",
              p->wait_ns > p->update_exposed_ns ? p->wait_ns - p->update_exposed_ns : 0,
              p->step_ns);
    time_line(&table, "tail, to the commit", p->tail_ns, p->step_ns);
    time_line(&table, "together", p->step_ns, p->step_ns);
    return cli_table_print(&table, stdout);
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
        (void)snprintf(out, 16, choice->prefetch_depth > 0 ? "%u" : "as blocks allow",
                       choice->prefetch_depth);
    }
    return out;
}

static void print_choice(const struct cli_plan_input *input, const struct cst_plan_choice *best)
{
    char blocks[128], depth[16], a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];
    uint64_t weights = input->model.model.weight_bytes;

    describe_blocks(best, blocks, sizeof blocks);
    (void)printf("chunks    %u of up to %s, %s wasted\n", best->n_chunks,
                 cli_bytes(2 * best->layout.chunk_elems, a),
                 cli_percent(best->padding_bytes, weights, b));
    (void)printf("pool      %s on each device, prefetch depth %s\n", blocks,
                 describe_depth(best, depth));
    (void)printf("gradient  %s%s\n",
                 input->config.states.grad_over_weight ? "in the place of the weight"
                                                       : "in a row of its own",
                 input->config.micro_batches == 1 ? "" : ", summed after each micro-batch");
}

/* Print when and where chunks are updated, and how much of the updates is hidden. */
static void print_updates(const struct cli_plan_input *input, const struct cst_plan_choice *best)
{
    const struct cst_replay_result *p = &best->predicted;
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    (void)printf("updates   %s, %s with %smoments in %s: %s a step, %s of it hidden\n",
                 cst_overlap_names[input->config.overlap],
                 cst_optimizer_names[input->config.states.optimizer],
                 input->config.states.masters == CST_MASTERS_SPLIT ? "split masters and " : "",
                 cst_moments_names[input->config.states.moments],
                 cli_seconds((double)p->update_ns * 1e-9, a),
                 cli_seconds((double)p->update_hidden_ns * 1e-9, b));
    if (best->lends && best->n_buffers > 0) {
        (void)printf(
            "lent      memory of the pool for %u chunks at a time; one of %u chunks of each "
            "node is updated there; up %s, down %s\n",
            best->n_buffers, best->interleave, cli_bytes(p->states_up, a),
            cli_bytes(p->states_down, b));
    } else if (best->lends) {
        (void)printf("lent      nothing: the pool has too few blocks for an update\n");
    }
    if (best->device_update_bytes == 0) {
        return;
    }
    (void)printf("reserved  %s for updates on each accelerator, ",
                 cli_bytes(best->device_update_bytes, a));
    if (best->n_buffers == 0) {
        (void)printf("too small for any chunk: the smallest takes %s (--device-update %s)\n",
                     cli_bytes(best->least_reservation, a),
                     cli_size_option(best->least_reservation, b));
        return;
    }
    (void)printf("%u chunk%s at a time; ", best->n_buffers, best->n_buffers > 1 ? "s" : "");
    if (best->interleave > 0) {
        (void)printf("one of %u chunks of each node is updated there; ", best->interleave);
    } else {
        (void)printf("only chunks whose states stay there are updated there; ");
    }
    (void)printf("up %s, down %s\n", cli_bytes(p->states_up, a), cli_bytes(p->states_down, b));
}

/* Print how many states stay on accelerators. If the user gave their bytes, print how many are
 * used. If the plan chose them, print the reason, and the exact bytes, which can be requested for a
 * job. */
static void print_states(const struct cst_plans *plans)
{
    const struct cst_plan_choice *best = &plans->best;
    bool chosen = plans->states_why[0] != '\0';
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];

    if (best->n_staying > 0 && chosen) {
        (void)printf("states    %s (%llu bytes) on each accelerator, of %u of %u chunks: %s\n",
                     cli_bytes(best->device_states, a), (unsigned long long)best->device_states,
                     best->n_staying, best->n_chunks, plans->states_why);
    } else if (best->n_staying > 0) {
        (void)printf("states    %s of %s on each accelerator, of %u of %u chunks\n",
                     cli_bytes(best->state_bytes, a), cli_bytes(best->device_states, b),
                     best->n_staying, best->n_chunks);
    } else if (chosen) {
        (void)printf("states    none stay on accelerators: %s\n", plans->states_why);
    } else if (best->device_states > 0 && best->device_states < best->least_states) {
        (void)printf("states    none stay on accelerators: %s hold no chunk's states, the smallest "
                     "takes %s (--device-states %s)\n",
                     cli_bytes(best->device_states, a), cli_bytes(best->least_states, b),
                     cli_size_option(best->least_states, c));
    } else if (best->device_states > 0) {
        (void)printf("states    none stay on accelerators: the memory for updates is too small for "
                     "a chunk whose states fit\n");
    }
}

double cli_plan_days(const struct cli_plan_input *input, const struct cst_plan_choice *choice)
{
    double wear = input->tbw > 0 && choice->n_drives > 0
                      ? cst_plan_drives_times(&input->config, choice).wear
                      : 0;

    return wear > 0 ? input->tbw * 1e12 / wear / 86400 : 0;
}

/* Print whether @s seconds of drives, for @what, fit under @under seconds of @passes. */
static void print_hidden(const char *what, double s, double under_s, const char *passes)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];

    (void)printf("%s %s under %s of %s", what, cli_seconds(s, a), cli_seconds(under_s, b), passes);
    if (s > under_s) {
        (void)printf(", %s too long", cli_seconds(s - under_s, c));
    }
}

/* Print the states on drives, what a step reads and writes, and under what that hides. */
static void print_drives(const struct cli_plan_input *input, const struct cst_plan_choice *best)
{
    const struct cst_replay_result *p = &best->predicted;
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES], d[CLI_HUMAN_BYTES];
    double days = cli_plan_days(input, best);
    struct cst_plan_drives times;

    if (best->n_drives == 0) {
        return;
    }
    times = cst_plan_drives_times(&input->config, best);
    (void)printf(
        "drives    %u: %s of states in all, of %u of %u chunks; %s of host memory for their "
        "updates; %.2f bytes of host memory per parameter\n",
        best->n_drives, cli_bytes(best->drive_bytes, a), best->n_on_drives, best->n_chunks,
        cli_bytes(best->window_bytes, b),
        (double)best->rows_bytes / (double)input->model.model.n_params);
    if (best->n_stay_in_host > 0) {
        (void)printf("in memory the states of %u chunk%s, %s: buffers of their size for each drive "
                     "would take more\n",
                     best->n_stay_in_host, best->n_stay_in_host == 1 ? "" : "s",
                     cli_bytes(best->stay_bytes, a));
    }
    if (best->window_bytes > best->drive_bytes / (input->config.states.durable ? 2 : 1)) {
        (void)printf("warning   the states would take less host memory than their updates: %s\n",
                     input->config.states.durable ? "use fewer drives, or cut large tensors"
                                                  : "leave --disk out, or cut large tensors");
    }
    (void)printf("disk      a step reads %s, %s of it before the commit, and writes %s: %s at ",
                 cli_bytes(p->disk_read, a), cli_bytes(p->disk_ahead, b),
                 cli_bytes(p->disk_written, c), cli_seconds(times.disk_s, d));
    (void)printf("%sB/s for reads and writes together\n",
                 cli_count((uint64_t)(best->n_drives * cst_rates_mixed(&input->rates)), a));
    (void)printf("hidden    ");
    if (input->config.overlap == CST_OVERLAP_COMMIT) {
        print_hidden("reads after the commit", times.read_s, times.read_under_s, "forward pass");
        (void)printf("; ");
        print_hidden(times.seal_s > 0 ? "writes and flushes" : "writes",
                     times.write_s + times.seal_s, times.write_under_s,
                     "forward and backward passes");
    } else {
        print_hidden("reads and writes", times.write_s, times.write_under_s,
                     input->config.overlap == CST_OVERLAP_EARLY ? "forward and backward passes"
                                                                : "the whole step");
    }
    (void)printf("\n");
    if (times.seal_s > 0) {
        (void)printf(
            "durable   two places for each row; a step flushes the drives, writes a record "
            "of %s and flushes it: %s after its writes, with %s for a flush%s\n",
            cli_bytes(times.record_bytes, a), cli_seconds(times.seal_s, b),
            cli_seconds(cst_rates_flush(&input->rates), c),
            input->rates.disk_flush_s > 0 ? "" : ", which is assumed");
    }
    if (days > 0) {
        (void)printf("wear      %.4g days of training write %.4g TB to each drive\n", days,
                     input->tbw);
    }
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
        cli_table_cell(&table, "%s", cli_bytes(2 * plan->layout.chunk_elems, text));
        describe_blocks(plan, text, sizeof text);
        cli_table_cell(&table, "%s", text);
        cli_table_cell(&table, "%s", describe_depth(plan, depth));
        cli_table_cell(&table, "%s", plans->runners_up[i].why);
    }
    return cli_table_print(&table, stdout);
}

static void print_head(const struct cli_plan_input *input)
{
    const struct cst_model *model = &input->model.model;
    char a[CLI_HUMAN_BYTES], words[CST_CARD_WORDS];

    (void)printf("model     %s: %s parameters in %u tensors, %u operators\n", input->model.name,
                 cli_count(model->n_params, a), model->n_tensors, model->n_operators);
    (void)printf("machine   %u rank%s on %s, %u NUMA node%s; rates of %s\n", input->config.world,
                 input->config.world == 1 ? "" : "s",
                 input->rates.devices[input->config.device].name, input->rates.n_nodes,
                 input->rates.n_nodes == 1 ? "" : "s", input->rates_from);
    if (input->card.memory_bytes > 0) {
        cst_card_words(&input->card, words, sizeof words);
        (void)printf("card      %s; set aside: %s\n", cli_bytes(input->card.memory_bytes, a),
                     words);
    }
}

/* Print ", 1.2 GiB of 4.0 GiB on each device", without "of 4.0 GiB" if there is no limit. */
static void print_share(const char *before, uint64_t bytes, uint64_t limit, const char *where)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    (void)printf("%s%s%s%s %s", before, cli_bytes(bytes, a), given(limit) > 0 ? " of " : "",
                 given(limit) > 0 ? cli_bytes(limit, b) : "", where);
}

bool cli_plan_is_apart(const struct cli_plan_input *input)
{
    return input->config.apart && input->config.world > 1 &&
           strcmp(input->rates.devices[input->config.device].name, "host") != 0;
}

double cli_plan_tokens(const struct cli_plan_input *input, const struct cst_plan_choice *choice)
{
    double step_s = (double)choice->predicted.step_ns * 1e-9;
    double tokens = (double)input->model.tokens * input->config.micro_batches * input->config.world;

    return step_s > 0 ? tokens / step_s : 0;
}

/* Print that the plan fits, the time of a step, and its uncertainty. */
static void print_verdict(const struct cli_plan_input *input, const struct cst_plan_choice *best)
{
    bool on_host = strcmp(input->rates.devices[input->config.device].name, "host") == 0;
    uint64_t device = best->pool_bytes + best->activation_bytes +
                      (on_host ? 0 : best->state_bytes + best->device_update_bytes);
    double step_s = (double)best->predicted.step_ns * 1e-9, spread = input->rates.spread;
    double tokens = cli_plan_tokens(input, best);
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES];

    print_share("fits      yes: ", device, input->budget.device_bytes, "on each device");
    print_share(", ", best->host_bytes, input->budget.host_bytes, "of the host\n");
    (void)printf("step      %s", cli_seconds(step_s, a));
    if (tokens > 0) {
        (void)printf(", %s tokens/s", cli_count((uint64_t)tokens, a));
    }
    if (spread > 0 && spread < 1) {
        (void)printf("; %s to %s by the spread of the rates, %.1f %%\n",
                     cli_seconds(step_s / (1 + spread), a), cli_seconds(step_s / (1 - spread), b),
                     100 * spread);
    } else {
        (void)printf("; the rates do not say how much they vary\n");
    }
}

/* Print what is copied. If the rates say that ranks cannot access the memory of each other's
 * devices, print what follows from that. */
static void print_traffic(const struct cli_plan_input *input, const struct cst_replay_result *p)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];
    uint64_t n = p->hits + p->late + p->misses;

    (void)printf("traffic   up %s, down %s, between devices %s\n", cli_bytes(p->bytes_up, a),
                 cli_bytes(p->bytes_down, b), cli_bytes(p->bytes_peer, c));
    if (cli_plan_is_apart(input)) {
        (void)printf("peers     no access between devices: the rates of '%s' have no 'peer'; "
                     "gradients are summed in host memory\n",
                     input->rates.devices[input->config.device].name);
    }
    (void)printf("weights   hits %s, late %s, misses %s of %llu fetches; %llu evictions\n",
                 cli_percent(p->hits, n, a), cli_percent(p->late, n, b),
                 cli_percent(p->misses, n, c), (unsigned long long)n,
                 (unsigned long long)p->evictions);
}

bool cli_plan_print(const struct cli_plan_input *input, const struct cst_plans *plans,
                    const struct cli_plan_rows *rows)
{
    const struct cst_plan_choice *best = &plans->best;
    char words[CLI_PLAN_MAX_WARNINGS][192], a[CLI_HUMAN_BYTES];
    unsigned n_words = cli_plan_input_warn(input, words, CLI_PLAN_MAX_WARNINGS);

    print_head(input);
    for (unsigned i = 0; i < n_words; i++) {
        (void)printf("warning   %s\n", words[i]);
    }
    print_verdict(input, best);
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
    print_traffic(input, &best->predicted);
    print_updates(input, best);
    if (plans->update_why[0] != '\0') {
        (void)printf("chosen    %s\n", plans->update_why);
    }
    print_states(plans);
    print_drives(input, best);
    (void)printf("binds     %s\n", best->binds);
    (void)printf("searched  %llu plans, %llu of them simulated, %s events\n\n",
                 (unsigned long long)plans->n_candidates, (unsigned long long)plans->n_replayed,
                 cli_count(plans->n_events, a));
    return plans->n_runners_up == 0 || print_losers(plans);
}
