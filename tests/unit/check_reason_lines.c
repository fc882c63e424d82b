/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/base/reason_lines: where the lines of a long reason end. */
#include "daemon/base/reason_lines.h"
#include "proto/text.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LINES = 8 };

static char lines[MAX_LINES][192];

/* A line ends at a space, which is left out. What fits in a line is one line. */
START_TEST(lines_end_at_spaces)
{
    char text[300], word[100];

    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    (void)snprintf(text, sizeof text, "%s %.50s %s", word, word, word);
    ck_assert_uint_eq(cstd_reason_lines(text, lines, MAX_LINES), 2);
    ck_assert_uint_eq(strlen(lines[0]), 2 + 99 + 1 + 50);
    ck_assert_uint_eq(strlen(lines[1]), 2 + 99);
    ck_assert_uint_eq(cstd_reason_lines("no driver", lines, MAX_LINES), 1);
    ck_assert_str_eq(lines[0], "  no driver");
    ck_assert_uint_eq(cstd_reason_lines("", lines, MAX_LINES), 0);
    ck_assert_uint_eq(cstd_reason_lines(text, lines, 1), 1);
}
END_TEST

/* Where there is no space, no character of UTF-8 is cut, and nothing is lost. _i: bytes before the
 * first character of three bytes. */
START_TEST(characters_are_not_cut)
{
    char text[512], joined[512] = "";
    unsigned n;

    (void)snprintf(text, sizeof text, "%.*s", _i, "abc");
    for (int i = 0; i < 150; i++) {
        (void)strcat(text, "\xe2\x82\xac");
    }
    n = cstd_reason_lines(text, lines, MAX_LINES);
    ck_assert_uint_gt(n, 1);
    for (unsigned i = 0; i < n; i++) {
        ck_assert(cst_text_is_clean(lines[i]));
        (void)strcat(joined, lines[i] + 2);
    }
    ck_assert_str_eq(joined, text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reason_lines");
    TCase *tcase = suite_case(suite, "reason_lines", NULL, NULL);

    tcase_add_test(tcase, lines_end_at_spaces);
    tcase_add_loop_test(tcase, characters_are_not_cut, 0, 3);
    return suite_run(suite);
}
