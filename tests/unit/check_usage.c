/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/options.h"
#include "proto/usage.h"
#include "tests/lib/suite.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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

/* -- tables of options ------------------------------------------------------------------------ */

struct settings {
    bool json, search;
    const char *file;
    char path[8];
    uint32_t ranks, seconds;
    uint64_t count, bytes, seed;
    double every;
    unsigned color;
};

static const char *const colors[] = {"red", "green", NULL};

#define AT(name) offsetof(struct settings, name)

static const struct cst_option rows[] = {
    CST_OPTION_HEADING("Options:"),
    CST_OPTION("json", 'j', 0, NULL, "print JSON", CST_FLAG(AT(json))),
    CST_OPTION("search", 0, 0, "YES", "search a plan", CST_YES(AT(search))),
    CST_OPTION("file", 'f', 0, "FILE", "write to FILE", CST_TEXT(AT(file))),
    CST_OPTION("path", 0, 0, "PATH", "a path", CST_PATH(AT(path), 8)),
    CST_OPTION("ranks", 0, 2, "N", "number of ranks", CST_U32(AT(ranks), 1, 64)),
    CST_OPTION("time", 0, 0, "TIME", "a time", CST_SECONDS(AT(seconds), 1, 86400)),
    CST_OPTION("count", 0, 0, "N", "a number", CST_U64(AT(count), 1, 1e7)),
    CST_OPTION("seed", 0, 0, "N", "a number", CST_U64(AT(seed), 1e17, 0x1p64)),
    CST_OPTION("bytes", 0, 0, "SIZE", "a size", CST_SIZE_OR(AT(bytes), 4096, "auto", 7)),
    CST_OPTION("color", 0, 0, "NAME", "a color", CST_NAME(AT(color), 3, colors)),
    CST_OPTION_MAY("every", 1, "SECONDS", "2",
                   "a description that is too long for one line and is broken\nhere, too",
                   CST_REAL(AT(every), 0.01, 60)),
    CST_OPTION_END,
};

static int read_line(const char *line, struct settings *out, struct cst_options_given *given,
                     struct cst_err *err)
{
    static char copy[256]; /* The texts of @out are in it. */
    char *argv[32] = {(char *)(uintptr_t) "program"};
    int argc = 1;

    (void)strcpy(copy, line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    *out = (struct settings){.ranks = 5};
    return cst_options_read(rows, out, argc, argv, given, err);
}

/* Each kind of value sets its field. What follows the options remains, and what was given is
 * known. */
START_TEST(values_are_read)
{
    struct settings s;
    struct cst_options_given given;
    struct cst_err err = {0};

    ck_assert_int_eq(read_line("-j --search yes word -f x --path /a --ranks 64 --time 2h --count "
                               "10000000 --bytes 1.5GiB --color green --every=0.5",
                               &s, &given, &err),
                     CST_OK);
    ck_assert(s.json && s.search && s.ranks == 64 && s.seconds == 7200 && s.count == 10000000);
    ck_assert_str_eq(s.file, "x");
    ck_assert_str_eq(s.path, "/a");
    ck_assert_uint_eq(s.bytes, UINT64_C(3) << 29);
    ck_assert_uint_eq(s.color, 4);
    ck_assert_double_eq(s.every, 0.5);
    ck_assert_int_eq(given.first, 19);
    ck_assert(given.rows[1] && !given.rows[0]);
    ck_assert_msg(read_line("--every 3 --bytes auto", &s, &given, &err) == CST_OK, "%s", err.text);
    ck_assert_double_eq(s.every, 3);
    ck_assert_uint_eq(s.bytes, 7);
    ck_assert_int_eq(read_line("--every --no-such", &s, &given, &err), CST_EINVAL);
    ck_assert_int_eq(read_line("--every", &s, &given, &err), CST_OK);
    ck_assert_double_eq(s.every, 2);
    ck_assert(!cst_options_is_taken(&rows[5], 1) && cst_options_is_taken(&rows[5], 3));
}
END_TEST

/* Command lines with a bad value, and the words about it. */
static const struct {
    const char *line, *words;
} bad[] = {
    {"--ranks 65", "--ranks: '65' is not a number from 1 to 64"},
    {"--ranks -1", "--ranks: '-1' is not a number from 1 to 64"},
    {"--count 99999999999999999999", "is not a number from 1 to 10000000"},
    {"--every=nan", "--every: 'nan' is not a number from 0.01 to 60"},
    {"--seed -1", "--seed: '-1' is not a number from 100000000000000000 to 18446744073709551615"},
    {"--color blue", "--color: 'blue' is none of red, green"},
    {"--search maybe", "--search: 'maybe' is none of yes, no"},
    {"--path a", "--path: 'a' is not an absolute path of at most 7 bytes"},
    {"--path /1234567", "is not an absolute path"},
    {"--bytes 12Q", "--bytes: '12Q' is neither 'auto' nor a size"},
    {"--bytes 0", "--bytes: '0' is neither 'auto' nor at least 4096"},
    {"--time 0", "--time: '0': a time must be at least 1 s"},
    {"--time 2d", "'2d' is not a time of at most 86400 s"},
};

START_TEST(bad_values_are_named)
{
    struct settings s;
    struct cst_options_given given;
    struct cst_err err = {0};

    ck_assert_int_eq(read_line(bad[_i].line, &s, &given, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, bad[_i].words) != NULL, "%s", err.text);
    ck_assert_uint_eq(s.ranks, 5);
}
END_TEST

/* The help has the rows that a command takes, in columns, with lines of at most 80 characters. */
START_TEST(help_is_printed_from_the_table)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    ck_assert_ptr_nonnull(out);
    cst_options_print(rows, 1, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_nonnull(strstr(text, "\nOptions:\n"
                                       "  -j, --json                 print JSON\n"
                                       "      --search YES           search a plan\n"));
    ck_assert_ptr_null(strstr(text, "--ranks"));
    ck_assert_ptr_nonnull(
        strstr(text, "      --every[=SECONDS]      a description that is too long for one line and "
                     "is\n                             broken\n"
                     "                             here, too\n"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("usage");
    TCase *tc = suite_case(suite, "usage", NULL, NULL);

    tcase_add_loop_test(tc, refused_options_are_named, 0, (int)(sizeof lines / sizeof lines[0]));
    tcase_add_test(tc, near_words_are_found);
    tcase_add_test(tc, values_are_read);
    tcase_add_loop_test(tc, bad_values_are_named, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(tc, help_is_printed_from_the_table);
    return suite_run(suite);
}
