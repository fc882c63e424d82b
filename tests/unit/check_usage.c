/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/usage.h"
#include "tests/lib/suite.h"

#include <string.h>

static const struct option table[] = {
    {"device", required_argument, NULL, 256},
    {"device-states", required_argument, NULL, 257},
    {"json", no_argument, NULL, 258},
    {"socket", required_argument, NULL, 's'},
    {NULL, 0, NULL, 0},
};

/* Command lines of one or two words that getopt_long refuses, and our message for each. */
static const struct {
    const char *first, *second, *words;
} lines[] = {
    {"--devcie", "4G", "there is no option --devcie: did you mean --device?"},
    {"--jsno", NULL, "there is no option --jsno: did you mean --json?"},
    {"--sockets=x", NULL, "there is no option --sockets: did you mean --socket?"},
    {"--frobnicate", NULL, "there is no option --frobnicate (see --help)"},
    {"--dev", "x", "--dev is ambiguous: it may be --device, --device-states"},
    {"--json=3", NULL, "--json takes no value"},
    {"--device", NULL, "--device: a value is missing"},
    {"-s", NULL, "-s: a value is missing"},
    {"-x", NULL, "there is no option -x (see --help)"},
    {"-xs", "--json", "there is no option -x (see --help)"},
};

START_TEST(refused_options_are_named)
{
    char *argv[] = {(char *)(uintptr_t) "program", (char *)(uintptr_t)lines[_i].first,
                    (char *)(uintptr_t)lines[_i].second, NULL};
    struct cst_err err = {0};
    int c;

    optind = 0;
    opterr = 0;
    c = getopt_long(lines[_i].second != NULL ? 3 : 2, argv, ":s:", table, NULL);
    ck_assert(c == '?' || c == ':');
    ck_assert_int_eq(cst_usage_refused(c, argv, table, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, lines[_i].words);
}
END_TEST

static unsigned apart(const char *given, const char *name)
{
    unsigned best = CST_USAGE_FAR;

    return cst_usage_nearer(given, name, &best) ? best : CST_USAGE_FAR;
}

/* Missing, additional, wrong and swapped letters count one each. */
START_TEST(near_words_are_found)
{
    ck_assert_uint_eq(apart("stat", "stat"), 0);
    ck_assert_uint_eq(apart("sat", "stat"), 1);
    ck_assert_uint_eq(apart("stait", "stat"), 1);
    ck_assert_uint_eq(apart("stad", "stat"), 1);
    ck_assert_uint_eq(apart("satt", "stat"), 1);
    ck_assert_uint_eq(apart("tast", "stat"), 2);
    ck_assert_uint_eq(apart("plan", "stat"), CST_USAGE_FAR);
    ck_assert_uint_eq(apart("", "stat"), CST_USAGE_FAR);
    ck_assert_uint_eq(apart("xy", "rm"), CST_USAGE_FAR);
    ck_assert_uint_eq(apart("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "stat"),
                      CST_USAGE_FAR);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("usage");
    TCase *tc = suite_case(suite, "usage", NULL, NULL);

    tcase_add_loop_test(tc, refused_options_are_named, 0, (int)(sizeof lines / sizeof lines[0]));
    tcase_add_test(tc, near_words_are_found);
    return suite_run(suite);
}
