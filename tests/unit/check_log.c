/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the log. A reader of stderr that is stuck must not stop the daemon. */
#include "daemon/base/log.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Replace stderr by a pipe. Returns the pipe's other end. */
static int take_stderr(void)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    ck_assert_int_eq(close(ends[1]), 0);
    return ends[0];
}

/* A line has the time, the level, the job and one newline, and no control characters. */
START_TEST(a_line_is_clean)
{
    static const char words[] = "Z cisternd: warning: job 'run7': a\\x1bb\\x0ac 7\n";
    char got[128] = "";
    int pipe_end = take_stderr(), year = 0, milliseconds = -1, used = 0;
    ssize_t n;

    cstd_log_init(CSTD_LOG_INFO);
    cstd_log_about(CSTD_LOG_WARNING, &(struct cstd_log_about){"run7", 3, 1000}, "a%cb\nc %d", 27,
                   7);
    cstd_log(CSTD_LOG_DEBUG, "not this one");
    n = read(pipe_end, got, sizeof got - 1);
    ck_assert_int_eq(n, 23 + (ssize_t)strlen(words));
    ck_assert_int_eq(sscanf(got, "%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%3d%n", &year, &milliseconds, &used),
                     2);
    ck_assert_int_ge(year, 2024);
    ck_assert_int_eq(used, 23);
    ck_assert_str_eq(got + used, words);
}
END_TEST

/* Mount a private /run with a socket in the place of the journal's. False if the machine does not
 * permit a mount namespace. */
static bool make_journal(int *journal)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};

    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/run", "tmpfs", 0, NULL) != 0) {
        return false;
    }
    ck_assert_int_eq(mkdir("/run/systemd", 0755), 0);
    ck_assert_int_eq(mkdir("/run/systemd/journal", 0755), 0);
    *journal = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(*journal, (struct sockaddr *)&address, sizeof address), 0);
    return true;
}

/* Make stderr what systemd gives a service: a stream whose device and inode the environment
 * names. */
static int take_stderr_as_journal(void)
{
    int pipe_end = take_stderr();
    char stream[64];
    struct stat st;

    ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
    (void)snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    ck_assert_int_eq(setenv("JOURNAL_STREAM", stream, 1), 0);
    cstd_log_init(CSTD_LOG_INFO);
    return pipe_end;
}

/* The journal gets fields for the level, the job, the rank and the owner, if they are known.
 * Nothing is written to stderr. */
START_TEST(the_journal_has_fields)
{
    char got[512] = "";
    int journal, pipe_end;
    ssize_t n;

    if (!make_journal(&journal)) {
        (void)printf("skipped: no mount namespace of our own\n");
        return;
    }
    pipe_end = take_stderr_as_journal();
    cstd_log_about(CSTD_LOG_NOTICE, &(struct cstd_log_about){"run7", 3, 1000}, "rank %d\nis gone",
                   3);
    cstd_log(CSTD_LOG_ERROR, "no more");
    n = recv(journal, got, sizeof got - 1, MSG_DONTWAIT);
    ck_assert_int_gt(n, 0);
    ck_assert_str_eq(
        got, "PRIORITY=5\nSYSLOG_IDENTIFIER=cisternd\nMESSAGE=job 'run7': rank 3\\x0ais gone\n"
             "CISTERN_JOB=run7\nCISTERN_RANK=3\nCISTERN_UID=1000\n");
    n = recv(journal, got, sizeof got - 1, MSG_DONTWAIT);
    ck_assert_int_gt(n, 0);
    got[n] = '\0';
    ck_assert_str_eq(got, "PRIORITY=3\nSYSLOG_IDENTIFIER=cisternd\nMESSAGE=no more\n");
    ck_assert_int_eq(fcntl(pipe_end, F_SETFL, O_NONBLOCK), 0);
    ck_assert_int_eq(read(pipe_end, got, sizeof got), -1);
}
END_TEST

/* If the journal accepts nothing, because it is full or missing, the line is written to stderr in
 * the journal's prefix notation. The caller is not delayed. */
START_TEST(a_journal_that_is_stuck_loses_nothing)
{
    char got[128] = "";
    int journal, pipe_end;

    if (!make_journal(&journal)) {
        (void)printf("skipped: no mount namespace of our own\n");
        return;
    }
    pipe_end = take_stderr_as_journal();
    ck_assert_int_eq(fcntl(pipe_end, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 100000 && read(pipe_end, got, sizeof got - 1) < 0; i++) {
        cstd_log(CSTD_LOG_WARNING, "line");
    }
    ck_assert_str_eq(got, "<4>line\n");
}
END_TEST

/* A message that is logged once a minute is logged at once, and again when a minute is over. */
START_TEST(a_pace_is_kept)
{
    const uint64_t s = 1000000000, start = 12345;
    struct cstd_log_pace pace = {0};

    ck_assert(cstd_log_due(&pace, start));
    ck_assert(!cstd_log_due(&pace, start + 1));
    ck_assert(!cstd_log_due(&pace, start + 59 * s));
    ck_assert(cstd_log_due(&pace, start + 60 * s));
    ck_assert(!cstd_log_due(&pace, start + 119 * s));
}
END_TEST

/* 200 lines about a user are written at once, and 20 a second after that. Another user's lines are
 * not affected, and the first line that is written says how many were left out. */
START_TEST(users_have_shares)
{
    const uint64_t s = 1000000000, start = 5 * s;
    uint64_t n_left_out;
    unsigned n = 0;

    for (unsigned i = 0; i < 1000; i++) {
        n += cstd_log_admits(70001, start, &n_left_out);
    }
    ck_assert_uint_eq(n, 200);
    ck_assert(cstd_log_admits(70002, start, &n_left_out));
    ck_assert_uint_eq(n_left_out, 0);
    ck_assert(cstd_log_admits(70001, start + s / 20, &n_left_out));
    ck_assert_uint_eq(n_left_out, 800);
    ck_assert(!cstd_log_admits(70001, start + s / 20, &n_left_out));
    for (n = 0; cstd_log_admits(70001, start + s + s / 20, &n_left_out); n++) {
    }
    ck_assert_uint_eq(n, 20);
    /* More users than are counted do not take each other's lines. */
    for (int64_t uid = 80000; uid < 81000; uid++) {
        ck_assert(cstd_log_admits(uid, start, &n_left_out));
    }
}
END_TEST

/* Events about a user are written until the user's share is used up. */
START_TEST(a_user_floods)
{
    const struct cstd_log_about about = {.rank = CSTD_LOG_NONE, .uid = 70003};
    int pipe_end = take_stderr();
    static char got[1 << 16];
    unsigned n = 0;
    ssize_t n_bytes;

    cstd_log_init(CSTD_LOG_INFO);
    for (int i = 0; i < 5000; i++) {
        cstd_log_about(CSTD_LOG_WARNING, &about, "line");
    }
    cstd_log(CSTD_LOG_ERROR, "of the daemon");
    n_bytes = read(pipe_end, got, sizeof got - 1);
    ck_assert_int_gt(n_bytes, 0);
    ck_assert_ptr_nonnull(strstr(got, "error: of the daemon"));
    for (const char *at = got; (at = strstr(at, "warning: line")) != NULL; at++) {
        n++;
    }
    ck_assert_uint_ge(n, 200);
    ck_assert_uint_lt(n, 1000);
}
END_TEST

/* Lines that do not fit into the pipe are lost, and the caller goes on. Otherwise the test would
 * reach its time limit. */
START_TEST(a_full_pipe_loses_lines)
{
    int pipe_end = take_stderr(), size = fcntl(pipe_end, F_GETPIPE_SZ);
    char got[128];

    ck_assert_int_gt(size, 0);
    cstd_log_init(CSTD_LOG_INFO);
    for (int i = 0; i < size; i++) {
        cstd_log(CSTD_LOG_ERROR, "line %d", i);
    }
    ck_assert_int_gt(read(pipe_end, got, sizeof got), 0);
    ck_assert_mem_eq(got + 23, "Z cisternd: error: line 0\n", 26);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tc = suite_case(suite, "lines", NULL, NULL);

    tcase_add_test(tc, a_line_is_clean);
    tcase_add_test(tc, the_journal_has_fields);
    tcase_add_test(tc, a_journal_that_is_stuck_loses_nothing);
    tcase_add_test(tc, a_pace_is_kept);
    tcase_add_test(tc, users_have_shares);
    tcase_add_test(tc, a_user_floods);
    tcase_add_test(tc, a_full_pipe_loses_lines);
    return suite_run(suite);
}
