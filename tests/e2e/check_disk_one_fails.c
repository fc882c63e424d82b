/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a job with states on two drives of which one fails: the error has the chunk, the drive,
 * the place and the cause, and the states on the other drive can still be read. */
#include "cistern/cistern.h"
#include "tests/lib/disk_file.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_TENSORS = 8, N_ELEMS = 64 * 1024, N_STEPS = 20 };

static char good[PATH_MAX], bad[PATH_MAX], both[2 * PATH_MAX];
static float values[N_ELEMS], got[N_ELEMS];

/* A fault of the drive `bad`: settings of tests/lib/disk_engine.c, and what the error says. */
struct fault {
    const char *calls, *nth, *errnum, *fails, *words;
};

static const struct fault faults[] = {
    {"read", "60", "5", "100000", "reading"},
    {"write", "80", "5", "100000", "writing"},
    {"write", "80", "28", "100000", "No space left on device: free space there"},
};

static void make_directory(char out[PATH_MAX], const char *name)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/cistern-%s.XXXXXX", disk_file_dir(), name);
    ck_assert_ptr_nonnull(mkdtemp(path));
    ck_assert_ptr_nonnull(realpath(path, out));
}

/* Start a daemon whose drive `bad` has @fault. */
static void start_with(const struct fault *fault)
{
    char config[64];

    make_directory(good, "good");
    make_directory(bad, "bad");
    (void)snprintf(both, sizeof both, "%s,%s", good, bad);
    daemon_proc_drives();
    (void)setenv("CISTERN_ENGINE_HOST", "./tests/lib/disk_engine", 1);
    (void)setenv("DISK_IO", "fail", 1);
    (void)setenv("DISK_DIR", bad, 1);
    (void)setenv("DISK_CALLS", fault->calls, 1);
    (void)setenv("DISK_NTH", fault->nth, 1);
    (void)setenv("DISK_ERRNO", fault->errnum, 1);
    (void)setenv("DISK_FAILS", fault->fails, 1);
    (void)snprintf(config, sizeof config, "[host]\nnodes = 0\n");
    train_rig_start(config, (const char *[]){"--engine-threads=2", NULL});
}

static void stop(void)
{
    train_rig_stop();
    (void)rmdir(good);
    (void)rmdir(bad);
}

/* Tensor @t has these master weights. With lr 0 steps do not change them. */
static void fill(int t)
{
    for (int i = 0; i < N_ELEMS; i++) {
        values[i] = (float)(t * 100 + i % 97);
    }
}

/* Open the job, and declare and commit its tensors. */
static int open_job(struct cst_client **client, struct cst_job **job, struct cst_err *err)
{
    const struct cst_job_spec spec = {.name = "two",
                                      .world = 1,
                                      .states.disk = both,
                                      .planning.chunk_elems = N_ELEMS,
                                      .limits.timeout_ms = 60000};

    ck_assert_int_eq(cst_connect(client, proc.socket, err), CST_OK);
    ck_assert_msg(cst_job_open(job, *client, &spec, err) == CST_OK, "%s", err->text);
    for (int i = 0; i < N_TENSORS; i++) {
        char name[8];
        int t;

        (void)snprintf(name, sizeof name, "t%d", i);
        t = cst_tensor(*job, name, CST_BF16, 2, (int64_t[]){64, N_ELEMS / 64}, CST_GROUP_ALL);
        ck_assert_int_eq(t, i);
        ck_assert_int_ge(cst_operator(*job, name, &t, 1), 0);
    }
    return cst_commit(*job, NULL, err);
}

/* Do a pass over all operators; gradients are 1. Returns the first failure. */
static int pass(struct cst_job *job, bool backward, struct cst_err *err)
{
    static const uint16_t one = 0x3f80;
    int rc = CST_OK;

    for (int i = 0; i < N_TENSORS && rc == CST_OK; i++) {
        const int op = backward ? N_TENSORS - 1 - i : i;
        struct cst_io io;

        rc = cst_op_begin(job, op, backward ? CST_BACKWARD : CST_FORWARD, &io, 1, err);
        for (uint64_t k = 0; rc == CST_OK && backward && k < io.n_elems; k++) {
            ((uint16_t *)io.grad)[k] = one;
        }
        rc = rc == CST_OK ? cst_op_end(job, op, err) : rc;
    }
    return rc;
}

/* Train until a step fails. */
static int train(struct cst_job *job, struct cst_err *err)
{
    const struct cst_hyper_params params = {.lr = 0};
    struct cst_step_result result;
    int rc = CST_OK;

    for (int s = 0; s < N_STEPS && rc == CST_OK; s++) {
        rc = pass(job, false, err);
        rc = rc == CST_OK ? pass(job, true, err) : rc;
        rc = rc == CST_OK ? cst_step(job, &params, &result, err) : rc;
    }
    return rc;
}

/* Check that @text names the failing drive's file, the place in it and the cause. */
static void check_place(const char *text, const struct fault *fault)
{
    unsigned long long bytes, offset;
    const char *ing = strstr(text, "ing ");

    ck_assert_msg(ing != NULL && sscanf(ing, "ing %llu bytes at %llu of '", &bytes, &offset) == 2,
                  "%s", text);
    ck_assert_msg(bytes % 4096 == 0 && offset % 4096 == 0 && strstr(text, bad) != NULL, "%s", text);
    ck_assert_msg(strstr(text, "on drive ") != NULL && strstr(text, fault->words) != NULL, "%s",
                  text);
    ck_assert_msg(strstr(text, strerror(atoi(fault->errnum))) != NULL, "%s", text);
}

/* Calls of one drive fail from the middle of a job on. The step that needs them fails, with the
 * chunk and the place. States on the other drive are those of the job, and of those on the drive
 * that fails, each one can be read as it is or is an error with its place. */
START_TEST(in_a_step)
{
    const struct fault *fault = &faults[_i];
    int n_there = 0, n_lost = 0, rc;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    unsigned chunk;

    start_with(fault);
    ck_assert_msg(open_job(&client, &job, &err) == CST_OK, "%s", err.text);
    for (int t = 0; t < N_TENSORS; t++) {
        fill(t);
        rc = cst_tensor_write(job, t, CST_STATE_MASTER, 0, N_ELEMS, values, &err);
        ck_assert_msg(rc == CST_OK, "%s", err.text);
    }
    ck_assert_msg(cst_sync(job, NULL, &err) == CST_OK, "%s", err.text);
    rc = train(job, &err);
    ck_assert_msg(rc == CST_EENGINE, "%d: %s", rc, err.text);
    ck_assert_msg(sscanf(strstr(err.text, "chunk "), "chunk %u failed in step", &chunk) == 1, "%s",
                  err.text);
    ck_assert_uint_lt(chunk, N_TENSORS);
    check_place(err.text, fault);
    for (int t = 0; t < N_TENSORS; t++) {
        struct cst_err why = {0};

        rc = cst_tensor_read(job, t, CST_STATE_MASTER, 0, N_ELEMS, got, &why);
        if (rc == CST_OK) {
            fill(t);
            ck_assert_mem_eq(got, values, sizeof values);
            n_there++;
        } else {
            check_place(why.text, fault);
            n_lost++;
        }
    }
    /* Chunks take turns on the drives. */
    ck_assert_int_ge(n_there, N_TENSORS / 2);
    ck_assert_int_ge(n_lost, 1);
    ck_assert_str_eq(raw_job_info(&witness, "two")->state, "failed");
    cst_disconnect(client);
    stop();
}
END_TEST

/* A drive without space when the job is committed: the commit fails with the file, the bytes and
 * what helps, and nothing stays of the job. */
START_TEST(at_the_commit)
{
    static const struct fault full = {"allocate", "1", "28", "100000", "allocating "};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    int rc;

    start_with(&full);
    rc = open_job(&client, &job, &err);
    ck_assert_msg(rc == CST_ENOMEM, "%d: %s", rc, err.text);
    check_place(err.text, &full);
    ck_assert_ptr_nonnull(strstr(err.text, "free space there, or put fewer bytes there"));
    cst_disconnect(client);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disk_one_fails");
    TCase *tcase = suite_case(suite, "one_fails", NULL, NULL);

    if (disk_file_is_missing("check_disk_one_fails")) {
        return DISK_FILE_SKIP;
    }
    tcase_add_loop_test(tcase, in_a_step, 0, sizeof faults / sizeof *faults);
    tcase_add_test(tcase, at_the_commit);
    tcase_set_timeout(tcase, 60);
    return suite_run(suite);
}
