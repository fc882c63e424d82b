/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a third tier with a real daemon: states lie in memory whose engine only copies
 * (tests/lib/slow_daemon.c), and chunks are updated in host memory. The results must have the bits
 * of a computation in this process, whichever process dies. */
#include "cistern/cistern.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>
#include <string.h>

enum { NODE, SLOW, N_ENGINES };

/* Copies take some time, so that engines can be killed during them. */
#define CONFIG "[host]\nnodes = 0\n[paced]\ndevices = 1\nup = 256M\ndown = 256M\nmemory = 16M\n"
#define BUFFERS (4ull << 20) /* more than three */

static const struct train_placement one = {.name = "one", .world = 1, .devices = {"host"}},
                                    two = {.name = "two", .world = 2, .devices = {"host", "host"}};

static void setup(void)
{
    daemon_proc_slow();
    train_rig_start(CONFIG, (const char *[]){"--engine-threads=2", NULL});
    train_like.device_update_bytes = BUFFERS;
    train_like.device_states = 1 << 20;
}

/* All states or some of them are there, with one rank and two, and with micro-batches. Then all
 * updates, or some, are staged. */
START_TEST(bits)
{
    const struct train_placement *at = _i % 2 == 0 ? &one : &two;
    const Cistern__JobInfo *info;

    train_like.device_update_bytes = BUFFERS / at->world;
    train_like.device_states = (_i / 2 % 2 == 0 ? 1 << 20 : 120 << 10) / at->world;
    train_like.micro_batches = _i / 4 == 0 ? 1 : 2;
    train_rig_run(at, "bits", 0);
    info = raw_job_info(&witness, "bits");
    ck_assert_uint_gt(info->n_device_updates, 0);
    if (_i / 2 % 2 == 0) {
        ck_assert_uint_eq(info->n_device_updates, info->n_updates);
    } else {
        ck_assert_uint_lt(info->n_device_updates, info->n_updates);
    }
    ck_assert_uint_gt(info->device_states, 0);
    ck_assert_uint_gt(raw_stat(&witness)->engines[SLOW]->commands, 0);
}
END_TEST

/* No rank can have its pool there. */
START_TEST(no_pools)
{
    const struct cst_job_spec spec = {.name = "pool", .world = 1, .device = "paced:0"};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_EUNSUPPORTED);
    ck_assert_msg(strstr(err.text, "no pool can be there") != NULL, "%s", err.text);
    cst_disconnect(client);
}
END_TEST

/* The engine of the node or that of the tier is killed at every point of a worker's run: no step is
 * repeated. */
START_TEST(engine_killed)
{
    train_like.device_update_bytes = BUFFERS / 2;
    train_like.device_states = 1 << 19;
    train_rig_kill_engine(&two, (unsigned)_i, (struct train_points){3, 1, 7});
}
END_TEST

/* A worker is killed at every point, and another one takes its place. */
START_TEST(worker_killed)
{
    train_like.device_update_bytes = BUFFERS / 2;
    train_like.device_states = 1 << 19;
    (void)train_rig_kill_worker(&two, 1, (struct train_points){3, 1, 7});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slow");
    TCase *plain = suite_case(suite, "bits", setup, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", setup, train_rig_stop);

    suite_add_loop(plain, bits, 0, 8);
    tcase_add_test(plain, no_pools);
    suite_add_loop(deaths, engine_killed, NODE, N_ENGINES);
    tcase_add_test(deaths, worker_killed);
    tcase_set_timeout(plain, 60);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
