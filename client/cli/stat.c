/* SPDX-License-Identifier: Apache-2.0 */
/* The command `cistern stat`: prints the state of the node once or, with --watch, repeatedly. */
#include "client/cli/cli.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "proto/message_json.h"
#include "client/cli/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The engines at the last drawing, to compute rates since then. */
struct history {
    Cistern__EngineInfo *engines; /* NULL before the first drawing. Owned; their texts are gone. */
    size_t n_engines;             /* Number of entries in engines. */
};

/* Add the rate of an engine's work in bytes or elements per second:
 *   - since the last drawing, which saw @before and @before_s;
 *   - if that saw no work: the rate @lately that the daemon measured;
 *   - if the daemon has none (0): since the start of the engine;
 *   - "-" if there was no work. (The counters of a restarted engine begin at 0.) */
static void add_rate(struct cli_table *table, uint64_t now, uint64_t before, double now_s,
                     double before_s, double lately, bool bytes)
{
    char text[CLI_HUMAN_BYTES];
    double seconds = now_s - before_s, rate;

    if (before_s == 0 && lately > 0) {
        rate = lately;
    } else if (now <= before || seconds <= 0) {
        cli_table_cell(table, "-");
        return;
    } else {
        rate = (double)(now - before) / seconds;
    }
    if (bytes) {
        cli_table_cell(table, "%s/s", cli_bytes((uint64_t)rate, text));
    } else {
        cli_table_cell(table, "%s elements/s", cli_count((uint64_t)rate, text));
    }
}

/* Add the name of an engine: "host 0" with its node, "cuda:0" with its GPU, otherwise its
 * device. */
static void add_name(struct cli_table *table, const Cistern__StatReply *stat,
                     const Cistern__EngineInfo *engine)
{
    for (size_t i = 0; engine->device != NULL && i < stat->n_gpus; i++) {
        if (strcmp(stat->gpus[i]->uuid, engine->device) == 0) {
            cli_table_cell(table, "%s:%u", engine->kind, stat->gpus[i]->index);
            return;
        }
    }
    if (engine->device != NULL && strcmp(engine->kind, "cuda") != 0) {
        cli_table_cell(table, "%s", engine->device);
    } else {
        cli_table_cell(table, "%s %u", engine->kind, engine->node);
    }
}

static void add_engine(struct cli_table *table, const Cistern__StatReply *stat,
                       const Cistern__EngineInfo *engine, const Cistern__EngineInfo *before)
{
    add_name(table, stat, engine);
    cli_table_cell(table, "%u", engine->node);
    cli_table_cell(table, "%s", engine->state);
    if (engine->has_pid && engine->pid > 0) {
        cli_table_cell(table, "%d", engine->pid);
    } else {
        cli_table_cell(table, "-");
    }
    cli_table_cell(table, "%s", engine->isa != NULL ? engine->isa : "-");
    if (engine->has_threads) {
        cli_table_cell(table, "%u + %u for copies", engine->threads, engine->copy_threads);
    } else {
        cli_table_cell(table, "-");
    }
    cli_table_cell(table, "%llu", (unsigned long long)engine->commands);
    cli_table_cell(table, "%llu", (unsigned long long)engine->in_flight);
    add_rate(table, engine->copy_bytes, before->copy_bytes, engine->copy_seconds,
             before->copy_seconds, engine->copy_rate, true);
    add_rate(table, engine->reduce_elems, before->reduce_elems, engine->reduce_seconds,
             before->reduce_seconds, engine->reduce_rate, false);
    add_rate(table, engine->update_elems, before->update_elems, engine->update_seconds,
             before->update_seconds, engine->update_rate, false);
    cli_table_cell(table, "%llu", (unsigned long long)engine->restarts);
    cli_table_cell(table, "%s", engine->staged ? "staged" : engine->locked ? "yes" : "no");
}

static void add_cost(struct cli_table *table, bool has, double value)
{
    if (has) {
        cli_table_cell(table, "%.3g", value);
    } else {
        cli_table_cell(table, "-");
    }
}

/* Add the bytes per second of each kind of work, over the time of that work, and the bytes and time
 * of updates per parameter. */
static void add_bandwidth(struct cli_table *table, const Cistern__StatReply *stat,
                          const Cistern__EngineInfo *engine, const Cistern__EngineInfo *before)
{
    char text[CLI_HUMAN_BYTES];

    add_name(table, stat, engine);
    add_rate(table, engine->up_bytes, before->up_bytes, engine->up_seconds, before->up_seconds,
             engine->up_rate, true);
    add_rate(table, engine->down_bytes, before->down_bytes, engine->down_seconds,
             before->down_seconds, engine->down_rate, true);
    add_rate(table, engine->reduce_bytes, before->reduce_bytes, engine->reduce_seconds,
             before->reduce_seconds, engine->reduce_bandwidth, true);
    add_rate(table, engine->update_bytes, before->update_bytes, engine->update_seconds,
             before->update_seconds, engine->update_bandwidth, true);
    add_cost(table, engine->has_update_bytes_per_param, engine->update_bytes_per_param);
    add_cost(table, engine->has_update_ns_per_param, engine->update_ns_per_param);
    cli_table_cell(table, "%s", cli_seconds(engine->held_seconds, text));
}

/* A table with a row per engine. */
struct engine_table {
    const char *const *titles;
    void (*add)(struct cli_table *table, const Cistern__StatReply *stat,
                const Cistern__EngineInfo *engine, const Cistern__EngineInfo *before);
};

static const char *const engine_titles[] = {
    "ENGINE",     ">NODE", "STATE",   ">PID",    "INSTRUCTIONS", "THREADS", ">COMMANDS",
    ">IN FLIGHT", ">COPY", ">REDUCE", ">UPDATE", ">RESTARTS",    "LOCKED",  NULL};
static const char *const bandwidth_titles[] = {
    "BANDWIDTH", ">UP", ">DOWN", ">REDUCE", ">UPDATE", ">B/PARAM", ">NS/PARAM", ">HELD", NULL};

static const struct engine_table engine_tables[] = {{engine_titles, add_engine},
                                                    {bandwidth_titles, add_bandwidth}};

static bool print_engines(const Cistern__StatReply *stat, const struct history *history,
                          const struct engine_table *of, FILE *out)
{
    const Cistern__EngineInfo none = CISTERN__ENGINE_INFO__INIT;
    struct cli_table table;

    cli_table_init(&table, of->titles);
    for (size_t i = 0; i < stat->n_engines; i++) {
        of->add(&table, stat, stat->engines[i],
                i < history->n_engines ? &history->engines[i] : &none);
    }
    return cli_table_print(&table, out);
}

static void print_books(const Cistern__Books *books, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES], d[CLI_HUMAN_BYTES],
        e[CLI_HUMAN_BYTES], f[CLI_HUMAN_BYTES];

    (void)fprintf(out,
                  "blocks    of all pools: %s free, %s cached, %s leased, %s moving, %s pending, "
                  "%s quarantined\n",
                  cli_bytes(books->free, a), cli_bytes(books->cached, b),
                  cli_bytes(books->leased, c), cli_bytes(books->moving, d),
                  cli_bytes(books->pending, e), cli_bytes(books->quarantined, f));
}

/* Return whether @gpu is a simulated accelerator. The daemon lists them after the GPUs. */
static bool is_paced(const Cistern__GpuInfo *gpu)
{
    return strncmp(gpu->uuid, "paced:", 6) == 0;
}

/* Print what is set aside on @gpu, and for what. */
static void print_set_aside(const Cistern__GpuInfo *gpu, FILE *out)
{
    char a[CLI_HUMAN_BYTES];

    (void)fprintf(out, "          set aside: %s for %u context%s", cli_bytes(gpu->context_bytes, a),
                  gpu->n_contexts, gpu->n_contexts == 1 ? "" : "s");
    if (gpu->workspace_bytes > 0) {
        (void)fprintf(out, ", %s for workspaces of libraries", cli_bytes(gpu->workspace_bytes, a));
    }
    if (gpu->activation_bytes > 0) {
        (void)fprintf(out, ", %s for activations", cli_bytes(gpu->activation_bytes, a));
    }
    if (gpu->n_undeclared > 0) {
        (void)fprintf(out, ", %s for activations of %u rank%s without a declaration",
                      cli_bytes(gpu->assumed_bytes, a), gpu->n_undeclared,
                      gpu->n_undeclared == 1 ? "" : "s");
    }
    (void)fprintf(out, "\n");
}

/* Print which GPUs' memory @gpu cannot access, if there are any. */
static void print_unreachable(const Cistern__StatReply *stat, const Cistern__GpuInfo *gpu,
                              FILE *out)
{
    const char *before = "";

    if (gpu->n_unreachable == 0) {
        return;
    }
    (void)fprintf(out, "gpu       cuda:%u has no access to the memory of ", gpu->index);
    for (size_t i = 0; i < gpu->n_unreachable; i++) {
        for (size_t k = 0; k < stat->n_gpus; k++) {
            if (strcmp(stat->gpus[k]->uuid, gpu->unreachable[i]) == 0) {
                (void)fprintf(out, "%scuda:%u", before, stat->gpus[k]->index);
                before = ", ";
            }
        }
    }
    (void)fprintf(out, "\n");
}

/* Print how the processes on @gpu share it, if they are several. */
static void print_sharing(const Cistern__GpuInfo *gpu, FILE *out)
{
    if (gpu->n_processes > 1) {
        (void)fprintf(out, "          shared by %u processes, %s\n", gpu->n_processes,
                      gpu->mps ? "with MPS: their kernels run at the same time"
                               : "without MPS: their kernels run in turns");
    }
}

/* Print @bytes with @what, and the rate over the time in which the drive did that: in powers of
 * 1000, as `cistern probe` has it. */
static void print_moved(const char *what, uint64_t bytes, double seconds, FILE *out)
{
    char text[CLI_HUMAN_BYTES];

    (void)fprintf(out, ", %s %s", cli_bytes(bytes, text), what);
    if (bytes > 0 && seconds > 0) {
        (void)fprintf(out, " (%sB/s)", cli_count((uint64_t)((double)bytes / seconds), text));
    }
}

static void print_drives(const Cistern__StatReply *stat, FILE *out)
{
    char a[CLI_HUMAN_BYTES];

    for (size_t i = 0; i < stat->n_drives; i++) {
        const Cistern__DriveInfo *drive = stat->drives[i];

        (void)fprintf(out, "drive     %s (%s): %s of files with states", drive->name, drive->uuid,
                      cli_bytes(drive->used, a));
        print_moved("read", drive->read_bytes, drive->read_seconds, out);
        print_moved("written", drive->written_bytes, drive->write_seconds, out);
        if (drive->in_flight > 0) {
            (void)fprintf(out, ", %llu copies wait or are under way",
                          (unsigned long long)drive->in_flight);
        }
        (void)fprintf(out, "\n");
    }
}

static void print_gpus(const Cistern__StatReply *stat, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];
    size_t n_gpus = 0;

    for (size_t i = 0; i < stat->n_gpus; i++) {
        const Cistern__GpuInfo *gpu = stat->gpus[i];

        if (is_paced(gpu)) {
            (void)fprintf(out, "simulated %s: %s of %s for pools and updates\n", gpu->uuid,
                          cli_bytes(gpu->pool_used, a), cli_bytes(gpu->pool_budget, b));
            continue;
        }
        n_gpus++;
        (void)fprintf(out, "gpu       cuda:%u %s, %s: %s of %s for pools; the card has %s",
                      gpu->index, gpu->name, gpu->uuid, cli_bytes(gpu->pool_used, a),
                      cli_bytes(gpu->pool_budget, b), cli_bytes(gpu->memory_bytes, c));
        if (gpu->has_driver) {
            (void)fprintf(out, ", driver %u.%u", gpu->driver / 1000, gpu->driver % 1000 / 10);
        }
        (void)fprintf(out, "\n");
        if (gpu->has_n_contexts) {
            print_set_aside(gpu, out);
        }
        print_unreachable(stat, gpu, out);
        print_sharing(gpu, out);
    }
    if (stat->gpu != NULL && (n_gpus > 0 || strcmp(stat->gpu, "looking") == 0)) {
        (void)fprintf(out, "gpu       %s\n", stat->gpu);
    } else if (stat->gpu != NULL) {
        (void)fprintf(out, "gpu       none: %s\n", stat->gpu);
    }
}

static void print_node(const Cistern__StatReply *stat, FILE *out)
{
    char a[CLI_HUMAN_BYTES], b[CLI_HUMAN_BYTES], c[CLI_HUMAN_BYTES];

    (void)fprintf(out, "cisternd  %s on %s, up %s, %u connection%s, %llu requests, %u open files\n",
                  stat->version, stat->host, cli_seconds(stat->uptime_s, a), stat->n_sessions,
                  stat->n_sessions == 1 ? "" : "s", (unsigned long long)stat->n_requests,
                  stat->n_fds);
    (void)fprintf(out, "memory    %s of %s for states of jobs; the machine has %s\n",
                  cli_bytes(stat->host_used, a), cli_bytes(stat->host_budget, b),
                  cli_bytes(stat->memory_bytes, c));
    (void)fprintf(out, "pools     %s of %s in host memory\n", cli_bytes(stat->pool_used, a),
                  cli_bytes(stat->pool_budget, b));
    if (stat->pool != NULL) {
        print_books(stat->pool, out);
    }
    if (stat->has_n_nodes && stat->n_nodes > 0) {
        (void)fprintf(out, "nodes     %u of %u others have a link ('cistern node list')\n",
                      stat->n_nodes_up, stat->n_nodes);
    }
    if (stat->rates != NULL) {
        (void)fprintf(
            out, "rates     %s%s\n", stat->rates,
            strcmp(stat->rates, "built in") == 0 ? " ('cistern probe' measures this machine)" : "");
    }
    print_gpus(stat, out);
    print_drives(stat, out);
}

static bool print_human(struct cli *cli, const Cistern__StatReply *stat,
                        const struct history *history, FILE *out)
{
    print_node(stat, out);
    (void)fprintf(out, "\n");
    for (size_t i = 0; stat->n_engines > 0 && i < sizeof engine_tables / sizeof *engine_tables;
         i++) {
        if (!print_engines(stat, history, &engine_tables[i], out)) {
            return false;
        }
        (void)fprintf(out, "\n");
    }
    return cli_list_print(cli, &cli_jobs_list, out);
}

/* Print the reply with an additional key "jobs". */
static bool print_json(struct cli *cli, const Cistern__StatReply *stat)
{
    json_t *object = cst_message_to_json(&stat->base), *jobs = json_array();

    if (object == NULL || json_object_set(object, "jobs", jobs) != 0 ||
        !cli_list_append(cli, &cli_jobs_list, jobs)) {
        json_decref(object);
        json_decref(jobs);
        return false;
    }
    json_decref(jobs);
    return cli_json_print(object);
}

/* Keep the counters for the next drawing. If memory is short, the next drawing has no rates since
 * this one. */
static void remember(struct history *history, const Cistern__StatReply *stat)
{
    Cistern__EngineInfo *engines = calloc(stat->n_engines + 1, sizeof *engines);

    free(history->engines);
    *history = (struct history){.engines = engines};
    for (size_t i = 0; engines != NULL && i < stat->n_engines; i++) {
        engines[i] = *stat->engines[i];
        history->n_engines = i + 1;
    }
}

static bool draw(struct cli *cli, FILE *out, void *arg)
{
    struct history *history = arg;
    const Cistern__StatReply *stat;
    struct cstc_call call = {0};
    bool good;

    if (!cli_ask(cli, &call, CISTERN__MSG_TYPE__MSG_STAT, NULL, CISTERN__MSG_TYPE__MSG_STAT_REPLY,
                 &cistern__stat_reply__descriptor)) {
        return false;
    }
    stat = (const Cistern__StatReply *)call.reply;
    good = cli->json ? print_json(cli, stat) : print_human(cli, stat, history, out);
    remember(history, stat);
    cstc_call_reset(&call);
    return good;
}

int cli_stat(struct cli *cli)
{
    struct history history = {0};
    int rc = cli_watch(cli, draw, &history);

    free(history.engines);
    return rc;
}
