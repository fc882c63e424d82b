/* The log: a reader of stderr that is stuck must not stop the daemon. */
#include "daemon/log.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Put a pipe in the place of stderr; its other end. */
static int take_stderr(void)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    ck_assert_int_eq(close(ends[1]), 0);
    return ends[0];
}

/* A line has a head, one newline, and nothing that a terminal could obey. */
START_TEST(a_line_is_clean)
{
    char got[128];
    int pipe_end = take_stderr();
    ssize_t n;

    cst_log_init(CST_LOG_INFO);
    cst_log(CST_LOG_WARNING, "a%cb\nc %d", 27, 7);
    cst_log(CST_LOG_DEBUG, "not this one");
    n = read(pipe_end, got, sizeof got);
    ck_assert_int_eq(n, (ssize_t)strlen("cisternd: warning: a?b?c 7\n"));
    ck_assert_mem_eq(got, "cisternd: warning: a?b?c 7\n", (size_t)n);
}
END_TEST

/* Lines that do not fit in the pipe are lost; the caller goes on. (It would be killed by the
 * runner's time limit otherwise.) */
START_TEST(a_full_pipe_loses_lines)
{
    int pipe_end = take_stderr(), size = fcntl(pipe_end, F_GETPIPE_SZ);
    char got[64];

    ck_assert_int_gt(size, 0);
    cst_log_init(CST_LOG_INFO);
    for (int i = 0; i < size; i++) {
        cst_log(CST_LOG_ERROR, "line %d", i);
    }
    ck_assert_int_gt(read(pipe_end, got, sizeof got), 0);
    ck_assert_mem_eq(got, "cisternd: error: line 0\n", 24);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tc = tcase_create("lines");

    tcase_add_test(tc, a_line_is_clean);
    tcase_add_test(tc, a_full_pipe_loses_lines);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
