/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs with gradients in weight rows: 14 bytes of host memory per parameter, correct
 * weights at any time, and the states that can be read and written. check_train.c tests that
 * training gives the expected bits, whichever process dies. */
#include "cistern/cistern.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N_TENSORS = 4, N_ELEMS = 300000 };

struct job {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_plan plan;
    struct cst_err err;
};

#define OK(job, call) ck_assert_msg((call) == CST_OK, #call ": %s", (job)->err.text)

static float start_of(uint32_t i)
{
    return (float)((i * 2654435761u) >> 12) / (1 << 20) - 0.5f;
}

/* Open a job with one tensor and one operator per chunk, and the smallest pool. */
static void open_job(struct job *j, const char *name, bool over)
{
    struct cst_job_spec spec = {.name = name,
                                .world = 1,
                                .planning.chunk_elems = N_ELEMS,
                                .memory.pool_bytes = UINT64_C(4) * 2 * (N_ELEMS + 4096),
                                .states.grad_over_weight = over};
    const int64_t shape = N_ELEMS;
    float *start = malloc(N_ELEMS * sizeof *start);

    memset(j, 0, sizeof *j);
    ck_assert_ptr_nonnull(start);
    OK(j, cst_connect(&j->client, proc.socket, &j->err));
    OK(j, cst_job_open(&j->job, j->client, &spec, &j->err));
    for (int t = 0; t < N_TENSORS; t++) {
        char text[] = {'t', (char)('0' + t), '\0'};

        ck_assert_int_eq(cst_tensor(j->job, text, CST_BF16, 1, &shape, CST_GROUP_ALL), t);
        ck_assert_int_eq(cst_operator(j->job, text, &t, 1), t);
    }
    OK(j, cst_commit(j->job, &j->plan, &j->err));
    for (int t = 0; t < N_TENSORS; t++) {
        for (uint32_t i = 0; i < N_ELEMS; i++) {
            start[i] = start_of(i + (uint32_t)t);
        }
        OK(j, cst_tensor_write(j->job, t, CST_STATE_MASTER, 0, N_ELEMS, start, &j->err));
    }
    free(start);
    OK(j, cst_sync(j->job, NULL, &j->err));
}

static void close_job(struct job *j)
{
    OK(j, cst_job_leave(j->job, &j->err));
    cst_disconnect(j->client);
}

static uint16_t *new_weights(void)
{
    uint16_t *w = malloc((size_t)N_TENSORS * N_ELEMS * sizeof *w);

    ck_assert_ptr_nonnull(w);
    return w;
}

/* Read all weights in a forward pass. */
static void forward(struct job *j, uint16_t *weights)
{
    struct cst_io io;

    for (int t = 0; t < N_TENSORS; t++) {
        OK(j, cst_op_begin(j->job, t, CST_FORWARD, &io, 1, &j->err));
        memcpy(weights + (size_t)t * N_ELEMS, io.weight, N_ELEMS * sizeof *weights);
        OK(j, cst_op_end(j->job, t, &j->err));
    }
}

/* Run backward with gradients that are the weights' bits, as numbers. */
static void backward(struct job *j)
{
    struct cst_io io;

    for (int t = N_TENSORS; t-- > 0;) {
        OK(j, cst_op_begin(j->job, t, CST_BACKWARD, &io, 1, &j->err));
        memcpy(io.grad, io.weight, N_ELEMS * sizeof(uint16_t));
        OK(j, cst_op_end(j->job, t, &j->err));
    }
}

static void step(struct job *j)
{
    const struct cst_hyper_params params = {.lr = 0.01f, .weight_decay = 0.1f, .clip_norm = 1.0f};

    OK(j, cst_step(j->job, &params, NULL, &j->err));
}

static void read_all(struct job *j, enum cst_state state, uint16_t *out)
{
    for (int t = 0; t < N_TENSORS; t++) {
        OK(j, cst_tensor_read(j->job, t, state, 0, N_ELEMS, out + (size_t)t * N_ELEMS, &j->err));
    }
}

/* -- bytes ------------------------------------------------------------------------------------- */

/* The job has 14 bytes of host memory per parameter instead of 16, apart from rounding to pages. */
START_TEST(fourteen_bytes)
{
    const double n = (double)N_TENSORS * N_ELEMS;
    double bytes[2];

    for (int over = 0; over < 2; over++) {
        struct job j;

        open_job(&j, over ? "over" : "beside", over);
        ck_assert_double_eq((double)j.plan.n_params, n);
        bytes[over] = (double)j.plan.arena_bytes / n;
        close_job(&j);
    }
    ck_assert_double_ge(bytes[0], 16);
    ck_assert_double_le(bytes[0], 16.05);
    ck_assert_double_ge(bytes[1], 14);
    ck_assert_double_le(bytes[1], 14.05);
}
END_TEST

/* -- weights ----------------------------------------------------------------------------------- */

/* After gradients were handed in, another pass in the step gets the weights of the first pass, and
 * so does a read. The step has the result of a job with grad rows. */
START_TEST(weights_behind_gradients)
{
    uint16_t *first = new_weights(), *again = new_weights(), *ends[2];
    struct job j;

    for (int over = 0; over < 2; over++) {
        open_job(&j, over ? "over" : "beside", over);
        ends[over] = new_weights();
        for (int i = 0; i < 2; i++) {
            forward(&j, first);
            backward(&j);
            forward(&j, again);
            ck_assert_mem_eq(again, first, (size_t)N_TENSORS * N_ELEMS * sizeof *first);
            read_all(&j, CST_STATE_WEIGHT, again);
            ck_assert_mem_eq(again, first, (size_t)N_TENSORS * N_ELEMS * sizeof *first);
            step(&j);
        }
        forward(&j, ends[over]);
        read_all(&j, CST_STATE_WEIGHT, again);
        ck_assert_mem_eq(again, ends[over], (size_t)N_TENSORS * N_ELEMS * sizeof *first);
        ck_assert_mem_ne(again, first, (size_t)N_TENSORS * N_ELEMS * sizeof *first);
        close_job(&j);
    }
    ck_assert_mem_eq(ends[0], ends[1], (size_t)N_TENSORS * N_ELEMS * sizeof *first);
    free(first);
    free(again);
    free(ends[0]);
    free(ends[1]);
}
END_TEST

/* An interrupted step is repeated with the weights of its beginning. */
START_TEST(weights_of_a_step_done_again)
{
    uint16_t *first = new_weights(), *again = new_weights();
    struct job j;

    open_job(&j, "over", true);
    forward(&j, first);
    backward(&j);
    OK(&j, cst_sync(j.job, NULL, &j.err));
    forward(&j, again);
    ck_assert_mem_eq(again, first, (size_t)N_TENSORS * N_ELEMS * sizeof *first);
    backward(&j);
    step(&j);
    close_job(&j);
    free(first);
    free(again);
}
END_TEST

/* -- states ------------------------------------------------------------------------------------ */

/* A gradient can be read until its update. Weights alone cannot be written; master weights can, and
 * set them. */
START_TEST(states)
{
    uint16_t *weights = new_weights(), *grads = new_weights();
    float ones[3] = {1, 1, 1};
    struct job j;

    open_job(&j, "over", true);
    forward(&j, weights);
    backward(&j);
    while (cst_tensor_read(j.job, 0, CST_STATE_GRAD, 0, 1, grads, &j.err) == CST_EBUSY) {
    }
    read_all(&j, CST_STATE_GRAD, grads);
    ck_assert_mem_eq(grads, weights, (size_t)N_TENSORS * N_ELEMS * sizeof *grads);
    step(&j);
    ck_assert_int_eq(cst_tensor_read(j.job, 0, CST_STATE_GRAD, 0, 1, grads, &j.err),
                     CST_EUNSUPPORTED);
    ck_assert_int_eq(cst_tensor_write(j.job, 0, CST_STATE_WEIGHT, 0, 1, weights, &j.err),
                     CST_EUNSUPPORTED);
    OK(&j, cst_tensor_write(j.job, 0, CST_STATE_MASTER, 5, 3, ones, &j.err));
    OK(&j, cst_tensor_read(j.job, 0, CST_STATE_WEIGHT, 5, 3, weights, &j.err));
    ck_assert_uint_eq(weights[0], 0x3f80);
    ck_assert_uint_eq(weights[2], 0x3f80);
    close_job(&j);
    free(weights);
    free(grads);
}
END_TEST

/* Refused together with options that need the weights after their gradient, or fp32 sums. */
START_TEST(refused_together)
{
    struct job j = {0};
    struct cst_job_spec spec = {
        .name = "over", .world = 1, .updates.micro_batches = 2, .states.grad_over_weight = true};

    OK(&j, cst_connect(&j.client, proc.socket, &j.err));
    ck_assert_int_eq(cst_job_open(&j.job, j.client, &spec, &j.err), CST_EINVAL);
    spec.updates.micro_batches = 1;
    spec.updates.overlap = CST_OVERLAP_EARLY;
    ck_assert_int_eq(cst_job_open(&j.job, j.client, &spec, &j.err), CST_EINVAL);
    cst_disconnect(j.client);
}
END_TEST

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    job_rig_teardown();
}

int main(void)
{
    Suite *suite = suite_create("over");
    TCase *over = suite_case(suite, "over", job_rig_setup, teardown);

    tcase_add_test(over, fourteen_bytes);
    tcase_add_test(over, weights_behind_gradients);
    tcase_add_test(over, weights_of_a_step_done_again);
    tcase_add_test(over, states);
    tcase_add_test(over, refused_together);
    return suite_run(suite);
}
