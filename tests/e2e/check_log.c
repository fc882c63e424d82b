/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the messages of a failing test's daemon are shown. */
#include "tests/lib/child.h"
#include "tests/lib/daemon_proc.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- the inner suite --------------------------------------------------------------------------- */

static struct daemon_proc proc;

START_TEST(leaves_a_log)
{
    daemon_proc_start(&proc, NULL);
    ck_assert_int_eq(kill(proc.pid, SIGTERM), 0);
    ck_assert_int_eq(child_wait(proc.pid), 0);
    ck_assert_int_eq(rmdir(proc.dir), 0);
    ck_assert_int_eq(_i, 0);
}
END_TEST

/* Run a suite whose only test fails if @failing. */
static int run_inner(bool failing)
{
    Suite *suite = suite_create("inner");
    TCase *tcase = suite_case(suite, "inner", NULL, NULL);

    (void)unsetenv("CK_RUN_CASE");
    (void)unsetenv("CK_RUN_SUITE");
    tcase_add_loop_test(tcase, leaves_a_log, failing, failing + 1);
    return suite_run(suite);
}

/* -- tests ------------------------------------------------------------------------------------- */

static size_t count_logs(pid_t pid)
{
    char pattern[64];
    glob_t logs = {0};
    size_t n;

    (void)snprintf(pattern, sizeof pattern, SUITE_LOG "*.log", (int)pid);
    (void)glob(pattern, 0, NULL, &logs);
    n = logs.gl_pathc;
    globfree(&logs);
    return n;
}

/* The end of the log of a failing test's daemon is printed (_i = 1), and that of a passing test is
 * not. No log stays. */
START_TEST(log_is_shown)
{
    char text[8192];
    size_t n = 0, got;
    int ends[2], status;
    FILE *file;
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    pid = child_start();
    if (pid == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        exit(run_inner(_i == 1));
    }
    (void)close(ends[1]);
    file = fdopen(ends[0], "r");
    ck_assert_ptr_nonnull(file);
    while ((got = fread(text + n, 1, sizeof text - 1 - n, file)) > 0) {
        n += got;
    }
    text[n] = '\0';
    (void)fclose(file);
    status = child_wait(pid);
    ck_assert_int_eq(WEXITSTATUS(status), _i == 1 ? EXIT_FAILURE : EXIT_SUCCESS);
    ck_assert_msg((strstr(text, " cisternd: notice: listening at") != NULL) == (_i == 1), "%s",
                  text);
    ck_assert_uint_eq(count_logs(pid), 0);
}
END_TEST

/* A name of CK_RUN_CASE that no case has is an error, and the names of the cases are printed. */
START_TEST(wrong_case_is_an_error)
{
    char text[1024];
    int ends[2], status;
    ssize_t n;
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    pid = child_start();
    if (pid == 0) {
        Suite *suite = suite_create("inner");

        (void)dup2(ends[1], STDERR_FILENO);
        (void)setenv("CK_RUN_CASE", "wrong", 1);
        (void)suite_case(suite, "right", NULL, NULL);
        exit(suite_run(suite));
    }
    (void)close(ends[1]);
    status = child_wait(pid);
    n = read(ends[0], text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    ck_assert_int_eq(WEXITSTATUS(status), EXIT_FAILURE);
    ck_assert_msg(strstr(text, "no case 'wrong'") != NULL && strstr(text, "right\n") != NULL, "%s",
                  text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tcase = suite_case(suite, "log", NULL, NULL);

    tcase_add_test(tcase, wrong_case_is_an_error);
    tcase_add_loop_test(tcase, log_is_shown, 0, 2);
    return suite_run(suite);
}
