/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training with ranks on GPUs, with a real daemon, the real engines and libcistern-cuda on
 * tests/lib/fakecuda. The results must have the bits of a computation in this process, wherever the
 * ranks are, for any pools and delays of streams, and whichever process dies. Afterwards no process
 * has left memory, streams or events behind. */
#include "tests/lib/cuda_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_cases.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- the daemon ------------------------------------------------------------------------------- */

/* Configurations: which process copies weights to the GPUs. */
#define BY_ENGINES ""
#define GATHERED "[gpu]\ngather = 4096\n"
#define BY_WORKERS "[gpu]\ncopies = worker\n"

static void setup(void)
{
    cuda_rig_dawdle(false);
    cuda_rig_open(BY_ENGINES);
}

/* Fixture: GPUs exchange pieces of the weights that they load. */
static void setup_gather(void)
{
    cuda_rig_dawdle(false);
    cuda_rig_open(GATHERED);
}

static void setup_copies(void)
{
    cuda_rig_dawdle(false);
    cuda_rig_open(BY_WORKERS);
}

static void setup_late(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open(GATHERED);
}

static void setup_late_copies(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open(BY_WORKERS);
}

/* Fixture: every second chunk that can use a reservation of a GPU does, and streams are delayed. */
static void setup_reservations(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open("[plan]\ninterleave = 2\n");
}

/* Fixture: the driver registers no host memory, and refuses to copy from or to memory that is not
 * pinned. */
static void setup_staged(void)
{
    (void)setenv("CST_FAKECUDA_FAIL", "cuMemHostRegister:1+=801", 1);
    (void)setenv("CST_FAKECUDA_PAGEABLE", "no", 1);
    cuda_rig_dawdle(false);
    cuda_rig_open(BY_ENGINES);
}

/* Fixture: the driver registers no host memory, and workers copy. */
static void setup_staged_copies(void)
{
    (void)setenv("CST_FAKECUDA_FAIL", "cuMemHostRegister:1+=801", 1);
    setup_copies();
}

/* -- bits ------------------------------------------------------------------------------------- */

/* The results have the expected bits for every placement, with a pool between the smallest and the
 * largest. */
START_TEST(bits_between)
{
    const struct train_placement *at = &train_placements[_i];
    const struct cst_plan *plan = &reports[0]->plan;

    train_rig_run(at, at->name, 0);
    train_rig_run(at, "between", (plan->min_blocks + 1) * plan->block_bytes);
}
END_TEST

/* Device updates on GPUs with one micro-batch per step and with several have the expected bits. */
START_TEST(reservations)
{
    const struct train_placement *at = &train_placements[_i / 2];
    struct train_order order = train_rig_order(at, "reservations", 0);

    order.device_update_bytes =
        (8ull << 20) / at->world; /* 2 MiB is the least that a GPU allocates */
    order.micro_batches = _i % 2 == 0 ? 1 : 3;
    train_rig_run_like(at, &order, 0);
    ck_assert_uint_gt(raw_job_info(&witness, "reservations")->n_device_updates, 0);
}
END_TEST

/* The forms that do not wait have the expected results. Their descriptor also signals the
 * stream. */
START_TEST(try_forms)
{
    const struct train_placement *at = &train_placements[_i];
    struct train_order order = train_rig_order(at, "try", 0);

    order.try_forms = true;
    order.pool_bytes = 6ull * 2 * TRAIN_CHUNK_ELEMS;
    train_rig_run_like(at, &order, 0);
}
END_TEST

/* A worker that forks in every operator continues its training. */
START_TEST(forks)
{
    struct train_order order = train_rig_order(&train_placements[TRAIN_SAME], "forks", 0);

    order.forks = true;
    train_rig_run_like(&train_placements[TRAIN_SAME], &order, 0);
}
END_TEST

/* The sums on a GPU detect a gradient that is not finite: the step is skipped. */
START_TEST(bad_gradient)
{
    static const uint16_t values[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81};
    struct train_order order = train_rig_order(&train_placements[TRAIN_PEERS], "bad", 0);

    order.bad = (struct train_bad){.step = 1, .value = values[_i]};
    train_rig_run_like(&train_placements[TRAIN_PEERS], &order, 0);
    ck_assert(reports[0]->run.results[1].skipped && !reports[0]->run.results[2].skipped);
}
END_TEST

/* Workers leave and others come: the pool's memory is imported again, and the states are
 * unchanged. */
START_TEST(come_back)
{
    const struct train_placement *at = &train_placements[TRAIN_PEERS];
    struct train_order order = train_rig_order(at, "back", 0);

    order.n_steps = 2;
    train_rig_run_like(at, &order, 0);
    order.n_steps = 5;
    train_rig_run_like(at, &order, 2);
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

/* One of two ranks is killed at every point, on one GPU or on two. Another process takes its place,
 * and imports the pool unchanged. _i: both choices. */
START_TEST(worker_killed_anywhere)
{
    (void)train_rig_kill_worker(&train_placements[_i / 2 == 0 ? TRAIN_PEERS : TRAIN_SAME],
                                (uint32_t)_i % 2, (struct train_points){0, 1, 9});
}
END_TEST

/* One of two ranks is killed while the survivor's work for the interrupted step still runs when the
 * survivor is told of the death. _i: the points and the rank. */
START_TEST(worker_killed_late)
{
    (void)train_rig_kill_worker(&train_placements[TRAIN_PEERS], (uint32_t)_i % 2,
                                (struct train_points){(uint32_t)_i, 4, 9});
}
END_TEST

/* The n-th call of the driver in a worker fails, for each n up to the number of calls. The worker
 * ends with an error, or the failure did not matter and the results have the expected bits; then
 * another worker takes its place. Only what the driver was told to break, or refused to free,
 * leaks. _i: out of memory; a sticky error. */
START_TEST(call_fails)
{
    static const int results[] = {2, 719};
    struct train_order order = train_rig_order(&train_placements[TRAIN_ONE], "calls", 0);
    bool reached = true;
    char setting[64];

    for (unsigned n = 1 + suite_first(5); reached; n += suite_stride(5) * (n < 24 ? 1 : 7)) {
        long reported = cuda_rig_reported();
        pid_t pid;
        int status;

        (void)snprintf(setting, sizeof setting, "CST_FAKECUDA_FAIL=*:%u=%d", n, results[_i]);
        order.setting = setting;
        order.pool_bytes = n % 2 == 0 ? 0 : 6ull * 2 * TRAIN_CHUNK_ELEMS;
        pid = train_rig_send(&order);
        status = train_worker_join_any(pid);
        reached = cuda_rig_has_fault(pid, reported);
        ck_assert_msg(status == 0 || reports[0]->error[0] != '\0', "call %u", n);
        ck_assert_msg(status == 0 || reached, "call %u: %s", n, reports[0]->error);
        order.setting = NULL;
        pid = train_worker_start(&order, reports[0]);
        train_worker_join(pid, reports[0]);
        train_check_states(reports, 1, TRAIN_RIG_STEPS, order.bad);
        settle_remove_jobs(&witness);
    }
}
END_TEST

/* Work on a worker's stream fails permanently: the worker is told so, and ends. The other rank is
 * told of its death, and a process that takes its place repeats the step. _i: which work. */
START_TEST(stream_fails)
{
    struct train_order orders[2] = {train_rig_order(&train_placements[TRAIN_PEERS], "sticky", 0),
                                    train_rig_order(&train_placements[TRAIN_PEERS], "sticky", 1)};
    char setting[64];

    (void)snprintf(setting, sizeof setting, "CST_FAKECUDA_FAIL=host:%d=719", 1 + 3 * _i);
    orders[1].setting = setting;
    train_rig_replace(orders, 1, false);
    ck_assert_msg(strstr(reports[1]->error, "CUDA_ERROR_LAUNCH_FAILED") != NULL, "%s",
                  reports[1]->error);
}
END_TEST

/* Ranks on two GPUs that run in step get a part of their weights from each other, and `cistern
 * explain` says how. */
START_TEST(gpus_exchange)
{
    const Cistern__JobInfo *job;

    train_rig_run(&train_placements[TRAIN_PEERS], "gather", 0);
    job = raw_job_info(&witness, "gather");
    for (size_t r = 0; r < job->n_ranks; r++) {
        ck_assert_uint_gt(job->ranks[r]->bytes_up, 0);
        ck_assert_uint_gt(job->ranks[r]->bytes_peer, 0);
    }
    ck_assert(raw_explains(&witness, "gather", train_small.tensors[0].name,
                           "up to 2 GPUs that expect its weights together"));
}
END_TEST

/* If workers copy, no GPU's engine copies weights, and `cistern job` says so. */
START_TEST(no_engine_copies_up)
{
    const Cistern__JobInfo *job;
    const Cistern__StatReply *stat;

    train_rig_run(&train_placements[TRAIN_PEERS], "copies", 0);
    job = raw_job_info(&witness, "copies");
    ck_assert_str_eq(job->copies, "worker");
    for (size_t r = 0; r < job->n_ranks; r++) {
        ck_assert_uint_gt(job->ranks[r]->bytes_up, 0);
    }
    stat = raw_stat(&witness);
    for (size_t i = 1; i < stat->n_engines; i++) {
        ck_assert_uint_eq(stat->engines[i]->up_bytes, 0);
    }
}
END_TEST

/* If the driver registers no host memory, engines copy through buffers of their own, with the same
 * bits. The log says it once for each engine, and `cistern stat` shows it. */
START_TEST(staged)
{
    const Cistern__StatReply *stat;

    train_rig_run(&train_placements[TRAIN_PEERS], "staged", 0);
    stat = raw_stat(&witness);
    for (size_t i = 0; i < stat->n_engines; i++) {
        ck_assert_int_eq(stat->engines[i]->staged, strcmp(stat->engines[i]->kind, "cuda") == 0);
    }
    ck_assert(train_rig_logged("does not register host memory"));
    ck_assert(train_rig_logged("its copies go through pinned buffers"));
}
END_TEST

/* If the driver registers no host memory, workers that copy do it without. */
START_TEST(staged_by_workers)
{
    train_rig_run(&train_placements[TRAIN_PEERS], "staged", 0);
    ck_assert_str_eq(raw_job_info(&witness, "staged")->copies, "worker");
}
END_TEST

/* A worker's copy fails permanently: the worker ends, and a process that takes its place repeats
 * the step. _i: which copy. */
START_TEST(copy_fails)
{
    struct train_order orders[2] = {train_rig_order(&train_placements[TRAIN_PEERS], "copy", 0),
                                    train_rig_order(&train_placements[TRAIN_PEERS], "copy", 1)};
    char setting[64];

    (void)snprintf(setting, sizeof setting, "CST_FAKECUDA_FAIL=copy:%d=719", 1 + 2 * _i);
    orders[1].setting = setting;
    train_rig_replace(orders, 1, false);
    ck_assert_msg(strstr(reports[1]->error, "CUDA_ERROR_LAUNCH_FAILED") != NULL, "%s",
                  reports[1]->error);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_train");
    TCase *plain = suite_case(suite, "bits", setup, cuda_rig_close);
    TCase *late = suite_case(suite, "late", setup_late, cuda_rig_close);
    TCase *deaths = suite_case(suite, "deaths", setup_gather, cuda_rig_close);
    TCase *gather = suite_case(suite, "gather", setup_gather, cuda_rig_close);
    TCase *copies = suite_case(suite, "copies", setup_copies, cuda_rig_close);
    TCase *late_copies = suite_case(suite, "late_copies", setup_late_copies, cuda_rig_close);
    TCase *deaths_copies = suite_case(suite, "deaths_copies", setup_copies, cuda_rig_close);
    TCase *no_registration = suite_case(suite, "staged", setup_staged, cuda_rig_close);
    TCase *unpinned = suite_case(suite, "staged_copies", setup_staged_copies, cuda_rig_close);
    TCase *in_reservations = suite_case(suite, "reservations", setup_reservations, cuda_rig_close);

    (void)argc;
    fake_gpu_use(argv);
    train_cases_use("cuda");
    train_cases_bits(plain);
    suite_add_loop(plain, bits_between, 0, TRAIN_N_PLACES);
    train_cases_micro_batch_bits(plain);
    suite_add_loop(plain, try_forms, 0, TRAIN_N_PLACES);
    tcase_add_test(plain, forks);
    suite_add_loop(plain, bad_gradient, 0, 5);
    tcase_add_test(plain, come_back);
    train_cases_bits(late);
    suite_add_loop(late, bits_between, 0, TRAIN_N_PLACES);
    suite_add_loop(late, try_forms, 0, TRAIN_N_PLACES);
    suite_add_loop(late, worker_killed_late, 0, 4);
    tcase_set_timeout(late, 120);
    train_cases_bits(gather);
    suite_add_loop(gather, bits_between, 0, TRAIN_N_PLACES);
    tcase_add_test(gather, gpus_exchange);
    train_cases_engine_killed(deaths, 0, 3);
    suite_add_loop(deaths, worker_killed_anywhere, 0, 4);
    suite_add_loop(deaths, stream_fails, 0, 12);
    suite_add_loop(deaths, call_fails, 0, 2);
    tcase_set_timeout(deaths, 180);
    train_cases_bits(copies);
    suite_add_loop(copies, bits_between, 0, TRAIN_N_PLACES);
    suite_add_loop(copies, try_forms, 0, TRAIN_N_PLACES);
    tcase_add_test(copies, no_engine_copies_up);
    tcase_add_test(no_registration, staged);
    tcase_add_test(unpinned, staged_by_workers);
    tcase_add_test(copies, forks);
    tcase_add_test(copies, come_back);
    suite_add_loop(copies, copy_fails, 0, 3);
    train_cases_engine_killed(deaths_copies, 1, 2);
    suite_add_loop(deaths_copies, worker_killed_anywhere, 0, 3);
    suite_add_loop(deaths_copies, stream_fails, 0, 6);
    tcase_set_timeout(deaths_copies, 180);
    train_cases_bits(late_copies);
    suite_add_loop(late_copies, bits_between, 0, TRAIN_N_PLACES);
    train_cases_micro_batch_bits(late_copies);
    suite_add_loop(late_copies, try_forms, 0, TRAIN_N_PLACES);
    suite_add_loop(late_copies, worker_killed_late, 0, 4);
    tcase_set_timeout(late_copies, 120);
    suite_add_loop(in_reservations, reservations, 0, 2 * TRAIN_N_PLACES);
    return suite_run(suite);
}
