/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training with pools in the memory of paced accelerators and a real daemon. The results
 * must have the bits of a computation in this process, wherever the ranks are and whichever process
 * dies. Also tests how the daemon treats such an accelerator. */
#include "cistern/device.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_cases.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

enum {
    N_PACED = 2,
    FIRST = 1 /* number of the first accelerator's engine; the node's engine is 0 */
};

/* Copies take some time, so that engines can be killed during them. */
#define CONFIG                                                                                     \
    "[host]\nnodes = 0\n[paced]\ndevices = 2\nup = 64M\ndown = 32M\nupdate = 32M\nmemory = 8M\n"

static void setup(void)
{
    train_rig_start(CONFIG, (const char *[]){"--engine-threads=2", NULL});
}

/* Wait until the updates of the last step of job @name, whose workers have left, are done. */
static void await_done(const char *name)
{
    while (strcmp(raw_job_info(&witness, name)->state, "done") != 0) {
        (void)usleep(1000);
    }
}

static uint64_t used(unsigned paced)
{
    return raw_stat(&witness)->gpus[paced]->pool_used;
}

/* Wait until @bytes of the accelerator are used: the engine unmaps what a job gives back first. */
static void await_used(unsigned paced, uint64_t bytes)
{
    while (used(paced) != bytes) {
        (void)usleep(1000);
    }
}

/* Weights and gradients are copied over the accelerator's own lanes. When its workers have left,
 * the pool is freed. */
START_TEST(its_engine_copies)
{
    const Cistern__StatReply *stat;

    train_rig_run(&train_placements[0], "one", 0);
    await_done("one");
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->n_engines, 1 + N_PACED);
    ck_assert_str_eq(stat->engines[FIRST]->kind, "paced");
    ck_assert_str_eq(stat->engines[FIRST]->device, "paced:0");
    ck_assert_str_eq(stat->engines[FIRST]->state, "ready");
    ck_assert_str_eq(stat->engines[FIRST + 1]->state, "off");
    ck_assert_uint_gt(stat->engines[FIRST]->commands, 0);
    ck_assert_uint_eq(stat->n_gpus, N_PACED);
    ck_assert_str_eq(stat->gpus[0]->uuid, "paced:0");
    ck_assert_uint_eq(stat->gpus[0]->pool_budget, 8u << 20);
    await_used(0, 0);
    await_used(1, 0);
}
END_TEST

/* Send JobOpen with @device. Returns the status; @became receives the daemon's name of the
 * device. */
static int open_on(const char *device, char *became)
{
    struct cst_job_spec spec = {.name = "device", .world = 2, .rank = 1, .device = device};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    int rc;

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    rc = cst_job_open(&job, client, &spec, &err);
    if (rc == CST_OK) {
        (void)strcpy(became, cst_job_device(job));
    } else {
        ck_assert_ptr_nonnull(strstr(err.text, device));
    }
    cst_disconnect(client);
    return rc;
}

/* A device is chosen by its number or by the rank's. One that does not exist is refused by name. */
START_TEST(devices_are_checked)
{
    char became[64];

    ck_assert_int_eq(open_on("paced", became), CST_OK);
    ck_assert_str_eq(became, "paced:1");
    ck_assert_int_eq(open_on("paced:0", became), CST_OK);
    ck_assert_str_eq(became, "paced:0");
    ck_assert_int_eq(open_on("paced:2", became), CST_ENOTFOUND);
    ck_assert_int_eq(open_on("paced:", became), CST_ENOTFOUND);
    ck_assert_int_eq(open_on("pacedd", became), CST_ENOTFOUND);
}
END_TEST

/* -- reservations ------------------------------------------------------------------------------ */

/* The results have the expected bits with any reservations, wherever they are. */
START_TEST(reservation_bits)
{
    const struct train_placement *at = &train_placements[_i % TRAIN_N_PLACES];

    train_like.device_update_bytes = _i < TRAIN_N_PLACES ? 1 << 20 : 4096;
    train_rig_run(at, at->name, 0);
}
END_TEST

/* Ranks on the host have their reservations on accelerators with their numbers, and ranks with one
 * accelerator share one reservation. The job's end frees the reservations. */
START_TEST(reservations_of_host_ranks)
{
    static const struct train_placement at = {"host", 3, {"host", "host", "host"}};
    const Cistern__StatReply *stat;

    train_like.device_update_bytes = (1 << 20) + 5;
    train_rig_run(&at, at.name, 0);
    stat = raw_stat(&witness);
    ck_assert_str_eq(stat->engines[FIRST]->state, "ready");
    ck_assert_str_eq(stat->engines[FIRST + 1]->state, "ready");
    ck_assert_uint_eq(used(0), 2 << 20);
    ck_assert_uint_eq(used(1), 1 << 20);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    ck_assert_uint_eq(used(0), 0);
}
END_TEST

/* A reservation has its own memory in addition to the pool of a rank that asks for all memory. One
 * that is larger than its accelerator is refused with the numbers. */
START_TEST(reservations_are_charged)
{
    struct cst_job_spec spec = {.name = "large",
                                .world = 1,
                                .device = "paced:0",
                                .memory.device_update_bytes = (8 << 20) + 4096};
    const int64_t n = 1000;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    int tensor;

    train_like.device_update_bytes = 7 << 20;
    train_rig_run(&train_placements[0], "one", 0);
    await_done("one");
    await_used(0, 7 << 20); /* The pool goes with the worker, and the reservation stays. */
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    tensor = cst_tensor(job, "t", CST_BF16, 1, &n, CST_GROUP_ALL);
    ck_assert_int_eq(cst_operator(job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_EBUDGET);
    ck_assert_msg(strstr(err.text, "memory of paced:0") != NULL, "%s", err.text);
    cst_disconnect(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("paced");
    TCase *plain = suite_case(suite, "bits", setup, train_rig_stop);
    TCase *reservations = suite_case(suite, "reservations", setup, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", setup, train_rig_stop);

    train_cases_use("paced");
    train_cases_bits(plain);
    train_cases_micro_batch_bits(plain);
    tcase_add_test(plain, its_engine_copies);
    tcase_add_test(plain, devices_are_checked);
    tcase_add_loop_test(reservations, reservation_bits, 0, 2 * TRAIN_N_PLACES);
    tcase_add_test(reservations, reservations_of_host_ranks);
    tcase_add_test(reservations, reservations_are_charged);
    train_cases_engine_killed(deaths, 0, 1 + N_PACED);
    train_cases_worker_killed(deaths);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
