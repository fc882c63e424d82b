/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the output of `cistern`: tables, numbers with units, JSON. */
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "proto/message_json.h"
#include "proto/cistern.pb-c.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes, counts and durations are printed with about three digits and a unit. */
START_TEST(test_numbers)
{
    char text[CLI_HUMAN_BYTES];

    ck_assert_str_eq(cli_bytes(0, text), "0 B");
    ck_assert_str_eq(cli_bytes(1023, text), "1023 B");
    ck_assert_str_eq(cli_bytes(1536, text), "1.50 KiB");
    ck_assert_str_eq(cli_bytes(256u << 20, text), "256 MiB");
    ck_assert_str_eq(cli_bytes(UINT64_MAX, text), "16384 PiB");
    ck_assert_str_eq(cli_count(999, text), "999");
    ck_assert_str_eq(cli_count(10200000, text), "10.2 M");
    ck_assert_str_eq(cli_seconds(0.00035, text), "350 us");
    ck_assert_str_eq(cli_seconds(0.25, text), "250 ms");
    ck_assert_str_eq(cli_seconds(0.9994, text), "999 ms");
    ck_assert_str_eq(cli_seconds(0.9996, text), "1 s");
    ck_assert_str_eq(cli_seconds(1.25, text), "1.25 s");
    ck_assert_str_eq(cli_seconds(185, text), "3 min 5 s");
    ck_assert_str_eq(cli_seconds(7800, text), "2 h 10 min");
    ck_assert_str_eq(cli_seconds(4 * 86400 + 3 * 3600, text), "4 d 3 h");
    ck_assert_str_eq(cli_percent(1, 3, text), "33.3 %");
    ck_assert_str_eq(cli_percent(0, 0, text), "-");
}
END_TEST

/* A column is as wide as its widest cell, columns with '>' are right-aligned, and no line ends with
 * a blank. */
START_TEST(test_table)
{
    static const char *const titles[] = {"NAME", ">STEP", "STATE", NULL};
    struct cli_table table;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    ck_assert_ptr_nonnull(out);
    cli_table_init(&table, titles);
    cli_table_cell(&table, "%s", "long-name");
    cli_table_cell(&table, "%d", 7);
    cli_table_cell(&table, "ok");
    cli_table_cell(&table, "b");
    cli_table_cell(&table, "%d", 123456);
    cli_table_cell(&table, "ready");
    ck_assert(cli_table_print(&table, out));
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, "NAME         STEP  STATE\n"
                           "long-name       7  ok\n"
                           "b          123456  ready\n");
    free(text);
}
END_TEST

/* A message becomes JSON with the message's own names, including nested and repeated fields. Fields
 * that are not set are left out, and NaN becomes null. */
START_TEST(test_json)
{
    Cistern__JobInfo job = CISTERN__JOB_INFO__INIT;
    Cistern__RankInfo rank = CISTERN__RANK_INFO__INIT, *ranks = &rank;
    json_t *object, *list;

    job.name = (char *)(uintptr_t) "run\"7";
    job.state = rank.state = (char *)(uintptr_t) "ready";
    job.arena_bytes = 1ull << 40;
    job.has_last_loss = true;
    job.last_loss = NAN;
    job.ranks = &ranks;
    job.n_ranks = 1;
    rank.has_pid = true;
    rank.pid = -5;
    object = cst_message_to_json(&job.base);
    ck_assert_ptr_nonnull(object);
    ck_assert_str_eq(json_string_value(json_object_get(object, "name")), "run\"7");
    ck_assert_int_eq(json_integer_value(json_object_get(object, "arena_bytes")), 1ll << 40);
    ck_assert(json_is_null(json_object_get(object, "last_loss")));
    ck_assert_ptr_null(json_object_get(object, "last_grad_norm"));
    ck_assert_ptr_null(json_object_get(object, "device"));
    list = json_object_get(object, "ranks");
    ck_assert_uint_eq(json_array_size(list), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(list, 0), "pid")), -5);
    json_decref(object);
}
END_TEST

/* Every 64-bit number is kept exactly; the largest are printed with all digits. */
START_TEST(test_json_large)
{
    Cistern__Books books = CISTERN__BOOKS__INIT;
    json_t *object;

    books.capacity = UINT64_MAX;
    books.free = INT64_MAX;
    object = cst_message_to_json(&books.base);
    ck_assert_str_eq(json_string_value(json_object_get(object, "capacity")),
                     "18446744073709551615");
    ck_assert_int_eq(json_integer_value(json_object_get(object, "free")), INT64_MAX);
    json_decref(object);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cli");
    TCase *tcase = suite_case(suite, "cli", NULL, NULL);

    tcase_add_test(tcase, test_numbers);
    tcase_add_test(tcase, test_table);
    tcase_add_test(tcase, test_json);
    tcase_add_test(tcase, test_json_large);
    return suite_run(suite);
}
