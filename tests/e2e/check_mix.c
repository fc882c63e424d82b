/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that hold different tensors, and of steps with several micro-batches. The
 * results must have the bits of a computation in this process: for every world, every pool, and
 * whichever process dies. After every test the daemon has its initial number of descriptors and
 * bytes in use. */
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"
#include "tests/lib/two_ranks.h"

#include <check.h>
#include <string.h>

static const struct train_placement one = {"one", 1, {NULL}}, two = {"two", 2, {NULL}};

static void setup(void)
{
    train_rig_start("", (const char *[]){NULL});
    train_like.mixture = true;
}

/* 1, 2 and 4 ranks with 1, 2 and 4 micro-batches have the expected results, with the largest and
 * the smallest pool. The large tensor has a size class of its own. */
START_TEST(test_worlds_and_micro_batches)
{
    static const uint32_t counts[] = {1, 2, 4};
    const struct train_placement at = {"any", counts[_i / 3], {NULL}};
    const struct cst_plan *plan = &reports[0]->plan;
    uint64_t smallest;

    train_like.micro_batches = counts[_i % 3];
    train_like.n_steps = 4;
    train_rig_run(&at, "big", 0);
    smallest = train_smallest_pool(plan);
    ck_assert_uint_eq(plan->n_classes, 2);
    ck_assert_uint_eq(plan->chunk_elems, TRAIN_CHUNK_ELEMS);
    ck_assert_uint_gt(plan->pool_bytes, smallest);
    train_rig_run(&at, "smallest", smallest);
    ck_assert_uint_eq(plan->pool_bytes, smallest);
}
END_TEST

/* Workers leave after two steps. Others continue at the job's step. */
START_TEST(test_come_back)
{
    struct train_order order = train_rig_order(&two, "back", 0);

    order.micro_batches = 2;
    order.n_steps = 2;
    train_rig_run_like(&two, &order, 0);
    order.n_steps = 4;
    train_rig_run_like(&two, &order, 2);
}
END_TEST

enum { STRIDE = 3 }; /* a run of a test takes every third point, and other runs the others */

/* One of two ranks with the smallest pools is killed at every point of its run, and a new process
 * takes its place. The final states are those of an undisturbed run: no micro-batch is lost or
 * counted twice. _i: the rank that dies, and the first point. */
START_TEST(test_killed_anywhere)
{
    const struct train_points points = {(uint32_t)_i / 2, STRIDE, 3};

    train_like.micro_batches = 2;
    train_like.n_steps = 2;
    train_rig_run(&two, "probe", 0);
    train_like.pool_bytes = train_smallest_pool(&reports[0]->plan);
    ck_assert(train_rig_kill_worker(&two, (uint32_t)_i % 2, points));
}
END_TEST

/* The engine is killed at every point of a worker's run, including sums that are added to earlier
 * micro-batches. Another one takes over, no step is interrupted, and the bits are those of an
 * undisturbed run. _i: the first point. */
START_TEST(test_engine_killed_anywhere)
{
    train_like.micro_batches = 4;
    train_like.n_steps = 2;
    train_rig_kill_engine(&two, 0, (struct train_points){(uint32_t)_i, STRIDE, 3});
}
END_TEST

/* -- calls that must fail, and a job's statistics ---------------------------------------------- */

struct solo {
    struct train_model model;
    struct cst_client *client;
    struct cst_job *job;
};

static void open_solo(struct solo *solo, const char *name, uint32_t micro_batches,
                      uint64_t pool_bytes)
{
    struct cst_job_spec spec = {.name = name,
                                .world = 1,
                                .memory.pool_bytes = pool_bytes,
                                .planning.chunk_elems = TRAIN_CHUNK_ELEMS,
                                .updates.micro_batches = micro_batches};
    struct cst_err err = {0};

    train_mixture(&solo->model, 1);
    ck_assert_int_eq(cst_connect(&solo->client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&solo->job, solo->client, &spec, &err), CST_OK);
    ck_assert_int_eq(train_declare(&solo->model, solo->job, 1), CST_OK);
}

/* A pool that is a byte too small for all size classes is refused with the class, its operator and
 * the missing bytes. */
START_TEST(test_pool_too_small)
{
    struct solo solo;
    struct cst_err err = {0};

    train_like.n_steps = 1;
    train_rig_run(&one, "probe", 0);
    open_solo(&solo, "small", 1, train_smallest_pool(&reports[0]->plan) - 1);
    ck_assert_int_eq(cst_commit(solo.job, NULL, &err), CST_EPOOL);
    ck_assert_msg(strstr(err.text, "operator 'layer' needs ") != NULL &&
                      strstr(err.text, ", and 2 of 40.0 KiB: 1 bytes short") != NULL,
                  "%s", err.text);
    cst_disconnect(solo.client);
}
END_TEST

static int begin(const struct solo *solo, int op, enum cst_direction direction, struct cst_err *err)
{
    struct cst_io io[TRAIN_MAX_IO];

    return cst_op_begin(solo->job, op, direction, io, solo->model.operators[op].n_tensors, err);
}

/* cst_accumulate is refused before the sync, inside an operator, and M times in a step. A gradient
 * is handed in once per micro-batch. */
START_TEST(test_accumulate_in_its_place)
{
    struct cst_hyper_params params = {.lr = 0.1f};
    struct solo solo;
    struct cst_err err = {0};

    open_solo(&solo, "places", 2, 0);
    ck_assert_int_eq(cst_accumulate(solo.job, &err), CST_EINVAL);
    ck_assert_int_eq(cst_commit(solo.job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_accumulate(solo.job, &err), CST_EINVAL);
    ck_assert_int_eq(cst_sync(solo.job, NULL, &err), CST_OK);
    for (int step = 0; step < 2; step++) {
        for (int micro = 0; micro < 2; micro++) {
            ck_assert_int_eq(begin(&solo, 2, CST_BACKWARD, &err), CST_OK);
            ck_assert_int_eq(cst_accumulate(solo.job, &err), CST_EINVAL);
            ck_assert_str_eq(err.text,
                             "the end of a micro-batch before the end of operator 'mlp.0'");
            ck_assert_int_eq(cst_op_end(solo.job, 2, &err), CST_OK);
            ck_assert_int_eq(begin(&solo, 2, CST_BACKWARD, &err), CST_EINVAL);
            ck_assert_ptr_nonnull(strstr(err.text, "was handed in already in this micro-batch"));
            ck_assert_int_eq(err.reason, CST_REASON_HANDED_IN);
            ck_assert_int_eq(cst_accumulate(solo.job, &err), micro == 0 ? CST_OK : CST_EINVAL);
        }
        ck_assert_str_eq(err.text,
                         "job 'places': micro-batch 2 of 2 is the last one of the step: end "
                         "it with step");
        ck_assert_int_eq(err.reason, CST_REASON_LAST_MICRO_BATCH);
        ck_assert_int_eq(cst_step(solo.job, &params, NULL, &err), CST_OK);
    }
    ck_assert_int_eq(cst_job_leave(solo.job, &err), CST_OK);
    cst_disconnect(solo.client);
}
END_TEST

/* The daemon refuses a wrong number of micro-batches from a client that does not check it. */
START_TEST(test_daemon_counts_micro_batches)
{
    Cistern__Accumulate accumulate = CISTERN__ACCUMULATE__INIT;
    Cistern__Sync sync = CISTERN__SYNC__INIT;
    struct raw_job job = {.name = "raw", .world = 1, .chunk_elems = 4096};
    struct raw_client client;
    const Cistern__Synced *synced;
    uint64_t id;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 1, 100), CST_OK);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_ACCUMULATE, &accumulate.base),
                     CST_EINVAL);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 1, 1)), CST_OK);
    id = raw_ask(&client, CISTERN__MSG_TYPE__MSG_SYNC, &sync.base);
    synced = raw_expect(&client, id, CISTERN__MSG_TYPE__MSG_SYNCED, &cistern__synced__descriptor);
    accumulate.attempt = synced->attempt;
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_ACCUMULATE, &accumulate.base),
                     CST_EINVAL);
    raw_close(&client);
}
END_TEST

/* An operator of other ranks is refused by name. */
START_TEST(test_not_my_operator)
{
    struct train_model model;
    struct cst_client *clients[2];
    struct cst_job *jobs[2];
    struct cst_io io[TRAIN_MAX_IO];
    struct cst_err err = {0};

    train_mixture(&model, 2);
    for (uint32_t r = 0; r < 2; r++) {
        struct cst_job_spec spec = {.name = "mine", .rank = r, .world = 2};

        ck_assert_int_eq(cst_connect(&clients[r], proc.socket, &err), CST_OK);
        ck_assert_int_eq(cst_job_open(&jobs[r], clients[r], &spec, &err), CST_OK);
        ck_assert_int_eq(train_declare(&model, jobs[r], 2), CST_OK);
    }
    two_ranks_drive(clients, jobs, two_ranks_commit, NULL);
    two_ranks_drive(clients, jobs, two_ranks_sync, NULL);
    ck_assert_int_eq(cst_op_begin(jobs[0], 3, CST_FORWARD, io, 1, &err), CST_EINVAL);
    ck_assert_str_eq(
        err.text, "operator 'mlp.1' is not rank 0's: it is not in the groups of all its tensors");
    cst_disconnect(clients[0]);
    cst_disconnect(clients[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mix");
    TCase *bits = suite_case(suite, "bits", setup, train_rig_stop);
    TCase *calls = suite_case(suite, "calls", setup, train_rig_stop);

    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(bits, test_worlds_and_micro_batches, 0, 9);
    tcase_add_test(bits, test_come_back);
    tcase_add_loop_test(bits, test_killed_anywhere, 0, 2 * STRIDE);
    tcase_add_loop_test(bits, test_engine_killed_anywhere, 0, STRIDE);
    tcase_add_test(calls, test_pool_too_small);
    tcase_add_test(calls, test_accumulate_in_its_place);
    tcase_add_test(calls, test_daemon_counts_micro_batches);
    tcase_add_test(calls, test_not_my_operator);
    return suite_run(suite);
}
