/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts what a job will do: makes the layout, pools and policy that the daemon chooses for a
 * model, a capacity and a pool, and simulates as many steps as the job will do. Prints lines of a
 * name and a number, which scripts compare with the job's own statistics afterwards.
 *
 *   predict MODEL.json RATES.json --pool BYTES|P%|min --chunk ELEMS --steps N [--micro-batches N]
 *     [--optimizer NAME] [--moments FORMAT] [--overlap WHEN] [--grad-over-weight]
 *     [--device-update BYTES --interleave K [--device-states BYTES]] [--flops F] [--job JOB.json]
 *
 * Reservations are on accelerators, one for each rank, as with paced accelerators. P% is of the
 * weights, as in cistern-gpt; min is the smallest pool that can run. With ELEMS 0 the capacity is
 * the one that a daemon without a search chooses. The exit status is 3 if JOB.json, the output of
 * `cistern job
 * --json` when nothing is under way, has other numbers. */
#include "client/cli/model_json.h"
#include "daemon/memory/pools.h"
#include "offload/simulate/replay.h"
#include "proto/optimizers.h"
#include "proto/rates_json.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct prediction {
    struct cli_model model;
    struct cst_rates rates;
    struct cst_layout layout;
    struct cst_core_pool pools[CST_CORE_MAX_WORLD];
    struct cstd_pools_blocks blocks[CST_CORE_MAX_WORLD];
    const char *pool;     /* the option's text */
    uint64_t pool_bytes;  /* bytes that `pool` stands for */
    uint64_t chunk_elems; /* 0: the layout chooses */
    uint32_t n_steps, micro_batches;
    uint32_t optimizer, moments, overlap; /* indices of the names in proto/optimizers.h */
    bool grad_over_weight;
    uint64_t device_update_bytes, device_states; /* bytes of each rank's accelerator */
    uint32_t interleave;
    struct cst_core_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    double flops;         /* 0: as in the rates */
    const char *job_path; /* statistics of the job; NULL: it has not run */
    json_t *job;
    bool differs; /* the job's statistics differ from the prediction */
};

static uint64_t smallest_pool(const struct cst_layout *layout)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < layout->n_classes; c++) {
        bytes += 2 * layout->classes[c].capacity * layout->classes[c].min_blocks;
    }
    return bytes;
}

static void size_pool(struct prediction *p)
{
    char *end;
    double value = strtod(p->pool, &end);

    p->pool_bytes = strcmp(end, "%") == 0
                        ? (uint64_t)(value / 100.0 * 2.0 * (double)p->model.model.n_params)
                        : (uint64_t)value;
}

static struct cst_layout_states states_of(const struct prediction *p)
{
    return (struct cst_layout_states){.optimizer = (enum cst_optimizer)p->optimizer,
                                      .moments = (enum cst_moments)p->moments,
                                      .two_weights = p->overlap != CST_OVERLAP_COMMIT,
                                      .grad_over_weight = p->grad_over_weight};
}

/* Add an accelerator for each rank, with engine numbers after those of the nodes, as
 * daemon/memory/device_reservation.c does. */
static void add_reservations(struct prediction *p, struct cst_layout_config *config)
{
    for (uint32_t i = 0; p->device_update_bytes > 0 && i < p->model.world; i++) {
        p->reservations[i] = (struct cst_core_device_reservation){.engine = p->rates.n_nodes + i,
                                                                  .bytes = p->device_update_bytes};
        if (p->device_states > 0) {
            config->devices[config->n_devices++] =
                (struct cst_layout_device){.engine = p->reservations[i].engine,
                                           .bytes = p->device_states,
                                           .reservation_bytes = p->device_update_bytes};
        }
    }
}

/* Lay out as daemon/job/commit.c does, and divide what each rank has asked for as
 * daemon/job/pool_share.c does. */
static int lay_out(struct prediction *p, struct cst_err *err)
{
    struct cst_layout_config config = {.chunk_elems = p->chunk_elems,
                                       .n_nodes = p->rates.n_nodes,
                                       .world = p->model.world,
                                       .grad_bytes = p->micro_batches > 1 ? 4 : 2,
                                       .states = states_of(p),
                                       .max_classes = CST_LAYOUT_MAX_CLASSES};
    bool smallest = strcmp(p->pool, "min") == 0;
    int rc;

    if (!smallest) {
        size_pool(p);
        config.pool_bytes = p->pool_bytes;
    }
    add_reservations(p, &config);
    rc = cst_layout_build(&p->layout, &p->model.model, &config, err);
    if (rc == CST_OK && smallest) {
        p->pool_bytes = smallest_pool(&p->layout);
    }
    for (uint32_t rank = 0; rank < p->model.world && rc == CST_OK; rank++) {
        rc = cstd_pools_divide(&p->layout, &p->model.model, rank, p->pool_bytes, 1, NULL,
                               &p->blocks[rank], err);
        for (uint32_t c = 0; c < p->layout.n_classes; c++) {
            p->pools[rank].parts[c].n_blocks = p->blocks[rank].n[c];
        }
    }
    return rc;
}

static int play(const struct prediction *p, uint32_t n_steps, struct cst_replay_result *out,
                struct cst_err *err)
{
    const struct cst_core_config core = {.model = &p->model.model,
                                         .layout = &p->layout,
                                         .world = p->model.world,
                                         .pools = p->pools,
                                         .policy = {.overlap = (enum cst_overlap)p->overlap},
                                         .reservations = p->reservations,
                                         .n_reservations =
                                             p->device_update_bytes > 0 ? p->model.world : 0,
                                         .interleave = p->interleave,
                                         .micro_batches = p->micro_batches};
    const struct cst_replay_config config = {
        .core = &core, .rates = &p->rates, .n_steps = n_steps, .micro_batches = p->micro_batches};

    return cst_replay_run(&config, out, err);
}

/* -- output --------------------------------------------------------------------------------- */

/* Print a line: the name, the prediction, and the job's number @counted if there is one. */
static void say(struct prediction *p, const char *name, uint64_t predicted, const json_t *counted)
{
    printf("%s %" PRIu64, name, predicted);
    if (p->job != NULL) {
        uint64_t is = (uint64_t)json_integer_value(counted);

        printf(" %" PRIu64, is);
        p->differs = p->differs || counted == NULL || is != predicted;
    }
    printf("\n");
}

static json_t *rank_of(const struct prediction *p, uint32_t rank)
{
    return json_array_get(json_object_get(p->job, "ranks"), rank);
}

/* The sum of the field @name over all ranks, or over all classes of a rank's pool. */
static json_t *sum(const json_t *list, const char *name)
{
    json_int_t all = 0;
    const json_t *each;
    size_t i;

    json_array_foreach(list, i, each)
    {
        all += json_integer_value(json_object_get(each, name));
    }
    return json_integer(all);
}

static void say_sum(struct prediction *p, const char *name, uint64_t predicted, const json_t *list,
                    const char *field)
{
    json_t *counted = sum(list, field);

    say(p, name, predicted, counted);
    json_decref(counted);
}

static void say_memory(struct prediction *p)
{
    struct cst_table_header header;

    cst_table_size(&header, p->layout.n_chunks, p->layout.n_spans, p->layout.n_tiles);
    say(p, "chunks", p->layout.n_chunks, json_object_get(p->job, "n_chunks"));
    say(p, "arena_bytes", p->layout.arena_bytes + header.total_bytes,
        json_object_get(p->job, "arena_bytes"));
    for (uint32_t rank = 0; rank < p->model.world; rank++) {
        uint64_t n = 0;

        for (uint32_t c = 0; c < p->layout.n_classes; c++) {
            n += p->blocks[rank].n[c];
        }
        say_sum(p, "blocks", n, json_object_get(rank_of(p, rank), "classes"), "n_blocks");
    }
}

static void say_run(struct prediction *p, const struct cst_replay_result *r)
{
    const json_t *ranks = json_object_get(p->job, "ranks");

    /* Otherwise updates take so long that workers leave before all weights are loaded again. */
    if (p->device_update_bytes == 0) {
        say_sum(p, "bytes_up", r->total.bytes_up, ranks, "bytes_up");
    }
    say_sum(p, "bytes_down", r->total.bytes_down, ranks, "bytes_down");
    say(p, "updates", r->total.updates, json_object_get(p->job, "n_updates"));
    say(p, "device_updates", r->total.device_updates, json_object_get(p->job, "n_device_updates"));
}

/* Flops of a rank's forward and backward. */
static double flops_of_step(const struct prediction *p)
{
    double sum_flops = 0;

    for (uint32_t op = 0; op < p->model.model.n_operators; op++) {
        sum_flops += p->model.model.operators[op].flops;
    }
    return 3 * sum_flops * p->micro_batches;
}

static int predict(struct prediction *p, struct cst_err *err)
{
    struct cst_replay_result result;
    int rc = lay_out(p, err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = play(p, p->n_steps, &result, err);
    if (rc == CST_OK) {
        say_memory(p);
        say_run(p, &result);
        printf("pool_bytes %" PRIu64 "\n", p->pool_bytes);
        printf("flops %.9g\n", flops_of_step(p));
        printf("step_bytes_up %" PRIu64 "\n", result.bytes_up);
        printf("step_bytes_down %" PRIu64 "\n", result.bytes_down);
        printf("step_s %.9g\n", (double)result.step_ns * 1e-9);
    }
    cst_layout_close(&p->layout);
    return rc;
}

/* Find the option's value in @names. False if it is not there. */
static bool read_name(const char *const *names, uint32_t *out)
{
    *out = cst_name_find(names, optarg);
    return names[*out] != NULL;
}

static bool read_options(struct prediction *p, int argc, char **argv)
{
    static const struct option options[] = {
        {"pool", 1, NULL, 'p'},          {"chunk", 1, NULL, 'c'},
        {"steps", 1, NULL, 's'},         {"micro-batches", 1, NULL, 'm'},
        {"flops", 1, NULL, 'f'},         {"job", 1, NULL, 'j'},
        {"optimizer", 1, NULL, 'O'},     {"moments", 1, NULL, 'M'},
        {"overlap", 1, NULL, 'o'},       {"grad-over-weight", 0, NULL, 'g'},
        {"device-update", 1, NULL, 'u'}, {"device-states", 1, NULL, 'd'},
        {"interleave", 1, NULL, 'k'},    {NULL, 0, NULL, 0}};
    bool known = true;
    int option;

    while (known && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'p':
            p->pool = optarg;
            break;
        case 'c':
            p->chunk_elems = strtoull(optarg, NULL, 10);
            break;
        case 's':
            p->n_steps = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            p->micro_batches = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'f':
            p->flops = strtod(optarg, NULL);
            break;
        case 'j':
            p->job_path = optarg;
            break;
        case 'O':
            known = read_name(cst_optimizer_names, &p->optimizer);
            break;
        case 'M':
            known = read_name(cst_moments_names, &p->moments);
            break;
        case 'o':
            known = read_name(cst_overlap_names, &p->overlap);
            break;
        case 'u':
            p->device_update_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'd':
            p->device_states = strtoull(optarg, NULL, 10);
            break;
        case 'k':
            p->interleave = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'g':
            p->grad_over_weight = true;
            break;
        default:
            return false;
        }
    }
    return known && optind + 2 == argc && p->pool != NULL;
}

/* The workers compute on the processor: set its flops. */
static void set_flops(struct prediction *p)
{
    for (uint32_t i = 0; i < p->rates.n_devices && p->flops > 0; i++) {
        if (strcmp(p->rates.devices[i].name, "host") == 0) {
            p->rates.devices[i].flops = p->flops;
        }
    }
}

static int read_all(struct prediction *p, char **paths, struct cst_err *err)
{
    int rc = cli_model_read(&p->model, paths[0], err);

    if (rc != CST_OK) {
        return rc;
    }
    rc = cst_rates_read(&p->rates, paths[1], err);
    if (rc == CST_OK && p->job_path != NULL) {
        p->job = json_load_file(p->job_path, 0, NULL);
        rc = p->job != NULL ? CST_OK : cst_err_set(err, CST_EINVAL, "%s is no JSON", p->job_path);
    }
    if (rc != CST_OK) {
        cli_model_close(&p->model);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct prediction p = {.n_steps = 3, .micro_batches = 1};
    struct cst_err err = {0};
    int rc;

    if (!read_options(&p, argc, argv)) {
        (void)fprintf(stderr,
                      "usage: predict MODEL.json RATES.json --pool BYTES|P%%|min --chunk ELEMS "
                      "--steps N [--micro-batches N] [--optimizer NAME] [--moments FORMAT] "
                      "[--overlap WHEN] [--grad-over-weight] [--device-update BYTES --interleave K "
                      "[--device-states BYTES]] [--flops F] [--job JOB.json]\n");
        return 2;
    }
    rc = read_all(&p, argv + optind, &err);
    if (rc == CST_OK) {
        set_flops(&p);
        rc = predict(&p, &err);
        json_decref(p.job);
        cli_model_close(&p.model);
    }
    if (rc != CST_OK) {
        (void)fprintf(stderr, "predict: %s\n", err.text);
    }
    return rc != CST_OK ? 1 : p.differs ? 3 : 0;
}
