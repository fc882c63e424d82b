/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of states in other formats with the daemon, in memory and on a drive: they are read and
 * written as fp32, in any range and with any pool; and of optimizers with one moment. */
#include "cistern/cistern.h"
#include "proto/table.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/job_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N = 5000 }; /* elements of each of two tensors: a tile and a part of one */

static struct cst_client *client;
static struct cst_job *job;
static struct cst_plan plan; /* plan of the open job */
static struct cst_err err;

#define OK(call) ck_assert_msg((call) == CST_OK, "%s: %s", #call, err.text)

/* Of the job that is opened next. */
static enum cst_unused unused;
static enum cst_masters masters;
static const char *disk;

static void open_job(enum cst_optimizer optimizer, enum cst_moments moments)
{
    const struct cst_job_spec spec = {.name = "m",
                                      .world = 1,
                                      .states.optimizer = optimizer,
                                      .states.moments = moments,
                                      .states.masters = masters,
                                      .states.disk = disk,
                                      .updates.unused = unused};
    const int64_t shape = N;

    OK(cst_connect(&client, proc.socket, &err));
    OK(cst_job_open(&job, client, &spec, &err));
    for (int t = 0; t < 2; t++) {
        const char *name = t == 0 ? "a" : "b";

        ck_assert_int_eq(cst_tensor(job, name, CST_BF16, 1, &shape, CST_GROUP_ALL), t);
        ck_assert_int_eq(cst_operator(job, name, &t, 1), t);
    }
    OK(cst_commit(job, &plan, &err));
}

static void close_job(void)
{
    OK(cst_job_leave(job, &err));
    cst_disconnect(client);
    ck_assert_int_eq(raw_job_remove(&witness, "m"), CST_OK);
}

static void fill(float *out, uint64_t n, float value)
{
    for (uint64_t i = 0; i < n; i++) {
        out[i] = value;
    }
}

/* Check that all of @state of @tensor is @value, except elements [first, end), which are
 * @inside. */
static void assert_state(int tensor, enum cst_state state, uint64_t first, uint64_t end,
                         float inside, float value)
{
    float *got = malloc(N * sizeof *got);

    ck_assert_ptr_nonnull(got);
    OK(cst_tensor_read(job, tensor, state, 0, N, got, &err));
    for (uint64_t i = 0; i < N; i++) {
        const float want = i >= first && i < end ? inside : value;

        ck_assert_msg(got[i] == want, "tensor %d, state %d, element %llu: %g, not %g", tensor,
                      (int)state, (unsigned long long)i, (double)got[i], (double)want);
    }
    free(got);
}

/* Ranges that begin and end within blocks are written exactly: their neighbours, the other tensor
 * and the other moment do not change. A write of master weights clears the moments of its range
 * before the job has begun, and leaves all moments alone afterwards. All formats can represent the
 * values. */
START_TEST(ranges_are_exact)
{
    static const struct {
        uint64_t first, end;
    } ranges[] = {{0, N}, {10, 87}, {32, 64}, {4095, 4097}, {N - 1, N}};
    const uint64_t first = ranges[_i % 5].first, end = ranges[_i % 5].end;
    float values[N];
    uint64_t step;

    masters = _i < 5 * CST_MOMENTS_COUNT ? CST_MASTERS_FP32 : CST_MASTERS_SPLIT;
    open_job(CST_OPTIMIZER_ADAMW, (enum cst_moments)(_i / 5 % CST_MOMENTS_COUNT));
    fill(values, N, 1.0f);
    OK(cst_tensor_write(job, 0, CST_STATE_MASTER, 0, N, values, &err));
    OK(cst_tensor_write(job, 1, CST_STATE_MASTER, 0, N, values, &err));
    fill(values, N, 0.25f);
    OK(cst_tensor_write(job, 0, CST_STATE_EXP_AVG, 0, N, values, &err));
    OK(cst_tensor_write(job, 0, CST_STATE_EXP_AVG_SQ, 0, N, values, &err));
    fill(values, N, 0.5f);
    OK(cst_tensor_write(job, 0, CST_STATE_EXP_AVG, first, end - first, values, &err));
    assert_state(0, CST_STATE_EXP_AVG, first, end, 0.5f, 0.25f);
    assert_state(0, CST_STATE_EXP_AVG_SQ, 0, 0, 0, 0.25f);
    assert_state(1, CST_STATE_EXP_AVG, 0, 0, 0, 0);
    OK(cst_tensor_write(job, 0, CST_STATE_MASTER, first, end - first, values, &err));
    assert_state(0, CST_STATE_EXP_AVG, first, end, 0, 0.25f);
    assert_state(0, CST_STATE_EXP_AVG_SQ, first, end, 0, 0.25f);
    assert_state(0, CST_STATE_MASTER, first, end, 0.5f, 1.0f);
    OK(cst_sync(job, &step, &err));
    fill(values, N, 2.0f);
    OK(cst_tensor_write(job, 0, CST_STATE_MASTER, 0, N, values, &err));
    assert_state(0, CST_STATE_EXP_AVG, first, end, 0, 0.25f);
    assert_state(0, CST_STATE_EXP_AVG_SQ, first, end, 0, 0.25f);
    assert_state(0, CST_STATE_MASTER, 0, 0, 0, 2.0f);
    close_job();
}
END_TEST

/* The gradient of each tensor is its weights. */
static void train(uint64_t n_steps)
{
    const struct cst_hyper_params hyper = {.lr = 0.01};

    for (uint64_t i = 0; i < n_steps; i++) {
        for (int t = 0; t < 2; t++) {
            struct cst_io io;

            OK(cst_op_begin(job, t, CST_BACKWARD, &io, 1, &err));
            memcpy(io.grad, io.weight, N * sizeof(uint16_t));
            OK(cst_op_end(job, t, &err));
        }
        OK(cst_step(job, &hyper, NULL, &err));
    }
}

/* Read or write all states. */
static void all_states(float states[2][3][N], bool writes)
{
    for (int t = 0; t < 2; t++) {
        for (int k = 0; k < 3; k++) {
            enum cst_state state = (enum cst_state)(CST_STATE_MASTER + k);

            OK(writes ? cst_tensor_write(job, t, state, 0, N, states[t][k], &err)
                      : cst_tensor_read(job, t, state, 0, N, states[t][k], &err));
        }
    }
}

/* A job whose states and count of steps were written by hand goes on with the bits of the job that
 * they are from. A skipped step does not count for bias corrections. */
START_TEST(states_by_hand)
{
    static float begun[2][3][N], want[2][3][N], got[2][3][N];
    struct cst_rank_stat stat;
    uint64_t step;

    open_job(CST_OPTIMIZER_ADAMW, CST_MOMENTS_FP32);
    for (int t = 0; t < 2; t++) {
        fill(begun[t][0], N, 1.0f);
        OK(cst_tensor_write(job, t, CST_STATE_MASTER, 0, N, begun[t][0], &err));
    }
    OK(cst_sync(job, NULL, &err));
    train(3);
    all_states(begun, false);
    train(2);
    all_states(want, false);
    close_job();

    open_job(CST_OPTIMIZER_ADAMW, CST_MOMENTS_FP32);
    all_states(begun, true);
    ck_assert_int_eq(cst_set_steps(job, 3, 4, NULL, &err), CST_EINVAL);
    ck_assert_int_eq(cst_set_steps(job, 3, 0, (uint64_t[]){0, 1}, &err), CST_EINVAL);
    OK(cst_set_steps(job, 4, 1, (uint64_t[]){0, 0}, &err));
    ck_assert_int_eq(cst_job_initialised(job), 1);
    OK(cst_sync(job, &step, &err));
    ck_assert_uint_eq(step, 4);
    train(2);
    all_states(got, false);
    OK(cst_stat(job, &stat, &err));
    ck_assert_uint_eq(stat.step, 6);
    ck_assert_uint_eq(stat.n_skipped, 1);
    ck_assert_mem_eq(got, want, sizeof got);
    close_job();
}
END_TEST

/* Numbers of missed steps whose restore was refused are not those of a later one. */
START_TEST(refused_numbers_are_forgotten)
{
    const uint64_t two[2] = {2, 2};
    uint64_t missed[2] = {9, 9};
    float values[N];
    struct cst_io io;
    int first = 0;

    unused = CST_UNUSED_SKIP;
    open_job(CST_OPTIMIZER_ADAMW, CST_MOMENTS_FP32);
    fill(values, N, 1.0f);
    for (int t = 0; t < 2; t++) {
        OK(cst_tensor_write(job, t, CST_STATE_MASTER, 0, N, values, &err));
    }
    OK(cst_sync(job, NULL, &err));
    OK(cst_op_begin(job, first, CST_FORWARD, &io, 1, &err));
    ck_assert_int_eq(cst_set_steps(job, 5, 0, two, &err), CST_EBUSY);
    OK(cst_op_end(job, first, &err));
    train(1);
    OK(cst_set_steps(job, 5, 0, NULL, &err));
    OK(cst_missed_steps(job, missed, &err));
    ck_assert_uint_eq(missed[0] + missed[1], 0);
    OK(cst_set_steps(job, 5, 0, two, &err));
    OK(cst_missed_steps(job, missed, &err));
    ck_assert_mem_eq(missed, two, sizeof two);
    close_job();
    unused = CST_UNUSED_ZERO;
}
END_TEST

/* An optimizer with one moment refuses access to the other one, and has no memory for it. */
START_TEST(one_moment)
{
    uint64_t bytes[2];
    float values[N];

    for (unsigned i = 0; i < 2; i++) {
        open_job(i == 0 ? CST_OPTIMIZER_ADAM : CST_OPTIMIZER_LION, CST_MOMENTS_BF16);
        bytes[i] = plan.arena_bytes;
        ck_assert_int_eq(cst_tensor_read(job, 0, CST_STATE_EXP_AVG_SQ, 0, N, values, &err),
                         i == 0 ? CST_OK : CST_EUNSUPPORTED);
        OK(cst_tensor_read(job, 0, CST_STATE_EXP_AVG, 0, N, values, &err));
        close_job();
    }
    ck_assert_uint_ge(bytes[0], bytes[1] + 2ull * 2 * N);
}
END_TEST

static void setup_disk(void)
{
    job_rig_setup();
    disk = disk_file_dir();
}

int main(void)
{
    Suite *suite = suite_create("moments");
    TCase *tcase = suite_case(suite, "moments", job_rig_setup, job_rig_teardown), *drive;

    tcase_add_loop_test(tcase, ranges_are_exact, 0, 2 * 5 * CST_MOMENTS_COUNT);
    tcase_add_test(tcase, states_by_hand);
    if (!disk_file_is_missing("check_moments on a drive")) {
        drive = suite_case(suite, "drive", setup_disk, job_rig_teardown);
        tcase_add_loop_test(drive, ranges_are_exact, 0, 2 * 5 * CST_MOMENTS_COUNT);
        tcase_add_test(drive, states_by_hand);
    }
    tcase_add_test(tcase, refused_numbers_are_forgotten);
    tcase_add_test(tcase, one_moment);
    return suite_run(suite);
}
