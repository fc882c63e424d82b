/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the daemon as a process: its start, reasons not to start, signals, and deaths of its
 * engines. */
#include "tests/lib/daemon_proc.h"
#include "tests/lib/patience.h"
#include "tests/lib/raw_client.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon_proc proc;

static void setup(void)
{
    daemon_proc_start(&proc, NULL);
}

static void teardown(void)
{
    if (proc.pid != 0) {
        ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    }
}

static void assert_logged(const char *words)
{
    ck_assert_msg(daemon_proc_logged(&proc, words), "the log does not say '%s'", words);
}

static pid_t engine_pid(struct raw_client *client)
{
    return raw_stat(client)->engines[0]->pid;
}

/* Commit a job "j" of one rank. */
static void open_committed(struct raw_client *client)
{
    struct raw_job job = {.name = "j", .world = 1};

    raw_open(client, proc.socket);
    ck_assert_msg(raw_job_open(client, &job) == CST_OK, "%s", client->err.text);
    ck_assert_int_eq(raw_declare_many(client, 3, 1000), CST_OK);
    ck_assert_msg(raw_status(client, raw_commit(client, 3, 3)) == CST_OK, "%s", client->err.text);
}

/* Wait for the end of the process of @pidfd. */
static void await_end(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    ck_assert_int_eq(poll(&p, 1, patience_ms(20000)), 1);
    (void)close(pidfd);
}

/* -- start ---------------------------------------------------------------------------------- */

/* A second daemon on the socket is refused, and the error names the first one, which is not
 * affected. */
START_TEST(a_second_daemon_is_refused)
{
    struct daemon_proc second = proc;
    struct raw_client client;
    char words[64];

    ck_assert_int_eq(daemon_proc_refused(&second, NULL), 1);
    (void)snprintf(words, sizeof words, "another cisternd (pid %d)", (int)proc.pid);
    assert_logged(words);
    raw_open(&client, proc.socket);
    raw_close(&client);
}
END_TEST

/* After SIGKILL the socket files are stale. The next daemon removes them and starts. */
START_TEST(a_stale_socket_is_taken_over)
{
    struct raw_client client;
    struct stat st;

    daemon_proc_kill(&proc);
    ck_assert_int_eq(stat(proc.socket, &st), 0);
    daemon_proc_restart(&proc, NULL);
    raw_open(&client, proc.socket);
    raw_close(&client);
}
END_TEST

/* A socket on which another process listens is not touched, and neither is a file that is not a
 * socket. */
START_TEST(a_living_socket_is_left_alone)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), file;

    daemon_proc_kill(&proc);
    ck_assert_int_eq(unlink(proc.socket), 0);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", proc.socket);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(daemon_proc_refused(&proc, NULL), 1);
    assert_logged("another process listens there");
    (void)close(listener);
    ck_assert_int_eq(unlink(proc.socket), 0);
    file = open(proc.socket, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(file, 0);
    (void)close(file);
    ck_assert_int_eq(daemon_proc_refused(&proc, NULL), 1);
    assert_logged("is not a socket");
    ck_assert_int_eq(unlink(proc.socket), 0);
    daemon_proc_restart(&proc, NULL);
}
END_TEST

/* With invalid options the daemon does not start, and its message says what is allowed. */
START_TEST(nonsense_is_refused)
{
    static const struct {
        const char *option, *words;
        int status;
    } cases[] = {
        {"--host-memory=9999T", "exceeds the machine's", 1},
        {"--host-memory=lots", "is not a size", 2},
        {"--pool-memory=101%", "is not a size", 2},
        {"--engine-threads=-1", "is not a number from 0", 2},
        {"--log-level=loud", "error, warning, notice, info, debug", 2},
        {"--engine=/nowhere/engine", "/nowhere/engine", 1},
        {"--socket=relative", "not an absolute path", 2},
        {"--config=/nowhere/cistern.conf", "/nowhere/cistern.conf", 1},
        {"--frobnicate", "there is no option --frobnicate", 2},
        {"extra", "unexpected argument 'extra'", 2},
    };

    daemon_proc_kill(&proc);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(daemon_proc_refused(&proc, (const char *[]){cases[i].option, NULL}),
                         cases[i].status);
        assert_logged(cases[i].words);
    }
    daemon_proc_restart(&proc, NULL);
}
END_TEST

static void write_config(char *path, size_t size, const char *text)
{
    FILE *file;

    (void)snprintf(path, size, "%s.conf", proc.dir);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* With an unknown key, an invalid value or a budget beyond the machine in its configuration the
 * daemon does not start. The message has the line, the error, and what is allowed. */
START_TEST(a_bad_file_is_refused)
{
    static const struct {
        const char *text, *where, *words;
    } cases[] = {
        {"[host]\nlock = no\nmemroy = 1G\n", ".conf:3: ", "known: memory, lock, nodes"},
        {"[engine]\nthreads = many\n", ".conf:2: ", "'many' is not a number from 0"},
        {"[job]\n\nttl = 1y\n", ".conf:3: ", "is not a time"},
        {"[host]\nlock = perhaps\n", ".conf:2: ", "none of try, yes, no"},
    };
    char path[128], option[160], line[192];

    daemon_proc_kill(&proc);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_config(path, sizeof path, cases[i].text);
        (void)snprintf(option, sizeof option, "--config=%s", path);
        ck_assert_int_eq(daemon_proc_refused(&proc, (const char *[]){option, NULL}), 1);
        (void)snprintf(line, sizeof line, "%s%s", proc.dir, cases[i].where);
        assert_logged(line);
        assert_logged(cases[i].words);
        ck_assert_int_eq(unlink(path), 0);
    }
    daemon_proc_restart(&proc, NULL);
}
END_TEST

/* -- signals -------------------------------------------------------------------------------- */

/* On SIGTERM pending requests get EDRAINING, and idle clients are told why the connection ends.
 * Engines end with status 0, and the folder is empty. */
START_TEST(sigterm_drains)
{
    struct raw_client client, idle;
    struct raw_job job = {.name = "j", .world = 2};
    int engine;
    uint64_t id;

    raw_open(&idle, proc.socket);
    raw_open(&client, proc.socket);
    engine = pidfd_open(engine_pid(&client), 0);
    ck_assert_int_ge(engine, 0);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 1, 1000), CST_OK);
    id = raw_commit(&client, 1, 1); /* waits for rank 1 */
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    ck_assert_int_eq(raw_status(&client, id), CST_EDRAINING);
    raw_says(&client, "job 'j' ends with it at step 0");
    ck_assert(!raw_receive(&client));
    ck_assert_int_eq(client.farewell.status, CST_EDRAINING);
    ck_assert_ptr_nonnull(strstr(client.farewell.text, "job 'j' ends with it at step 0"));
    ck_assert(!raw_receive(&idle));
    ck_assert_int_eq(idle.farewell.status, CST_EDRAINING);
    await_end(engine);
    raw_close(&client);
    raw_close(&idle);
}
END_TEST

/* SIGTERM works in this way also with a committed, populated job in the middle of a step. */
START_TEST(sigterm_drains_a_running_job)
{
    struct raw_client client;

    open_committed(&client);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_SYNC, NULL), CST_OK);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    raw_expect_closed(&client);
    raw_close(&client);
}
END_TEST

/* Read notifications until one begins with @text. */
static void await_notification(const char *text)
{
    struct pollfd p = {.fd = proc.notify, .events = POLLIN};
    char got[512] = "";

    while (strncmp(got, text, strlen(text)) != 0) {
        ssize_t n;

        ck_assert_int_eq(poll(&p, 1, patience_ms(20000)), 1);
        n = recv(proc.notify, got, sizeof got - 1, 0);
        ck_assert_int_gt(n, 0);
        got[n] = '\0';
    }
}

/* A second signal ends the daemon at once, even if an engine does not end. */
START_TEST(a_second_signal_ends_at_once)
{
    struct raw_client client;
    pid_t engine;
    int status, engine_fd;

    raw_open(&client, proc.socket);
    engine = engine_pid(&client);
    engine_fd = pidfd_open(engine, 0);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    ck_assert_int_eq(kill(proc.pid, SIGTERM), 0);
    await_notification("STOPPING=1");
    ck_assert_int_eq(kill(proc.pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(proc.pid, &status, 0), proc.pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    await_end(engine_fd); /* the engine's socket is closed */
    proc.pid = 0;
    ck_assert_int_eq(rmdir(proc.dir), 0);
    (void)unlink(proc.log);
    raw_close(&client);
}
END_TEST

/* SIGHUP and SIGPIPE do not end the daemon. */
START_TEST(other_signals_do_not_end_it)
{
    struct raw_client client;

    ck_assert_int_eq(kill(proc.pid, SIGHUP), 0);
    ck_assert_int_eq(kill(proc.pid, SIGPIPE), 0);
    raw_open(&client, proc.socket);
    while (!daemon_proc_logged(&proc, "SIGHUP")) {
        (void)raw_stat(&client);
    }
    raw_close(&client);
}
END_TEST

/* -- engines -------------------------------------------------------------------------------- */

static void get_staging(struct raw_client *client)
{
    Cistern__StagingGet get = CISTERN__STAGING_GET__INIT;

    get.bytes = 65536;
    ck_assert_int_eq(raw_call(client, CISTERN__MSG_TYPE__MSG_STAGING, &get.base), CST_OK);
    cst_frame_close_fds(&client->reply);
}

/* An engine that is killed with commands under way is restarted and gets its segments and commands
 * again. Every request is answered. */
START_TEST(a_killed_engine_is_replaced)
{
    Cistern__TensorIo io = CISTERN__TENSOR_IO__INIT;
    struct raw_client client;
    const Cistern__EngineInfo *info;
    pid_t engine;

    open_committed(&client);
    get_staging(&client);
    engine = engine_pid(&client);
    /* So that the commands are under way when the engine dies. */
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    io.row = CISTERN__TENSOR_IO__ROW__MASTER;
    io.n_elems = 1000;
    for (unsigned i = 0; i < 10; i++) {
        (void)raw_ask(&client, CISTERN__MSG_TYPE__MSG_TENSOR_READ, &io.base);
    }
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(kill(engine, SIGKILL), 0);
    for (unsigned i = 0; i < 10; i++) {
        ck_assert(raw_receive(&client));
        ck_assert_uint_eq(client.reply.type, CISTERN__MSG_TYPE__MSG_OK);
    }
    info = raw_stat(&client)->engines[0];
    ck_assert_uint_eq(info->restarts, 1);
    ck_assert_int_ne(info->pid, engine);
    ck_assert_str_eq(info->state, "ready");
    assert_logged("killed by signal 9");
    raw_close(&client);
}
END_TEST

/* An engine that is killed while it populates a job is replaced by one that completes this. */
START_TEST(an_engine_killed_while_populating_is_replaced)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};
    uint64_t id;
    pid_t engine;

    raw_open(&client, proc.socket);
    engine = engine_pid(&client);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 3, 1000), CST_OK);
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    id = raw_commit(&client, 3, 3);
    ck_assert_int_eq(raw_call(&client, CISTERN__MSG_TYPE__MSG_PING, NULL), CST_OK);
    ck_assert_int_eq(kill(engine, SIGKILL), 0);
    ck_assert_int_eq(raw_status(&client, id), CST_OK);
    raw_close(&client);
}
END_TEST

/* Bytes of address space that process @pid uses. */
static uint64_t address_bytes(pid_t pid)
{
    char path[32];
    unsigned long long pages;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu", &pages), 1);
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* If the system has no memory (here: no address space) for a job within its budget, the job is
 * refused with the bytes that it wanted, and nothing is kept. When there is memory, the same rank
 * can commit. */
START_TEST(memory_that_is_not_there_is_refused)
{
    struct rlimit little = {.rlim_max = RLIM_INFINITY};
    const struct rlimit all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    struct raw_job job = {.name = "j", .world = 1, .chunk_elems = 1 << 20};
    uint64_t declared;
    const Cistern__StatReply *stat;
    struct raw_client client;
    unsigned n_fds;
    pid_t engine;

    raw_open(&client, proc.socket);
    engine = engine_pid(&client);
    while (strcmp(raw_stat(&client)->engines[0]->state, "ready") != 0) {
    }
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 8, 1 << 20), CST_OK);
    declared = raw_stat(&client)->host_used;
    n_fds = daemon_proc_fds(proc.pid);
    little.rlim_cur = address_bytes(engine) + (32 << 20);
    ck_assert_int_eq(prlimit(engine, RLIMIT_AS, &little, NULL), 0);
    ck_assert_int_eq(raw_status(&client, raw_commit(&client, 8, 8)), CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(client.err.text, "128.0 MiB"));
    stat = raw_stat(&client);
    ck_assert_uint_eq(stat->host_used, declared);
    ck_assert_uint_eq(stat->pool_used, 0);
    ck_assert_uint_eq(daemon_proc_fds(proc.pid), n_fds);
    ck_assert_int_eq(prlimit(engine, RLIMIT_AS, &all, NULL), 0);
    ck_assert_msg(raw_status(&client, raw_commit(&client, 8, 8)) == CST_OK, "%s", client.err.text);
    raw_close(&client);
}
END_TEST

/* An engine program that never starts is given up after a few deaths: jobs get EENGINE with a
 * message, their memory is freed, the daemon goes on, and the next job tries again. */
START_TEST(an_engine_that_never_comes_up_is_given_up)
{
    struct raw_client client;
    struct raw_job job = {.name = "j", .world = 1};
    const Cistern__StatReply *stat;
    uint64_t declared;

    daemon_proc_kill(&proc);
    daemon_proc_restart(&proc, (const char *[]){"--engine=/bin/false", NULL});
    raw_open(&client, proc.socket);
    ck_assert_int_eq(raw_job_open(&client, &job), CST_OK);
    ck_assert_int_eq(raw_declare_many(&client, 3, 1000), CST_OK);
    declared = raw_stat(&client)->host_used;
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(raw_status(&client, raw_commit(&client, 3, 3)), CST_EENGINE);
        ck_assert_ptr_nonnull(strstr(client.err.text, "exited with status 1"));
    }
    stat = raw_stat(&client);
    ck_assert_str_eq(stat->engines[0]->state, "failed");
    ck_assert_uint_eq(stat->host_used, declared);
    ck_assert_uint_eq(stat->pool_used, 0);
    assert_logged("started again after it was given up");
    raw_close(&client);
}
END_TEST

/* -- the suite ------------------------------------------------------------------------------ */

int main(void)
{
    Suite *suite = suite_create("daemon");
    TCase *tc;

    tc = suite_case(suite, "start", setup, teardown);
    tcase_add_test(tc, a_second_daemon_is_refused);
    tcase_add_test(tc, a_stale_socket_is_taken_over);
    tcase_add_test(tc, a_living_socket_is_left_alone);
    tcase_add_test(tc, nonsense_is_refused);
    tcase_add_test(tc, a_bad_file_is_refused);
    tc = suite_case(suite, "signals", setup, teardown);
    tcase_add_test(tc, sigterm_drains);
    tcase_add_test(tc, sigterm_drains_a_running_job);
    tcase_add_test(tc, a_second_signal_ends_at_once);
    tcase_add_test(tc, other_signals_do_not_end_it);
    tc = suite_case(suite, "engines", setup, teardown);
    tcase_add_test(tc, a_killed_engine_is_replaced);
    tcase_add_test(tc, an_engine_killed_while_populating_is_replaced);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* sanitizers need addresses   \
                                                                     */
    tcase_add_test(tc, memory_that_is_not_there_is_refused);
#else
    (void)memory_that_is_not_there_is_refused;
#endif
    tcase_add_test(tc, an_engine_that_never_comes_up_is_given_up);
    return suite_run(suite);
}
