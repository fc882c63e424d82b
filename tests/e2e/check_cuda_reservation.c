/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of device updates on GPUs with a real daemon and the real engines, on tests/lib/fakecuda,
 * with faults: engines die, gradients are not finite, calls of the driver fail. The results must
 * have the bits of a computation in this process. */
#include "tests/lib/cuda_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static const struct train_placement one = {"one", 1, {"cuda:0"}},
                                    two = {"two", 2, {"cuda", "cuda"}};

/* Open reservations that update every second chunk, or all chunks (@k). */
static void open_reservations(const char *k)
{
    char config[64];

    (void)snprintf(config, sizeof config, "[plan]\ninterleave = %s\n", k);
    cuda_rig_dawdle(false);
    cuda_rig_open(config);
    train_like.device_update_bytes = 2 << 20;
}

static void setup(void)
{
    open_reservations("2");
}

/* -- deaths ----------------------------------------------------------------------------------- */

/* An engine (0: the node's, 1 and 2: the GPUs') is killed at points of a worker's whole run: no
 * step is interrupted, and the results have the expected bits. Updates are made after the commit,
 * and before it. */
START_TEST(engine_killed)
{
    train_like.overlap.when = _i % 2 == 0 ? CST_OVERLAP_COMMIT : CST_OVERLAP_EARLY;
    train_rig_kill_engine(&two, (unsigned)_i / 2, (struct train_points){4, 4, 9});
}
END_TEST

/* One of two ranks is killed and replaced while updates use reservations. */
START_TEST(worker_killed)
{
    train_like.overlap.when = _i == 0 ? CST_OVERLAP_COMMIT : CST_OVERLAP_EARLY;
    (void)train_rig_kill_worker(&two, 1, (struct train_points){(uint32_t)_i, 12, 9});
}
END_TEST

/* -- gradients that are not finite ------------------------------------------------------------- */

/* Early updates on a GPU keep the states of tiles whose gradient is not finite or is huge, and
 * update the others. The step counts. */
START_TEST(guard)
{
    static const uint16_t values[] = {0x7f80, 0xff80, 0x7fc0, 0x7e96}; /* the last one is 1e38 */
    struct train_order order = train_rig_order(&two, "guard", 0);

    order.overlap.when = CST_OVERLAP_EARLY;
    order.bad = (struct train_bad){.step = 1, .value = values[_i]};
    train_rig_run_like(&two, &order, 0);
    ck_assert(!reports[0]->run.results[1].skipped);
    ck_assert_uint_gt(raw_job_info(&witness, "guard")->n_device_updates, 0);
}
END_TEST

/* -- calls that fail --------------------------------------------------------------------------- */

/* Start engines whose driver has the faults @faults. */
static void open_failing(const char *faults)
{
    (void)setenv("CST_FAKECUDA_FAIL", faults, 1);
    open_reservations("1");
    (void)unsetenv("CST_FAKECUDA_FAIL");
}

/* Calls of the first engine that fail, in updates of the first step. All of its four chunks use the
 * reservation, after four sums. */
static const struct {
    const char *faults;
    unsigned n_failures;
    unsigned n_there; /* updates on the accelerator, of 12 in all */
} calls[] = {
    {"cuLaunchKernel:5=2", 1, 11},                    /* an UPDATE fails */
    {"cuLaunchKernel:5=2,cuLaunchKernel:7=2", 2, 10}, /* two fail */
    {"cuMemcpyHtoDAsync:15=2", 1, 11},                /* a COPY to the reservation fails */
    {"cuMemcpyDtoHAsync:20=2", 1, 12},                /* a COPY out of the reservation fails */
    {"cuMemcpyDtoDAsync:3=2", 1, 12},                 /* a copy of a gradient fails */
    /* The reservation is given up. */
    {"cuLaunchKernel:5=2,cuLaunchKernel:6=2,cuLaunchKernel:7=2", 3, 1},
};
enum { N_CALLS = sizeof calls / sizeof calls[0], GIVEN_UP = N_CALLS - 1 };

/* The job goes on, the results have the expected bits, and statistics show what happened. */
START_TEST(call_fails)
{
    const Cistern__JobInfo *info;
    struct train_order order;

    open_failing(calls[_i].faults);
    order = train_rig_order(&one, "calls", 0);
    train_rig_run_like(&one, &order, 0);
    info = raw_job_info(&witness, "calls");
    ck_assert_uint_eq(info->n_updates, 12);
    ck_assert_uint_eq(info->n_device_updates, calls[_i].n_there);
    ck_assert_uint_eq(info->reservation_failures, calls[_i].n_failures);
    ck_assert_uint_eq(info->reservations_given_up, _i == GIVEN_UP);
    ck_assert_uint_eq(info->interleave, _i != GIVEN_UP);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_reservation");
    TCase *deaths = suite_case(suite, "deaths", setup, cuda_rig_close);
    TCase *numbers = suite_case(suite, "numbers", setup, cuda_rig_close);
    TCase *faults = suite_case(suite, "faults", NULL, cuda_rig_close);

    (void)argc;
    fake_gpu_use(argv);
    tcase_add_loop_test(deaths, engine_killed, 0, 6);
    tcase_add_loop_test(deaths, worker_killed, 0, 2);
    tcase_set_timeout(deaths, 120);
    tcase_add_loop_test(numbers, guard, 0, 4);
    tcase_add_loop_test(faults, call_fails, 0, N_CALLS);
    return suite_run(suite);
}
