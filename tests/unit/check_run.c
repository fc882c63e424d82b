/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what `cistern run` is made of: lines of output, the processors of ranks on machines that
 * hwloc invents, and when a rank is started again. tests/e2e/run.sh tests the command. */
#include "client/cli/lines.h"
#include "client/cli/processors.h"
#include "client/cli/restarts.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- lines ------------------------------------------------------------------------------------ */

/* Write a line between brackets to the stream @arg. */
static void note(void *arg, const char *bytes, size_t n)
{
    FILE *out = arg;

    (void)fputc('<', out);
    (void)fwrite(bytes, 1, n, out);
    (void)fputc('>', out);
}

/* Cut @n bytes into lines, @step bytes at a time. Returns the lines; *n_out is their length. */
static char *cut(const char *bytes, size_t n, size_t step, size_t *n_out)
{
    static char memory[CLI_LINES_MAX];
    char *text = NULL;
    FILE *out = open_memstream(&text, n_out);
    struct cli_lines lines = {.bytes = memory, .line = note, .arg = out};

    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < n; i += step) {
        cli_lines_add(&lines, bytes + i, i + step <= n ? step : n - i);
    }
    cli_lines_end(&lines);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

/* A line ends after a newline, or a carriage return without one. The last line may have neither.
 * Zeros and other bytes are passed on. The parts in which the bytes arrive do not matter. */
START_TEST(test_lines)
{
    static const char bytes[] = "a\n\nb\0\xff\r\n10%\r20%\r\rend";
    static const char want[] = "<a\n><\n><b\0\xff\r\n><10%\r><20%\r><\r><end>";

    for (size_t step = 1; step <= sizeof bytes; step++) {
        size_t n;
        char *got = cut(bytes, sizeof bytes - 1, step, &n);

        ck_assert_uint_eq(n, sizeof want - 1);
        ck_assert_mem_eq(got, want, n);
        free(got);
    }
}
END_TEST

/* A line of the largest size with its newline is one line; of a longer one, no byte is lost. */
START_TEST(test_long_lines)
{
    const size_t n = CLI_LINES_MAX - 1 + (size_t)_i;
    char *bytes = malloc(n + 1), *got;
    size_t n_got;

    ck_assert_ptr_nonnull(bytes);
    memset(bytes, 'x', n);
    bytes[n] = '\n';
    got = cut(bytes, n + 1, 4096, &n_got);
    ck_assert_uint_eq(n_got, n + 1 + (_i == 0 ? 2 : 4));
    if (_i > 0) {
        ck_assert_mem_eq(got + n_got - 5, "><x\n>", 5);
    }
    free(got);
    free(bytes);
}
END_TEST

/* -- processors ------------------------------------------------------------------------------- */

static const struct {
    const char *machine; /* As hwloc describes it. */
    unsigned n_ranks;
    const char *sets;   /* Processors of the ranks; "": not divided. */
    const char *shares; /* Cores of the ranks. */
} machines[] = {
    {"package:1 core:2 pu:1", 1, "0-1 ", "2 "},
    {"package:1 core:2 pu:1", 2, "0 1 ", "1 1 "},
    {"package:1 core:2 pu:1", 3, "", "1 1 1 "},
    {"package:1 core:3 pu:1", 2, "0 1-2 ", "1 2 "},
    {"package:2 core:4 pu:2", 2, "0-7 8-15 ", "4 4 "},
    {"package:2 core:4 pu:2", 4, "0-3 4-7 8-11 12-15 ", "2 2 2 2 "},
    {"package:2 core:4 pu:2", 3, "0-3 4-7 8-15 ", "2 2 4 "},
    {"package:2 core:2 pu:2", 4, "0-1 2-3 4-5 6-7 ", "1 1 1 1 "},
    {"package:2 core:2 pu:2", 5, "0 1 2-3 4-5 6-7 ", "1 1 1 1 1 "},
    {"package:2 core:1 pu:2", 4, "0 1 2 3 ", "1 1 1 1 "},
    {"numa:2 core:3 pu:1", 3, "0 1-2 3-5 ", "1 2 3 "},
};

/* Sets are disjoint, made of whole cores if there are enough, and within one node. */
START_TEST(test_processors)
{
    struct cli_processors p;
    struct cst_err err = {0};
    char sets[256] = "", shares[64] = "", one[64];
    hwloc_bitmap_t all = hwloc_bitmap_alloc();

    ck_assert_int_eq(setenv("HWLOC_SYNTHETIC", machines[_i].machine, 1), 0);
    ck_assert_msg(cli_processors_open(&p, machines[_i].n_ranks, &err) == CST_OK, "%s", err.text);
    for (unsigned i = 0; i < machines[_i].n_ranks; i++) {
        (void)snprintf(shares + strlen(shares), sizeof shares - strlen(shares), "%u ",
                       cli_processors_share(&p, i));
        if (p.sets != NULL) {
            ck_assert(!hwloc_bitmap_intersects(all, p.sets[i]));
            ck_assert(!hwloc_bitmap_iszero(p.sets[i]));
            (void)hwloc_bitmap_or(all, all, p.sets[i]);
            (void)hwloc_bitmap_list_snprintf(one, sizeof one, p.sets[i]);
            (void)snprintf(sets + strlen(sets), sizeof sets - strlen(sets), "%s ", one);
        }
    }
    ck_assert_str_eq(sets, machines[_i].sets);
    ck_assert_str_eq(shares, machines[_i].shares);
    ck_assert(p.sets == NULL ||
              hwloc_bitmap_isequal(all, hwloc_topology_get_topology_cpuset(p.topology)));
    cli_processors_close(&p);
    hwloc_bitmap_free(all);
}
END_TEST

/* -- restarts --------------------------------------------------------------------------------- */

/* Pauses grow from nothing up to a limit. After the last restart the rank is given up. */
START_TEST(test_pauses)
{
    static const uint64_t want_s[] = {0, 1, 2, 4, 8, 16, 30, 30};
    enum { N = sizeof want_s / sizeof *want_s };
    struct cli_restarts restarts = {.n = 0};
    uint64_t pause_ms, now_ms = 5;

    for (unsigned i = 0; i < N; i++) {
        ck_assert(cli_restarts_next(&restarts, N, now_ms, &pause_ms));
        ck_assert_uint_eq(pause_ms, 1000 * want_s[i]);
        now_ms += pause_ms;
    }
    ck_assert(!cli_restarts_next(&restarts, N, now_ms, &pause_ms));
    ck_assert_uint_eq(restarts.total, N);
}
END_TEST

/* Restarts that are longer ago than the window do not count: a rank that dies once an hour is
 * started again for ever, at once. */
START_TEST(test_window)
{
    struct cli_restarts restarts = {.n = 0};
    uint64_t pause_ms = 1;

    for (uint64_t hour = 0; hour < 1000; hour++) {
        ck_assert(cli_restarts_next(&restarts, 1, hour * 3600000, &pause_ms));
        ck_assert_uint_eq(pause_ms, 0);
        ck_assert(!cli_restarts_next(&restarts, 1,
                                     hour * 3600000 + CLI_RESTARTS_WINDOW_S * 1000 - 1, &pause_ms));
    }
}
END_TEST

/* A crash and an error are reasons to start again. Success, a wrong command line, a program that
 * does not exist, and the wish of a person that the rank should end are not. */
START_TEST(test_wanted)
{
    ck_assert(cli_restarts_wanted(0, SIGKILL));
    ck_assert(cli_restarts_wanted(0, SIGSEGV));
    ck_assert(cli_restarts_wanted(1, 0));
    ck_assert(cli_restarts_wanted(128 + SIGSEGV, 0));
    ck_assert(!cli_restarts_wanted(0, 0));
    ck_assert(!cli_restarts_wanted(2, 0));
    ck_assert(!cli_restarts_wanted(126, 0));
    ck_assert(!cli_restarts_wanted(127, 0));
    ck_assert(!cli_restarts_wanted(0, SIGTERM));
    ck_assert(!cli_restarts_wanted(128 + SIGTERM, 0));
    ck_assert(!cli_restarts_wanted(128 + SIGINT, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("run");
    TCase *lines = suite_case(suite, "lines", NULL, NULL);
    TCase *processors = suite_case(suite, "processors", NULL, NULL);
    TCase *restarts = suite_case(suite, "restarts", NULL, NULL);

    tcase_add_test(lines, test_lines);
    tcase_add_loop_test(lines, test_long_lines, 0, 2);
    tcase_add_loop_test(processors, test_processors, 0, sizeof machines / sizeof *machines);
    tcase_add_test(restarts, test_pauses);
    tcase_add_test(restarts, test_window);
    tcase_add_test(restarts, test_wanted);
    return suite_run(suite);
}
