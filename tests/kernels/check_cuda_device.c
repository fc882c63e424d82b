/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the row "cuda" of the device table, in this process, with tests/lib/fakecuda. If any
 * call of the driver fails, there is an error message, nothing leaks, and the next attempt works.
 * Also tests the registration of host memory, and exhausted memory. */
#include "kernels/engine/cpus.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"
#include "tests/lib/tiny_job.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1u << 20)
#define HOST_BYTES (513u * (uint64_t)MIB) /* three registrations, the last one shorter */
#define POOL_BYTES (4u * (uint64_t)MIB)
#define N_TEAM 2
#define N_THREADS 5 /* the team, and one lane for each kind of traffic */

static char leaks[] = "/tmp/cst-leaks-XXXXXX";
static struct cste_cpus cpus;
static struct cste_device device;
static const char *uuid;

static int open_device(struct cst_err *err)
{
    struct cste_device_spec spec = {
        .cpus = &cpus, .id = uuid, .n_team = N_TEAM, .n_threads = N_THREADS};

    return cste_device_open(&device, &cste_cuda_ops, &spec, err);
}

/* Map the host memory of a round. It is sparse, so it needs no memory. */
static int map_host(struct cste_mem *host, struct cst_err *err)
{
    struct cst_err note;
    int fd = engine_proc_memfd(HOST_BYTES, NULL), rc;

    *host = (struct cste_mem){.bytes = HOST_BYTES};
    rc = cste_device_map(&device, fd, -1, host, &note, err);
    (void)close(fd);
    return rc == CST_OK ? cste_device_lock(&device, host, err) : rc;
}

/* End the call of @thread that is under way if @rc says that it succeeded. *done (or NULL) receives
 * the sum of what was done. */
static int finish(int rc, unsigned thread, struct cst_tile_done *done, struct cst_err *err)
{
    struct cst_tile_done rest;

    if (rc != CST_OK) {
        return rc;
    }
    rc = cste_device_finish(&device, thread, &rest, err);
    if (done != NULL) {
        done->n_elems += rest.n_elems;
        done->bytes += rest.bytes;
    }
    return rc;
}

/* Run a reduction of two blocks of @pool. */
static int reduce(const struct tiny_job *job, const struct cste_mem *pool, struct cst_err *err)
{
    struct cst_place grad = tiny_job_row(job, 0, CST_ROW_GRAD);
    struct cst_tile_work work = {
        .table = job->table,
        .table_id = job->ids[TINY_TABLE],
        .mark = 1,
        .rows = {.grad = (uint16_t *)(void *)((char *)job->base[TINY_ARENA] + grad.offset)}};
    struct cste_addr src[2] = {{.mem = pool, .offset = tiny_job_block(job, 0, 0).offset},
                               {.mem = pool, .offset = tiny_job_block(job, 0, 1).offset}};
    struct cst_tile_done done;

    int rc = cste_device_reduce(&device, 0, &work, 2, src, 0, UINT64_MAX, NULL, &done, err);

    rc = finish(rc, 0, &done, err);
    ck_assert_uint_eq(done.bytes, done.n_elems * (2 * 2 + 2));
    ck_assert(rc != CST_OK || done.n_elems > 0);
    return rc;
}

/* Update the chunk's @n_elems in @pool, out of place. First come the rows that are read, then those
 * that are written, each at the next multiple of 64 KiB. */
static int update(const struct tiny_job *job, const struct cste_mem *pool, uint64_t n_elems,
                  struct cst_err *err)
{
    static const enum cst_row rows[] = {CST_ROW_MASTER, CST_ROW_MOMENT, CST_ROW_MOMENT + 1};
    struct cst_tile_work work = {
        .table = job->table, .table_id = job->ids[TINY_TABLE], .mark = 1, .elsewhere = true};
    struct cst_tile_hyper hyper = {
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f};
    struct cste_device_update update = {
        .work = &work, .hyper = &hyper, .row_elems = n_elems, .guard = true};
    struct cste_addr at = {.mem = pool, .offset = 0};
    struct cst_tile_done done;
    int rc;

    update.in[CST_ROW_GRAD] = at;
    for (int i = 0; i < 3; i++) {
        at.offset += 64u << 10;
        update.in[rows[i]] = at;
        at.offset += 64u << 10;
        update.out[rows[i]] = at;
    }
    at.offset += 64u << 10;
    update.out[CST_ROW_WEIGHT] = at;
    rc = cste_device_update(&device, 1, &update, 0, UINT64_MAX, NULL, &done, err);
    rc = finish(rc, 1, &done, err);
    ck_assert_uint_eq(done.bytes, done.n_elems * 28);
    ck_assert(rc != CST_OK || done.n_elems > 0);
    return rc;
}

/* Do everything that an engine does, once. Errors are in @err. */
static int live(struct cst_err *err)
{
    uint64_t n_elems = 9000;
    struct cste_mem host = {0}, pool = {.bytes = POOL_BYTES}, again = {.bytes = POOL_BYTES};
    struct cste_addr in_pool = {.mem = &pool}, in_host = {.mem = &host, .offset = 255u * MIB};
    struct tiny_job job;
    int fd = -1, rc = open_device(err);

    if (rc != CST_OK) {
        return rc;
    }
    tiny_job_open(&job, 1, &n_elems, 1, 3);
    rc = map_host(&host, err);
    if (rc == CST_OK) {
        rc = cste_device_import(&device, 2, &fd, &pool, err);
    }
    if (rc == CST_OK) {
        rc = cste_device_import(&device, 2, &fd, &again, err);
    }
    if (rc == CST_OK) {
        rc = finish(cste_device_copy(&device, 3, in_pool, in_host, 2 * MIB, err), 3, NULL, err);
    }
    if (rc == CST_OK) {
        rc = finish(cste_device_copy(&device, 4, in_host, in_pool, 2 * MIB, err), 4, NULL, err);
    }
    if (rc == CST_OK) {
        rc = finish(cste_device_fill(&device, 3, in_pool, MIB, err), 3, NULL, err);
    }
    if (rc == CST_OK) {
        rc = reduce(&job, &pool, err);
    }
    if (rc == CST_OK) {
        rc = update(&job, &pool, n_elems, err);
    }
    if (rc == CST_EGPU) {
        return rc; /* the process can only end now */
    }
    cste_device_unmap(&device, &again);
    cste_device_unmap(&device, &pool);
    cste_device_unmap(&device, &host);
    cste_device_close(&device);
    if (fd >= 0) {
        (void)close(fd);
    }
    tiny_job_close(&job);
    return rc;
}

struct outcome {
    int status;                                       /* the status of live */
    char text[640];                                   /* message of the error */
    unsigned long long leaks, misuses, calls, faults; /* the driver's counts at the end */
};

/* Run live in a child, with the faults @faults of the driver (NULL: none). */
static struct outcome live_in_child(const char *faults)
{
    struct outcome outcome = {.status = 1};
    int ends[2], status, fd;
    char line[1024] = "";
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(truncate(leaks, 0), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct cst_err err = {0};

        (void)setenv("CST_FAKECUDA_LEAKS", leaks, 1);
        if (faults != NULL) {
            (void)setenv("CST_FAKECUDA_FAIL", faults, 1);
        }
        outcome.status = live(&err);
        memcpy(outcome.text, err.text, sizeof outcome.text);
        exit(write(ends[1], &outcome, sizeof outcome) == sizeof outcome ? 0 : 1);
    }
    (void)close(ends[1]);
    ck_assert_int_eq(read(ends[0], &outcome, sizeof outcome), sizeof outcome);
    (void)close(ends[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    fd = open(leaks, O_RDONLY);
    ck_assert_int_ge(read(fd, line, sizeof line - 1), 0);
    (void)close(fd);
    if (line[0] != '\0') {
        ck_assert_ptr_nonnull(strstr(line, "\"leaks\":"));
        ck_assert_int_eq(sscanf(strstr(line, "\"leaks\":"),
                                "\"leaks\":%llu,\"misuses\":%llu,\"calls\":%llu,\"faults\":%llu",
                                &outcome.leaks, &outcome.misuses, &outcome.calls, &outcome.faults),
                         4);
    }
    return outcome;
}

static void set_up(void)
{
    struct cst_err err;
    int fd;

    uuid = fake_gpu_uuid(0);
    ck_assert_int_eq(cste_cpus_open(&cpus, 0, &err), CST_OK);
    fd = mkstemp(leaks);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
}

static void tear_down(void)
{
    cste_cpus_close(&cpus);
    (void)unlink(leaks);
}

/* Without faults nothing leaks. */
START_TEST(test_whole)
{
    struct outcome o = live_in_child(NULL);

    ck_assert_msg(o.status == CST_OK, "%s", o.text);
    ck_assert_uint_gt(o.calls, 50);
    ck_assert_uint_eq(o.leaks, 0);
    ck_assert_uint_eq(o.misuses, 0);
}
END_TEST

/* If any call of the driver fails, there is a status and a message, or no error if the call only
 * frees something. Nothing leaks except what could not be freed. */
START_TEST(test_nth_call)
{
    uint64_t n_calls = live_in_child(NULL).calls;
    unsigned n_failed = 0;

    for (uint64_t n = 1; n <= n_calls; n++) {
        char fault[32];
        struct outcome o;

        (void)snprintf(fault, sizeof fault, "*:%" PRIu64 "=1", n);
        o = live_in_child(fault);
        ck_assert_msg(o.misuses == 0, "call %" PRIu64, n);
        if (o.status != CST_OK) {
            n_failed++;
            ck_assert_msg(strlen(o.text) > 0, "call %" PRIu64, n);
            ck_assert_msg(o.leaks == 0 || o.status == CST_EGPU, "call %" PRIu64 ": %s", n, o.text);
        } else {
            ck_assert_msg(o.leaks <= 3, "call %" PRIu64 ": %llu leaks", n, o.leaks);
        }
    }
    ck_assert_uint_gt(n_failed, 30);
}
END_TEST

/* If any operation of a stream fails, the caller that waits for it gets the error. */
START_TEST(test_nth_operation)
{
    static const char *const kinds[] = {"copy", "set", "launch"};
    char fault[32];

    for (unsigned n = 1;; n++) {
        struct outcome o;

        (void)snprintf(fault, sizeof fault, "%s:%u=700", kinds[_i], n);
        o = live_in_child(fault);
        if (o.faults == 0) {
            ck_assert_uint_gt(n, _i == 2 ? 2 : 1); /* one sum and one update are launched */
            ck_assert_int_eq(o.status, CST_OK);
            break;
        }
        ck_assert_msg(o.status == CST_EGPU, "%s: %d %s", fault, o.status, o.text);
        ck_assert_ptr_nonnull(strstr(o.text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
        ck_assert_uint_eq(o.misuses, 0);
    }
}
END_TEST

/* -- host memory ---------------------------------------------------------------------------- */

/* Either all of a segment is registered or nothing: if the limit is reached in its third piece, the
 * first two are unregistered, so that another segment of their size fits. */
START_TEST(test_all_or_nothing)
{
    uint64_t small = 512u * (uint64_t)MIB;
    struct cste_mem host, other = {.bytes = small};
    struct cst_err err, note;
    int fd;

    /* The team's stages are pinned as well; 17 MiB each are more than enough. */
    (void)setenv("CST_FAKECUDA_PINNED", "546MiB", 1);
    ck_assert_int_eq(open_device(&err), CST_OK);
    (void)setenv("CST_FAKECUDA_PINNED", "512MiB", 1);
    fd = engine_proc_memfd(600u * (uint64_t)MIB, NULL);
    host = (struct cste_mem){.bytes = 600u * (uint64_t)MIB};
    ck_assert_int_eq(cste_device_map(&device, fd, -1, &host, &note, &err), CST_OK);
    ck_assert_int_ne(cste_device_lock(&device, &host, &err), CST_OK);
    ck_assert(!host.locked);
    ck_assert_ptr_nonnull(strstr(err.text, "at 536870912 of 629145600"));
    ck_assert_int_eq(cste_device_map(&device, fd, -1, &other, &note, &err), CST_OK);
    ck_assert_msg(cste_device_lock(&device, &other, &err) == CST_OK, "%s", err.text);
    ck_assert(other.locked);
    cste_device_unmap(&device, &other);
    cste_device_unmap(&device, &host);
    cste_device_close(&device);
}
END_TEST

/* -- the device's memory -------------------------------------------------------------------- */

/* Memory is allocated zeroed, in multiples of the granularity. If there is not enough, the message
 * has the numbers. Freed memory can be allocated again. */
START_TEST(test_out_of_memory)
{
    struct cste_mem first = {.bytes = 128u * MIB}, second = {.bytes = 128u * MIB},
                    odd = {.bytes = 5};
    int fds[3] = {-1, -1, -1};
    struct cst_err err;

    fake_gpu_open_ledger();
    (void)setenv("CST_FAKECUDA_MEMORY", "224MiB", 1);
    ck_assert_int_eq(open_device(&err), CST_OK);
    ck_assert_uint_eq(device.about.bytes, 224u * MIB);
    ck_assert_int_eq(cste_device_import(&device, 0, &fds[2], &odd, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "multiples of 2097152"));
    ck_assert_int_eq(cste_device_import(&device, 0, &fds[0], &first, &err), CST_OK);
    ck_assert_int_eq(cste_device_import(&device, 0, &fds[1], &second, &err), CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.text, "making 134217728 bytes"));
    ck_assert_ptr_nonnull(strstr(err.text, " of 234881024 bytes are free"));
    ck_assert_int_eq(fds[1], -1);
    ck_assert_uint_eq(second.device, 0);
    cste_device_unmap(&device, &first);
    ck_assert_int_eq(cste_device_import(&device, 0, &fds[1], &second, &err), CST_ENOMEM);
    (void)close(fds[0]);
    ck_assert_msg(cste_device_import(&device, 0, &fds[1], &second, &err) == CST_OK, "%s", err.text);
    cste_device_unmap(&device, &second);
    (void)close(fds[1]);
    cste_device_close(&device);
    ck_assert_uint_eq(fake_gpu_used(), 0);
    fake_gpu_close_ledger();
}
END_TEST

/* A descriptor that is not a handle of a GPU's memory is refused, and its owner keeps it. */
START_TEST(test_no_handle)
{
    struct cste_mem mem = {.bytes = POOL_BYTES};
    int fd = engine_proc_memfd(POOL_BYTES, NULL);
    struct cst_err err;

    ck_assert_int_eq(open_device(&err), CST_OK);
    ck_assert_int_eq(cste_device_import(&device, 0, &fd, &mem, &err), CST_EINVAL);
    ck_assert_uint_eq(mem.device, 0);
    ck_assert_int_eq(close(fd), 0);
    cste_device_close(&device);
}
END_TEST

/* A GPU that lacks a required feature is refused with the name of the feature. */
START_TEST(test_unable)
{
    struct cst_err err;

    (void)setenv("CST_FAKECUDA_ATTRIBUTES", "102=0", 1);
    ck_assert_int_eq(open_device(&err), CST_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "virtual memory management"));
    ck_assert_ptr_nonnull(strstr(err.text, uuid));
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_device");
    TCase *faults = suite_case(suite, "faults", set_up, tear_down);
    TCase *memory = suite_case(suite, "memory", set_up, tear_down);

    (void)argc;
    fake_gpu_use(argv);
    tcase_set_timeout(faults, 120);
    tcase_add_test(faults, test_whole);
    tcase_add_test(faults, test_nth_call);
    suite_add_loop(faults, test_nth_operation, 0, 3);
    tcase_add_test(memory, test_all_or_nothing);
    tcase_add_test(memory, test_out_of_memory);
    tcase_add_test(memory, test_no_handle);
    tcase_add_test(memory, test_unable);
    return suite_run(suite);
}
