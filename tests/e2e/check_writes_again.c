/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of writes of states in which the daemon dies: the library writes again when the next daemon
 * is there, and the states are what was written last. If the worker is gone, too, the job does not
 * go on with what may be torn. CST_TEST_SEED: seed of the writes and of the deaths. */
#include "cistern/checkpoint.h"
#include "cistern/cistern.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TENSORS = 3, N_ELEMS = 768 * 1024, BLOCK = 32, N_STATES = 3 };

static char faults[] = "/tmp/cistern-faults-XXXXXX";
static struct daemon_proc proc;
static uint64_t seed, state;
/* What the states of each tensor must be. */
static float expected[N_TENSORS][N_STATES][N_ELEMS], data[N_ELEMS];
static float saved[N_TENSORS][N_STATES][N_ELEMS]; /* What they were in a checkpoint. */

static const enum cst_state states[N_STATES] = {CST_STATE_MASTER, CST_STATE_EXP_AVG,
                                                CST_STATE_EXP_AVG_SQ};

static uint64_t next(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void setup(void)
{
    state = seed;
    ck_assert_ptr_nonnull(mkdtemp(faults));
    daemon_proc_keep();
    daemon_proc_fault(faults);
    daemon_proc_start_with(&proc, "[host]\nnodes = 0\n",
                           (const char *[]){"--engine-threads=2", "--pool-memory=256M", NULL});
}

static void teardown(void)
{
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    ck_assert_int_eq(rmdir(faults), 0);
}

/* The daemon dies at the command number @n for a worker from now on, or later. */
static void let_die(uint64_t n)
{
    char path[64], text[24];
    int fd, length = snprintf(text, sizeof text, "%llu", (unsigned long long)n);

    (void)snprintf(path, sizeof path, "%s/io", faults);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, (size_t)length), length);
    ck_assert_int_eq(close(fd), 0);
}

/* True if the daemon has died since let_die. */
static bool has_died(void)
{
    char path[64];

    (void)snprintf(path, sizeof path, "%s/io", faults);
    return access(path, F_OK) != 0;
}

/* -- a job ------------------------------------------------------------------------------------ */

struct rank {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err;
};

static void must(const struct rank *rank, int rc)
{
    ck_assert_msg(rc == CST_OK, "%s: %s", cst_status_name(rc), rank->err.text);
}

static void open_job(struct rank *rank, const struct cst_job_spec *spec)
{
    must(rank, cst_connect(&rank->client, proc.socket, &rank->err));
    must(rank, cst_job_open(&rank->job, rank->client, spec, &rank->err));
    for (int i = 0; i < N_TENSORS; i++) {
        char name[8];
        int t;

        (void)snprintf(name, sizeof name, "t%d", i);
        t = cst_tensor(rank->job, name, CST_BF16, 2, (int64_t[]){768, 1024}, CST_GROUP_ALL);
        ck_assert_int_eq(t, i);
        ck_assert_int_ge(cst_operator(rank->job, name, &t, 1), 0);
    }
    must(rank, cst_commit(rank->job, NULL, &rank->err));
}

/* Write random elements of a random state, which every format of moments can hold. */
static void write_some(struct rank *rank, int tensor, int s, uint64_t first, uint64_t n)
{
    const float power = (float)(1 << next(8));

    for (uint64_t i = 0; i < n; i++) {
        data[i] = s == 0 ? (float)next(1 << 24) / 1024 : power;
    }
    memcpy(expected[tensor][s] + first, data, n * sizeof *data);
    must(rank, cst_tensor_write(rank->job, tensor, states[s], first, n, data, &rank->err));
}

static void check_states(struct rank *rank)
{
    for (int t = 0; t < N_TENSORS; t++) {
        for (int s = 0; s < N_STATES; s++) {
            must(rank, cst_tensor_read(rank->job, t, states[s], 0, N_ELEMS, data, &rank->err));
            for (int i = 0; i < N_ELEMS; i++) {
                suite_must(data[i] == expected[t][s][i],
                           "tensor %d, state %d, element %d: %g, not %g", t, s, i, (double)data[i],
                           (double)expected[t][s][i]);
            }
        }
    }
}

/* Open the job of @spec, write all its states and let it begin. */
static void begin(struct rank *rank, const struct cst_job_spec *spec)
{
    open_job(rank, spec);
    for (int t = 0; t < N_TENSORS; t++) {
        for (int s = 0; s < N_STATES; s++) {
            write_some(rank, t, s, 0, N_ELEMS);
        }
    }
    must(rank, cst_sync(rank->job, NULL, &rank->err));
}

/* The states of a job lie in memory or on a drive, in two formats. */
static struct cst_job_spec spec_of(int i)
{
    struct cst_job_spec spec = {.name = "again", .world = 1, .planning.chunk_elems = N_ELEMS};

    spec.states.disk = i / 2 == 0 ? NULL : disk_file_dir();
    spec.states.moments = i % 2 == 0 ? CST_MOMENTS_FP32 : CST_MOMENTS_MX8;
    spec.states.masters = i % 2 == 0 ? CST_MASTERS_FP32 : CST_MASTERS_SPLIT;
    return spec;
}

/* -- tests ------------------------------------------------------------------------------------ */

/* Whenever the daemon dies in writes and reads, all of them succeed, and nothing is lost. */
START_TEST(written_again)
{
    const struct cst_job_spec spec = spec_of(_i);
    struct rank rank = {.client = NULL};

    begin(&rank, &spec);
    for (int death = 0; death < 6; death++) {
        let_die(1 + next(8));
        while (!has_died()) {
            uint64_t first = next(N_ELEMS / BLOCK) * BLOCK;
            uint64_t n = (1 + next((N_ELEMS - first) / BLOCK)) * BLOCK;

            write_some(&rank, (int)next(N_TENSORS), (int)next(N_STATES), first, n);
        }
    }
    check_states(&rank);
    must(&rank, cst_sync(rank.job, NULL, &rank.err));
    ck_assert(daemon_proc_logged(&proc, "writes of its states were cut off, the first by rank 0"));
    must(&rank, cst_job_leave(rank.job, &rank.err));
    cst_disconnect(rank.client);
}
END_TEST

/* A checkpoint is loaded into a job that has begun, and the daemon dies meanwhile: it is loaded as
 * a whole. */
START_TEST(loaded_again)
{
    const struct cst_job_spec spec = spec_of(_i);
    char dir[] = "/tmp/cistern-again-XXXXXX", path[64], command[64];
    struct rank rank = {.client = NULL};

    ck_assert_ptr_nonnull(mkdtemp(dir));
    begin(&rank, &spec);
    must(&rank,
         cst_save(rank.client, spec.name, &(struct cst_save_spec){.dir = dir}, NULL, &rank.err));
    memcpy(saved, expected, sizeof saved);
    for (int death = 0; death < 3; death++) {
        write_some(&rank, (int)next(N_TENSORS), (int)next(N_STATES), 0, N_ELEMS);
        memcpy(expected, saved, sizeof saved);
        let_die(1 + next(8));
        (void)snprintf(path, sizeof path, "%s/step-00000000", dir);
        must(&rank, cst_load(rank.job, path, NULL, &rank.err));
        ck_assert(has_died());
        check_states(&rank);
    }
    must(&rank, cst_job_leave(rank.job, &rank.err));
    cst_disconnect(rank.client);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Wait until the next daemon listens. */
static void await_next(struct rank *rank)
{
    for (uint64_t until = patience_until(20000);
         cst_connect(&rank->client, proc.socket, &rank->err) != CST_OK;) {
        ck_assert_msg(!patience_over(until), "%s", rank->err.text);
        (void)usleep(1000);
    }
    cst_disconnect(rank->client);
}

/* The worker is gone with the daemon. Another one cannot train with what may be torn, read it or
 * save it, and is told so. When it has written the tensor, it can. */
START_TEST(worker_gone)
{
    struct cst_job_spec spec = spec_of(_i);
    struct rank rank = {.client = NULL};
    int rc;

    begin(&rank, &spec);
    must(&rank, cst_job_leave(rank.job, &rank.err));
    cst_disconnect(rank.client);
    spec.limits.timeout_ms = 1; /* It does not wait for the next daemon. */
    open_job(&rank, &spec);
    let_die(1);
    rc = cst_tensor_write(rank.job, 1, CST_STATE_MASTER, 0, N_ELEMS, data, &rank.err);
    ck_assert_msg(rc == CST_ECONN, "%d: %s", rc, rank.err.text);
    cst_disconnect(rank.client);
    spec.limits.timeout_ms = 0;
    await_next(&rank);
    open_job(&rank, &spec);
    ck_assert_int_eq(cst_tensor_read(rank.job, 1, CST_STATE_MASTER, 0, 1, data, &rank.err),
                     CST_EBUSY);
    ck_assert_ptr_nonnull(strstr(rank.err.text, "when it has written them again"));
    ck_assert_int_eq(
        cst_save(rank.client, spec.name, &(struct cst_save_spec){.dir = faults}, NULL, &rank.err),
        CST_EBUSY);
    ck_assert_int_eq(cst_sync(rank.job, NULL, &rank.err), CST_ELOST);
    ck_assert_ptr_nonnull(strstr(rank.err.text, "write them, or remove the job and load the last"));
    write_some(&rank, 1, 0, 0, N_ELEMS);
    must(&rank, cst_sync(rank.job, NULL, &rank.err));
    check_states(&rank);
    must(&rank, cst_job_leave(rank.job, &rank.err));
    cst_disconnect(rank.client);
}
END_TEST

/* Before the first sync the job is not kept: it ends with the daemon, and the error says what to
 * do. */
START_TEST(not_begun)
{
    const struct cst_job_spec spec = spec_of(0);
    struct rank rank = {.client = NULL};
    int rc;

    open_job(&rank, &spec);
    let_die(1);
    rc = cst_tensor_write(rank.job, 0, CST_STATE_MASTER, 0, N_ELEMS, data, &rank.err);
    ck_assert_msg(rc == CST_ECONN, "%d: %s", rc, rank.err.text);
    ck_assert_ptr_nonnull(
        strstr(rank.err.text, "start the workers again, with the last checkpoint"));
    cst_disconnect(rank.client);
    await_next(&rank);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("writes_again");
    TCase *tcase = suite_case(suite, "writes", setup, teardown);

    if (disk_file_is_missing("check_writes_again")) {
        return DISK_FILE_SKIP;
    }
    seed = suite_seed();
    tcase_add_loop_test(tcase, written_again, 0, 4);
    tcase_add_loop_test(tcase, loaded_again, 0, 4);
    tcase_add_loop_test(tcase, worker_gone, 0, 4);
    tcase_add_test(tcase, not_begun);
    tcase_set_timeout(tcase, 60);
    return suite_run(suite);
}
