/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks that hold different tensors, and of steps with several micro-batches. The
 * results must have the bits of a computation in this process: for every world, every pool, and
 * whichever process dies. After every test the daemon has its initial number of descriptors and
 * bytes in use. */
#include "tests/lib/mix_check.h"
#include "tests/lib/patience.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

static struct daemon_proc proc;
/* A manager's client that reads the daemon's statistics and removes jobs. */
static struct raw_client witness;
static unsigned base_fds;
static struct mix_report *reports[MIX_MAX_WORLD];

static void setup(void)
{
    for (int r = 0; r < MIX_MAX_WORLD; r++) {
        reports[r] = mix_report_new();
    }
    daemon_proc_start(&proc, NULL);
    raw_open(&witness, proc.socket);
    base_fds = daemon_proc_fds(proc.pid);
}

static void teardown(void)
{
    settle_balanced(&witness);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, base_fds);
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < MIX_MAX_WORLD; r++) {
        mix_report_free(reports[r]);
    }
}

static struct mix_order order_of(const char *name, uint32_t world, uint32_t micro_batches,
                                 uint64_t n_steps)
{
    return (struct mix_order){.socket = proc.socket,
                              .name = name,
                              .world = world,
                              .micro_batches = micro_batches,
                              .n_steps = n_steps,
                              .die_at = UINT32_MAX,
                              .kill_at = UINT32_MAX};
}

static pid_t start(const struct mix_order *like, uint32_t rank)
{
    struct mix_order order = *like;

    order.rank = rank;
    memset(reports[rank], 0, sizeof *reports[rank]);
    return mix_worker_start(&order, reports[rank]);
}

/* Run a job with the order @like for all ranks, from step @from to its end, and check the
 * reports. */
static void run_from(const struct mix_order *like, uint64_t from)
{
    pid_t pids[MIX_MAX_WORLD];

    for (uint32_t r = 0; r < like->world; r++) {
        pids[r] = start(like, r);
    }
    for (uint32_t r = 0; r < like->world; r++) {
        ck_assert(!mix_worker_join(pids[r], reports[r]));
    }
    mix_check(reports, like->world, like->micro_batches, from, like->n_steps);
}

/* 1, 2 and 4 ranks with 1, 2 and 4 micro-batches have the expected results, with the largest and
 * the smallest pool. The large tensor has a size class of its own. */
START_TEST(test_worlds_and_micro_batches)
{
    static const uint32_t counts[] = {1, 2, 4};
    struct mix_order order = order_of("big", counts[_i / 3], counts[_i % 3], 4);

    run_from(&order, 0);
    ck_assert_uint_eq(reports[0]->plan.n_classes, 2);
    ck_assert_uint_eq(reports[0]->plan.chunk_elems, MIX_CHUNK_ELEMS);
    ck_assert_uint_gt(reports[0]->plan.pool_bytes, mix_smallest_pool(&reports[0]->plan));
    order.name = "smallest";
    order.pool_bytes = mix_smallest_pool(&reports[0]->plan);
    run_from(&order, 0);
    ck_assert_uint_eq(reports[0]->plan.pool_bytes, order.pool_bytes);
}
END_TEST

/* Workers leave after two steps. Others continue at the job's step. */
START_TEST(test_come_back)
{
    struct mix_order order = order_of("back", 2, 2, 2);

    run_from(&order, 0);
    order.n_steps = 4;
    run_from(&order, 2);
}
END_TEST

enum { STRIDE = 3 }; /* a run of a test takes every third point, and other runs the others */

/* One of two ranks is killed at every point of its run, and a new process takes its place. The
 * final states are those of an undisturbed run: no micro-batch is lost or counted twice. _i: the
 * rank that dies, and the first point. */
START_TEST(test_killed_anywhere)
{
    struct mix_order order = order_of("dry", 2, 2, 2);
    uint32_t victim = (uint32_t)_i % 2, n_points, n_redone = 0, n = 0;
    pid_t pids[2];

    run_from(&order, 0);
    n_points = reports[victim]->n_points;
    order.pool_bytes = mix_smallest_pool(&reports[0]->plan);
    for (uint32_t point = (uint32_t)_i / 2 + STRIDE * suite_first(3); point < n_points;
         point += STRIDE * suite_stride(3), n++) {
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        order.name = name;
        pids[1 - victim] = start(&order, 1 - victim);
        order.die_at = point;
        pids[victim] = start(&order, victim);
        order.die_at = UINT32_MAX;
        ck_assert_msg(mix_worker_join(pids[victim], reports[victim]), "point %u", point);
        pids[victim] = start(&order, victim);
        ck_assert(!mix_worker_join(pids[victim], reports[victim]));
        ck_assert(!mix_worker_join(pids[1 - victim], reports[1 - victim]));
        n_redone += reports[1 - victim]->n_syncs;
        mix_check_states(reports, 2, 2, 2);
        settle_remove_jobs(&witness);
    }
    ck_assert_uint_gt(n_redone, n / 2);
}
END_TEST

/* The engine is killed at every point of a worker's run, including sums that are added to earlier
 * micro-batches. Another one takes over, no step is interrupted, and the bits are those of an
 * undisturbed run. _i: the first point. */
START_TEST(test_engine_killed_anywhere)
{
    struct mix_order order = order_of("dry", 2, 4, 2);
    uint32_t n_points, n = 0;

    run_from(&order, 0);
    n_points = reports[0]->n_points;
    for (uint32_t point = (uint32_t)_i + STRIDE * suite_first(3); point < n_points;
         point += STRIDE * suite_stride(3)) {
        char name[32];
        pid_t pids[2];

        (void)snprintf(name, sizeof name, "engine-%u", point);
        order.name = name;
        order.kill_at = point;
        order.victim = raw_stat(&witness)->engines[0]->pid;
        ck_assert_int_gt(order.victim, 0);
        pids[0] = start(&order, 0);
        order.kill_at = UINT32_MAX;
        pids[1] = start(&order, 1);
        for (uint32_t r = 0; r < 2; r++) {
            ck_assert(!mix_worker_join(pids[r], reports[r]));
            ck_assert_uint_eq(reports[r]->n_syncs, 0);
        }
        mix_check_states(reports, 2, 4, 2);
        settle_remove_jobs(&witness);
        ck_assert_uint_eq(raw_stat(&witness)->engines[0]->restarts, ++n);
    }
}
END_TEST

/* -- calls that must fail, and a job's statistics ---------------------------------------------- */

struct solo {
    struct mix_model model;
    struct cst_client *client;
    struct cst_job *job;
};

static void open_solo(struct solo *solo, const char *name, uint32_t micro_batches,
                      uint64_t pool_bytes)
{
    struct cst_job_spec spec = {.name = name,
                                .world = 1,
                                .pool_bytes = pool_bytes,
                                .chunk_elems = MIX_CHUNK_ELEMS,
                                .micro_batches = micro_batches};
    struct cst_err err = {0};

    mix_model_make(&solo->model, 1);
    ck_assert_int_eq(cst_connect(&solo->client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&solo->job, solo->client, &spec, &err), CST_OK);
    ck_assert_int_eq(mix_declare(&solo->model, solo->job), CST_OK);
}

/* A pool that is a byte too small for all size classes is refused with the class, its operator and
 * the missing bytes. */
START_TEST(test_pool_too_small)
{
    struct mix_order order = order_of("probe", 1, 1, 1);
    struct solo solo;
    struct cst_err err = {0};

    run_from(&order, 0);
    open_solo(&solo, "small", 1, mix_smallest_pool(&reports[0]->plan) - 1);
    ck_assert_int_eq(cst_commit(solo.job, NULL, &err), CST_EPOOL);
    ck_assert_msg(strstr(err.text, "operator 'layer' needs ") != NULL &&
                      strstr(err.text, ", and 2 of 40.0 KiB: 1 bytes short") != NULL,
                  "%s", err.text);
    cst_disconnect(solo.client);
}
END_TEST

static int begin(const struct solo *solo, int op, enum cst_direction direction, struct cst_err *err)
{
    struct cst_io io[MIX_MAX_IO];

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
            ck_assert_int_eq(cst_accumulate(solo.job, &err), micro == 0 ? CST_OK : CST_EINVAL);
        }
        ck_assert_str_eq(err.text,
                         "job 'places': micro-batch 2 of 2 is the last one of the step: end "
                         "it with cst_step");
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

static int try_commit(struct cst_job *job)
{
    return cst_try_commit(job, NULL, NULL);
}

static int try_sync(struct cst_job *job)
{
    return cst_try_sync(job, NULL, NULL);
}

/* Call @try on two ranks in this process, for calls that wait for both. */
static void both(struct cst_client *const *clients, struct cst_job *const *jobs,
                 int (*try)(struct cst_job *job))
{
    int rc[2] = {CST_EAGAIN, CST_EAGAIN};

    for (;;) {
        struct pollfd fds[2];

        for (int r = 0; r < 2; r++) {
            rc[r] = rc[r] == CST_EAGAIN ? try(jobs[r]) : rc[r];
            fds[r] = (struct pollfd){.fd = rc[r] == CST_EAGAIN ? cst_client_fd(clients[r]) : -1,
                                     .events = POLLIN};
        }
        if (rc[0] != CST_EAGAIN && rc[1] != CST_EAGAIN) {
            break;
        }
        ck_assert_int_gt(poll(fds, 2, patience_ms(20000)), 0);
    }
    ck_assert(rc[0] == CST_OK && rc[1] == CST_OK);
}

/* An operator of other ranks is refused by name. */
START_TEST(test_not_my_operator)
{
    struct mix_model model;
    struct cst_client *clients[2];
    struct cst_job *jobs[2];
    struct cst_io io[MIX_MAX_IO];
    struct cst_err err = {0};

    mix_model_make(&model, 2);
    for (uint32_t r = 0; r < 2; r++) {
        struct cst_job_spec spec = {.name = "mine", .rank = r, .world = 2};

        ck_assert_int_eq(cst_connect(&clients[r], proc.socket, &err), CST_OK);
        ck_assert_int_eq(cst_job_open(&jobs[r], clients[r], &spec, &err), CST_OK);
        ck_assert_int_eq(mix_declare(&model, jobs[r]), CST_OK);
    }
    both(clients, jobs, try_commit);
    both(clients, jobs, try_sync);
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
    TCase *bits = suite_case(suite, "bits", setup, teardown);
    TCase *calls = suite_case(suite, "calls", setup, teardown);

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
