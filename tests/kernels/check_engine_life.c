/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process: its start, segments, idle state and end. */
#include "tests/lib/engine_proc.h"

#include "kernels/math/undo.h"
#include "proto/sched_slice.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNDO 9
#define UNDO_BYTES (2 * sizeof(struct cst_undo_slot))

#ifdef __SANITIZE_THREAD__
#define N_FOREIGN 1 /* number of threads of the sanitizer */
#else
#define N_FOREIGN 0
#endif

static struct engine_proc proc;

static void open_engine(void)
{
    engine_proc_open(&proc, 2, 2, UNDO, engine_proc_memfd(UNDO_BYTES, NULL), UNDO_BYTES);
}

/* A FILL of the first @bytes of @segment. */
static struct engine_command fill(uint64_t ticket, uint32_t segment, uint64_t bytes)
{
    return (struct engine_command){.kind = ENGINE__COMMAND_KIND__FILL,
                                   .ticket = ticket,
                                   .dst = {{.segment = segment}},
                                   .n_dst = 1,
                                   .bytes = bytes};
}

static int run(struct engine_command command)
{
    engine_proc_submit(&proc, &command, 1);
    return engine_proc_wait(&proc, command.ticket)->status;
}

/* -- segments ------------------------------------------------------------------------------- */

/* Populating backs every byte with memory, keeps the contents, and reports its progress up to the
 * end. */
START_TEST(test_populate)
{
    uint64_t bytes = (32u << 20) + 4096 + 8;
    struct engine_segment_done done;
    struct stat st;
    char *base;
    int fd;

    open_engine();
    fd = engine_proc_memfd(bytes, (void **)&base);
    base[bytes - 1] = 42;
    done = engine_proc_add(&proc, 1, fd, bytes, -1, true, false);
    ck_assert_msg(done.status == CST_OK, "%s", done.text);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_ge((uint64_t)st.st_blocks * 512, bytes);
    ck_assert_int_eq(base[bytes - 1], 42);
    ck_assert_uint_gt(proc.n_progress, 0);
    ck_assert_uint_eq(proc.progress_bytes, bytes);
    ck_assert_int_eq(run(fill(1, 1, bytes)), CST_OK);
    ck_assert_int_eq(base[bytes - 1], 0);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* The answer says whether the segment is locked. If the limit does not permit it, the segment is
 * accepted with a message. */
START_TEST(test_lock)
{
    uint64_t bytes = 1 << 20;
    struct engine_segment_done done;

    open_engine();
    done = engine_proc_add(&proc, 1, engine_proc_memfd(bytes, NULL), bytes, 0, true, true);
    ck_assert_int_eq(done.status, CST_OK);
    ck_assert(done.locked || strlen(done.text) > 0);
    ck_assert_int_eq(run(fill(1, 1, bytes)), CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* A NUMA node that this machine does not have is reported, and is no error. */
START_TEST(test_no_node)
{
    struct engine_segment_done done;

    open_engine();
    done = engine_proc_add(&proc, 1, engine_proc_memfd(4096, NULL), 4096, 63, true, false);
    ck_assert_int_eq(done.status, CST_OK);
    ck_assert_ptr_nonnull(strstr(done.text, "63"));
    ck_assert_int_eq(run(fill(1, 1, 4096)), CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* Invalid segments are refused with a message, and the id stays free. */
START_TEST(test_bad_segments)
{
    int good, unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), ends[2];

    open_engine();
    good = engine_proc_memfd(4096, NULL);
    ck_assert_int_eq(ftruncate(unsealed, 4096), 0);
    ck_assert_int_eq(pipe(ends), 0);
    const struct {
        uint32_t id;
        int fd;
        uint64_t bytes;
        int status;
    } bad[] = {
        {0, good, 4096, CST_EINVAL},     {1, good, 4097, CST_EINVAL},
        {1, good, 0, CST_EINVAL},        {1, good, UINT64_MAX, CST_EINVAL},
        {1, unsealed, 4096, CST_EINVAL}, {1, ends[0], 1, CST_EINVAL},
        {UNDO, good, 4096, CST_EEXIST},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct engine_segment_done done =
            engine_proc_add(&proc, bad[i].id, bad[i].fd, bad[i].bytes, -1, true, true);

        ck_assert_msg(done.status == bad[i].status, "%zu: %s", i, done.text);
        ck_assert_uint_gt(strlen(done.text), 0);
    }
    engine_proc_must_add(&proc, 1, good, 4096);
    ck_assert_int_eq(engine_proc_add(&proc, 1, good, 4096, -1, false, false).status, CST_EEXIST);
    ck_assert_int_eq(run(fill(1, 1, 4096)), CST_OK);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* The drop of a segment is answered when the commands that use the segment have ended. A second
 * drop, and that of an unknown segment, is an error. */
START_TEST(test_drop)
{
    uint64_t bytes = 64u << 20, request, again;
    struct engine_command fills[8];
    int fd;

    open_engine();
    fd = engine_proc_memfd(bytes, NULL);
    engine_proc_must_add(&proc, 1, fd, bytes);
    for (uint64_t i = 0; i < 8; i++) {
        fills[i] = fill(i + 1, 1, bytes / 4);
        fills[i].dst[0].offset = bytes / 4 * (i % 4);
        fills[i].after[0] = i > 3 ? i - 3 : 0; /* some start at once, and some wait */
        fills[i].n_after = 1;
    }
    /* The engine finds all three messages at once. */
    ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0);
    engine_proc_submit(&proc, fills, 8);
    request = engine_proc_drop(&proc, 1, false);
    again = engine_proc_drop(&proc, 1, false);
    ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    ck_assert_int_eq(engine_proc_segment_done(&proc, again).status, CST_ENOTFOUND);
    ck_assert_int_eq(engine_proc_segment_done(&proc, request).status, CST_OK);
    for (uint64_t i = 0; i < 8; i++) {
        ck_assert_ptr_nonnull(engine_proc_find(&proc, i + 1));
        ck_assert_int_eq(engine_proc_find(&proc, i + 1)->status, CST_OK);
    }
    ck_assert_int_eq(run(fill(20, 1, 1)), CST_ENOTFOUND);
    ck_assert_int_eq(engine_proc_segment_done(&proc, engine_proc_drop(&proc, 77, false)).status,
                     CST_ENOTFOUND);
    engine_proc_must_add(&proc, 1, fd, bytes);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* A drop with `discard` returns the pages, also locked ones, and a drop without it keeps them. */
START_TEST(test_discard)
{
    uint64_t bytes = 8u << 20;
    struct stat st;
    int fd;

    open_engine();
    for (int i = 0; i < 3; i++) {
        fd = engine_proc_memfd(bytes, NULL);
        ck_assert_int_eq(engine_proc_add(&proc, 1, fd, bytes, -1, true, i == 2).status, CST_OK);
        ck_assert_int_eq(engine_proc_segment_done(&proc, engine_proc_drop(&proc, 1, i > 0)).status,
                         CST_OK);
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_uint_eq((uint64_t)st.st_blocks * 512, i > 0 ? 0 : bytes);
        ck_assert_int_eq(close(fd), 0);
    }
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* If a segment is dropped while it is being populated, both requests are answered, the addition as
 * cancelled unless it was done before. */
START_TEST(test_drop_early)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    uint64_t bytes = 256u << 20, added, dropped;
    struct engine_segment_done done;

    open_engine();
    add.id = 1;
    add.bytes = bytes;
    add.has_populate = 1;
    add.populate = 1;
    added = engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base,
                             engine_proc_memfd(bytes, NULL));
    dropped = engine_proc_drop(&proc, 1, false);
    done = engine_proc_segment_done(&proc, added);
    ck_assert(done.status == CST_ECANCELLED || done.status == CST_OK);
    ck_assert_int_eq(engine_proc_segment_done(&proc, dropped).status, CST_OK);
    ck_assert_int_eq(run(fill(1, 1, 1)), CST_ENOTFOUND);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* PING is answered while a segment is being populated. A segment of more than 256 MiB is populated
 * to its end. */
START_TEST(test_ping_while_populating)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    uint64_t bytes = (256u << 20) + 3 * 4096, request;
    struct cst_frame frame;

    open_engine();
    add.id = 1;
    add.bytes = bytes;
    add.has_populate = 1;
    add.populate = 1;
    ck_assert_int_eq(kill(proc.pid, SIGSTOP), 0);
    (void)engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base,
                           engine_proc_memfd(bytes, NULL));
    request = engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_PING, NULL, -1);
    ck_assert_int_eq(kill(proc.pid, SIGCONT), 0);
    ck_assert_ptr_nonnull(engine_proc_reply(&proc, request, &frame));
    ck_assert_uint_eq(frame.type, ENGINE__MSG_TYPE__ENGINE_PONG);
    /* The engine found both messages at once, and the answer to the second did not wait for the
     * first. */
    ck_assert_uint_eq(proc.n_progress, 0);
    while (proc.progress_bytes < bytes) {
        ck_assert(engine_proc_read(&proc, -1));
    }
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* -- start and threads ---------------------------------------------------------------------- */

/* A team has no more threads than there are undo slots, whatever was requested. With 0 it has one
 * per usable core. */
START_TEST(test_threads)
{
    uint64_t bytes = 5 * sizeof(struct cst_undo_slot) - 1;

    engine_proc_open(&proc, 64, 3, UNDO, engine_proc_memfd(bytes, NULL), bytes);
    ck_assert_uint_eq(proc.threads, 4);
    ck_assert_uint_eq(proc.copy_threads, 3);
    ck_assert_uint_gt(strlen(proc.isa), 0);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
    (void)setenv("OMP_NUM_THREADS", "57", 1);
    bytes = 64 * sizeof(struct cst_undo_slot);
    engine_proc_open(&proc, 0, 0, UNDO, engine_proc_memfd(bytes, NULL), bytes);
    ck_assert_uint_ge(proc.threads, 1);
    ck_assert_uint_le(proc.threads, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN));
    ck_assert_uint_ge(proc.copy_threads, 1);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* The slice in ns that a thread requests, as proto/sched_slice.h sets it. 0: the kernel does not
 * report it. */
static uint64_t slice_of(long tid)
{
    uint64_t attr[7] = {0}; /* struct sched_attr; its fourth field contains the runtime */

    return syscall(SYS_sched_getattr, tid, attr, sizeof attr, 0) == 0 ? attr[3] : 0;
}

/* Count the engine's threads: all, those with our names, those that sleep, those that request short
 * slices. */
static void look_at_threads(unsigned *n, unsigned *n_named, unsigned *n_asleep, unsigned *n_short)
{
    char path[64], line[256];
    struct dirent *entry;
    DIR *dir;

    *n = *n_named = *n_asleep = *n_short = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)proc.pid);
    dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        char stat_path[400];
        FILE *file;

        if (entry->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(stat_path, sizeof stat_path, "%s/%s/stat", path, entry->d_name);
        file = fopen(stat_path, "r");
        ck_assert_ptr_nonnull(file);
        ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
        (void)fclose(file);
        *n += 1;
        *n_named += strstr(line, "(cst-team-") != NULL || strstr(line, "(cst-lane-") != NULL ||
                    strstr(line, "(cst-engine)") != NULL;
        *n_asleep += strstr(line, ") S ") != NULL;
        *n_short += slice_of(strtol(entry->d_name, NULL, 10)) == CST_SCHED_SLICE_NS;
    }
    (void)closedir(dir);
}

static bool kernel_has_slices(void)
{
    cst_sched_slice_short();
    return slice_of(0) == CST_SCHED_SLICE_NS;
}

/* Every thread has a name, and all of them sleep when there is nothing to do. A thread that spins
 * would never be seen asleep, and the test would reach its time limit. The loop and the lanes have
 * short slices if the kernel supports that; the team and other threads have not. */
START_TEST(test_idle)
{
    unsigned n, n_named, n_asleep, n_short;

    open_engine();
    do {
        look_at_threads(&n, &n_named, &n_asleep, &n_short);
    } while (n_asleep < n);
    ck_assert_uint_eq(n, 1 + 2 + 2 + N_FOREIGN);
    ck_assert_uint_eq(n_named, n);
    ck_assert_uint_eq(n_short, kernel_has_slices() ? 1 + 2 : 0);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* -- the end -------------------------------------------------------------------------------- */

/* When the daemon closes the connection, the engine exits with status 0 even if it has work. */
START_TEST(test_hang_up)
{
    uint64_t bytes = 64u << 20;
    struct engine_command fills[32];

    open_engine();
    engine_proc_must_add(&proc, 1, engine_proc_memfd(bytes, NULL), bytes);
    for (uint64_t i = 0; i < 32; i++) {
        fills[i] = fill(i + 1, 1, bytes / 32);
        fills[i].dst[0].offset = bytes / 32 * i;
    }
    engine_proc_submit(&proc, fills, 32);
    ck_assert_int_eq(engine_proc_close(&proc), 0);
}
END_TEST

/* Send @pid and @fd over @sock, or with @get receive them; both directions use one message form. */
static ssize_t pass(int sock, pid_t *pid, int *fd, bool get)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = pid, .iov_len = sizeof *pid};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    ssize_t n;

    if (get) {
        n = recvmsg(sock, &msg, 0);
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
        return n;
    }
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof *fd);
    memcpy(CMSG_DATA(c), fd, sizeof *fd);
    return sendmsg(sock, &msg, 0);
}

/* The engine dies with the process that started it, even if another process has the socket. */
START_TEST(test_parent_dies)
{
    int pair[2], status, engine_sock = -1;
    pid_t parent, engine;
    char byte;

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    parent = fork();
    ck_assert_int_ge(parent, 0);
    if (parent == 0) {
        open_engine();
        /* Exit when the other side has the test's end of the engine's socket. */
        _exit(pass(pair[1], &proc.pid, &proc.sock, false) > 0 && read(pair[1], &byte, 1) == 1 ? 0
                                                                                              : 1);
    }
    ck_assert_int_eq(pass(pair[0], &engine, &engine_sock, true), sizeof engine);
    ck_assert_int_eq(write(pair[0], "x", 1), 1);
    ck_assert_int_eq(waitpid(parent, &status, 0), parent);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(waitpid(engine, &status, 0), engine);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    (void)close(engine_sock);
}
END_TEST

struct malformed {
    const char *what;
    uint16_t type;
    const char *body;
    uint32_t body_bytes;
    unsigned n_fds;
    bool set_up; /* after a SETUP; false: before */
};

static const struct malformed malformed[] = {
    {"SUBMIT before SETUP", 7, "", 0, 0, false},
    {"SETUP without fd", 1, "\x08\x00\x10\x01\x18\x01\x20\x09\x28\x80\x80\x04", 12, 0, false},
    {"empty SETUP", 1, "", 0, 1, false},
    {"an undo segment shorter than a slot", 1, "\x08\x00\x10\x01\x18\x01\x20\x09\x28\x01", 10, 1,
     false},
    {"an undo segment that is longer than its fd", 1,
     "\x08\x00\x10\x01\x18\x01\x20\x09\x28\x80\x80\x80\x80\x04", 14, 1, false},
    {"a second SETUP", 1, "\x08\x00\x10\x01\x18\x01\x20\x09\x28\x80\x80\x04", 12, 1, true},
    {"SEGMENT_ADD without fd", 3, "\x08\x01\x10\x01", 4, 0, true},
    {"SEGMENT_ADD with two fds", 3, "\x08\x01\x10\x01", 4, 2, true},
    {"empty SEGMENT_ADD", 3, "", 0, 1, true},
    {"empty SEGMENT_DROP", 5, "", 0, 0, true},
    {"SUBMIT of garbage", 7, "\xff\xff\xff\xff", 4, 0, true},
    {"a command without ticket", 7, "\x0a\x02\x10\x01", 4, 0, true},
    {"the same ticket twice", 7, "\x0a\x04\x08\x05\x10\x01\x0a\x04\x08\x05\x10\x01", 12, 0, true},
    {"a type that is an answer", 2, "", 0, 0, true},
    {"an unknown type", 999, "", 0, 0, true},
};

#define N_MALFORMED (sizeof malformed / sizeof malformed[0])

/* The engine's messages on its stderr, and its exit status. */
static int end_with_words(int stderr_fd, char *words, size_t size)
{
    char byte;
    int status;

    while (recv(proc.sock, &byte, 1, 0) > 0) {
    }
    ck_assert_int_eq(waitpid(proc.pid, &status, 0), proc.pid);
    proc.pid = 0;
    words[pread(stderr_fd, words, size - 1, 0)] = '\0';
    (void)engine_proc_close(&proc);
    return status;
}

/* A malformed message ends the engine with status 1 and one line with the reason. */
START_TEST(test_malformed)
{
    const struct malformed *m = &malformed[_i];
    int log = memfd_create("stderr", 0), fd = engine_proc_memfd(UNDO_BYTES, NULL), status;
    struct cst_frame frame = {.type = m->type,
                              .request = 77,
                              .body = (const uint8_t *)m->body,
                              .body_bytes = m->body_bytes,
                              .fds = {fd, fd},
                              .n_fds = m->n_fds};
    char words[512];
    struct cst_err err;

    engine_proc_start(&proc, log);
    if (m->set_up) {
        Engine__Setup setup = ENGINE__SETUP__INIT;
        struct cst_frame reply;

        setup.undo_segment = UNDO;
        setup.undo_bytes = UNDO_BYTES;
        ck_assert_ptr_nonnull(engine_proc_reply(
            &proc, engine_proc_send(&proc, ENGINE__MSG_TYPE__ENGINE_SETUP, &setup.base, fd),
            &reply));
    }
    ck_assert_int_eq(cst_frame_send(proc.sock, 0, &frame, &err), CST_OK);
    status = end_with_words(log, words, sizeof words);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%s: status 0x%x", m->what,
                  (unsigned)status);
    ck_assert_msg(strchr(words, '\n') == words + strlen(words) - 1, "%s: '%s'", m->what, words);
    ck_assert_ptr_eq(strstr(words, "cistern-engine-host: "), words);
}
END_TEST

/* A message that is not even a frame ends the engine in this way, too. */
START_TEST(test_broken_frame)
{
    int log = memfd_create("stderr", 0), status;
    char words[512];

    engine_proc_start(&proc, log);
    ck_assert_int_eq(send(proc.sock, "garbage garbage garbage garbage", 31, 0), 31);
    status = end_with_words(log, words, sizeof words);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    ck_assert_ptr_nonnull(strstr(words, "magic"));
}
END_TEST

/* Started without a socket, the engine reports that. */
START_TEST(test_no_socket)
{
    char line[256] = "";
    FILE *out;

    (void)snprintf(line, sizeof line, "%s --fd 9 2>&1 9</dev/null", engine_proc_program());
    out = popen(line, "r");
    ck_assert_ptr_nonnull(out);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, out));
    ck_assert_ptr_nonnull(strstr(line, "SOCK_SEQPACKET"));
    ck_assert_int_eq(WEXITSTATUS(pclose(out)), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_life");
    TCase *segments = suite_case(suite, "segments", NULL, NULL);
    TCase *life = suite_case(suite, "life", NULL, NULL);

    tcase_add_test(segments, test_populate);
    tcase_add_test(segments, test_lock);
    tcase_add_test(segments, test_no_node);
    tcase_add_test(segments, test_bad_segments);
    tcase_add_test(segments, test_drop);
    tcase_add_test(segments, test_discard);
    tcase_add_test(segments, test_drop_early);
    tcase_add_test(segments, test_ping_while_populating);
    tcase_add_test(life, test_threads);
    tcase_add_test(life, test_idle);
    tcase_add_test(life, test_hang_up);
    tcase_add_test(life, test_parent_dies);
    tcase_add_loop_test(life, test_malformed, 0, N_MALFORMED);
    tcase_add_test(life, test_broken_frame);
    tcase_add_test(life, test_no_socket);
    return suite_run(suite);
}
