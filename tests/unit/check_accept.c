/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/serve/server while connections cannot be accepted: they stay in the queue, and
 * the daemon sleeps between its tries. Also of connections and processes that the loop cannot
 * watch. */
#include "daemon/base/daemon_state.h"
#include "daemon/settings/settings.h"
#include "daemon/engine/probe.h"
#include "daemon/engine/process.h"
#include "tests/lib/descriptors.h"
#include "tests/lib/suite.h"
#include "daemon/serve/server.h"
#include "daemon/session/peer.h"
#include "daemon/session/session.h"

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_MS = 500, MOST_TRIES = 20 };

/* With --wrap the linker redirects all calls of accept4 to __wrap_accept4. */
int __wrap_accept4(int sock, struct sockaddr *addr, socklen_t *bytes, int flags);

int __real_uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd);
int __wrap_uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd);

static struct cstd_server server;
static struct cstd_daemon daemon_state = {.server = &server};
/* After so many calls uv_poll_init fails, as if the user had too many watches of epoll. */
static int n_watches = INT_MAX;
static int shortage;     /* errno of accept4 */
static unsigned n_tries; /* number of calls of accept4 */

int __wrap_accept4(int sock, struct sockaddr *addr, socklen_t *bytes, int flags)
{
    (void)sock;
    (void)addr;
    (void)bytes;
    (void)flags;
    n_tries++;
    errno = shortage;
    return -1;
}

int __wrap_uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd)
{
    return n_watches-- <= 0 ? UV_ENOSPC : __real_uv_poll_init(loop, poll, fd);
}

static int connect_to(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    ck_assert_int_eq(connect(sock, (const struct sockaddr *)&addr, sizeof addr), 0);
    return sock;
}

static void stop_loop(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

/* Run the daemon's loop for a while. */
static void run(void)
{
    uv_timer_t end;

    ck_assert_int_eq(uv_timer_init(&daemon_state.loop, &end), 0);
    ck_assert_int_eq(uv_timer_start(&end, stop_loop, RUN_MS, 0), 0);
    (void)uv_run(&daemon_state.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&end, NULL);
    (void)uv_run(&daemon_state.loop, UV_RUN_NOWAIT);
}

/* _i: which resource is short. */
START_TEST(waits_for_memory)
{
    static const int shortages[] = {ENOMEM, ENOBUFS, EMFILE, ENFILE};
    char directory[] = "/tmp/cistern-accept-XXXXXX";
    struct cstd_settings settings = {0};
    struct cst_err err;
    int sock;

    shortage = shortages[_i];
    n_tries = 0;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(settings.socket, sizeof settings.socket, "%s/user", directory);
    (void)snprintf(settings.manager_socket, sizeof settings.manager_socket, "%s/manager",
                   directory);
    daemon_state.config = &settings;
    ck_assert_int_eq(uv_loop_init(&daemon_state.loop), 0);
    ck_assert_int_eq(cstd_server_open(daemon_state.server, &daemon_state, &err), CST_OK);
    cstd_server_accept(daemon_state.server);
    sock = connect_to(settings.socket);
    run();
    ck_assert_uint_ge(n_tries, 2);
    ck_assert_uint_le(n_tries, MOST_TRIES);
    ck_assert_int_eq(close(sock), 0);
    cstd_server_stop(daemon_state.server);
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

/* A connection that the loop cannot watch is refused, and nothing of it is taken over. A process
 * that cannot be watched has no watch. */
START_TEST(what_cannot_be_watched)
{
    static const struct cstd_session_ops ops = {0};
    const struct cstd_peer peer = {.pidfd = -1};
    const struct cst_err refusal = {0};
    struct cstd_session *session = NULL;
    struct cst_err err;
    int ends[2];

    ck_assert_int_eq(uv_loop_init(&daemon_state.loop), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    n_watches = 0;
    ck_assert_int_eq(cstd_session_open(&session, &daemon_state, &ops, ends[0], &peer, NULL, false,
                                       &refusal, &err),
                     CST_ENOMEM);
    ck_assert_ptr_null(session);
    ck_assert_ptr_nonnull(strstr(err.text, "no space left on device"));
    ck_assert_ptr_null(cstd_watch_open(&daemon_state.loop, ends[0], NULL, NULL));
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(close(ends[1]), 0);
    ck_assert_int_eq(uv_loop_close(&daemon_state.loop), 0); /* It has no handle. */
}
END_TEST

static unsigned fds; /* Descriptors of this process before something is to be watched. */

/* The loop watches only the first of two descriptors, or none (@n). */
static void begin_blind(int n)
{
    ck_assert_int_eq(uv_loop_init(&daemon_state.loop), 0);
    n_watches = n;
    fds = descriptors_count();
}

/* Nothing is left of what could not be watched: no handle, child, or descriptor. */
static void end_blind(const struct cst_err *err)
{
    ck_assert_ptr_nonnull(strstr(err->text, "cannot be watched: no space left on device"));
    (void)uv_run(&daemon_state.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(descriptors_count(), fds);
    ck_assert_int_eq(uv_loop_close(&daemon_state.loop), 0);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}

/* _i: how many descriptors can be watched. */
START_TEST(an_engine_that_cannot_be_watched)
{
    static const struct cstd_process_ops ops = {0};
    char *argv[] = {(char *)(uintptr_t) "/bin/cat", NULL};
    struct cstd_process *process = NULL;
    struct cst_err err;

    begin_blind(_i);
    ck_assert_int_eq(cstd_process_start(&process, &daemon_state.loop, argv, &ops, NULL, &err),
                     CST_ENOMEM);
    ck_assert_ptr_null(process);
    end_blind(&err);
}
END_TEST

/* _i: how many descriptors can be watched. */
START_TEST(a_probe_that_cannot_be_watched)
{
    struct cstd_probe *probe = NULL;
    struct cst_err err;

    begin_blind(_i);
    ck_assert_int_eq(cstd_probe_start(&probe, &daemon_state.loop, "/bin/echo", NULL, NULL, &err),
                     CST_ENOMEM);
    ck_assert_ptr_null(probe);
    end_blind(&err);
}
END_TEST

/* A listener that cannot be watched is closed, and its files are removed. _i: how many can. */
START_TEST(a_listener_that_cannot_be_watched)
{
    char directory[] = "/tmp/cistern-accept-XXXXXX";
    struct cstd_settings settings = {0};
    struct cst_err err;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    (void)snprintf(settings.socket, sizeof settings.socket, "%s/user", directory);
    (void)snprintf(settings.manager_socket, sizeof settings.manager_socket, "%s/manager",
                   directory);
    daemon_state.config = &settings;
    begin_blind(_i);
    ck_assert_int_eq(cstd_server_open(daemon_state.server, &daemon_state, &err), CST_ENOMEM);
    ck_assert_ptr_nonnull(strstr(err.text, _i == 0 ? "/user" : "/manager"));
    end_blind(&err);
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("accept");
    TCase *tcase = suite_case(suite, "accept", NULL, NULL);

    tcase_add_loop_test(tcase, waits_for_memory, 0, 4);
    tcase_add_test(tcase, what_cannot_be_watched);
    tcase_add_loop_test(tcase, an_engine_that_cannot_be_watched, 0, 2);
    tcase_add_loop_test(tcase, a_probe_that_cannot_be_watched, 0, 2);
    tcase_add_loop_test(tcase, a_listener_that_cannot_be_watched, 0, 2);
    return suite_run(suite);
}
