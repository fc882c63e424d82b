/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of models that are cut into stages, with processes that run whatever unit is next: the same
 * bits with one to four of them, killed wherever they are, and joined by others in the middle of a
 * step. check_units tests single calls. */
#include "kernels/math/cast.h"
#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/stage_job.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3 };

/* Shared with the children. */
struct board {
    double loss[STEPS]; /* Of the committed steps, as the last worker has got it. */
    _Atomic uint32_t n_units;
};

static struct board *board;
static uint32_t n_calls, dies_before; /* Number of calls of this process; UINT32_MAX: no death. */
static float x[WIDTH], dx[WIDTH]; /* The activations of this process's unit, and their gradient. */

/* The process dies before call number dies_before after its first sync. */
static void count_call(void)
{
    if (n_calls++ == dies_before) {
        (void)raise(SIGKILL);
    }
}

/* -- a small model ----------------------------------------------------------------------------- */

static void forward(const struct cst_io *io, uint32_t n_io)
{
    for (uint32_t t = 0; t < n_io; t++) {
        const uint16_t *weight = io[t].weight;

        for (int i = 0; i < ELEMS; i++) {
            x[i % WIDTH] = x[i % WIDTH] * 0.99f + cst_bf16_to_fp32(weight[i]) * 0.125f;
        }
    }
}

/* The gradient is no derivative of anything. It depends on all that it should depend on. */
static void backward(const struct cst_io *io, uint32_t n_io)
{
    for (uint32_t t = 0; t < n_io; t++) {
        const uint16_t *weight = io[t].weight;
        uint16_t *grad = io[t].grad;

        for (int i = 0; i < ELEMS; i++) {
            float *d = &dx[i % WIDTH];

            suite_must(!io[t].accumulate, "a unit begins with the gradient of another one");
            grad[i] = cst_fp32_to_bf16(*d * 0.5f + x[(i + 1) % WIDTH]);
            *d = *d * 0.98f + cst_bf16_to_fp32(weight[i]) * 0.0625f;
        }
    }
}

static int run_op(struct worker *w, uint32_t stage, enum cst_direction direction)
{
    struct cst_io io[2];
    uint32_t n_io = stage == 0 || stage == STAGES - 1 ? 2 : 1;
    int rc;

    count_call();
    rc = cst_op_begin(w->job, (int)stage, direction, io, n_io, &w->err);
    if (rc == CST_OK) {
        count_call();
        if (direction == CST_FORWARD) {
            forward(io, n_io);
        } else {
            backward(io, n_io);
        }
        rc = cst_op_end(w->job, (int)stage, &w->err);
    }
    return rc;
}

static int put(struct worker *w, int edge, uint32_t number, const float *data)
{
    count_call();
    return cst_put(w->job, edge, number, data, sizeof x, &w->err);
}

static int take(struct worker *w, int edge, uint32_t number, float *data)
{
    count_call();
    return cst_take(w->job, edge, number, data, sizeof x, &w->err);
}

/* Run @unit. The loss of a micro-batch depends on everything before it. */
static int run_unit(struct worker *w, const struct cst_unit *unit, double *loss)
{
    int s = (int)unit->stage, rc = CST_OK;
    uint32_t m = unit->micro_batch;

    for (int i = 0; i < WIDTH; i++) {
        x[i] = (float)((int)(w->step * 31 + m * 17) % 13 + i) / 32.0f;
        dx[i] = 0;
    }
    rc = s > 0 ? take(w, s - 1, m, x) : rc;
    rc = rc == CST_OK ? run_op(w, unit->stage, CST_FORWARD) : rc;
    if (unit->kind == CST_UNIT_FORWARD) {
        return rc == CST_OK ? put(w, s, m, x) : rc;
    }
    if (rc == CST_OK && s < STAGES - 1) {
        rc = take(w, STAGES - 1 + s, m, dx);
    }
    *loss = 0;
    for (int i = 0; rc == CST_OK && s == STAGES - 1 && i < WIDTH; i++) {
        dx[i] = x[i] * 0.03125f;
        *loss += (double)x[i] * (double)x[i];
    }
    rc = rc == CST_OK ? run_op(w, unit->stage, CST_BACKWARD) : rc;
    return rc == CST_OK && s > 0 ? put(w, STAGES - 1 + s - 1, m, dx) : rc;
}

static int run_step(struct worker *w, struct cst_step_result *result)
{
    const struct cst_hyper_params params = {.lr = 0.01, .clip_norm = 1, .grad_scale = 1.0 / MICRO};
    struct cst_unit unit = {.kind = CST_UNIT_FORWARD};
    double loss = 0;
    int rc = CST_OK;

    while (rc == CST_OK && unit.kind != CST_UNIT_STEP) {
        count_call();
        rc = cst_next(w->job, loss, &unit, &w->err);
        if (rc == CST_OK && unit.kind != CST_UNIT_STEP) {
            board->n_units++;
            rc = run_unit(w, &unit, &loss);
        }
    }
    count_call();
    return rc == CST_OK ? cst_step(w->job, &params, result, &w->err) : rc;
}

/* Do the steps that are left. A step is never void, because another rank's death is no reason. */
static void train(struct worker *w, uint32_t rank)
{
    struct cst_step_result result;

    if (rank == 0 && !cst_job_initialised(w->job)) {
        stage_job_write_initial(w);
    }
    worker_must(w, cst_sync(w->job, &w->step, &w->err));
    while (w->step < STEPS) {
        worker_must(w, run_step(w, &result));
        ck_assert_uint_eq(result.step, w->step + 1);
        board->loss[w->step] = result.loss;
        w->step = result.step;
    }
}

static pid_t start_trainer(uint32_t rank, uint32_t world, uint32_t dies)
{
    pid_t pid = child_start();
    struct worker w = {0};

    if (pid == 0) {
        dies_before = dies;
        stage_job_open(&w, rank, world);
        train(&w, rank);
        worker_leave(&w);
        _exit(0);
    }
    return pid;
}

/* -- results ----------------------------------------------------------------------------------- */

struct outcome {
    float states[3][TENSORS][ELEMS];
    double loss[STEPS];
};

static struct outcome right, got;

/* Read the job's states and remove it. */
static void read_outcome(struct outcome *out, uint32_t world)
{
    static const enum cst_state states[] = {CST_STATE_MASTER, CST_STATE_EXP_AVG,
                                            CST_STATE_EXP_AVG_SQ};
    struct worker w = {0};

    stage_job_open(&w, 0, world);
    ck_assert_uint_eq(cst_job_steps(w.job), STEPS);
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < TENSORS; t++) {
            worker_must(&w,
                        cst_tensor_read(w.job, t, states[i], 0, ELEMS, out->states[i][t], &w.err));
        }
    }
    worker_leave(&w);
    memcpy(out->loss, board->loss, sizeof out->loss);
    ck_assert_int_eq(raw_job_remove(&witness, "stages"), CST_OK);
}

/* What one rank gets that is never disturbed. */
static void find_right_outcome(void)
{
    ck_assert(!child_join(start_trainer(0, 1, UINT32_MAX), "a rank alone failed"));
    read_outcome(&right, 1);
    ck_assert(memcmp(right.states[1][STAGES], right.states[1][0], sizeof right.states[1][0]) != 0);
}

static void check_outcome(uint32_t world)
{
    read_outcome(&got, world);
    ck_assert_msg(memcmp(&right, &got, sizeof right) == 0, "%u ranks have other bits than one",
                  world);
}

static void setup(void)
{
    job_rig_setup();
    board = child_share(sizeof *board);
    find_right_outcome();
}

static void teardown(void)
{
    settle_remove_jobs(&witness);
    child_unshare(board, sizeof *board);
    job_rig_teardown();
}

/* One to four ranks get the same bits. Each unit is done once. */
START_TEST(the_number_of_ranks_does_not_matter)
{
    uint32_t world = (uint32_t)_i;
    pid_t pids[4];

    board->n_units = 0;
    for (uint32_t r = 0; r < world; r++) {
        pids[r] = start_trainer(r, world, UINT32_MAX);
    }
    for (uint32_t r = 0; r < world; r++) {
        ck_assert(!child_join(pids[r], "a rank failed"));
    }
    ck_assert_uint_eq(board->n_units, STEPS * MICRO * (2 * STAGES - 1));
    check_outcome(world);
}
END_TEST

/* Of three ranks one is killed before one of its calls. The others go on, and in every second case
 * another process takes its place in the middle of the step. */
START_TEST(a_death_does_not_matter)
{
    enum { WORLD = 3, CALLS = 100 };
    uint32_t dying = (uint32_t)_i % WORLD, call = (uint32_t)_i * 7 % CALLS;
    pid_t pids[WORLD];

    for (uint32_t r = 0; r < WORLD; r++) {
        pids[r] = start_trainer(r, WORLD, r == dying ? call : UINT32_MAX);
    }
    if (child_join(pids[dying], "the dying rank failed") && _i % 2 == 0) {
        pids[dying] = start_trainer(dying, WORLD, UINT32_MAX);
        ck_assert(!child_join(pids[dying], "the new rank failed"));
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert(r == dying || !child_join(pids[r], "a rank failed"));
    }
    check_outcome(WORLD);
}
END_TEST

/* Ranks are killed at any time, in waits too, until none is left in one case of two. Others take
 * their places. */
START_TEST(deaths_at_any_time_do_not_matter)
{
    enum { WORLD = 4 };
    unsigned seed = (unsigned)_i + 1;
    pid_t pids[WORLD];

    board->n_units = 0;
    for (uint32_t r = 0; r < WORLD; r++) {
        pids[r] = start_trainer(r, WORLD, UINT32_MAX);
    }
    worker_await(&board->n_units, 1); /* Before that, a death would be one during the commit. */
    for (uint32_t i = 0; i < (_i % 2 == 0 ? WORLD : WORLD - 1); i++) {
        (void)usleep((unsigned)rand_r(&seed) % 20000);
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        if (child_join(pids[r], "a rank failed")) {
            pids[r] = start_trainer(r, WORLD, UINT32_MAX);
        } else {
            pids[r] = 0;
        }
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert(pids[r] == 0 || !child_join(pids[r], "a new rank failed"));
    }
    check_outcome(WORLD);
}
END_TEST

/* Number of runs with deaths at any time; "make soak" has more. */
static int count_random_runs(void)
{
    return suite_stride(3) == 1 ? 200 : suite_is_sparse() ? 2 : 6;
}

int main(void)
{
    Suite *suite = suite_create("dispatch");
    TCase *bits = suite_case(suite, "bits", setup, teardown);

    dies_before = UINT32_MAX;
    tcase_add_loop_test(bits, the_number_of_ranks_does_not_matter, 1, 5);
    tcase_add_loop_test(bits, a_death_does_not_matter, 0, suite_is_sparse() ? 4 : 18);
    tcase_add_loop_test(bits, deaths_at_any_time_do_not_matter, 0, count_random_runs());
    return suite_run(suite);
}
