/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of models that are cut into stages, with processes that run whatever unit is next: the same
 * bits with one to four of them, killed wherever they are, and joined by others in the middle of a
 * step. */
#include "cistern/comm.h"
#include "tests/lib/child.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tensor s belongs to stage s. The last one belongs to the first and to the last stage. */
enum { STAGES = 4, TENSORS = STAGES + 1, ELEMS = 5000, WIDTH = 64, MICRO = 5, STEPS = 3 };
enum { N_EDGES = 2 * (STAGES - 1) }; /* There: s. Back: STAGES - 1 + s. */

struct worker {
    struct cst_client *client;
    struct cst_job *job;
    uint64_t step;
    struct cst_err err;
    float x[WIDTH], dx[WIDTH];
};

/* Shared with the children. */
struct board {
    double loss[STEPS]; /* Of the committed steps, as the last worker has got it. */
    _Atomic uint32_t n_units;
};

static struct board *board;
static uint32_t n_calls, dies_before; /* Number of calls of this process; UINT32_MAX: no death. */

static void must(struct worker *w, int rc)
{
    suite_must(rc == CST_OK, "%s", w->err.text);
}

/* The process dies before call number dies_before after its first sync. */
static void count_call(void)
{
    if (n_calls++ == dies_before) {
        (void)raise(SIGKILL);
    }
}

static void declare(struct worker *w, uint32_t rank, uint32_t world, uint32_t timeout_ms)
{
    const struct cst_job_spec spec = {.name = "stages",
                                      .rank = rank,
                                      .world = world,
                                      .timeout_ms = timeout_ms,
                                      .micro_batches = MICRO};

    must(w, cst_connect(&w->client, proc.socket, &w->err));
    must(w, cst_job_open(&w->job, w->client, &spec, &w->err));
    for (int i = 0; i < N_EDGES; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "e%d", i);
        ck_assert_int_eq(
            cst_edge(w->job, &(struct cst_edge_spec){name, CST_ALL_RANKS, CST_ALL_RANKS,
                                                     WIDTH * sizeof(float), MICRO, false}),
            i);
    }
    for (int i = 0; i < TENSORS; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(cst_tensor(w->job, name, CST_BF16, 1, (int64_t[]){ELEMS}, CST_GROUP_ALL),
                         i);
    }
    for (int s = 0; s < STAGES; s++) {
        char name[16];

        (void)snprintf(name, sizeof name, "o%d", s);
        ck_assert_int_eq(cst_stage(w->job), s);
        ck_assert_int_eq(
            cst_operator(w->job, name, (int[]){s, STAGES}, s == 0 || s == STAGES - 1 ? 2 : 1), s);
    }
}

static void open_worker(struct worker *w, uint32_t rank, uint32_t world)
{
    declare(w, rank, world, 0);
    must(w, cst_commit(w->job, NULL, &w->err));
}

static void leave(struct worker *w)
{
    must(w, cst_job_leave(w->job, &w->err));
    cst_disconnect(w->client);
}

static void write_initial(struct worker *w)
{
    float values[ELEMS];

    for (int t = 0; t < TENSORS; t++) {
        for (int i = 0; i < ELEMS; i++) {
            values[i] = (float)((i * 37 + t * 11) % 101 - 50) / 64.0f;
        }
        must(w, cst_tensor_write(w->job, t, CST_STATE_MASTER, 0, ELEMS, values, &w->err));
    }
}

/* -- a small model ----------------------------------------------------------------------------- */

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void forward(struct worker *w, const struct cst_io *io, uint32_t n_io)
{
    for (uint32_t t = 0; t < n_io; t++) {
        const uint16_t *weight = io[t].weight;

        for (int i = 0; i < ELEMS; i++) {
            w->x[i % WIDTH] = w->x[i % WIDTH] * 0.99f + from_bf16(weight[i]) * 0.125f;
        }
    }
}

/* The gradient is no derivative of anything. It depends on all that it should depend on. */
static void backward(struct worker *w, const struct cst_io *io, uint32_t n_io)
{
    for (uint32_t t = 0; t < n_io; t++) {
        const uint16_t *weight = io[t].weight;
        uint16_t *grad = io[t].grad;

        for (int i = 0; i < ELEMS; i++) {
            float *d = &w->dx[i % WIDTH];

            suite_must(!io[t].accumulate, "a unit begins with the gradient of another one");
            grad[i] = to_bf16(*d * 0.5f + w->x[(i + 1) % WIDTH]);
            *d = *d * 0.98f + from_bf16(weight[i]) * 0.0625f;
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
            forward(w, io, n_io);
        } else {
            backward(w, io, n_io);
        }
        rc = cst_op_end(w->job, (int)stage, &w->err);
    }
    return rc;
}

static int put(struct worker *w, int edge, uint32_t number, const float *data)
{
    count_call();
    return cst_put(w->job, edge, number, data, sizeof w->x, &w->err);
}

static int take(struct worker *w, int edge, uint32_t number, float *data)
{
    count_call();
    return cst_take(w->job, edge, number, data, sizeof w->x, &w->err);
}

/* Run @unit. The loss of a micro-batch depends on everything before it. */
static int run_unit(struct worker *w, const struct cst_unit *unit, double *loss)
{
    int s = (int)unit->stage, rc = CST_OK;
    uint32_t m = unit->micro_batch;

    for (int i = 0; i < WIDTH; i++) {
        w->x[i] = (float)((int)(w->step * 31 + m * 17) % 13 + i) / 32.0f;
        w->dx[i] = 0;
    }
    rc = s > 0 ? take(w, s - 1, m, w->x) : rc;
    rc = rc == CST_OK ? run_op(w, unit->stage, CST_FORWARD) : rc;
    if (unit->kind == CST_UNIT_FORWARD) {
        return rc == CST_OK ? put(w, s, m, w->x) : rc;
    }
    if (rc == CST_OK && s < STAGES - 1) {
        rc = take(w, STAGES - 1 + s, m, w->dx);
    }
    *loss = 0;
    for (int i = 0; rc == CST_OK && s == STAGES - 1 && i < WIDTH; i++) {
        w->dx[i] = w->x[i] * 0.03125f;
        *loss += (double)w->x[i] * (double)w->x[i];
    }
    rc = rc == CST_OK ? run_op(w, unit->stage, CST_BACKWARD) : rc;
    return rc == CST_OK && s > 0 ? put(w, STAGES - 1 + s - 1, m, w->dx) : rc;
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
        write_initial(w);
    }
    must(w, cst_sync(w->job, &w->step, &w->err));
    while (w->step < STEPS) {
        must(w, run_step(w, &result));
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
        open_worker(&w, rank, world);
        train(&w, rank);
        leave(&w);
        _exit(0);
    }
    return pid;
}

/* Wait until a rank has got a unit. Before that, a death would be one during the commit. */
static void wait_begun(void)
{
    uint64_t until = patience_until(20000);

    while (board->n_units == 0) {
        suite_must(!patience_over(until), "no rank has got a unit");
        (void)poll(NULL, 0, 1);
    }
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

    open_worker(&w, 0, world);
    ck_assert_uint_eq(cst_job_steps(w.job), STEPS);
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < TENSORS; t++) {
            must(&w, cst_tensor_read(w.job, t, states[i], 0, ELEMS, out->states[i][t], &w.err));
        }
    }
    leave(&w);
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
    wait_begun();
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

/* -- single calls ------------------------------------------------------------------------------ */

/* A rank that dies with a unit is named in the daemon's log, with the unit, and another one gets
 * the unit at once. */
START_TEST(the_unit_of_a_dead_rank_is_given_to_another)
{
    struct worker w = {0};
    struct cst_unit unit;
    pid_t pid = child_start();

    open_worker(&w, pid == 0 ? 1 : 0, 2);
    if (pid == 0) {
        must(&w, cst_sync(w.job, NULL, &w.err));
        must(&w, cst_next(w.job, 0, &unit, &w.err));
        ck_assert_int_eq(unit.kind, CST_UNIT_FORWARD);
        ck_assert_uint_eq(unit.stage, 0);
        ck_assert_uint_eq(unit.micro_batch, 0);
        board->n_units = 1;
        (void)pause();
    }
    board->n_units = 0;
    write_initial(&w);
    must(&w, cst_sync(w.job, NULL, &w.err));
    wait_begun();
    ck_assert_int_eq(cst_try_next(w.job, 0, &unit, &w.err), CST_EAGAIN);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    while (cst_try_next(w.job, 0, &unit, &w.err) == CST_EAGAIN) {
        struct pollfd reply = {.fd = cst_client_fd(w.client), .events = POLLIN};

        ck_assert_int_eq(poll(&reply, 1, (int)patience_ms(20000)), 1);
    }
    ck_assert_int_eq(unit.kind, CST_UNIT_FORWARD);
    ck_assert_uint_eq(unit.stage, 0);
    ck_assert_uint_eq(unit.micro_batch, 0);
    ck_assert(daemon_proc_logged(&proc, "rank 1 died in step 0: the forward pass of stage 0 over "
                                        "micro-batch 0 can be given to another rank"));
    /* A rank that gives up gets the same unit again. */
    must(&w, cst_sync(w.job, NULL, &w.err));
    must(&w, cst_next(w.job, 0, &unit, &w.err));
    ck_assert_uint_eq(unit.micro_batch, 0);
    leave(&w);
}
END_TEST

/* A rank that waits for the unit of another one, which does nothing, is told so after timeout_ms.
 */
START_TEST(a_wait_for_a_unit_has_a_limit)
{
    struct worker w = {0};
    struct cst_unit unit;
    pid_t pid = child_start();

    declare(&w, pid == 0 ? 1 : 0, 2, 200);
    must(&w, cst_commit(w.job, NULL, &w.err));
    if (pid == 0) {
        must(&w, cst_sync(w.job, NULL, &w.err));
        must(&w, cst_next(w.job, 0, &unit, &w.err));
        board->n_units = 1;
        (void)pause();
    }
    board->n_units = 0;
    write_initial(&w);
    must(&w, cst_sync(w.job, NULL, &w.err));
    wait_begun();
    ck_assert_int_eq(cst_next(w.job, 0, &unit, &w.err), CST_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(w.err.text, "no unit for rank 0 in 200 ms"));
    ck_assert_ptr_nonnull(strstr(w.err.text, "which rank 1 has"));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(child_join(pid, "the other rank should have been killed"));
    cst_disconnect(w.client);
}
END_TEST

/* Calls that cannot be right are refused, and say why. */
START_TEST(wrong_calls_are_refused)
{
    const struct cst_hyper_params params = {.lr = 0.1};
    struct worker w = {0};
    struct cst_unit unit;
    struct cst_io io[2];
    float data[WIDTH] = {0};
    const void *taken;
    struct cst_comm *comm;
    void *slot;

    open_worker(&w, 0, 1);
    write_initial(&w);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL);
    ck_assert_int_eq(cst_next(w.job, 0, &unit, &w.err), CST_EINVAL); /* no sync */
    must(&w, cst_sync(w.job, NULL, &w.err));
    ck_assert_int_eq(cst_next(w.job, 0, NULL, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_accumulate(w.job, &w.err), CST_EINVAL);
    ck_assert_int_eq(cst_step(w.job, &params, NULL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "before all its units are done"));
    must(&w, cst_next(w.job, 0, &unit, &w.err));
    ck_assert_int_eq(cst_take(w.job, 0, 1, data, sizeof data, &w.err), CST_ENOTFOUND);
    ck_assert_int_eq(cst_put(w.job, 0, MICRO, data, sizeof data, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "the numbers are 0 to 4"));
    /* A slot that this rank takes from, or puts into, is not free. */
    must(&w, cst_put(w.job, 0, 2, data, sizeof data, &w.err));
    must(&w, cst_take_begin(w.job, 0, 2, &taken, &w.err));
    ck_assert_int_eq(cst_put_begin(w.job, 0, 2, &slot, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'e0': array 2 is being taken");
    must(&w, cst_take_end(w.job, 0, 2, &w.err));
    must(&w, cst_put_begin(w.job, 0, 2, &slot, &w.err));
    ck_assert_int_eq(cst_take_begin(w.job, 0, 2, &taken, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "edge 'e0': array 2 is being put");
    must(&w, cst_put_end(w.job, 0, 2, &w.err));
    /* The death of another rank would not end the calls of a communicator. */
    ck_assert_int_eq(cst_comm_open(&comm, w.job, CST_GROUP_ALL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "is cut into stages"));
    /* No gradient is a part of a forward unit. */
    ck_assert_int_eq(cst_op_begin(w.job, 0, CST_BACKWARD, io, 2, &w.err), CST_EINVAL);
    leave(&w);
}
END_TEST

/* Models and jobs that cannot be cut into stages. */
START_TEST(wrong_declarations_are_refused)
{
    struct cst_job_spec spec = {.name = "stages", .world = 1};
    struct worker w = {0};
    int tensor;

    must(&w, cst_connect(&w.client, proc.socket, &w.err));
    must(&w, cst_job_open(&w.job, w.client, &spec, &w.err));
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_stage(w.job), 0);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL); /* stage 0 is empty */
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(w.err.text, "2 or more micro-batches"));
    cst_disconnect(w.client);

    spec.micro_batches = 2;
    must(&w, cst_connect(&w.client, proc.socket, &w.err));
    must(&w, cst_job_open(&w.job, w.client, &spec, &w.err));
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_stage(w.job), CST_EINVAL);
    cst_disconnect(w.client);

    must(&w, cst_connect(&w.client, proc.socket, &w.err));
    must(&w, cst_job_open(&w.job, w.client, &spec, &w.err));
    tensor = cst_tensor(w.job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
    ck_assert_int_eq(cst_stage(w.job), 0);
    ck_assert_int_eq(cst_operator(w.job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_stage(w.job), 1);
    ck_assert_int_eq(cst_commit(w.job, NULL, &w.err), CST_EINVAL);
    ck_assert_str_eq(w.err.text, "stage 1 has no operator");
    cst_disconnect(w.client);
}
END_TEST

/* Ranks that cut the model differently get an error with both stages. */
START_TEST(ranks_that_disagree_are_named)
{
    const struct cst_job_spec spec = {.name = "stages", .world = 2, .micro_batches = 2};
    struct worker w[2] = {0};

    for (uint32_t r = 0; r < 2; r++) {
        struct cst_job_spec mine = spec;
        int tensor, rc;

        mine.rank = r;
        must(&w[r], cst_connect(&w[r].client, proc.socket, &w[r].err));
        must(&w[r], cst_job_open(&w[r].job, w[r].client, &mine, &w[r].err));
        tensor = cst_tensor(w[r].job, "t", CST_BF16, 1, (int64_t[]){100}, CST_GROUP_ALL);
        ck_assert_int_eq(cst_stage(w[r].job), 0);
        ck_assert_int_eq(cst_operator(w[r].job, "a", &tensor, 1), 0);
        ck_assert_int_ge(r == 0 ? cst_stage(w[r].job) : 0, 0);
        ck_assert_int_eq(cst_operator(w[r].job, "b", &tensor, 1), 1);
        rc = cst_try_commit(w[r].job, NULL, &w[r].err);
        for (; rc == CST_EAGAIN && r == 1; rc = cst_try_commit(w[r].job, NULL, &w[r].err)) {
            struct pollfd reply = {.fd = cst_client_fd(w[r].client), .events = POLLIN};

            (void)cst_try_commit(w[0].job, NULL, &w[0].err);
            (void)poll(&reply, 1, 10);
        }
        ck_assert_int_eq(rc, r == 0 ? CST_EAGAIN : CST_EMISMATCH);
    }
    ck_assert_ptr_nonnull(strstr(w[1].err.text, "operator 'b' is in stage"));
    cst_disconnect(w[0].client);
    cst_disconnect(w[1].client);
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
    TCase *calls = suite_case(suite, "calls", setup, teardown);

    dies_before = UINT32_MAX;
    tcase_add_loop_test(bits, the_number_of_ranks_does_not_matter, 1, 5);
    tcase_add_loop_test(bits, a_death_does_not_matter, 0, suite_is_sparse() ? 4 : 18);
    tcase_add_loop_test(bits, deaths_at_any_time_do_not_matter, 0, count_random_runs());
    tcase_add_test(calls, the_unit_of_a_dead_rank_is_given_to_another);
    tcase_add_test(calls, a_wait_for_a_unit_has_a_limit);
    tcase_add_test(calls, wrong_calls_are_refused);
    tcase_add_test(calls, wrong_declarations_are_refused);
    tcase_add_test(calls, ranks_that_disagree_are_named);
    return suite_run(suite);
}
