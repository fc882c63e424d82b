/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of mixtures and adapters as whole models on the local store: results do not depend on the
 * number of ranks, gradients are slopes of the loss, and a frozen base costs only its weights. */
#include "client/gpt/compute_device.h"
#include "client/gpt/host_moe_inside.h"
#include "client/gpt/model.h"
#include "client/gpt/pass.h"
#include "client/gpt/run.h"
#include "client/gpt/train.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE                                                                                       \
    "--store local --layers 2 --heads 2 --width 32 --context 24 --warmup 3 --quiet --data x "      \
    "--threads 1 "

#define STEP 0.0005 /* length of a move of a tensor's weights */

/* Options with the test's text. Gradients and losses go to files named after @slot. */
static struct gpt_options options_of(const char *more, unsigned slot)
{
    struct gpt_options o = test_text_options(BASE, more);
    char file[32];

    (void)snprintf(file, sizeof file, "grads%u", slot);
    o.dump_grads = test_path(2 * slot + 1, file);
    (void)snprintf(file, sizeof file, "losses%u", slot);
    o.loss_file = test_path(2 * slot + 2, file);
    return o;
}

static void run(const struct gpt_options *o)
{
    struct cst_err err = {0};

    ck_assert_msg(gpt_run(o, &err) == 0, "%s", err.text);
}

/* The gradients of step 1 of each tensor, those of @b multiplied by @scale, differ by at most
 * @limit of their norm (L2). */
static void compare_grads(const struct gpt_options *a, const struct gpt_options *b, double scale,
                          double limit)
{
    struct gpt_model model;
    struct cst_err err;
    size_t n, m, at = 0;
    uint16_t *x = test_read(a->dump_grads, &n), *y = test_read(b->dump_grads, &m);

    ck_assert_int_eq(gpt_model_init(&model, a, &err), 0);
    ck_assert_uint_eq(n, m);
    ck_assert_uint_eq(n, model.n_params * sizeof *x);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        double off = 0, all = 0;

        for (uint64_t i = 0; i < model.tensors[t].n_elems; i++, at++) {
            const double g = (double)cst_bf16_to_fp32(x[at]);
            const double h = scale * (double)cst_bf16_to_fp32(y[at]);

            off += (g - h) * (g - h);
            all += g * g;
        }
        ck_assert_msg(off <= limit * limit * all, "%s: gradient off by %.2e of its norm",
                      model.tensors[t].name, sqrt(off / all));
    }
    gpt_model_close(&model);
    free(x);
    free(y);
}

static void compare_losses(const struct gpt_options *a, const struct gpt_options *b, double limit)
{
    FILE *f = fopen(a->loss_file, "r"), *g = fopen(b->loss_file, "r");
    double x, y;

    ck_assert(f != NULL && g != NULL);
    for (uint64_t step = 0; step < a->steps; step++) {
        ck_assert_int_eq(fscanf(f, "%la", &x), 1);
        ck_assert_int_eq(fscanf(g, "%la", &y), 1);
        ck_assert_msg(fabs(x - y) <= limit, "step %llu: losses %.6f and %.6f",
                      (unsigned long long)step, x, y);
    }
    (void)fclose(f);
    (void)fclose(g);
}

/* -- a mixture on several ranks --------------------------------------------------------------- */

static const struct {
    const char *serial, *spread; /* options of the two runs */
    /* Factor from the summed gradients of the spread run to those of the serial run. */
    double scale;
    double grads, losses; /* limits of the differences */
} spreads[] = {
    /* 8 experts on 1, 2 and 4 ranks. Gradients are rounded to bf16, by 2^-9; those of the dense
     * part are rounded in every rank. */
    {"--experts 8 --batch 4 --matmul fp32", "--experts 8 --batch 2 --world 2 --matmul fp32", 0.5,
     5e-3, 2e-3},
    {"--experts 8 --batch 4 --matmul fp32", "--experts 8 --batch 1 --world 4 --matmul fp32", 0.25,
     5e-3, 2e-3},
    /* With more ranks than experts one rank has no expert. 3 choices of 5 experts on 2 ranks are
     * uneven. */
    {"--experts 3 --batch 4 --matmul fp32", "--experts 3 --batch 1 --world 4 --matmul fp32", 0.25,
     5e-3, 2e-3},
    {"--experts 5 --top-k 3 --batch 4 --matmul fp32",
     "--experts 5 --top-k 3 --batch 2 --world 2 --matmul fp32", 0.5, 5e-3, 2e-3},
    {"--experts 8 --top-k 1 --batch 4 --matmul fp32",
     "--experts 8 --top-k 1 --batch 2 --world 2 --matmul fp32", 0.5, 5e-3, 2e-3},
    /* The balance loss covers the tokens of all ranks together. A large weight would make an error
     * visible. */
    {"--experts 4 --balance 5 --batch 4 --matmul fp32",
     "--experts 4 --balance 5 --batch 2 --world 2 --matmul fp32", 0.5, 5e-3, 2e-3},
    /* The ranks have micro-batches. */
    {"--experts 8 --balance 0 --batch 4 --matmul fp32",
     "--experts 8 --balance 0 --batch 2 --world 2 --micro-batches 2 --matmul fp32", 0.25, 5e-3,
     2e-3},
};

/* The loss of a mixture, and the gradient of every tensor, do not depend on the distribution of
 * experts and batch over ranks. */
START_TEST(ranks_do_not_change_a_mixture)
{
    char line[256];
    struct gpt_options serial, spread;

    (void)snprintf(line, sizeof line, "%s --steps 6", spreads[_i].serial);
    serial = options_of(line, 0);
    (void)snprintf(line, sizeof line, "%s --steps 6", spreads[_i].spread);
    spread = options_of(line, 1);
    run(&serial);
    run(&spread);
    compare_losses(&serial, &spread, spreads[_i].losses);
    compare_grads(&serial, &spread, spreads[_i].scale, spreads[_i].grads);
}
END_TEST

/* With bf16 products too, whose operands are rounded by 2^-9, losses and gradients do not depend on
 * the distribution over ranks. */
START_TEST(ranks_do_not_change_a_mixture_in_bf16)
{
    struct gpt_options serial, spread;

    if (gpt_device_bf16(&(struct gpt_options){.job.device = "host"})) {
        serial = options_of("--experts 8 --batch 4 --matmul bf16 --steps 6", 0);
        spread = options_of("--experts 8 --batch 1 --world 4 --matmul bf16 --steps 6", 1);
        run(&serial);
        run(&spread);
        compare_losses(&serial, &spread, 5e-3);
        compare_grads(&serial, &spread, 0.25, 1.5e-2);
    }
}
END_TEST

/* A mixture learns: the loss falls from that of guessing, ln 256, to less than half. A sample can
 * be generated without other ranks. */
START_TEST(mixtures_learn)
{
    struct gpt_options o = options_of("--experts 4 --batch 4 --world 2 --steps 40 --lr 5e-3 "
                                      "--matmul fp32 --sample 20",
                                      0);
    double loss = 0;
    FILE *f;

    run(&o);
    f = fopen(o.loss_file, "r");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 40; i++) {
        ck_assert_int_eq(fscanf(f, "%la", &loss), 1);
    }
    (void)fclose(f);
    ck_assert_double_lt(loss, 2.8);
}
END_TEST

/* -- a model that the test drives operator by operator ---------------------------------------- */

/* One rank that the test drives directly. */
struct rig {
    struct gpt_options options;
    struct gpt_model model;
    struct gpt_device *device;
    struct gpt_store *store;
    struct gpt_pass *pass;
};

static void rig_open(struct rig *r, const char *more)
{
    struct cst_err err = {0};
    uint8_t text[TEST_TEXT_BYTES];
    uint64_t step;
    size_t n;

    r->options = options_of(more, 0);
    ck_assert_int_eq(gpt_model_init(&r->model, &r->options, &err), 0);
    ck_assert_int_eq(gpt_device_open(&r->device, &r->options, &err), 0);
    ck_assert_int_eq(r->device->ops->open_states(r->device, &r->model, &err), 0);
    ck_assert_int_eq(r->device->ops->open_store(r->device, 0, &r->store, &err), 0);
    ck_assert_int_eq(r->device->ops->open_pass(r->device, &r->model, &r->pass, &err), 0);
    for (uint32_t t = 0; t < r->model.n_tensors; t++) {
        float *x = malloc(r->model.tensors[t].n_elems * sizeof *x);

        ck_assert_ptr_nonnull(x);
        gpt_model_initial(&r->model, 3, t, 0, r->model.tensors[t].n_elems, 1, x);
        if (strstr(r->model.tensors[t].name, "router.w") != NULL ||
            r->model.tensors[t].pattern == CST_PATTERN_EXPERT) {
            for (uint64_t i = 0; i < r->model.tensors[t].n_elems; i++) {
                x[i] *=
                    /* The choices then matter, and a small move of the weights does not change
                     * them. */
                    10.0f;
            }
        }
        ck_assert_int_eq(r->store->ops->write(r->store, t, CST_STATE_MASTER, 0,
                                              r->model.tensors[t].n_elems, x, &err),
                         0);
        free(x);
    }
    ck_assert_int_eq(r->store->ops->sync(r->store, &step, &err), 0);
    test_text(text);
    n = (size_t)r->options.batch * r->options.context;
    for (size_t i = 0; i < n; i++) {
        r->pass->tokens[i] = text[i];
        r->pass->targets[i] = text[i + 1];
    }
}

static void rig_close(struct rig *r)
{
    r->pass->ops->close(r->pass);
    r->store->ops->close(r->store, true);
    r->device->ops->close(r->device);
    gpt_model_close(&r->model);
}

static double rig_loss(struct rig *r)
{
    struct cst_err err = {0};
    double loss;

    ck_assert_msg(r->pass->ops->forward(r->pass, r->store, r->options.batch, true, &err) == 0, "%s",
                  err.text);
    ck_assert_int_eq(r->pass->ops->loss(r->pass, &loss, &err), 0);
    return loss;
}

/* Do a step with this learning rate. The gradients can be read afterwards. */
static void rig_step(struct rig *r, float lr)
{
    const struct cst_hyper_params params = {.lr = lr};
    struct cst_step_result result;
    struct cst_err err = {0};

    (void)rig_loss(r);
    ck_assert_msg(r->pass->ops->backward(r->pass, r->store, &err) == 0, "%s", err.text);
    ck_assert_int_eq(r->store->ops->step(r->store, &params, &result, &err), 0);
    ck_assert(!result.skipped);
}

static void *rig_read(struct rig *r, uint32_t t, enum cst_state state)
{
    const uint64_t n = r->model.tensors[t].n_elems;
    struct cst_err err = {0};
    uint16_t *x = malloc(n * sizeof *x);

    ck_assert_ptr_nonnull(x);
    ck_assert_msg(r->store->ops->read(r->store, t, state, 0, n, x, &err) == 0, "%s", err.text);
    return x;
}

/* A hash of all routers' choices in the last forward pass. The loss jumps where a choice
 * changes. */
static uint64_t choices(const struct rig *r)
{
    const struct gpt_moe *moe = ((const struct gpt_pass_host *)(const void *)r->pass)->moe;
    const size_t n = (size_t)r->options.batch * r->options.context * r->model.top_k;
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */

    for (uint32_t l = 0; moe != NULL && l < r->model.layers; l++) {
        for (size_t i = 0; i < n; i++) {
            hash = (hash ^ moe->layers[l].choice.chosen[i]) * 0x100000001b3ull;
        }
    }
    return hash;
}

/* Loss with the weights of tensor @t moved by @sign x STEP along its gradient @g of norm @norm.
 * *along is the change of the loss that the gradient predicts for the moved weights, after their
 * rounding to bf16. */
static double moved_loss(struct rig *r, uint32_t t, const uint16_t *w, const uint16_t *g,
                         double norm, double sign, double *along)
{
    const uint64_t n = r->model.tensors[t].n_elems;
    uint16_t *moved = malloc(n * sizeof *moved);
    struct cst_err err = {0};
    double loss;

    ck_assert_ptr_nonnull(moved);
    *along = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double slope = (double)cst_bf16_to_fp32(g[i]);
        const double from = (double)cst_bf16_to_fp32(w[i]);

        moved[i] = cst_fp32_to_bf16((float)(from + sign * STEP * slope / norm));
        *along += slope * ((double)cst_bf16_to_fp32(moved[i]) - from);
    }
    ck_assert_int_eq(r->store->ops->write(r->store, t, CST_STATE_WEIGHT, 0, n, moved, &err), 0);
    loss = rig_loss(r);
    ck_assert_int_eq(r->store->ops->write(r->store, t, CST_STATE_WEIGHT, 0, n, w, &err), 0);
    free(moved);
    return loss;
}

/* After @n_steps steps of the model @more: a move of any tensor along its gradient changes the loss
 * by as much as the gradient predicts. */
static void expect_slopes(const char *more, int n_steps)
{
    struct rig r;
    uint32_t n_checked = 0, n_routers = 0;

    rig_open(&r, more);
    for (int i = 0; i < n_steps; i++) {
        rig_step(&r, 0.02f);
    }
    rig_step(&r, 0.0f);
    for (uint32_t t = 0; t < r.model.n_tensors; t++) {
        uint16_t *g, *w;
        double norm = 0, up, down, gain, loss, want;
        bool same;

        if (r.model.tensors[t].pattern == CST_PATTERN_FROZEN) {
            continue;
        }
        g = rig_read(&r, t, CST_STATE_GRAD);
        w = rig_read(&r, t, CST_STATE_WEIGHT);
        for (uint64_t i = 0; i < r.model.tensors[t].n_elems; i++) {
            norm += (double)cst_bf16_to_fp32(g[i]) * (double)cst_bf16_to_fp32(g[i]);
        }
        norm = sqrt(norm);
        (void)rig_loss(&r);
        if (norm > 2e-3) { /* With a smaller norm the loss, a float, changes too little. */
            const uint64_t chosen = choices(&r);

            gain = moved_loss(&r, t, w, g, norm, 1, &up);
            same = choices(&r) == chosen;
            loss = moved_loss(&r, t, w, g, norm, -1, &down);
            same = same && choices(&r) == chosen;
            want = up - down;
            ck_assert_msg(!same || fabs(gain - loss - want) <= 0.03 * want + 3e-7,
                          "%s: the loss changes by %.4e, not %.4e", r.model.tensors[t].name,
                          gain - loss, want);
            n_checked += same ? 1 : 0;
            n_routers += same && strstr(r.model.tensors[t].name, "router.w") != NULL ? 1 : 0;
        }
        free(g);
        free(w);
    }
    ck_assert_uint_ge(n_checked, 12);
    ck_assert(r.model.experts == 0 || n_routers > 0);
    rig_close(&r);
}

/* Gradients through router, gates and experts are slopes of the loss. */
START_TEST(gradients_of_a_mixture_are_slopes)
{
    expect_slopes(_i == 0   ? "--experts 4 --batch 2 --balance 0 --matmul fp32"
                  : _i == 1 ? "--experts 3 --top-k 1 --batch 2 --balance 0 --matmul fp32"
                            : "--experts 5 --top-k 5 --batch 2 --balance 0 --matmul fp32",
                  0);
}
END_TEST

/* A store that counts how often each expert is begun, and passes all calls on. */
struct starving {
    struct gpt_store head;
    struct gpt_store *inner;
    unsigned n_begun[4]; /* one per expert */
};

static struct starving *starving(struct gpt_store *store)
{
    return (struct starving *)(void *)store;
}

static int count_begin(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                       struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    struct starving *s = starving(store);

    (void)op;
    return s->inner->ops->op_begin(s->inner, op, direction, io, n_io, err);
}

static int pass_end(struct gpt_store *store, uint32_t op, struct cst_err *err)
{
    struct starving *s = starving(store);

    return s->inner->ops->op_end(s->inner, op, err);
}

static const struct gpt_model *counted;

static int count_expert(struct gpt_store *store, uint32_t op, enum cst_direction direction,
                        struct cst_io *io, uint32_t n_io, struct cst_err *err)
{
    if (counted->operators[op].kind == GPT_OP_EXPERT) {
        starving(store)->n_begun[counted->operators[op].expert]++;
    }
    return count_begin(store, op, direction, io, n_io, err);
}

static const struct gpt_store_ops starving_ops = {
    .name = "starving", .op_begin = count_expert, .op_end = pass_end};

/* Write weights with which the router never chooses expert 2: its input ln2 is positive on average,
 * and the expert's column is negative. */
static void starve(struct rig *r)
{
    struct cst_err err = {0};

    for (uint32_t t = 0; t < r->model.n_tensors; t++) {
        const struct gpt_tensor *tensor = &r->model.tensors[t];
        const bool bias = strstr(tensor->name, "ln2.b") != NULL;
        const bool router = strstr(tensor->name, "router.w") != NULL;
        float *x = calloc(tensor->n_elems, sizeof *x);

        ck_assert_ptr_nonnull(x);
        gpt_model_initial(&r->model, 3, t, 0, tensor->n_elems, 1, x);
        for (uint64_t i = 0; (bias || router) && i < tensor->n_elems; i++) {
            x[i] = bias ? 5.0f : i % 4 == 2 ? -1.0f : x[i];
        }
        ck_assert_int_eq(
            r->store->ops->write(r->store, t, CST_STATE_MASTER, 0, tensor->n_elems, x, &err), 0);
        free(x);
    }
}

/* An expert that no token chooses is not begun in either direction and has a zero gradient.
 * Training goes on. */
START_TEST(starved_experts_are_left_out)
{
    struct starving s = {.head.ops = &starving_ops};
    const struct cst_hyper_params params = {.lr = 1e-3f};
    struct cst_step_result result;
    struct cst_err err = {0};
    struct rig r;

    rig_open(&r, "--experts 4 --batch 2 --matmul fp32");
    starve(&r);
    s.inner = r.store;
    counted = &r.model;
    for (uint64_t step = 1; step <= 3; step++) {
        ck_assert_int_eq(r.pass->ops->forward(r.pass, &s.head, 2, true, &err), 0);
        ck_assert_int_eq(r.pass->ops->backward(r.pass, &s.head, &err), 0);
        ck_assert_int_eq(r.store->ops->step(r.store, &params, &result, &err), 0);
        ck_assert_uint_eq(result.step, step);
        ck_assert(!result.skipped);
    }
    ck_assert_uint_eq(s.n_begun[2], 0);
    ck_assert_uint_ge(s.n_begun[0] + s.n_begun[1] + s.n_begun[3], 3 * 2 * 2 * 2);
    for (uint32_t t = 0; t < r.model.n_tensors; t++) {
        if (strstr(r.model.tensors[t].name, ".e2.") != NULL) {
            uint16_t *g = rig_read(&r, t, CST_STATE_GRAD);

            for (uint64_t i = 0; i < r.model.tensors[t].n_elems; i++) {
                ck_assert_uint_eq(g[i], 0);
            }
            free(g);
        }
    }
    rig_close(&r);
}
END_TEST

/* With so many experts that most have no tokens, and some ranks have nothing to compute, no rank
 * hangs. */
START_TEST(idle_ranks_do_not_hang)
{
    struct gpt_options o = options_of("--experts 64 --top-k 1 --batch 1 --context 4 --world 4 "
                                      "--steps 5 --matmul fp32",
                                      0);

    run(&o);
}
END_TEST

/* -- adapters --------------------------------------------------------------------------------- */

/* Gradients of adapters are slopes of the loss. lora_b begins as zero, which makes the first
 * gradient of lora_a zero. Therefore the test does some steps first. */
START_TEST(gradients_of_adapters_are_slopes)
{
    expect_slopes("--lora 3 --lora-alpha 6 --batch 2 --matmul fp32", 3);
}
END_TEST

/* A new adapter adds nothing: the loss equals that of the model without adapters. */
START_TEST(fresh_adapters_change_nothing)
{
    struct rig with, without;
    double x, y;

    rig_open(&with, "--lora 4 --batch 2 --matmul fp32");
    rig_open(&without, "--batch 2 --matmul fp32");
    x = rig_loss(&with);
    y = rig_loss(&without);
    ck_assert_double_eq(x, y);
    rig_close(&with);
    rig_close(&without);
}
END_TEST

static uint64_t padded(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* A frozen parameter costs 2 bytes, for its weight, and a trained one 16. Other states of a frozen
 * tensor cannot be read, and its weights do not change in a step. */
START_TEST(frozen_base_has_no_states)
{
    struct cst_err err = {0};
    uint64_t bytes = 0;
    uint16_t *before[2], *after[2];
    uint32_t trained = 0;
    struct rig r;
    float x;

    rig_open(&r, "--lora 4 --batch 2 --matmul fp32");
    for (uint32_t t = 0; t < r.model.n_tensors; t++) {
        const bool frozen = r.model.tensors[t].pattern == CST_PATTERN_FROZEN;

        bytes += padded(r.model.tensors[t].n_elems) * (frozen ? 2 : 16);
        trained = frozen ? trained : t;
    }
    ck_assert_uint_eq(r.store->plan.arena_bytes, bytes);
    ck_assert_int_eq(r.store->ops->read(r.store, 4, CST_STATE_MASTER, 0, 1, &x, &err),
                     CST_EUNSUPPORTED);
    ck_assert_int_eq(r.store->ops->read(r.store, 4, CST_STATE_GRAD, 0, 1, &x, &err),
                     CST_EUNSUPPORTED);
    before[0] = rig_read(&r, 4, CST_STATE_WEIGHT);
    before[1] = rig_read(&r, trained, CST_STATE_WEIGHT);
    rig_step(&r, 0.1f);
    rig_step(&r, 0.1f);
    after[0] = rig_read(&r, 4, CST_STATE_WEIGHT);
    after[1] = rig_read(&r, trained, CST_STATE_WEIGHT);
    ck_assert_int_eq(memcmp(before[0], after[0], 2 * r.model.tensors[4].n_elems), 0);
    ck_assert_int_ne(memcmp(before[1], after[1], 2 * r.model.tensors[trained].n_elems), 0);
    for (int i = 0; i < 2; i++) {
        free(before[i]);
        free(after[i]);
    }
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kinds");
    TCase *tcase = suite_case(suite, "kinds", NULL, NULL);

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, ranks_do_not_change_a_mixture, 0,
                        sizeof spreads / sizeof spreads[0]);
    tcase_add_test(tcase, ranks_do_not_change_a_mixture_in_bf16);
    tcase_add_test(tcase, mixtures_learn);
    tcase_add_loop_test(tcase, gradients_of_a_mixture_are_slopes, 0, 3);
    tcase_add_test(tcase, starved_experts_are_left_out);
    tcase_add_test(tcase, idle_ranks_do_not_hang);
    tcase_add_test(tcase, gradients_of_adapters_are_slopes);
    tcase_add_test(tcase, fresh_adapters_change_nothing);
    tcase_add_test(tcase, frozen_base_has_no_states);
    return suite_run(suite);
}
