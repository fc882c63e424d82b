/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of machines without a usable GPU: `cistern stat`, cst_job_open and libcistern-cuda give
 * the reason in equal words, and the host device works. The driver is tests/lib/fakecuda, or
 * missing. */
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"
#include "tests/lib/train_cuda.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct daemon_proc proc;
static struct raw_client witness;
static unsigned base_fds;
static struct train_report *report;

static const struct train_bad none = {.step = TRAIN_NEVER};

static void open_daemon(void)
{
    report = train_report_new();
    (void)setenv("CISTERN_ENGINE_CUDA", FAKE_GPU_ENGINE, 1);
    daemon_proc_start(&proc, (const char *[]){"--gpus=all", "--engine-threads=2", NULL});
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static void close_daemon(void)
{
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    train_report_free(report);
}

/* Start a job of one rank on @device. The message of its failure is in report->error. */
static pid_t start(const char *name, const char *device, const char *setting)
{
    struct train_order order = {.socket = proc.socket,
                                .name = name,
                                .world = 1,
                                .device = device,
                                .streams = &train_cuda,
                                .setting = setting,
                                .n_steps = 2,
                                .bad = none,
                                .die_at = UINT32_MAX,
                                .kill_at = UINT32_MAX};

    memset(report, 0, sizeof *report);
    return train_worker_start(&order, report);
}

static void expect_words(const char *text, const char *words)
{
    ck_assert_msg(text != NULL && strstr(text, words) != NULL, "'%s' does not say '%s'", text,
                  words);
}

/* The output of `cistern stat`. */
static const char *stat_output(void)
{
    static char text[8192];
    FILE *from;
    size_t n;

    (void)setenv("CISTERN_SOCKET", proc.socket, 1);
    from = popen("./cistern stat", "r");
    ck_assert_ptr_nonnull(from);
    n = fread(text, 1, sizeof text - 1, from);
    text[n] = '\0';
    ck_assert_int_eq(pclose(from), 0);
    return text;
}

/* Check that the daemon has no GPU because of @words, that every client is told so, and that the
 * host can train. */
static void expect_none(const char *words)
{
    open_daemon();
    ck_assert_uint_eq(raw_stat(&witness)->n_gpus, 0);
    expect_words(raw_stat(&witness)->gpu, words);
    expect_words(stat_output(), words);
    train_worker_join_failing(start("gpu", "cuda", NULL));
    expect_words(report->error, words);
    train_worker_join(start("auto", "auto", NULL), report);
    train_check(&report, 1, 0, 2, none);
    train_worker_join(start("host", "host", NULL), report);
    train_check(&report, 1, 0, 2, none);
    close_daemon();
}

/* -- machines without a GPU -------------------------------------------------------------------- */

/* No device, a driver that is too old, and a driver that is not loaded. */
static const struct {
    const char *name, *value, *words;
} settings[] = {
    {"CST_FAKECUDA_DEVICES", "0", "no GPU: the driver has no device"},
    {"CUDA_VISIBLE_DEVICES", "", "CUDA_VISIBLE_DEVICES is ''"},
    {"CST_FAKECUDA_DRIVER", "11040",
     "the NVIDIA driver is too old: it is for CUDA 11.4, 12.0 is needed"},
    {"CST_FAKECUDA_FAIL", "cuInit:1=803", "no NVIDIA driver: cuInit says"},
};

START_TEST(test_none)
{
    struct cst_err err = {0};

    (void)setenv(settings[_i].name, settings[_i].value, 1);
    ck_assert_int_eq(cst_cuda_available(&err), CST_EUNSUPPORTED);
    expect_words(err.text, settings[_i].words);
    expect_none(settings[_i].words);
}
END_TEST

/* A driver that cannot be loaded; a file that is not a library takes its place. */
START_TEST(test_no_driver)
{
    char folder[] = "/tmp/cst-no-driver-XXXXXX", path[64];
    const char *old = getenv("LD_LIBRARY_PATH");
    char *before = strdup(old != NULL ? old : "");
    char both[8192];
    int fd;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    (void)snprintf(both, sizeof both, "%s:%s", folder, before);
    (void)setenv("LD_LIBRARY_PATH", both, 1); /* for the daemon's children */
    expect_none("no NVIDIA driver: ");
    (void)unlink(path);
    (void)rmdir(folder);
    free(before);
}
END_TEST

/* -- memory that cannot be shared ------------------------------------------------------------- */

static const struct {
    const char *name, *value;
} unshared[] = {
    {"CST_FAKECUDA_ATTRIBUTES", "103=0"}, /* as on WSL */
    {"CST_FAKECUDA_FAIL", "cuMemExportToShareableHandle:1+=801"},
    {"CST_FAKECUDA_FAIL", "cuMemExportToShareableHandle:1+=304"},
    {"CST_FAKECUDA_FAIL", "cuMemCreate:1+=801"},
};

/* If the driver refuses to share memory between processes, a job on the GPU is told at once that it
 * can use the host, and the engine is not started again and again. The host can train. */
START_TEST(test_no_sharing)
{
    (void)setenv(unshared[_i].name, unshared[_i].value, 1);
    open_daemon();
    ck_assert_uint_eq(raw_stat(&witness)->n_gpus, 1);
    train_worker_join_failing(start("gpu", "cuda", NULL));
    expect_words(report->error, "memory that processes share by file descriptor");
    expect_words(report->error, "use device 'host'");
    ck_assert_uint_eq(raw_stat(&witness)->engines[1]->restarts, 0);
    train_worker_join(start("host", "host", NULL), report);
    train_check(&report, 1, 0, 2, none);
    close_daemon();
}
END_TEST

/* A worker whose driver refuses to import the pool is told what that needs. Another one can use the
 * job. */
START_TEST(test_no_import)
{
    open_daemon();
    train_worker_join_failing(
        start("gpu", "cuda", "CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:1+=801"));
    expect_words(report->error, "importing ");
    expect_words(report->error, "must use the same driver and see the same GPU");
    train_worker_join(start("gpu", "cuda", NULL), report);
    train_check(&report, 1, 0, 2, none);
    close_daemon();
}
END_TEST

/* -- a GPU that a process cannot see ----------------------------------------------------------- */

/* A process that does not see its job's GPU is told what hides the GPU. The next process can use
 * the job. */
START_TEST(test_hidden)
{
    struct cst_job_spec spec = {.name = "hidden", .world = 1, .device = "cuda:1"};
    const char *uuid;
    struct cst_client *client;
    struct cst_cuda *cuda;
    struct cst_err err = {0};
    struct cst_job *job;

    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    uuid = fake_gpu_uuid(1);
    open_daemon();
    train_worker_join(start("hidden", "cuda:1", NULL), report);
    /* For this process only; the daemon already runs. */
    (void)setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    spec.planning.chunk_elems = TRAIN_CHUNK_ELEMS;
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    ck_assert_str_eq(cst_job_device(job), uuid);
    ck_assert_int_eq(cst_cuda_open(&cuda, job, NULL, &err), CST_ENOTFOUND);
    expect_words(err.text, uuid);
    expect_words(err.text, "CUDA_VISIBLE_DEVICES is '0'");
    cst_disconnect(client);
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    close_daemon();
}
END_TEST

/* A device's number in this process may differ from the daemon's: the UUID decides. */
START_TEST(test_renumbered)
{
    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    open_daemon();
    train_worker_join(start("renumbered", "cuda:1", "CUDA_VISIBLE_DEVICES=1"), report);
    train_check(&report, 1, 0, 2, none);
    close_daemon();
}
END_TEST

/* A job on a GPU can only be committed with libcistern-cuda, and a job on the host refuses it. */
START_TEST(test_wrong_device)
{
    struct cst_job_spec spec = {.name = "w", .world = 1, .planning.chunk_elems = TRAIN_CHUNK_ELEMS};
    struct cst_client *client;
    struct cst_cuda *cuda;
    struct cst_err err = {0};
    struct cst_job *job;

    open_daemon();
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    spec.device = "host";
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    ck_assert_int_eq(cst_cuda_open(&cuda, job, NULL, &err), CST_EUNSUPPORTED);
    expect_words(err.text, "host device");
    cst_disconnect(client);
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    spec.name = "g";
    spec.device = "cuda";
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    ck_assert_int_eq(train_declare(&train_small, job, 1), CST_OK);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_EUNSUPPORTED);
    expect_words(err.text, "libcistern-cuda");
    ck_assert_int_eq(cst_cuda_open(&cuda, job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_cuda_device(cuda), 0);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_job_leave(job, &err), CST_OK);
    cst_disconnect(client);
    cst_cuda_close(cuda);
    close_daemon();
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_none");
    TCase *tcase = suite_case(suite, "none", NULL, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_add_loop_test(tcase, test_none, 0, sizeof settings / sizeof *settings);
    tcase_add_test(tcase, test_no_driver);
    tcase_add_loop_test(tcase, test_no_sharing, 0, sizeof unshared / sizeof *unshared);
    tcase_add_test(tcase, test_no_import);
    tcase_add_test(tcase, test_hidden);
    tcase_add_test(tcase, test_renumbered);
    tcase_add_test(tcase, test_wrong_device);
    return suite_run(suite);
}
