/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the progress line in a terminal. */
#include "client/gpt/progress.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct cst_step_result result = {
    .step = 123456, .loss = 2.1234, .grad_norm = 12.34, .skipped = true};

/* Draw one step in a terminal of @columns (0: unknown width) and return the text that it
 * received. */
static const char *draw(unsigned short columns)
{
    static char text[512];
    const struct winsize size = {.ws_row = 24, .ws_col = columns};
    const struct cst_rank_stat stat = {
        .hits = 5, .late = 2, .misses = 1, .weight_wait_seconds = 1.25};
    const struct gpt_progress_step step = {.result = &result, .stat = &stat};
    struct gpt_progress progress;
    struct cst_err err = {0};
    int master, slave;
    ssize_t n;

    ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, &size), 0);
    (void)fflush(stdout);
    ck_assert_int_ge(dup2(slave, STDOUT_FILENO), 0);
    ck_assert_int_eq(gpt_progress_open(&progress, false, NULL, false, 0, 1000000, 1 << 20, &err),
                     0);
    ck_assert_int_eq(gpt_progress_step(&progress, &step, &err), 0);
    n = read(master, text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    text[n] = '\0';
    return text;
}

/* The line is shorter than the terminal's width, because it is redrawn in place. The last column
 * stays free, and the most important part comes first. */
START_TEST(line_fits_the_terminal)
{
    static const unsigned short columns[] = {20, 40, 80};
    const char *text = draw(columns[_i]), *end = strstr(text, "\033[K");

    ck_assert_int_eq(text[0], '\r');
    ck_assert_ptr_nonnull(end);
    ck_assert_int_lt(end - (text + 1), columns[_i]);
    ck_assert_int_eq(strncmp(text + 1, "step 123456/1000000", 19), 0);
}
END_TEST

/* A wide terminal, or one of unknown width, gets the whole line. */
START_TEST(line_is_whole)
{
    const char *text = draw(_i == 0 ? 0 : 200);

    ck_assert_ptr_nonnull(strstr(text, "hits 62.5 %, late 25.0 %, waited 1.2 s"));
    ck_assert_ptr_nonnull(strstr(text, "  SKIPPED\033[K"));
}
END_TEST

/* A step that was not skipped but in which a tile overflowed is marked OVERFLOW. */
START_TEST(line_tells_an_overflow)
{
    result.skipped = false;
    result.overflow = true;
    ck_assert_ptr_nonnull(strstr(draw(0), "  OVERFLOW\033[K"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress");
    TCase *tcase = suite_case(suite, "progress", NULL, NULL);

    tcase_add_loop_test(tcase, line_fits_the_terminal, 0, 3);
    tcase_add_loop_test(tcase, line_is_whole, 0, 2);
    tcase_add_test(tcase, line_tells_an_overflow);
    return suite_run(suite);
}
