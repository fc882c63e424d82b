/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs whose states lie in files on drives, with real processes and files. The results
 * must have the bits of a computation in this process, whichever process dies. */
#include "cistern/cistern.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* Engines of a daemon of one node: that of the first drive follows. */
enum { NODE, DRIVE, N_ENGINES };

static const struct train_placement one = {.name = "one", .world = 1, .devices = {"host"}},
                                    two = {.name = "two", .world = 2, .devices = {"host", "host"}};
static char twice[512]; /* The directory, two times: two drives (drives_daemon). */

static void start(void)
{
    train_rig_start("[host]\nnodes = 0\n", (const char *[]){"--engine-threads=2", NULL});
    (void)snprintf(twice, sizeof twice, "%s,%s", disk_file_dir(), disk_file_dir());
    train_like.disk = disk_file_dir();
}

static void setup_drives(void)
{
    daemon_proc_drives();
    start();
}

/* All states are there or half of them, on one drive or two, with one rank and two, and with
 * micro-batches. */
START_TEST(bits)
{
    const struct train_placement *at = _i % 2 == 0 ? &one : &two;
    const Cistern__JobInfo *info;

    train_like.disk = _i / 2 % 2 == 0 ? disk_file_dir() : twice;
    train_like.disk_bytes = _i / 4 % 2 == 0 ? 0 : 160 << 10;
    train_like.micro_batches = _i / 8 == 0 ? 1 : 2;
    train_rig_run(at, "bits", 0);
    info = raw_job_info(&witness, "bits");
    if (_i / 4 % 2 == 0) {
        ck_assert_uint_eq(info->n_device_updates, info->n_updates);
    } else {
        ck_assert_uint_gt(info->n_device_updates, 0);
        ck_assert_uint_lt(info->n_device_updates, info->n_updates);
    }
    ck_assert_uint_gt(raw_stat(&witness)->engines[DRIVE]->commands, 0);
}
END_TEST

/* The engine of the node or that of the drive is killed at every point of a worker's run: no step
 * is repeated. */
START_TEST(engine_killed)
{
    train_rig_kill_engine(&two, (unsigned)_i, (struct train_points){3, 1, 7});
}
END_TEST

/* A worker is killed at every point, and another one takes its place. */
START_TEST(worker_killed)
{
    (void)train_rig_kill_worker(&two, 1, (struct train_points){3, 1, 7});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disk");
    TCase *plain = suite_case(suite, "bits", setup_drives, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", start, train_rig_stop);

    if (disk_file_is_missing("check_disk")) {
        return DISK_FILE_SKIP;
    }
    suite_add_loop(plain, bits, 0, 16);
    suite_add_loop(deaths, engine_killed, NODE, N_ENGINES);
    tcase_add_test(deaths, worker_killed);
    tcase_set_timeout(plain, 60);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
