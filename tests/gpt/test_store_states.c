/* The store in the process: weights that lag behind. */
#include "client/gpt/model.h"
#include "client/gpt/store.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
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

/* A store of one rank with the weights of a new model. */
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

/* Operator @op, whose gradients are those of step @step whatever the weights. */
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

/* What operators use of all tensors, one behind the other. */
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

static void *read_new(struct one *one, enum cst_state state)
{
    void *out = calloc(model.tensors[TENSOR].n_elems, sizeof(float));
    struct cst_err err;

    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(one->store->ops->read(one->store, TENSOR, state, 0,
                                           model.tensors[TENSOR].n_elems, out, &err),
                     0);
    return out;
}

/* With gradients that do not depend on weights a delayed update makes the same weights, and
 * operators use them a step later, from the step on that it is delayed from. Who reads states sees
 * the last update. _i: that step. */
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

/* Weights that are written are used at once, with all that was updated. */
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

int main(void)
{
    Suite *suite = suite_create("store_states");
    TCase *tcase = suite_case(suite, "store_states", setup, teardown);

    tcase_add_loop_test(tcase, delayed_weights_are_used_a_step_later, 0, 4);
    tcase_add_test(tcase, written_weights_are_not_delayed);
    return suite_run(suite);
}
