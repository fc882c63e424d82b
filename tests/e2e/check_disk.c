/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs whose states lie in files on drives, with real processes and files. The results
 * must have the bits of a computation in this process, whichever process dies. */
#include "cistern/cistern.h"
#include "offload/layout/layout.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* -- files that cannot be used ---------------------------------------------------------------- */

static int on_the_drive(int flags)
{
    return open(disk_file_dir(), O_TMPFILE | flags, 0600);
}

static int the_pipe(void)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    return ends[0];
}

/* Give the @n files @fds to the job that @client has open, and close them. */
static int give_all(struct raw_client *client, const int *fds, unsigned n)
{
    struct cst_frame frame = {
        .type = CISTERN__MSG_TYPE__MSG_JOB_FILES, .request = ++client->id, .n_fds = n};
    struct cst_err err = {0};
    int rc;

    memcpy(frame.fds, fds, n * sizeof *fds);
    rc = cst_frame_send(client->sock, 0, &frame, &err);
    for (unsigned i = 0; i < n; i++) {
        (void)close(fds[i]);
    }
    ck_assert_msg(rc == CST_OK, "%s", err.text);
    return raw_status(client, client->id);
}

/* The same with the file @fd alone; -1: none. */
static int give(struct raw_client *client, int fd)
{
    return give_all(client, &fd, fd >= 0 ? 1 : 0);
}

/* What is no file of its own on a drive is refused, with what it is, and the daemon keeps nothing
 * of it. */
START_TEST(not_a_file)
{
    const struct {
        int fd;
        const char *words;
    } bad[] = {{the_pipe(), "is no regular file"},
               {open("/dev/null", O_RDWR), "is no regular file"},
               {open(disk_file_dir(), O_RDONLY | O_DIRECTORY), "is no regular file"},
               {memfd_create("states", 0), "is on no block device"},
               {on_the_drive(O_RDWR), "O_RDWR and O_DIRECT are needed"},
               {on_the_drive(O_WRONLY | O_DIRECT), "O_RDWR and O_DIRECT are needed"},
               {on_the_drive(O_RDWR | O_DIRECT | O_APPEND), "without O_APPEND"}};
    struct raw_job job = {.name = "bad", .world = 1};
    struct raw_client client;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_ge(bad[i].fd, 0);
        ck_assert_int_eq(give(&client, -1), CST_OK);
        ck_assert_int_eq(give(&client, bad[i].fd), CST_EINVAL);
        ck_assert_msg(strstr(client.err.text, bad[i].words) != NULL, "%s", client.err.text);
    }
    raw_close(&client);
}
END_TEST

/* A file serves one job, also if it is given twice by one descriptor, and only rank 0 gives it. */
START_TEST(not_this_file)
{
    struct raw_job first = {.name = "first", .world = 2}, other = {.name = "other", .world = 1},
                   second = {.name = "first", .rank = 1, .world = 2};
    struct raw_client clients[3];
    char path[300];
    int fd, again;

    for (int i = 0; i < 3; i++) {
        raw_open(&clients[i], proc.socket);
    }
    ck_assert_int_eq(raw_job_open(&clients[0], &first), CST_OK);
    ck_assert_int_eq(raw_job_open(&clients[1], &other), CST_OK);
    ck_assert_int_eq(raw_job_open(&clients[2], &second), CST_OK);
    ck_assert_int_eq(give(&clients[2], -1), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(clients[2].err.text, "those of rank 0 are used"));
    (void)snprintf(path, sizeof path, "%s/cistern-check-disk.%d", disk_file_dir(), (int)getpid());
    fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_DIRECT, 0600);
    again = open(path, O_RDWR | O_DIRECT);
    ck_assert_int_ge(again, 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(give(&clients[0], -1), CST_OK);
    ck_assert_int_eq(give(&clients[0], fd), CST_OK);
    ck_assert_int_eq(give(&clients[1], -1), CST_OK);
    ck_assert_int_eq(give(&clients[1], again), CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(clients[1].err.text, "for the states of another job"));
    for (int i = 0; i < 3; i++) {
        raw_close(&clients[i]);
    }
}
END_TEST

/* A daemon knows so many drives at a time. A job that brings two when there is a place for one is
 * refused. */
START_TEST(too_many_drives)
{
    static const unsigned n_files[] = {8, 8, 8, 7, 2};
    static const int expected[] = {CST_OK, CST_OK, CST_OK, CST_OK, CST_EUNSUPPORTED};
    struct raw_client clients[5];

    for (int i = 0; i < 5; i++) {
        char name[16];
        struct raw_job job = {.name = name, .world = 1};
        int fds[8], rc;

        (void)snprintf(name, sizeof name, "job-%d", i);
        raw_open(&clients[i], proc.socket);
        ck_assert_int_eq(raw_job_open(&clients[i], &job), CST_OK);
        for (unsigned k = 0; k < n_files[i]; k++) {
            fds[k] = on_the_drive(O_RDWR | O_DIRECT);
            ck_assert_int_ge(fds[k], 0);
        }
        ck_assert_int_eq(give(&clients[i], -1), CST_OK);
        rc = give_all(&clients[i], fds, n_files[i]);
        ck_assert_msg(rc == expected[i], "%u files: %s", n_files[i], clients[i].err.text);
        ck_assert(rc == CST_OK ||
                  strstr(clients[i].err.text, "states of jobs are on 32 drives already") != NULL);
    }
    for (int i = 0; i < 5; i++) {
        raw_close(&clients[i]);
    }
}
END_TEST

/* A job can have so many drives: one more is refused with the number and what helps, in the files
 * that are given and in those that a client means to give. */
START_TEST(too_many_files)
{
    char list[CST_LAYOUT_MAX_DEVICES * 256 + 256] = "";
    struct raw_job job = {.name = "many", .world = 1};
    struct cst_job_spec spec = {.name = "more", .world = 1, .states.disk = list};
    int fds[CST_LAYOUT_MAX_DEVICES + 1];
    struct raw_client client;
    struct cst_client *worker;
    struct cst_job *more;
    struct cst_err err;

    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    for (size_t i = 0; i < CST_LAYOUT_MAX_DEVICES + 1; i++) {
        size_t at = strlen(list);

        fds[i] = on_the_drive(O_RDWR | O_DIRECT);
        ck_assert_int_ge(fds[i], 0);
        (void)snprintf(list + at, sizeof list - at, "%s%.250s", i == 0 ? "" : ",", disk_file_dir());
    }
    ck_assert_int_eq(give(&client, -1), CST_OK);
    ck_assert_int_eq(give_all(&client, fds, CST_LAYOUT_MAX_DEVICES + 1), CST_EINVAL);
    raw_says(&client,
             "9 files for states: a job can have 8 drives. Name fewer directories, or make "
             "one drive of several (RAID 0)");
    raw_close(&client);
    ck_assert_int_eq(cst_connect(&worker, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&more, worker, &spec, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "states on 9 drives: a job can have 8. Name fewer") != NULL,
                  "%s", err.text);
    cst_disconnect(worker);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disk");
    TCase *plain = suite_case(suite, "bits", setup_drives, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", start, train_rig_stop);
    TCase *refusals = suite_case(suite, "refusals", start, train_rig_stop);

    if (disk_file_is_missing("check_disk")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_test(plain, too_many_drives);
    tcase_add_test(plain, too_many_files);
    suite_add_loop(plain, bits, 0, 16);
    suite_add_loop(deaths, engine_killed, NODE, N_ENGINES);
    tcase_add_test(deaths, worker_killed);
    tcase_add_test(refusals, not_a_file);
    tcase_add_test(refusals, not_this_file);
    tcase_set_timeout(plain, 60);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
