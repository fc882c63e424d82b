/* SPDX-License-Identifier: Apache-2.0 */
/* mixed_rank JOB RANK WORLD STEPS [NAME=VALUE...]: a rank of a small job that has bf16, fp32 and
 * frozen tensors, until the job has made STEPS steps. The gradients follow from the weights, frozen
 * ones too, and from the step and the rank. The daemon may die meanwhile.
 *
 *   optimizer=, masters=, moments=, unused=   as in cistern-gpt
 *   first=N, all=N   the node's ranks are ranks N to N + WORLD - 1 of so many on several nodes
 *   copies=N, block=N   nodes with the states of each chunk; ranks whose gradients are added first
 *   leave=1          many tensors have a gradient of some ranks alone, or of none, or discard it
 *   keep=N           rank N of the whole job does not discard what the others do
 *   disk=DIR,...     directories for states; durable=1: the job is durable
 *   resume=DIR       the job, which is new, goes on from the checkpoint
 *   micro=N          micro-batches of a step
 *   clip=X           largest norm of all gradients together; 0, the default: no clipping
 *   scale=X          factor on the gradients after their sum; 0, the default: 1
 *   groups=N         parameter groups (0): one has the factors 1, those of two change with the step
 *   gate=PATH        a step, N from 0, begins when there is no file PATH.N
 *   nan=N            step N, from 0, has gradients that are not numbers, and is skipped
 *   kinds=all        as said
 *   kinds=bf16       all tensors are bf16 and trained
 *   kinds=fp32       none is frozen
 *   kinds=frozen     none is fp32
 *   model=linear     the model is that of tests/python/torch/linear_rank.py, whose ranks can be
 *                    others of this job
 */
#include "cistern/checkpoint.h"
#include "cistern/cistern.h"
#include "kernels/math/cast.h"
#include "proto/optimizers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_IO = 3 };

struct tensor {
    const char *name;
    int64_t rows, columns;
    bool fp32, frozen;
};

/* The tensors of an operator; the last numbers can be -1. */
struct operator
{
    const char *name;
    int tensors[MOST_IO];
};

struct model {
    const struct tensor *tensors;
    const struct operator* ops;
    int n_tensors, n_ops;
    bool finds_matrices; /* The job finds the matrices of Muon itself. */
};

static const struct tensor mixed_tensors[] = {
    {"embedding", 60, 50, false, false}, {"w0", 96, 64, false, false},
    {"norm", 1, 3000, true, false},      {"table", 70, 64, false, true},
    {"w1", 64, 48, true, false},         {"scale", 1, 2000, true, true},
    {"w2", 128, 80, false, false},       {"bias", 1, 1000, true, false}};
static const struct operator mixed_ops[] = {
    {"a", {0, 1, 2}}, {"b", {3, 4, -1}}, {"c", {5, 6, 7}}, {"d", {0, 7, 3}}};

/* What cistern.torch declares for tests/python/torch/linear_rank.py. */
static const struct tensor linear_tensors[] = {{"0.weight", 48, 40, false, false},
                                               {"0.bias", 1, 48, false, false},
                                               {"1.weight", 40, 48, false, false},
                                               {"1.bias", 1, 40, false, false}};
static const struct operator linear_ops[] = {{"0", {0, 1, -1}}, {"1", {2, 3, -1}}};

static const struct model mixed = {.tensors = mixed_tensors,
                                   .ops = mixed_ops,
                                   .n_tensors = 8,
                                   .n_ops = 4},
                          linear = {.tensors = linear_tensors,
                                    .ops = linear_ops,
                                    .n_tensors = 4,
                                    .n_ops = 2,
                                    .finds_matrices = true};
static const struct model *model = &mixed;

static struct {
    unsigned rank, world; /* on this node */
    unsigned first, all;  /* of the whole job */
    bool leaves;
    int keeps; /* -1: no rank */
    uint64_t steps, nan_step;
    bool no_fp32, no_frozen;
    uint32_t micro_batches;
    double clip_norm, grad_scale;
    uint32_t n_groups;
    const char *resume, *gate;
} options = {.keeps = -1, .nan_step = UINT64_MAX, .micro_batches = 1};

static bool is_fp32(int t)
{
    return model->tensors[t].fp32 && !options.no_fp32;
}

static void must(int rc, const struct cst_err *err, const char *what)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "rank %u: %s: %s\n", options.rank, what, err->text);
        exit(1);
    }
}

/* -- the model -------------------------------------------------------------------------------- */

static int n_io(int op)
{
    int n = 0;

    while (n < MOST_IO && model->ops[op].tensors[n] >= 0) {
        n++;
    }
    return n;
}

static void declare(struct cst_job *job)
{
    for (int t = 0; t < model->n_tensors; t++) {
        const int64_t shape[] = {model->tensors[t].rows, model->tensors[t].columns};
        const bool is_matrix = model->tensors[t].rows > 1;
        const struct cst_tensor_spec spec = {
            .name = model->tensors[t].name,
            .dtype = is_fp32(t) ? CST_FP32 : CST_BF16,
            .n_dims = is_matrix ? 2 : 1,
            .shape = is_matrix ? shape : shape + 1,
            .update = is_matrix && !model->finds_matrices ? CST_TENSOR_UPDATE_MUON
                                                          : CST_TENSOR_UPDATE_AUTO,
            .pattern = model->tensors[t].frozen && !options.no_frozen ? CST_PATTERN_FROZEN
                                                                      : CST_PATTERN_SHARD,
            .param_group = options.n_groups == 2 ? (uint32_t)t % 2 : 0,
            .lr_scale = 1.0f,
            .decay_scale = 1.0f};

        must(cst_tensor_as(job, &spec) == t ? CST_OK : CST_EINVAL, cst_job_error(job), "a tensor");
    }
    for (int op = 0; op < model->n_ops; op++) {
        must(cst_operator(job, model->ops[op].name, model->ops[op].tensors, (uint32_t)n_io(op)) ==
                     op
                 ? CST_OK
                 : CST_EINVAL,
             cst_job_error(job), "an operator");
    }
}

static void write_initial(struct cst_job *job)
{
    struct cst_err err = {0};

    for (int t = 0; t < model->n_tensors; t++) {
        const uint64_t n = (uint64_t)(model->tensors[t].rows * model->tensors[t].columns);
        float *values = malloc(n * sizeof *values);

        for (uint64_t i = 0; i < n && values != NULL; i++) {
            values[i] = (float)((i * 7 + (uint64_t)t * 31) % 1021) / 1024.0f - 0.5f;
            if (model == &linear) { /* PyTorch has bf16 weights. */
                values[i] = cst_bf16_to_fp32(cst_fp32_to_bf16(values[i]));
            }
        }
        must(values != NULL ? cst_tensor_write(job, t, CST_STATE_MASTER, 0, n, values, &err)
                            : cst_err_set(&err, CST_ENOMEM, "no memory"),
             &err, "initial weights");
        free(values);
    }
}

/* -- steps ------------------------------------------------------------------------------------ */

static float weight_of(const struct cst_io *io, int t, uint64_t i)
{
    return is_fp32(t) ? ((const float *)io->weight)[i]
                      : cst_bf16_to_fp32(((const uint16_t *)io->weight)[i]);
}

/* This rank's number in the whole job. */
static unsigned number(void)
{
    return options.first + options.rank;
}

/* True if this rank leaves @op out in the backward pass of @step. One rank alone, or none, makes
 * operator 1; all ranks or none make operator 2. */
static bool leaves_out(int op, uint64_t step)
{
    return options.leaves &&
           ((op == 1 && step % (options.all + 1) != number()) || (op == 2 && step % 2 == 1));
}

/* True if this rank has no gradient of tensor @t, which operator 0 alone uses, in @step. In some
 * steps the last rank alone has one of tensor 1, in others none has. */
static bool is_without(int t, uint64_t step)
{
    return options.leaves && ((t == 1 && step % 3 == 1 && number() != options.all - 1) ||
                              (t == 1 && step % 3 == 2) || (t == 2 && (step + number()) % 3 == 0));
}

/* True if all ranks that have a gradient of tensor @t discard it in @step. */
static bool discards(int t, uint64_t step)
{
    return options.leaves && t == 2 && step % 4 == 3 && (int)number() != options.keeps;
}

/* Write the gradients of the tensors of @op in micro-batch @micro, each of which also depends on
 * the next one's weights. */
static void write_grads(const struct cst_io *io, int op, uint64_t step, uint32_t micro)
{
    const int n = n_io(op);

    for (int k = 0; k < n; k++) {
        const int t = model->ops[op].tensors[k], other = model->ops[op].tensors[(k + 1) % n];
        const struct cst_io *next = &io[(k + 1) % n];

        for (uint64_t i = 0; io[k].grad != NULL && i < io[k].n_elems; i++) {
            const uint32_t noise = (uint32_t)i * 2654435761u + number() * 97 + (uint32_t)step * 31 +
                                   micro * 7919 + (uint32_t)op;
            float g = weight_of(&io[k], t, i) * 0.25f +
                      weight_of(next, other, i % next->n_elems) * 0.125f +
                      (float)(noise >> 9 & 0x7fff) / 32768.0f - 0.5f;

            g = step == options.nan_step ? NAN : is_without(t, step) ? 0.0f : g;
            if (is_fp32(t)) {
                ((float *)io[k].grad)[i] = g + (io[k].accumulate ? ((float *)io[k].grad)[i] : 0);
            } else {
                uint16_t *grad = &((uint16_t *)io[k].grad)[i];

                *grad = cst_fp32_to_bf16(g + (io[k].accumulate ? cst_bf16_to_fp32(*grad) : 0));
            }
        }
    }
}

/* Say of which tensors of operator 0 this rank has no gradient in @step, which it has written. */
static int say_without(struct cst_job *job, uint64_t step, struct cst_err *err)
{
    int rc = CST_OK;

    for (int t = 1; t <= 2 && rc == CST_OK; t++) {
        if (is_without(t, step) || discards(t, step)) {
            rc = cst_no_gradient(job, t, !is_without(t, step), err);
        }
    }
    return rc;
}

/* Make the passes of micro-batch @micro of step @step. */
static int make_passes(struct cst_job *job, uint64_t step, uint32_t micro, struct cst_err *err)
{
    int rc = CST_OK;

    for (int i = 0; i < 2 * model->n_ops && rc == CST_OK; i++) {
        const int op = i < model->n_ops ? i : 2 * model->n_ops - 1 - i;
        struct cst_io io[MOST_IO];

        if (i >= model->n_ops && leaves_out(op, step)) {
            continue;
        }
        rc = cst_op_begin(job, op, i < model->n_ops ? CST_FORWARD : CST_BACKWARD, io,
                          (uint32_t)n_io(op), err);
        if (rc == CST_OK && i >= model->n_ops) {
            write_grads(io, op, step, micro);
        }
        rc = rc == CST_OK ? cst_op_end(job, op, err) : rc;
    }
    return rc;
}

/* Make step @step. CST_EPEERDIED, CST_ESTALE: it is void. */
static int make_step(struct cst_job *job, uint64_t step, struct cst_err *err)
{
    const struct cst_hyper_params params = {.lr = 0.01,
                                            .weight_decay = 0.1,
                                            .clip_norm = options.clip_norm,
                                            .grad_scale = options.grad_scale};
    const struct cst_param_group groups[] = {
        {1, options.n_groups == 2 ? 1.0 / (double)(step + 1) : 1}, {0.5, 0}};
    int rc = cst_param_groups(job, groups, options.n_groups, err);

    rc = rc == CST_OK ? make_passes(job, step, 0, err) : rc;

    for (uint32_t micro = 1; micro < options.micro_batches && rc == CST_OK; micro++) {
        rc = cst_accumulate(job, err);
        rc = rc == CST_OK ? make_passes(job, step, micro, err) : rc;
    }
    rc = rc == CST_OK ? say_without(job, step, err) : rc;
    return rc == CST_OK ? cst_step(job, &params, NULL, err) : rc;
}

static void wait_at_gate(uint64_t step)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s.%" PRIu64, options.gate, step);
    while (options.gate != NULL && access(path, F_OK) == 0) {
        (void)usleep(1000);
    }
}

static bool is_void(int rc)
{
    return rc == CST_EPEERDIED || rc == CST_ESTALE;
}

static void train(struct cst_job *job)
{
    struct cst_err err = {0};
    uint64_t step = cst_job_steps(job);
    bool synced = false;

    while (step < options.steps) {
        int rc = synced ? CST_OK : cst_sync(job, &step, &err);

        synced = rc == CST_OK;
        wait_at_gate(step);
        rc = synced && step < options.steps ? make_step(job, step, &err) : rc;
        must(is_void(rc) ? CST_OK : rc, &err, "a step");
        synced = synced && rc == CST_OK;
        step += synced;
    }
}

/* -- main ------------------------------------------------------------------------------------- */

static uint32_t number_of(const char *const *names, const char *name)
{
    const uint32_t i = cst_name_find(names, name);

    if (names[i] == NULL) {
        (void)fprintf(stderr, "mixed_rank: '%s' is unknown\n", name);
        exit(2);
    }
    return i;
}

static void take_option(struct cst_job_spec *spec, const char *text)
{
    const char *value = strchr(text, '=') != NULL ? strchr(text, '=') + 1 : "";
    const size_t n = (size_t)(value - text);

#define IS(name) (n == sizeof(name "=") - 1 && strncmp(text, name "=", n) == 0)
    if (IS("optimizer")) {
        spec->states.optimizer = (enum cst_optimizer)number_of(cst_optimizer_names, value);
    } else if (IS("masters")) {
        spec->states.masters = (enum cst_masters)number_of(cst_masters_names, value);
    } else if (IS("moments")) {
        spec->states.moments = (enum cst_moments)number_of(cst_moments_names, value);
    } else if (IS("unused")) {
        spec->updates.unused = (enum cst_unused)number_of(cst_unused_names, value);
    } else if (IS("first")) {
        spec->nodes.first_rank = options.first = (unsigned)atoi(value);
    } else if (IS("all")) {
        spec->nodes.all_ranks = options.all = (unsigned)atoi(value);
    } else if (IS("copies")) {
        spec->nodes.copies = (uint32_t)atoi(value);
    } else if (IS("block")) {
        spec->updates.block_ranks = (uint32_t)atoi(value);
    } else if (IS("leave")) {
        options.leaves = atoi(value) != 0;
    } else if (IS("keep")) {
        options.keeps = atoi(value);
    } else if (IS("disk")) {
        spec->states.disk = value;
    } else if (IS("durable")) {
        spec->states.durable = atoi(value) != 0;
    } else if (IS("resume")) {
        options.resume = value;
    } else if (IS("gate")) {
        options.gate = value;
    } else if (IS("micro")) {
        spec->updates.micro_batches = options.micro_batches = (uint32_t)atoi(value);
    } else if (IS("clip")) {
        options.clip_norm = atof(value);
    } else if (IS("scale")) {
        options.grad_scale = atof(value);
    } else if (IS("groups")) {
        options.n_groups = (uint32_t)atoi(value);
    } else if (IS("nan")) {
        options.nan_step = strtoull(value, NULL, 10);
    } else if (IS("model")) {
        model = strcmp(value, "linear") == 0 ? &linear : &mixed;
    } else if (IS("kinds")) {
        options.no_fp32 = strcmp(value, "fp32") != 0 && strcmp(value, "all") != 0;
        options.no_frozen = strcmp(value, "frozen") != 0 && strcmp(value, "all") != 0;
    } else {
        (void)fprintf(stderr, "mixed_rank: '%s' is unknown\n", text);
        exit(2);
    }
#undef IS
}

int main(int argc, char **argv)
{
    struct cst_job_spec spec = {.planning.chunk_elems = 12288, .limits.timeout_ms = 60000};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};

    if (argc < 5) {
        (void)fprintf(stderr, "usage: mixed_rank JOB RANK WORLD STEPS [NAME=VALUE...]\n");
        return 2;
    }
    spec.name = argv[1];
    spec.rank = options.rank = (unsigned)atoi(argv[2]);
    spec.world = options.world = options.all = (unsigned)atoi(argv[3]);
    options.steps = strtoull(argv[4], NULL, 10);
    for (int i = 5; i < argc; i++) {
        take_option(&spec, argv[i]);
    }
    must(cst_connect(&client, getenv("CISTERN_SOCKET"), &err), &err, "connecting");
    must(cst_job_open(&job, client, &spec, &err), &err, "opening the job");
    declare(job);
    must(cst_commit(job, NULL, &err), &err, "the commit");
    if (options.rank == 0 && !cst_job_initialised(job)) {
        if (options.resume != NULL) {
            must(cst_load(job, options.resume, NULL, &err), &err, "loading");
        } else {
            write_initial(job);
        }
    }
    train(job);
    must(cst_job_leave(job, &err), &err, "leaving");
    cst_disconnect(client);
    return 0;
}
