/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a GPU's engine process on tests/lib/fakecuda: its start and the errors of a start,
 * segments, failures of the driver, and its end. */
#include "tests/lib/engine_proc.h"
#include "tests/lib/fake_gpu.h"

#include "kernels/math/undo.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNDO 9
#define UNDO_BYTES (2 * sizeof(struct cst_undo_slot))
#define MIB (1u << 20)

static struct engine_proc proc;
static const char *uuid;

static void set_up(void)
{
    (void)setenv("CST_FAKECUDA_DEVICES", "2", 1);
    uuid = fake_gpu_uuid(0);
    engine_proc_use(FAKE_GPU_ENGINE, uuid);
}

static void open_engine(void)
{
    int fd = engine_proc_memfd(UNDO_BYTES, NULL);

    engine_proc_open(&proc, 0, 0, UNDO, fd, UNDO_BYTES);
    (void)close(fd);
}

static struct engine_command copy(uint64_t ticket, uint32_t dst, uint32_t src, uint64_t bytes)
{
    return (struct engine_command){.kind = ENGINE__COMMAND_KIND__COPY,
                                   .ticket = ticket,
                                   .src = {{.segment = src}},
                                   .n_src = 1,
                                   .dst = {{.segment = dst}},
                                   .n_dst = 1,
                                   .bytes = bytes};
}

static struct engine_completion run(struct engine_command command)
{
    const struct engine_completion *c;

    engine_proc_submit(&proc, &command, 1);
    c = engine_proc_wait(&proc, command.ticket);
    ck_assert_ptr_nonnull(c);
    return *c;
}

static void *map(int fd, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    return base;
}

/* -- starting ------------------------------------------------------------------------------- */

/* READY names the GPU or the MIG instance. */
START_TEST(test_ready)
{
    char expected[64];

    (void)setenv("CST_FAKECUDA_MEMORY", "1GiB,3GiB", 1);
    (void)setenv("CST_FAKECUDA_MIG", "1", 1);
    (void)setenv("CST_FAKECUDA_CC", "8.0", 1);
    (void)setenv("CST_FAKECUDA_DRIVER", "12040", 1);
    (void)snprintf(expected, sizeof expected, "%s", fake_gpu_uuid(1));
    ck_assert_ptr_eq(strstr(expected, "MIG-"), expected);
    engine_proc_use(FAKE_GPU_ENGINE, expected);
    open_engine();
    ck_assert_str_eq(proc.isa, "sm_80");
    ck_assert_ptr_nonnull(strstr(proc.device_name, "MIG"));
    ck_assert_uint_eq(proc.device_bytes, 3ull << 30);
    ck_assert_uint_eq(proc.driver, 12040);
    ck_assert_uint_eq(proc.granularity, 2 * MIB);
    ck_assert_uint_ge(proc.copy_threads, 1);
    ck_assert_uint_le(proc.threads, 2);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* The engine's messages on its stderr, and its exit status. */
static int end_with_words(int log, char *words, size_t size)
{
    char byte;
    int status;

    while (recv(proc.sock, &byte, 1, 0) > 0) {
    }
    ck_assert_int_eq(waitpid(proc.pid, &status, 0), proc.pid);
    proc.pid = 0;
    words[pread(log, words, size - 1, 0)] = '\0';
    (void)engine_proc_close(&proc);
    return status;
}

/* Number of lines in @words that the engine wrote itself; the test's driver writes there, too. */
static unsigned own_lines(const char *words)
{
    unsigned n = 0;

    for (const char *at = words; (at = strstr(at, "cistern-engine-cuda: ")) != NULL; at++) {
        n += at == words || at[-1] == '\n';
    }
    return n;
}

static const struct {
    const char *variable, *value; /* a variable of the environment */
    const char *device;           /* NULL: the existing device */
    const char *words;            /* expected part of the message */
} bad_starts[] = {
    {"CST_FAKECUDA_DEVICES", "0", NULL, "EUNSUPPORTED: no GPU: "},
    {"CST_FAKECUDA_DRIVER", "11080", NULL, "EUNSUPPORTED: the NVIDIA driver is too old: "},
    {"CST_FAKECUDA_ATTRIBUTES", "103=0", NULL, "file descriptor"},
    {"CST_FAKECUDA_FAIL", "cuMemExportToShareableHandle:1=801", NULL, "EUNSUPPORTED: exporting "},
    {"CST_FAKECUDA_FAIL", "cuDevicePrimaryCtxRetain:1=2", NULL, "ENOMEM: context of GPU-"},
    {"CST_FAKECUDA_FAIL", "cuModuleLoadData:1=209", NULL, "EUNSUPPORTED: "},
    {"CST_FAKECUDA_FAIL", "cuMemHostAlloc:1=2", NULL, "ENOMEM: "},
    {"CST_FAKECUDA_FAIL", "cuStreamCreateWithPriority:2=999", NULL, "EGPU: stream 2 of "},
    {"CST_FAKECUDA_DEVICES", "1", "GPU-12345678", "ENOTFOUND: no GPU 'GPU-12345678'; there are: "},
    {"CST_FAKECUDA_DEVICES", "1", "", "EINVAL: no GPU is named"},
};

#define N_BAD_STARTS (sizeof bad_starts / sizeof bad_starts[0])

/* If the GPU cannot be used, the engine exits with status 1 and one line with the reason. */
START_TEST(test_bad_start)
{
    int log = memfd_create("stderr", 0), fd = engine_proc_memfd(UNDO_BYTES, NULL), status;
    Engine__Setup setup = ENGINE__SETUP__INIT;
    char words[4096];

    (void)setenv(bad_starts[_i].variable, bad_starts[_i].value, 1);
    setup.undo_segment = UNDO;
    setup.undo_bytes = UNDO_BYTES;
    setup.device =
        (char *)(uintptr_t)(bad_starts[_i].device != NULL ? bad_starts[_i].device : uuid);
    engine_proc_start(&proc, log);
    (void)engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base, fd);
    status = end_with_words(log, words, sizeof words);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", (unsigned)status);
    ck_assert_msg(strstr(words, bad_starts[_i].words) != NULL, "%s", words);
    ck_assert_msg(own_lines(words) == 1, "%s", words);
}
END_TEST

/* -- segments ------------------------------------------------------------------------------- */

/* Memory is allocated zeroed on this GPU, outlives the engine, and can be imported by the next
 * engine and by the other GPU's. */
START_TEST(test_pool)
{
    uint64_t bytes = 8 * MIB;
    struct engine_segment_done made, done;
    unsigned long before;
    char *base;

    fake_gpu_open_ledger();
    open_engine();
    before = fake_gpu_used();
    made = engine_proc_add_device(&proc, 1, -1, bytes);
    ck_assert_msg(made.status == CST_OK && made.fd >= 0, "%s", made.text);
    ck_assert_uint_eq(fake_gpu_used(), before + bytes);
    base = map(made.fd, bytes);
    ck_assert(base[0] == 0 && memcmp(base, base + 1, bytes - 1) == 0);
    base[12345] = 42;
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    ck_assert_uint_eq(fake_gpu_used(), bytes);
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        engine_proc_use(FAKE_GPU_ENGINE, fake_gpu_uuid(gpu));
        open_engine();
        done = engine_proc_add_device(&proc, 1, made.fd, bytes);
        ck_assert_msg(done.status == CST_OK, "%s", done.text);
        ck_assert_int_eq(done.fd, -1);
        engine_proc_must_add(&proc, 2, engine_proc_memfd(bytes, NULL), bytes);
        ck_assert_int_eq(run(copy(1, 2, 1, bytes)).status, CST_OK);
        ck_assert_int_eq(engine_proc_close(&proc), 0);
    }
    ck_assert_int_eq(base[12345], 42);
    (void)munmap(base, bytes);
    (void)close(made.fd);
    ck_assert_uint_eq(fake_gpu_used(), 0);
    fake_gpu_close_ledger();
}
END_TEST

/* A GPU that cannot access another GPU's memory reports that. */
START_TEST(test_no_peer)
{
    struct engine_segment_done made, done;

    (void)setenv("CST_FAKECUDA_PEERS", "none", 1);
    open_engine();
    made = engine_proc_add_device(&proc, 1, -1, 2 * MIB);
    ck_assert_int_eq(made.status, CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    engine_proc_use(FAKE_GPU_ENGINE, fake_gpu_uuid(1));
    open_engine();
    done = engine_proc_add_device(&proc, 1, made.fd, 2 * MIB);
    ck_assert_int_lt(done.status, 0);
    ck_assert_msg(strstr(done.text, "another GPU's") != NULL, "%s", done.text);
    ck_assert_int_eq(engine_proc_add_device(&proc, 1, -1, 2 * MIB).status, CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* Invalid segments are refused with a message and numbers, and the id stays free. */
START_TEST(test_bad_segments)
{
    int memfd;

    (void)setenv("CST_FAKECUDA_MEMORY", "256MiB", 1);
    open_engine();
    memfd = engine_proc_memfd(2 * MIB, NULL);
    const struct {
        uint32_t id;
        int fd;
        uint64_t bytes;
        int status;
        const char *words;
    } bad[] = {
        {0, -1, 2 * MIB, CST_EINVAL, "id 0"},
        {UNDO, -1, 2 * MIB, CST_EEXIST, "undo"},
        {1, -1, 0, CST_EINVAL, "multiples of 2097152"},
        {1, -1, 3 * MIB, CST_EINVAL, "3145728 bytes"},
        {1, -1, 512 * MIB, CST_ENOMEM, " of 268435456 bytes are free"},
        {1, memfd, 2 * MIB, CST_EINVAL, "handle"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct engine_segment_done done =
            engine_proc_add_device(&proc, bad[i].id, bad[i].fd, bad[i].bytes);

        ck_assert_msg(done.status == bad[i].status, "%zu: %d %s", i, done.status, done.text);
        ck_assert_msg(strstr(done.text, bad[i].words) != NULL, "%zu: %s", i, done.text);
        ck_assert_int_eq(done.fd, -1);
    }
    ck_assert_int_eq(engine_proc_add_device(&proc, 1, -1, 2 * MIB).status, CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* An engine of the host refuses segments of a device. */
START_TEST(test_host)
{
    engine_proc_use("./cistern-engine-host", NULL);
    open_engine();
    ck_assert_int_eq(engine_proc_add_device(&proc, 1, -1, 2 * MIB).status, CST_EUNSUPPORTED);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

static unsigned n_fds(void)
{
    char path[64];
    unsigned n = 0;
    DIR *folder;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)proc.pid);
    folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL) {
        n++;
    }
    (void)closedir(folder);
    return n;
}

/* Memory that was dropped, or that could not be allocated, leaves no descriptor and no memory. */
START_TEST(test_drop)
{
    unsigned before;
    unsigned long used;

    fake_gpu_open_ledger();
    (void)setenv(
        "CST_FAKECUDA_FAIL",
        "cuMemExportToShareableHandle:5=1,cuMemMap:8=1,cuMemSetAccess:9=1,cuMemsetD8Async:9=1", 1);
    open_engine();
    before = n_fds();
    used = fake_gpu_used();
    for (int i = 0; i < 12; i++) {
        struct engine_segment_done done = engine_proc_add_device(&proc, 1, -1, 64 * MIB);

        ck_assert_int_eq(done.status == CST_OK, done.fd >= 0);
        if (done.status == CST_OK) {
            (void)close(done.fd);
            ck_assert_int_eq(
                engine_proc_segment_done(&proc, engine_proc_drop(&proc, 1, false)).status, CST_OK);
        }
        ck_assert_uint_eq(fake_gpu_used(), used);
    }
    ck_assert_uint_eq(n_fds(), before);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    fake_gpu_close_ledger();
}
END_TEST

/* Host memory is registered whether or not locking is requested, and the answer says so. If the
 * driver's limit does not permit it, or the driver registers nothing, the segment is accepted with
 * a message, and copies go through pinned buffers of the engine. The engine of a GPU never
 * populates. */
START_TEST(test_lock)
{
    uint64_t bytes = 64 * MIB;
    struct engine_segment_done done;
    char *base;
    int fd = engine_proc_memfd(bytes, (void **)&base);

    if (_i == 1) {
        (void)setenv("CST_FAKECUDA_PINNED", "50MiB", 1);
    }
    if (_i == 3) {
        (void)setenv("CST_FAKECUDA_FAIL", "cuMemHostRegister:1+=801", 1);
    }
    (void)setenv("CST_FAKECUDA_PAGEABLE", _i == 1 ? "yes" : "no", 1);
    open_engine();
    base[5] = 17;
    base[bytes - 1] = 18;
    done = engine_proc_add(&proc, 1, fd, bytes, 0, _i == 2, _i == 2);
    ck_assert_int_eq(done.status, CST_OK);
    ck_assert_int_eq(done.locked, _i == 0 || _i == 2);
    ck_assert_msg((strstr(done.text, "registering") != NULL) == !done.locked, "%s", done.text);
    ck_assert(done.locked || strstr(done.text, "through pinned buffers") != NULL);
    ck_assert_int_eq(engine_proc_add_device(&proc, 2, -1, bytes).status, CST_OK);
    ck_assert_int_eq(run(copy(1, 2, 1, bytes)).status, CST_OK);
    base[5] = base[bytes - 1] = 0;
    ck_assert_int_eq(run(copy(2, 1, 2, bytes)).status, CST_OK);
    ck_assert_int_eq(base[5], 17);
    ck_assert_int_eq(base[bytes - 1], 18);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    (void)munmap(base, bytes);
}
END_TEST

/* -- the driver fails ----------------------------------------------------------------------- */

/* A failure after which the GPU is usable fails one command with a message. The next command
 * works. */
START_TEST(test_one_command)
{
    struct engine_completion c;

    (void)setenv("CST_FAKECUDA_FAIL", "cuMemcpyHtoDAsync:2=1", 1);
    open_engine();
    engine_proc_must_add(&proc, 1, engine_proc_memfd(MIB, NULL), MIB);
    ck_assert_int_eq(engine_proc_add_device(&proc, 2, -1, 2 * MIB).status, CST_OK);
    ck_assert_int_eq(run(copy(1, 2, 1, MIB)).status, CST_OK);
    c = run(copy(2, 2, 1, MIB));
    ck_assert_int_eq(c.status, CST_EINTERNAL);
    ck_assert_ptr_nonnull(strstr(c.text, "copying 1048576 bytes: CUDA_ERROR_INVALID_VALUE"));
    ck_assert_int_eq(run(copy(3, 2, 1, MIB)).status, CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* A copy of many pieces, of which one in the middle is refused while others are under way, fails
 * with the status of that piece. The same copy works afterwards. */
START_TEST(test_middle_piece)
{
    uint64_t bytes = 26 * MIB;
    struct engine_completion c;
    unsigned char *base;
    int fd = engine_proc_memfd(bytes, (void **)&base);

    (void)setenv("CST_FAKECUDA_FAIL", "cuMemcpyHtoDAsync:4=1", 1);
    (void)setenv("CST_FAKECUDA_DELAY_US", "200", 1);
    memset(base, 5, bytes);
    open_engine();
    engine_proc_must_add(&proc, 1, fd, bytes);
    ck_assert_int_eq(engine_proc_add_device(&proc, 2, -1, bytes).status, CST_OK);
    c = run(copy(1, 2, 1, bytes));
    ck_assert_int_eq(c.status, CST_EINTERNAL);
    ck_assert_ptr_nonnull(strstr(c.text, "CUDA_ERROR_INVALID_VALUE"));
    ck_assert_int_eq(run(copy(2, 2, 1, bytes)).status, CST_OK);
    memset(base, 0, bytes);
    ck_assert_int_eq(run(copy(3, 1, 2, bytes)).status, CST_OK);
    ck_assert(base[0] == 5 && memcmp(base, base + 1, bytes - 1) == 0);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    (void)munmap(base, bytes);
}
END_TEST

static const char *const sticky[] = {"copy:2=700", "cuEventSynchronize:2=719",
                                     "cuMemcpyDtoHAsync:1=214"};

/* After other failures the engine exits with one line and status 1. It does not report commands
 * whose results are uncertain: the next engine, which imports the memory again, executes them. */
START_TEST(test_sticky)
{
    int log = memfd_create("stderr", 0), undo = engine_proc_memfd(UNDO_BYTES, NULL), status;
    struct engine_command commands[2] = {copy(1, 2, 1, MIB), copy(2, 1, 2, MIB)};
    Engine__Setup setup = ENGINE__SETUP__INIT;
    struct engine_segment_done made;
    int fd = engine_proc_memfd(MIB, NULL);
    struct cst_frame frame;
    char words[4096];

    commands[1].after[commands[1].n_after++] = 1;
    (void)setenv("CST_FAKECUDA_FAIL", sticky[_i], 1);
    setup.undo_segment = UNDO;
    setup.undo_bytes = UNDO_BYTES;
    setup.device = (char *)(uintptr_t)uuid;
    engine_proc_start(&proc, log);
    ck_assert_ptr_nonnull(engine_proc_reply(
        &proc, engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base, undo), &frame));
    engine_proc_must_add(&proc, 1, fd, MIB);
    made = engine_proc_add_device(&proc, 2, -1, 2 * MIB);
    ck_assert_int_eq(made.status, CST_OK);
    engine_proc_submit(&proc, commands, 2);
    while (engine_proc_read(&proc, -1)) {
    }
    ck_assert_ptr_null(engine_proc_find(&proc, 2));
    status = end_with_words(log, words, sizeof words);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", (unsigned)status);
    ck_assert_msg(own_lines(words) == 1, "%s", words);
    ck_assert_msg(strstr(words, "cistern-engine-cuda: EGPU: ") != NULL, "%s", words);
    (void)unsetenv("CST_FAKECUDA_FAIL");
    open_engine();
    engine_proc_must_add(&proc, 1, fd, MIB);
    ck_assert_int_eq(engine_proc_add_device(&proc, 2, made.fd, 2 * MIB).status, CST_OK);
    engine_proc_submit(&proc, commands, 2);
    ck_assert_int_eq(engine_proc_wait(&proc, 2)->status, CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cuda_engine_life");
    TCase *tcase = suite_case(suite, "life", set_up, NULL);

    (void)argc;
    fake_gpu_use(argv);
    tcase_add_test(tcase, test_ready);
    suite_add_loop(tcase, test_bad_start, 0, N_BAD_STARTS);
    tcase_add_test(tcase, test_pool);
    tcase_add_test(tcase, test_no_peer);
    tcase_add_test(tcase, test_bad_segments);
    tcase_add_test(tcase, test_host);
    tcase_add_test(tcase, test_drop);
    suite_add_loop(tcase, test_lock, 0, 4);
    tcase_add_test(tcase, test_one_command);
    tcase_add_test(tcase, test_middle_piece);
    suite_add_loop(tcase, test_sticky, 0, 3);
    return suite_run(suite);
}
