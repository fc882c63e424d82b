/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the local store: the effect of a step on the states, and that neither the number of
 * threads nor the order of ranks changes any bit. */
#include "client/gpt/model.h"
#include "tests/lib/adamw.h"
#include "client/gpt/store.h"
#include "kernels/math/kernels.h"
#include "offload/base/clip.h"
#include "tests/gpt/support.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLD 3

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

static const struct cst_hyper_params params = {
    .lr = 1e-2f,
    .beta1 = 0.9f,
    .beta2 = 0.95f,
    .weight_decay = 0.1f,
    .clip_norm = 1.0f,
    .grad_scale = 0.5f,
};

/* The gradient of @tensor that @rank hands in at @step. */
static void fill_gradient(uint16_t *out, uint32_t tensor, uint32_t rank, uint64_t step)
{
    test_fill_bf16(out, model.tensors[tensor].n_elems, 1000 * step + 100 * rank + tensor, 0.01f);
}

/* The thread of one rank. */
struct rank {
    struct gpt_local *local;
    uint32_t number;
    uint64_t n_steps;
    struct cst_hyper_params params;
    uint64_t poison_step; /* step in which the gradients contain a NaN; 0: never */
    int rc;               /* status of the last call */
    struct cst_step_result result;
    struct cst_err err;
    pthread_t thread;
};

static int backward_all(struct gpt_store *store, const struct rank *r, uint64_t step,
                        struct cst_err *err)
{
    struct cst_io io[GPT_MAX_OP_TENSORS];

    for (uint32_t i = model.n_operators; i-- > 0;) {
        const struct gpt_operator *op = &model.operators[i];
        int rc = store->ops->op_begin(store, i, CST_BACKWARD, io, op->n_tensors, err);

        if (rc != 0) {
            return rc;
        }
        for (uint32_t t = 0; t < op->n_tensors; t++) {
            if (!io[t].accumulate) {
                fill_gradient(io[t].grad, (uint32_t)op->tensors[t], r->number, step);
            }
        }
        if (step == r->poison_step) {
            ((uint16_t *)io[0].grad)[0] = 0x7fc0;
        }
        rc = store->ops->op_end(store, i, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static void write_all(struct gpt_store *store)
{
    struct cst_err err;

    for (uint32_t t = 0; t < model.n_tensors; t++) {
        float *x = calloc(model.tensors[t].n_elems, sizeof *x);

        ck_assert_ptr_nonnull(x);
        gpt_model_initial(&model, 5, t, 0, model.tensors[t].n_elems, 1, x);
        ck_assert_int_eq(
            store->ops->write(store, t, CST_STATE_MASTER, 0, model.tensors[t].n_elems, x, &err), 0);
        free(x);
    }
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct gpt_store *store;
    uint64_t step;

    r->rc = gpt_store_local_open(&store, r->local, r->number, &r->err);
    if (r->rc != 0) {
        return NULL;
    }
    if (r->number == 0) {
        write_all(store);
    }
    r->rc = store->ops->sync(store, &step, &r->err);
    while (r->rc == 0 && step < r->n_steps) {
        r->rc = backward_all(store, r, step + 1, &r->err);
        if (r->rc == 0) {
            r->rc = store->ops->step(store, &r->params, &r->result, &r->err);
        }
        step++;
    }
    store->ops->close(store, r->rc == 0);
    return NULL;
}

static struct gpt_local *open_local(uint32_t world, uint32_t engine_threads)
{
    const struct gpt_local_config config = {
        .world = world, .micro_batches = 1, .engine_threads = engine_threads};
    struct gpt_local *local;
    struct cst_err err = {0};

    ck_assert_msg(gpt_local_open(&local, &model, &config, &err) == 0, "%s", err.text);
    return local;
}

static void run_ranks(struct rank *ranks, struct gpt_local *local, uint32_t world, uint64_t n_steps)
{
    for (uint32_t i = 0; i < world; i++) {
        ranks[i].local = local;
        ranks[i].number = i;
        ranks[i].n_steps = n_steps;
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < world; i++) {
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
    }
}

/* Read a state of all tensors, one after the other. */
static void *read_state(struct gpt_local *local, enum cst_state state)
{
    const size_t elem = state <= CST_STATE_GRAD ? 2 : 4;
    char *out = calloc(model.n_params, elem), *at = out;
    struct gpt_store *store;
    struct cst_err err;

    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(gpt_store_local_open(&store, local, 0, &err), 0);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        ck_assert_int_eq(store->ops->read(store, t, state, 0, model.tensors[t].n_elems, at, &err),
                         0);
        at += model.tensors[t].n_elems * elem;
    }
    store->ops->close(store, true);
    return out;
}

static void assert_same_states(struct gpt_local *a, struct gpt_local *b)
{
    for (int state = CST_STATE_WEIGHT; state <= CST_STATE_EXP_AVG_SQ; state++) {
        void *x = read_state(a, (enum cst_state)state), *y = read_state(b, (enum cst_state)state);

        ck_assert_int_eq(memcmp(x, y, model.n_params * (state <= CST_STATE_GRAD ? 2 : 4)), 0);
        free(x);
        free(y);
    }
}

/* The number of the team's threads does not change any bit of any state, for 1, 2 and 3 ranks. */
START_TEST(team_does_not_change_bits)
{
    const uint32_t world = (uint32_t)_i, threads[] = {1, 2, 5};
    struct gpt_local *local[3];

    for (size_t i = 0; i < 3; i++) {
        struct rank ranks[MAX_WORLD] = {{.params = params}, {.params = params}, {.params = params}};

        local[i] = open_local(world, threads[i]);
        run_ranks(ranks, local[i], world, 4);
        for (uint32_t r = 0; r < world; r++) {
            ck_assert_msg(ranks[r].rc == 0, "%s", ranks[r].err.text);
            ck_assert_uint_eq(ranks[r].result.step, 4);
        }
    }
    assert_same_states(local[0], local[1]);
    assert_same_states(local[0], local[2]);
    for (size_t i = 0; i < 3; i++) {
        gpt_local_close(local[i]);
    }
}
END_TEST

/* One step of two ranks agrees with the formulas applied to whole tensors: the sum in fp32,
 * rounded; norm and clipping; AdamW with the tensor's own decay. */
START_TEST(step_is_reduce_clip_and_adamw)
{
    struct rank ranks[2] = {{.params = params}, {.params = params}};
    struct gpt_local *local = open_local(2, 2);
    uint16_t *grads, *weights, *at_grad, *at_weight;
    float *master, *at_master;
    double squares = 0;
    struct cst_clip clip;

    run_ranks(ranks, local, 2, 1);
    ck_assert_int_eq(ranks[0].rc, 0);
    at_grad = grads = read_state(local, CST_STATE_GRAD);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const uint64_t n = model.tensors[t].n_elems;
        uint16_t *a = calloc(2 * n, sizeof *a), *b = a + n;

        ck_assert_ptr_nonnull(a);
        fill_gradient(a, t, 0, 1);
        fill_gradient(b, t, 1, 1);
        for (uint64_t i = 0; i < n; i++) {
            const float s = cst_bf16_to_fp32(a[i]) + cst_bf16_to_fp32(b[i]);

            ck_assert_uint_eq(at_grad[i], cst_fp32_to_bf16(s));
            squares += (double)cst_bf16_to_fp32(at_grad[i]) * (double)cst_bf16_to_fp32(at_grad[i]);
        }
        at_grad += n;
        free(a);
    }
    clip = cst_clip_factor(squares, 0.5f, 1.0f);
    ck_assert_double_eq_tol(ranks[0].result.grad_norm / clip.grad_norm, 1.0, 1e-12);
    ck_assert_float_eq(ranks[0].result.clip, clip.clip);
    at_grad = grads;
    at_master = master = read_state(local, CST_STATE_MASTER);
    at_weight = weights = read_state(local, CST_STATE_WEIGHT);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const uint64_t n = model.tensors[t].n_elems;
        float *p = calloc(3 * n, sizeof *p);
        uint16_t *w = calloc(n, sizeof *w);
        struct cst_update_scalars hyper;

        ck_assert(p != NULL && w != NULL);
        gpt_model_initial(&model, 5, t, 0, n, 1, p);
        cst_update_prepare(
            &hyper, (double)params.lr, (double)params.beta1, (double)params.beta2, (double)1e-8f,
            (double)params.weight_decay * (double)model.tensors[t].decay_scale, clip.factor, 1);
        adamw_update(&cst_update_ref, &hyper, n, at_grad, NULL, p, p + n, p + 2 * n, w);
        ck_assert_int_eq(memcmp(p, at_master, n * sizeof *p), 0);
        ck_assert_int_eq(memcmp(w, at_weight, n * sizeof *w), 0);
        at_grad += n;
        at_master += n;
        at_weight += n;
        free(p);
        free(w);
    }
    free(grads);
    free(master);
    free(weights);
    gpt_local_close(local);
}
END_TEST

/* A NaN gradient of one rank skips the step for all ranks. The step is counted, and the master
 * weights are unchanged. */
START_TEST(nan_skips_the_step)
{
    struct rank poisoned[2] = {{.params = params}, {.params = params, .poison_step = 1}};
    struct gpt_local *bad = open_local(2, 2);
    float *master, *want;

    run_ranks(poisoned, bad, 2, 1);
    ck_assert_int_eq(poisoned[0].rc, 0);
    ck_assert(poisoned[0].result.skipped && poisoned[1].result.skipped);
    ck_assert_uint_eq(poisoned[0].result.step, 1);
    ck_assert_uint_eq(poisoned[0].result.n_skipped, 1);
    master = read_state(bad, CST_STATE_MASTER);
    want = calloc(model.n_params, sizeof *want);
    ck_assert_ptr_nonnull(want);
    for (uint32_t t = 0, at = 0; t < model.n_tensors; t++) {
        gpt_model_initial(&model, 5, t, 0, model.tensors[t].n_elems, 1, want + at);
        at += (uint32_t)model.tensors[t].n_elems;
    }
    ck_assert_int_eq(memcmp(master, want, model.n_params * sizeof *want), 0);
    free(master);
    free(want);
    gpt_local_close(bad);
}
END_TEST

/* If ranks pass different hyper-parameters all of them get CST_EMISMATCH. */
START_TEST(different_parameters_are_refused)
{
    struct rank ranks[2] = {{.params = params}, {.params = params}};
    struct gpt_local *local = open_local(2, 1);

    ranks[1].params.lr = 2e-2f;
    run_ranks(ranks, local, 2, 1);
    ck_assert_int_eq(ranks[0].rc, CST_EMISMATCH);
    ck_assert_int_eq(ranks[1].rc, CST_EMISMATCH);
    gpt_local_close(local);
}
END_TEST

/* A rank that closes its store after a failure ends the wait of the others. */
START_TEST(nobody_waits_for_a_failed_rank)
{
    struct rank waiting = {.params = params, .n_steps = 1};
    struct gpt_local *local = open_local(2, 1);
    struct gpt_store *store;
    struct cst_err err;

    waiting.local = local;
    ck_assert_int_eq(gpt_store_local_open(&store, local, 1, &err), 0);
    ck_assert_int_eq(pthread_create(&waiting.thread, NULL, rank_main, &waiting), 0);
    store->ops->close(store, false);
    ck_assert_int_eq(pthread_join(waiting.thread, NULL), 0);
    ck_assert_int_eq(waiting.rc, CST_ECANCELLED);
    gpt_local_close(local);
}
END_TEST

/* Compute both micro-batches of a step, and try to accumulate once too often before it. */
static void micro_steps(struct gpt_store *store, struct rank *r)
{
    uint64_t step;

    r->rc = store->ops->sync(store, &step, &r->err);
    if (r->rc == 0) {
        r->rc = backward_all(store, r, 1, &r->err);
    }
    if (r->rc == 0) {
        r->rc = store->ops->accumulate(store, &r->err);
    }
    if (r->rc == 0) {
        r->rc = backward_all(store, r, 2, &r->err);
    }
    if (r->rc == 0) {
        r->rc = store->ops->accumulate(store, &r->err) == CST_EINVAL ? 0 : 1;
    }
    if (r->rc == 0) {
        r->rc = store->ops->step(store, &params, &r->result, &r->err);
    }
}

struct micro_thread {
    struct gpt_store *store;
    struct rank *rank;
    pthread_t thread;
};

static void *micro_main(void *arg)
{
    struct micro_thread *t = arg;

    micro_steps(t->store, t->rank);
    return NULL;
}

/* The sum of all gradients of tensor @t. */
static float *micro_sum(uint32_t t)
{
    const uint64_t n = model.tensors[t].n_elems;
    uint16_t *g = calloc(n, sizeof *g);
    float *sum = calloc(n, sizeof *sum);

    ck_assert(g != NULL && sum != NULL);
    for (uint32_t micro = 1; micro <= 2; micro++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            fill_gradient(g, t, rank, micro);
            for (uint64_t i = 0; i < n; i++) {
                const float x = cst_bf16_to_fp32(g[i]);

                sum[i] = micro == 1 && rank == 0 ? x : sum[i] + x;
            }
        }
    }
    free(g);
    return sum;
}

/* Two micro-batches of two ranks agree with the formula: sums in fp32, by micro-batch and then by
 * rank, without rounding in between. The gradient that is read is the sum as bf16, and AdamW uses
 * the fp32 sum. A third micro-batch is refused. */
START_TEST(micro_batches_are_summed_in_fp32)
{
    const struct gpt_local_config config = {.world = 2, .micro_batches = 2, .engine_threads = 2};
    struct gpt_store *stores[2];
    struct rank ranks[2] = {{.number = 0}, {.number = 1}};
    struct micro_thread other = {.rank = &ranks[1]};
    struct gpt_local *local;
    uint16_t *grads, *at_grad;
    float *master, *at_master;
    double squares = 0;
    struct cst_clip clip;
    struct cst_err err = {0};

    ck_assert_int_eq(gpt_local_open(&local, &model, &config, &err), 0);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_eq(gpt_store_local_open(&stores[r], local, r, &err), 0);
    }
    write_all(stores[0]);
    other.store = stores[1];
    ck_assert_int_eq(pthread_create(&other.thread, NULL, micro_main, &other), 0);
    micro_steps(stores[0], &ranks[0]);
    ck_assert_int_eq(pthread_join(other.thread, NULL), 0);
    ck_assert_int_eq(ranks[0].rc, 0);
    ck_assert_int_eq(ranks[1].rc, 0);
    stores[0]->ops->close(stores[0], true);
    at_grad = grads = read_state(local, CST_STATE_GRAD);
    at_master = master = read_state(local, CST_STATE_MASTER);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const uint64_t n = model.tensors[t].n_elems;
        float *sum = micro_sum(t);

        for (uint64_t i = 0; i < n; i++) {
            ck_assert_uint_eq(at_grad[i], cst_fp32_to_bf16(sum[i]));
            squares += (double)sum[i] * (double)sum[i];
        }
        at_grad += n;
        free(sum);
    }
    clip = cst_clip_factor(squares, 0.5f, 1.0f);
    ck_assert_double_eq_tol(ranks[0].result.grad_norm / clip.grad_norm, 1.0, 1e-12);
    for (uint32_t t = 0; t < model.n_tensors; t++) {
        const uint64_t n = model.tensors[t].n_elems;
        float *sum = micro_sum(t), *p = calloc(3 * n, sizeof *p);
        uint16_t *w = calloc(n, sizeof *w);
        struct cst_update_scalars hyper;

        ck_assert(p != NULL && w != NULL);
        gpt_model_initial(&model, 5, t, 0, n, 1, p);
        cst_update_prepare(
            &hyper, (double)params.lr, (double)params.beta1, (double)params.beta2, (double)1e-8f,
            (double)params.weight_decay * (double)model.tensors[t].decay_scale, clip.factor, 1);
        adamw_update(&cst_update_ref, &hyper, n, NULL, sum, p, p + n, p + 2 * n, w);
        ck_assert_int_eq(memcmp(p, at_master, n * sizeof *p), 0);
        at_master += n;
        free(sum);
        free(p);
        free(w);
    }
    free(grads);
    free(master);
    stores[1]->ops->close(stores[1], true);
    gpt_local_close(local);
}
END_TEST

/* In every step the head overwrites the gradient of the tied embedding, and the embedding adds to
 * it. */
START_TEST(second_use_accumulates)
{
    struct gpt_local *local = open_local(1, 1);
    struct cst_io io[GPT_MAX_OP_TENSORS];
    struct gpt_store *store;
    struct cst_err err;
    uint64_t step;

    ck_assert_int_eq(gpt_store_local_open(&store, local, 0, &err), 0);
    for (int turn = 0; turn < 2; turn++) {
        const void *grad;

        ck_assert_int_eq(store->ops->sync(store, &step, &err), 0);
        ck_assert_int_eq(
            store->ops->op_begin(store, model.n_operators - 1, CST_BACKWARD, io, 3, &err), 0);
        ck_assert(!io[2].accumulate);
        grad = io[2].grad;
        ck_assert_int_eq(store->ops->op_begin(store, 0, CST_FORWARD, io, 2, &err), 0);
        ck_assert_ptr_null(io[0].grad);
        ck_assert_int_eq(store->ops->op_begin(store, 0, CST_BACKWARD, io, 2, &err), 0);
        ck_assert(io[0].accumulate);
        ck_assert(!io[1].accumulate);
        ck_assert_ptr_eq(io[0].grad, grad);
    }
    store->ops->close(store, true);
    gpt_local_close(local);
}
END_TEST

/* Writing master weights sets the weights and clears the moments. Ranges beyond a tensor, writing
 * of gradients, and a second store of a rank are refused. */
START_TEST(states_are_read_and_written)
{
    struct rank rank = {.params = params};
    struct gpt_local *local = open_local(1, 1);
    struct gpt_store *store, *second;
    float x[3] = {1.0f, -2.5f, 1e-3f}, moments[3];
    uint16_t w[3];
    struct cst_err err;

    run_ranks(&rank, local, 1, 1);
    ck_assert_int_eq(gpt_store_local_open(&store, local, 0, &err), 0);
    ck_assert_int_eq(gpt_store_local_open(&second, local, 0, &err), CST_EBUSY);
    ck_assert_int_eq(store->ops->write(store, 4, CST_STATE_MASTER, 100, 3, x, &err), 0);
    ck_assert_int_eq(store->ops->read(store, 4, CST_STATE_WEIGHT, 100, 3, w, &err), 0);
    ck_assert_int_eq(store->ops->read(store, 4, CST_STATE_EXP_AVG, 100, 3, moments, &err), 0);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(w[i], cst_fp32_to_bf16(x[i]));
        ck_assert_float_eq(moments[i], 0.0f);
    }
    ck_assert_int_eq(store->ops->read(store, 4, CST_STATE_EXP_AVG, 103, 1, moments, &err), 0);
    ck_assert_float_ne(moments[0], 0.0f);
    ck_assert_int_eq(store->ops->write(store, 4, CST_STATE_GRAD, 0, 3, w, &err), CST_EINVAL);
    ck_assert_int_eq(
        store->ops->read(store, 4, CST_STATE_MASTER, model.tensors[4].n_elems - 1, 2, x, &err),
        CST_EINVAL);
    ck_assert_int_eq(store->ops->read(store, 4, CST_STATE_MASTER, UINT64_MAX, 2, x, &err),
                     CST_EINVAL);
    store->ops->close(store, true);
    gpt_local_close(local);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_local");
    TCase *tcase = suite_case(suite, "store_local", setup, teardown);

    tcase_add_loop_test(tcase, team_does_not_change_bits, 1, MAX_WORLD + 1);
    tcase_add_test(tcase, step_is_reduce_clip_and_adamw);
    tcase_add_test(tcase, nan_skips_the_step);
    tcase_add_test(tcase, different_parameters_are_refused);
    tcase_add_test(tcase, nobody_waits_for_a_failed_rank);
    tcase_add_test(tcase, micro_batches_are_summed_in_fp32);
    tcase_add_test(tcase, second_use_accumulates);
    tcase_add_test(tcase, states_are_read_and_written);
    return suite_run(suite);
}
