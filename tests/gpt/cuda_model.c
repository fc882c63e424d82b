/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpt/cuda_model.h"

#include "client/gpt/cuda/pass_inside.h"
#include "client/gpt/data.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/rng.h"
#include "kernels/math/cast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 4

/* Results of a run. */
struct run {
    double losses[STEPS];
    uint64_t n_params;
    uint16_t *grads; /* gradients of step 1, all tensors */
    float *masters;  /* master weights at the end */
};

static const struct gpt_options base = {
    .layers = 3,
    .heads = 2,
    .width = 64,
    .context = 24,
    .batch = 4,
    .steps = STEPS,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .job = {.world = 1, .device = "cuda", .states.seed = 5, .updates.micro_batches = 1},
    .store = GPT_STORE_LOCAL,
    .matmul = GPT_MATMUL_BF16,
};

static void fill_batch(struct gpt_pass *pass, uint64_t step, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pass->tokens[i] = (uint8_t)("lease block trace "[gpt_rng_u64(7, step, i) % 18]);
    }
    memcpy(pass->targets, pass->tokens + 1, (n - 1) * sizeof *pass->tokens);
    pass->targets[n - 1] = 'x';
}

/* Read a state of all tensors, one after the other. Frozen tensors lack the state, and their part
 * of @out is unchanged. */
static int read_state(struct gpt_store *store, const struct gpt_model *model, enum cst_state state,
                      size_t elem, void *out, struct cst_err *err)
{
    char *at = out;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < model->n_tensors; i++) {
        if (model->tensors[i].pattern != CST_PATTERN_FROZEN) {
            rc = store->ops->read(store, i, state, 0, model->tensors[i].n_elems, at, err);
        }
        at += model->tensors[i].n_elems * elem;
    }
    return rc;
}

static int write_initial(struct gpt_store *store, const struct gpt_model *model, uint64_t seed,
                         struct cst_err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < model->n_tensors; i++) {
        const uint64_t n = model->tensors[i].n_elems;
        float *values = malloc(n * sizeof *values);

        if (values == NULL) {
            return cst_err_set(err, CST_ENOMEM, "out of memory");
        }
        gpt_model_initial(model, seed, i, 0, n, 1, values);
        rc = store->ops->write(store, i, CST_STATE_MASTER, 0, n, values, err);
        free(values);
    }
    return rc;
}

static int run_steps(const struct gpt_options *o, const struct gpt_model *model,
                     struct gpt_pass *pass, struct gpt_store *store, struct run *run,
                     struct cst_err *err)
{
    const size_t n = (size_t)o->batch * o->context;
    uint64_t step;
    int rc = write_initial(store, model, o->job.states.seed, err);

    if (rc == 0) {
        rc = store->ops->sync(store, &step, err);
    }
    for (int i = 0; rc == 0 && i < STEPS; i++) {
        struct cst_hyper_params params = {
            .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip_norm = 1.0f};

        fill_batch(pass, (uint64_t)i, n);
        rc = pass->ops->forward(pass, store, o->batch, true, err);
        if (rc == 0) {
            rc = pass->ops->backward(pass, store, err);
        }
        if (rc == 0) {
            rc = pass->ops->loss(pass, &run->losses[i], err);
        }
        if (rc == 0) {
            rc = store->ops->step(store, &params, NULL, err);
        }
        if (rc == 0 && i == 0) {
            rc = read_state(store, model, CST_STATE_GRAD, sizeof *run->grads, run->grads, err);
        }
    }
    return rc == 0
               ? read_state(store, model, CST_STATE_MASTER, sizeof *run->masters, run->masters, err)
               : rc;
}

/* What the operators declare is what the pass has allocated, to the byte. */
static int check_activations(const struct gpt_device *device, const struct gpt_options *o,
                             const struct gpt_model *model, const struct gpt_pass *pass,
                             struct cst_err *err)
{
    const struct gpt_cuda_pass *p = (const struct gpt_cuda_pass *)(const void *)pass;
    uint64_t bytes = 0;

    if (strcmp(device->ops->name, "cuda") != 0 || model->experts > 0) {
        return 0;
    }
    for (uint32_t i = 0; i < model->n_operators; i++) {
        bytes += gpt_device_activations(o, model, i);
    }
    return bytes == p->a.bytes
               ? 0
               : cst_err_set(err, CST_EINTERNAL, "operators declare %llu bytes, %llu are allocated",
                             (unsigned long long)bytes, (unsigned long long)p->a.bytes);
}

static int run_on(struct gpt_device *device, const struct gpt_options *o,
                  const struct gpt_model *model, struct run *run, struct cst_err *err)
{
    struct gpt_store *store;
    struct gpt_pass *pass;
    int rc = device->ops->open_states(device, model, err);

    if (rc == 0) {
        rc = device->ops->open_store(device, 0, &store, err);
    }
    if (rc != 0) {
        return rc;
    }
    rc = device->ops->open_pass(device, model, &pass, err);
    if (rc == 0) {
        rc = check_activations(device, o, model, pass, err);
        rc = rc == 0 ? run_steps(o, model, pass, store, run, err) : rc;
        pass->ops->close(pass);
    }
    store->ops->close(store, rc == 0);
    return rc;
}

/* Give lora_b values, as if the adapters had learned something. Otherwise the gradient of lora_a is
 * zero. */
static void wake_adapters(struct gpt_model *model)
{
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        if (strstr(model->tensors[i].name, "lora_b") != NULL) {
            model->tensors[i].deviation = 0.05f;
        }
    }
}

static void run_free(struct run *run)
{
    free(run->grads);
    free(run->masters);
}

/* Train as @o says. False: the run failed, and @why says why. */
static bool train(const struct gpt_options *o, struct run *run, char *why, size_t why_bytes)
{
    struct cst_err err = {0};
    struct gpt_device *device;
    struct gpt_model model;
    int rc;

    *run = (struct run){0};
    rc = gpt_model_init(&model, o, &err);
    if (rc == 0) {
        wake_adapters(&model);
        run->n_params = model.n_params;
        run->grads = calloc(model.n_params, sizeof *run->grads);
        run->masters = calloc(model.n_params, sizeof *run->masters);
        rc = run->grads == NULL || run->masters == NULL ? CST_ENOMEM
                                                        : gpt_device_open(&device, o, &err);
        if (rc == 0) {
            rc = run_on(device, o, &model, run, &err);
            device->ops->close(device);
        }
        gpt_model_close(&model);
    }
    if (rc != 0) {
        (void)snprintf(why, why_bytes, "%s", err.text);
        run_free(run);
    }
    return rc == 0;
}

static struct gpt_options with(bool plain)
{
    struct gpt_options o = base;

    o.matmul = plain ? GPT_MATMUL_PLAIN : GPT_MATMUL_AUTO;
    return o;
}

static double distance(const uint16_t *a, const uint16_t *b, uint64_t n)
{
    double off = 0, all = 1e-60;

    for (uint64_t i = 0; i < n; i++) {
        const double x = (double)cst_bf16_to_fp32(a[i]), y = (double)cst_bf16_to_fp32(b[i]);

        off += (x - y) * (x - y);
        all += y * y;
    }
    return sqrt(off / all);
}

/* Limit of the relative difference between a gradient and the host's, whose operands are bf16 too.
 * The GPU also rounds qkv, the branches and the gradients of activations: at most eight roundings
 * of 2^-8 on the way through a block. This changes the gradient of a tensor by at most 1 %. The
 * limit is 2 % for a bias, whose sum cancels, and for an adapter, whose gradient passes through a
 * product of few columns. */
static double limit_of(const struct gpt_tensor *t)
{
    return t->n_dims == 1 || strstr(t->name, "lora") != NULL ? 0.02 : 0.01;
}

/* Losses and gradients are near those of the host. */
static bool near_host_with(struct gpt_options o, char *why, size_t why_bytes)
{
    struct run gpu, host;
    struct gpt_model model;
    struct cst_err err;
    uint64_t at = 0;
    bool ok = true;

    if (!train(&o, &gpu, why, why_bytes)) {
        return false;
    }
    o.job.device = "host";
    o.threads = 1; /* More threads would wait for each other when other tests run. */
    o.matmul = GPT_MATMUL_BF16;
    if (!train(&o, &host, why, why_bytes) || gpt_model_init(&model, &o, &err) != 0) {
        run_free(&gpu);
        return false;
    }
    for (int i = 0; ok && i < STEPS; i++) {
        ok = fabs(gpu.losses[i] - host.losses[i]) <= 2e-3 * (i + 1);
        if (!ok) {
            (void)snprintf(why, why_bytes, "step %d: loss %.6f, on the host %.6f", i, gpu.losses[i],
                           host.losses[i]);
        }
    }
    for (uint32_t i = 0; ok && i < model.n_tensors; i++) {
        const struct gpt_tensor *t = &model.tensors[i];
        const double off = distance(gpu.grads + at, host.grads + at, t->n_elems);

        ok = off <= limit_of(t);
        if (!ok) {
            (void)snprintf(why, why_bytes, "gradient of %s: off by %.2e of its norm", t->name, off);
        }
        at += t->n_elems;
    }
    gpt_model_close(&model);
    run_free(&gpu);
    run_free(&host);
    return ok;
}

static bool near_host(bool plain, char *why, size_t why_bytes)
{
    return near_host_with(with(plain), why, why_bytes);
}

/* Two runs give the same bits in every loss and in all master weights. */
static bool same(const struct gpt_options *a, const struct gpt_options *b, const char *what,
                 char *why, size_t why_bytes)
{
    struct run x, y;
    bool ok;

    if (!train(a, &x, why, why_bytes)) {
        return false;
    }
    if (!train(b, &y, why, why_bytes)) {
        run_free(&x);
        return false;
    }
    ok = memcmp(x.losses, y.losses, sizeof x.losses) == 0 &&
         memcmp(x.masters, y.masters, x.n_params * sizeof *x.masters) == 0;
    if (!ok) {
        (void)snprintf(why, why_bytes, "%s: other bits", what);
    }
    run_free(&x);
    run_free(&y);
    return ok;
}

/* A repeated run gives the same bits. */
static bool repeats(bool plain, char *why, size_t why_bytes)
{
    const struct gpt_options o = with(plain);

    return same(&o, &o, "the same run again", why, why_bytes);
}

/* Recomputation does not change any bit. */
static bool recomputes(bool plain, char *why, size_t why_bytes)
{
    const struct gpt_options kept = with(plain);
    struct gpt_options again = kept;

    again.job.planning.recompute = true;
    return same(&kept, &again, "--recompute", why, why_bytes);
}

/* The gradients of the parts of a step add up to the gradients of the whole step, except for
 * rounding between the parts. */
static bool parts_add_up(bool plain, char *why, size_t why_bytes)
{
    const struct gpt_options whole = with(plain);
    struct gpt_options parts = whole;
    struct run x, y;
    double off;
    bool ok;

    parts.job.updates.micro_batches = 4;
    if (!train(&whole, &x, why, why_bytes)) {
        return false;
    }
    if (!train(&parts, &y, why, why_bytes)) {
        run_free(&x);
        return false;
    }
    off = distance(y.grads, x.grads, x.n_params);
    ok = off <= 0.01 && x.losses[0] == y.losses[0];
    if (!ok) {
        (void)snprintf(why, why_bytes, "--micro-batches 4: gradients off by %.2e, loss by %.2e",
                       off, y.losses[0] - x.losses[0]);
    }
    run_free(&x);
    run_free(&y);
    return ok;
}

/* Parts with recomputation give the same bits as parts without it. */
static bool parts_recompute(bool plain, char *why, size_t why_bytes)
{
    struct gpt_options parts = with(plain), again;

    parts.job.updates.micro_batches = 2;
    again = parts;
    again.job.planning.recompute = true;
    return same(&parts, &again, "--micro-batches 2 --recompute", why, why_bytes);
}

static struct gpt_options with_adapters(bool plain, uint32_t rank)
{
    struct gpt_options o = with(plain);

    o.layers = 2;
    o.lora = rank;
    o.lora_alpha = 2.0 * rank;
    return o;
}

/* Adapters of a frozen base are near those of the host: with a rank that cuBLASLt supports, and
 * with one that it does not. */
static bool adapters_near_host(bool plain, char *why, size_t why_bytes)
{
    return (plain || near_host_with(with_adapters(plain, 8), why, why_bytes)) &&
           near_host_with(with_adapters(plain, 3), why, why_bytes);
}

/* Recomputation does not change any bit of a model with adapters. */
static bool adapters_recompute(bool plain, char *why, size_t why_bytes)
{
    struct gpt_options parts = with_adapters(plain, 4), again;

    parts.job.updates.micro_batches = 2;
    again = parts;
    again.job.planning.recompute = true;
    return same(&parts, &again, "--lora 4 --micro-batches 2 --recompute", why, why_bytes);
}

/* A mixture is near that of the host. In the first model every row goes to all experts, so that no
 * choice depends on the last bit. In the second one every row goes to one expert, so that there is
 * something to balance. It has one layer, in which the router's input differs from the host's only
 * by a few roundings. */
static bool mixture_near_host(bool plain, char *why, size_t why_bytes)
{
    struct gpt_options o = with(plain);

    o.layers = 2;
    o.width = 32;
    o.experts = o.top_k = 3;
    if (!near_host_with(o, why, why_bytes)) {
        return false;
    }
    o.layers = 1;
    o.experts = 4;
    o.top_k = 1;
    o.balance = 1;
    return near_host_with(o, why, why_bytes);
}

/* A repeated run of a mixture makes the same choices and gives the same bits. Parts change nothing
 * before the first update except for rounding. */
static bool mixture_repeats(bool plain, char *why, size_t why_bytes)
{
    struct gpt_options o = with(plain), parts;
    struct run x, y;
    bool ok;

    o.layers = 2;
    o.width = 32;
    o.experts = 5;
    o.top_k = 2;
    o.balance = 0.01;
    parts = o;
    parts.job.updates.micro_batches = 2;
    if (!same(&o, &o, "--experts 5 again", why, why_bytes) || !train(&o, &x, why, why_bytes)) {
        return false;
    }
    if (!train(&parts, &y, why, why_bytes)) {
        run_free(&x);
        return false;
    }
    ok = x.losses[0] == y.losses[0] && distance(y.grads, x.grads, x.n_params) <= 0.01;
    if (!ok) {
        (void)snprintf(why, why_bytes, "--experts 5 --micro-batches 2: loss %.9f, not %.9f",
                       y.losses[0], x.losses[0]);
    }
    run_free(&x);
    run_free(&y);
    return ok;
}

const struct cuda_model_row *cuda_models_all(unsigned *n)
{
    static const struct cuda_model_row rows[] = {
        {"as on the host", near_host},          {"twice the same", repeats},
        {"recomputation", recomputes},          {"micro-batches", parts_add_up},
        {"both of them", parts_recompute},      {"adapters", adapters_near_host},
        {"adapters again", adapters_recompute}, {"mixture", mixture_near_host},
        {"mixture again", mixture_repeats},
    };

    *n = sizeof rows / sizeof rows[0];
    return rows;
}
