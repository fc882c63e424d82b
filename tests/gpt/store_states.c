/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the local store: optimizers, formats of moments, and delayed updates. */
#include "client/gpt/model.h"
#include "client/gpt/store.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_STEPS = 6, TENSOR = 4 };

static struct gpt_model model;

static void setup(void)
{
    const struct gpt_options o =
        test_options("--data f --layers 1 --heads 2 --width 64 --context 24");
    struct cst_err err;

    ck_assert_int_eq(gpt_model_init(&model, &o, &err), 0);
}

static void teardown(void)
{
    gpt_model_close(&model);
}

/* A store of one rank with the initial weights of a model. */
struct one {
    struct gpt_local *local;
    struct gpt_store *store;
};

static struct one open_one(struct gpt_local_config config)
{
    struct one one;
    struct cst_err err = {0};
    uint64_t step;

    config.world = config.micro_batches = config.engine_threads = 1;
    ck_assert_msg(gpt_local_open(&one.local, &model, &config, &err) == 0, "%s", err.text);
    ck_assert_int_eq(gpt_store_local_open(&one.store, one.local, 0, &err), 0);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        float *x = calloc(model.tensors[t].n_elems, sizeof *x);

        ck_assert_ptr_nonnull(x);
        gpt_model_initial(&model, 5, t, 0, model.tensors[t].n_elems, 1, x);
        ck_assert_int_eq(one.store->ops->write(one.store, t, CST_STATE_MASTER, 0,
                                               model.tensors[t].n_elems, x, &err),
                         0);
        free(x);
    }
    ck_assert_int_eq(one.store->ops->sync(one.store, &step, &err), 0);
    return one;
}

static void close_one(struct one *one)
{
    one->store->ops->close(one->store, true);
    gpt_local_close(one->local);
}

/* Run the backward pass of operator @op. Its gradients depend on @step and not on the weights. */
static void backward(struct one *one, uint32_t op, uint64_t step)
{
    struct cst_io io[GPT_MAX_OP_TENSORS];
    const struct gpt_operator *o = &model.operators[op];
    struct cst_err err;

    ck_assert_int_eq(
        one->store->ops->op_begin(one->store, op, CST_BACKWARD, io, o->n_tensors, &err), 0);
    for (uint32_t t = 0; t < o->n_tensors; t++) {
        if (!io[t].accumulate) {
            test_fill_bf16(io[t].grad, io[t].n_elems, 1000 * step + (uint64_t)o->tensors[t], 0.01f);
        }
    }
    ck_assert_int_eq(one->store->ops->op_end(one->store, op, &err), 0);
}

static void do_step(struct one *one, uint64_t step)
{
    const struct cst_hyper_params params = {.lr = 1e-2f, .weight_decay = 0.1f};
    struct cst_err err;

    for (uint32_t op = model.n_operators; op-- > 0;) {
        backward(one, op, step);
    }
    ck_assert_int_eq(one->store->ops->step(one->store, &params, NULL, &err), 0);
}

/* The weights of all tensors that operators use, one tensor after the other. */
static uint16_t *used_weights(struct one *one)
{
    uint16_t *all = calloc(model.n_params, sizeof *all);
    struct cst_io io[GPT_MAX_OP_TENSORS];
    struct cst_err err;

    ck_assert_ptr_nonnull(all);
    for (uint32_t op = 0; op < model.n_operators; op++) {
        const struct gpt_operator *o = &model.operators[op];

        ck_assert_int_eq(
            one->store->ops->op_begin(one->store, op, CST_FORWARD, io, o->n_tensors, &err), 0);
        for (uint32_t i = 0; i < o->n_tensors; i++) {
            uint64_t at = 0;

            for (int t = 0; t < o->tensors[i]; t++) {
                at += model.tensors[t].n_elems;
            }
            memcpy(all + at, io[i].weight, io[i].n_elems * sizeof *all);
        }
    }
    return all;
}

/* Read a state of one tensor. Returns the status of the read. */
static int read_tensor(struct one *one, enum cst_state state, void *out)
{
    struct cst_err err;

    return one->store->ops->read(one->store, TENSOR, state, 0, model.tensors[TENSOR].n_elems, out,
                                 &err);
}

static void *read_new(struct one *one, enum cst_state state)
{
    void *out = calloc(model.tensors[TENSOR].n_elems, sizeof(float));

    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(read_tensor(one, state, out), 0);
    return out;
}

/* With gradients that do not depend on weights, a delayed update computes the same weights as one
 * at the commit. From the first delayed step on, operators use them one step later. A read of
 * states returns the result of the last update. _i: the first delayed step. */
START_TEST(delayed_weights_are_used_a_step_later)
{
    struct one commit = open_one((struct gpt_local_config){.overlap = CST_OVERLAP_COMMIT});
    struct one delayed = open_one(
        (struct gpt_local_config){.overlap = CST_OVERLAP_DELAYED, .delay_from = (uint64_t)_i});
    uint16_t *after[N_STEPS + 1] = {used_weights(&commit)};

    for (uint64_t step = 0; step < N_STEPS; step++) {
        uint16_t *used = used_weights(&delayed), *newest[2];
        uint64_t want = step > (uint64_t)_i ? step - 1 : step;

        ck_assert_msg(memcmp(used, after[want], model.n_params * sizeof *used) == 0,
                      "step %llu does not use the weights of %llu updates",
                      (unsigned long long)step, (unsigned long long)want);
        free(used);
        do_step(&commit, step);
        do_step(&delayed, step);
        after[step + 1] = used_weights(&commit);
        ck_assert_int_ne(memcmp(after[step], after[step + 1], model.n_params * sizeof *used), 0);
        newest[0] = read_new(&commit, CST_STATE_WEIGHT);
        newest[1] = read_new(&delayed, CST_STATE_WEIGHT);
        ck_assert_int_eq(memcmp(newest[0], newest[1], 2 * model.tensors[TENSOR].n_elems), 0);
        free(newest[0]);
        free(newest[1]);
    }
    for (uint32_t i = 0; i <= N_STEPS; i++) {
        free(after[i]);
    }
    close_one(&commit);
    close_one(&delayed);
}
END_TEST

/* Written weights are used at once, together with all updates so far. */
START_TEST(written_weights_are_not_delayed)
{
    struct one one = open_one((struct gpt_local_config){.overlap = CST_OVERLAP_DELAYED});
    uint16_t *before, *after;
    struct cst_err err;
    float x = 7;

    do_step(&one, 0);
    before = used_weights(&one);
    ck_assert_int_eq(one.store->ops->write(one.store, 0, CST_STATE_MASTER, 0, 1, &x, &err), 0);
    after = used_weights(&one);
    ck_assert_uint_eq(after[0], 0x40e0);
    ck_assert_int_ne(memcmp(before + 1, after + 1, (model.n_params - 1) * sizeof *before), 0);
    free(before);
    free(after);
    close_one(&one);
}
END_TEST

/* Each optimizer gives other weights. lion and sgd have one moment only, which costs less
 * memory. */
START_TEST(optimizers_differ)
{
    float *master[CST_OPTIMIZER_COUNT] = {NULL};
    uint64_t bytes[CST_OPTIMIZER_COUNT], n = model.tensors[TENSOR].n_elems;

    for (uint32_t i = 0; i < CST_OPTIMIZER_COUNT; i++) {
        bool second = i == CST_OPTIMIZER_ADAMW || i == CST_OPTIMIZER_ADAM;
        struct one one;
        void *unused;

        if (i == CST_OPTIMIZER_MUON) {
            continue; /* The local store has none. */
        }
        one = open_one((struct gpt_local_config){.optimizer = (enum cst_optimizer)i});
        unused = calloc(n, sizeof(float));
        ck_assert_ptr_nonnull(unused);
        do_step(&one, 0);
        do_step(&one, 1);
        master[i] = read_new(&one, CST_STATE_MASTER);
        bytes[i] = one.store->plan.arena_bytes;
        ck_assert_int_eq(read_tensor(&one, CST_STATE_EXP_AVG_SQ, unused),
                         second ? 0 : CST_EUNSUPPORTED);
        free(unused);
        close_one(&one);
        for (uint32_t k = 0; k < i; k++) {
            ck_assert(k == CST_OPTIMIZER_MUON ||
                      memcmp(master[i], master[k], n * sizeof(float)) != 0);
        }
    }
    ck_assert_uint_eq(bytes[CST_OPTIMIZER_ADAM], bytes[CST_OPTIMIZER_ADAMW]);
    ck_assert_uint_ge(bytes[CST_OPTIMIZER_ADAMW] - bytes[CST_OPTIMIZER_LION], 4 * model.n_params);
    ck_assert_uint_eq(bytes[CST_OPTIMIZER_SGD], bytes[CST_OPTIMIZER_LION]);
    for (uint32_t i = 0; i < CST_OPTIMIZER_COUNT; i++) {
        free(master[i]);
    }
}
END_TEST

/* @b differs from @a by less than a tenth, and is not equal to it. */
static void assert_near(const float *a, const float *b, uint64_t n)
{
    double apart = 0, size = 0;

    for (uint64_t i = 0; i < n; i++) {
        apart += fabs((double)a[i] - (double)b[i]);
        size += fabs((double)a[i]);
    }
    ck_assert_double_gt(apart, 0);
    ck_assert_double_lt(apart, 0.1 * size);
}

/* Moments in a short format are near fp32 moments, with either rounding, and are read as fp32.
 * Writing master weights clears them. _i: format and rounding. */
START_TEST(formats_are_near)
{
    static const enum cst_state states[] = {CST_STATE_EXP_AVG, CST_STATE_EXP_AVG_SQ};
    struct one exact = open_one((struct gpt_local_config){.moments = CST_MOMENTS_FP32});
    struct one rough = open_one(
        (struct gpt_local_config){.moments = _i / 2 == 0 ? CST_MOMENTS_BF16 : CST_MOMENTS_MX8,
                                  .rounding = (enum cst_rounding)(_i % 2),
                                  .seed = 3});
    const uint64_t n = model.tensors[TENSOR].n_elems;
    float *want[2], *got;
    struct cst_err err;

    do_step(&exact, 0);
    do_step(&rough, 0);
    ck_assert_uint_lt(rough.store->plan.arena_bytes, exact.store->plan.arena_bytes);
    for (unsigned k = 0; k < 2; k++) {
        want[k] = read_new(&exact, states[k]);
        got = read_new(&rough, states[k]);
        assert_near(want[k], got, n);
        free(got);
    }
    ck_assert_int_eq(
        rough.store->ops->write(rough.store, TENSOR, CST_STATE_MASTER, 0, n, want[0], &err), 0);
    for (unsigned k = 0; k < 2; k++) {
        got = read_new(&rough, states[k]);
        for (uint64_t i = 0; i < n; i++) {
            ck_assert_float_eq(got[i], 0);
        }
        free(got);
        free(want[k]);
    }
    close_one(&exact);
    close_one(&rough);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_states");
    TCase *tcase = suite_case(suite, "store_states", setup, teardown);

    tcase_add_loop_test(tcase, delayed_weights_are_used_a_step_later, 0, 4);
    tcase_add_test(tcase, written_weights_are_not_delayed);
    tcase_add_test(tcase, optimizers_differ);
    tcase_add_loop_test(tcase, formats_are_near, 0, 4);
    return suite_run(suite);
}
