/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what `cistern top` draws, and of the numbers that it computes. */
#include "client/cli/top/page.h"
#include "client/cli/top/view.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(words) ((char *)(uintptr_t)(words))

/* -- help for the tests ----------------------------------------------------------------------- */

/* Return row @row of @grid as ASCII without the blanks at its end. Others than ASCII are '?'. */
static const char *row_of(const struct cli_grid *grid, unsigned row)
{
    static char text[512];
    unsigned n = 0;

    for (unsigned col = 0; col < grid->cols; col++) {
        const uint32_t ch = grid->cells[(size_t)row * grid->cols + col].ch;

        text[col] = ch < 0x80 ? (char)ch : '?';
        n = ch != ' ' ? col + 1 : n;
    }
    text[n] = '\0';
    return text;
}

/* Take a sample at @now_s of a node that was started as number @epoch, with @jobs. */
static void sample(struct cli_top_model *model, double now_s, uint64_t epoch,
                   const Cistern__JobInfo *jobs, unsigned n_jobs)
{
    Cistern__StatReply stat = CISTERN__STAT_REPLY__INIT;

    stat.version = TEXT("1.0");
    stat.host = TEXT("node");
    stat.epoch = epoch;
    stat.host_used = 50;
    stat.host_budget = 100;
    cli_top_model_begin(model, &stat, now_s);
    for (unsigned i = 0; i < n_jobs; i++) {
        cli_top_model_add(model, &jobs[i]);
    }
    cli_top_model_end(model);
}

/* Return a job with 1000 parameters in 10 chunks and @loss. */
static Cistern__JobInfo job_of(const char *name, uint64_t step, double loss)
{
    Cistern__JobInfo job = CISTERN__JOB_INFO__INIT;

    job.name = TEXT(name);
    job.state = TEXT("training");
    job.world = 2;
    job.step = step;
    job.has_last_loss = step > 0;
    job.last_loss = loss;
    job.n_params = 1000;
    job.n_chunks = 10;
    return job;
}

/* -- grid ------------------------------------------------------------------------------------- */

/* A field is cut off or padded, counts characters and not bytes, and cells outside of the grid are
 * dropped. Bytes that are not UTF-8 take a cell each. */
START_TEST(test_grid)
{
    struct cli_grid grid = {0};
    const char *text = "\xC3\xA4\xE2\x96\x81\xFF"
                       "a";

    ck_assert(cli_grid_reset(&grid, 2, 10));
    ck_assert_uint_eq(cli_grid_field(&grid, 0, 0, 4, false, 0, "abcdef"), 4);
    ck_assert_uint_eq(cli_grid_field(&grid, 0, 5, 3, true, 0, "x"), 8);
    ck_assert_str_eq(row_of(&grid, 0), "abcd   x");
    ck_assert_uint_eq(cli_grid_print(&grid, 1, 8, 0, "%d", 12345), 13);
    ck_assert_str_eq(row_of(&grid, 1), "        12");
    cli_grid_put(&grid, 2, 0, 0, 'x');
    ck_assert_uint_eq(cli_grid_width(text), 4);
    ck_assert_uint_eq(cli_grid_next(&text), 0xE4);
    ck_assert_uint_eq(cli_grid_next(&text), 0x2581);
    ck_assert_uint_eq(cli_grid_next(&text), 0xFFFD);
    ck_assert_uint_eq(cli_grid_next(&text), 'a');
    ck_assert_uint_eq(cli_grid_next(&text), 0);
    text = "\xE2\x96"; /* The end of the text is inside of a character. */
    ck_assert_uint_eq(cli_grid_next(&text), 0xFFFD);
    ck_assert_uint_eq(cli_grid_next(&text), 0xFFFD);
    ck_assert_uint_eq(cli_grid_next(&text), 0);
    cli_grid_free(&grid);
}
END_TEST

/* A line that is too long goes on at its last blank, after a margin; a word that is longer than a
 * row is cut. The number of rows does not depend on how many of them are shown. */
START_TEST(test_page)
{
    struct cli_grid grid = {0};

    ck_assert(cli_grid_reset(&grid, 3, 12));
    ck_assert_uint_eq(cli_page_draw(&grid, 0, 3, 0, "one two three\n\nlast"), 4);
    ck_assert_str_eq(row_of(&grid, 0), "one two");
    ck_assert_str_eq(row_of(&grid, 1), "three");
    ck_assert_str_eq(row_of(&grid, 2), "");
    ck_assert(cli_grid_reset(&grid, 3, 12));
    ck_assert_uint_eq(cli_page_draw(&grid, 1, 2, 2, "one two three\n\nlast\n"), 4);
    ck_assert_str_eq(row_of(&grid, 0), "");
    ck_assert_str_eq(row_of(&grid, 2), "last");
    ck_assert(cli_grid_reset(&grid, 3, 12));
    ck_assert_uint_eq(cli_page_draw(&grid, 0, 3, 0, "abcdefghijklmno"), 2);
    ck_assert_str_eq(row_of(&grid, 0), "abcdefghijkl");
    ck_assert(cli_grid_reset(&grid, 3, 40));
    ck_assert_uint_eq(
        cli_page_draw(&grid, 0, 3, 0, "updates   commit; last step 12 ms, 3 ms exposed"), 2);
    ck_assert_str_eq(row_of(&grid, 0), "updates   commit; last step 12 ms, 3 ms");
    ck_assert_str_eq(row_of(&grid, 1), "          exposed");
    cli_grid_free(&grid);
}
END_TEST

/* -- charts ----------------------------------------------------------------------------------- */

/* A history keeps the last values, and its range leaves out what is not a number. */
START_TEST(test_history)
{
    static struct cli_spark_history history;
    double least = 0, most = 0;

    ck_assert(!cli_spark_history_range(&history, 10, &least, &most));
    for (unsigned i = 0; i < CLI_HISTORY_MAX + 5; i++) {
        cli_spark_history_add(&history, i);
    }
    ck_assert_uint_eq(history.n, CLI_HISTORY_MAX);
    ck_assert_double_eq(cli_spark_history_get(&history, 0), CLI_HISTORY_MAX + 4);
    ck_assert_double_eq(cli_spark_history_get(&history, CLI_HISTORY_MAX - 1), 5);
    cli_spark_history_add(&history, NAN);
    ck_assert(cli_spark_history_range(&history, 3, &least, &most));
    ck_assert_double_eq(least, CLI_HISTORY_MAX + 3);
    ck_assert_double_eq(most, CLI_HISTORY_MAX + 4);
}
END_TEST

/* The least value is the lowest column, the largest one the highest, and the last value stands at
 * the end. Infinity and NaN are marked. */
START_TEST(test_spark)
{
    static struct cli_spark_history history;
    struct cli_grid grid = {0};

    ck_assert_uint_eq(cli_spark_level(1, 1, 1), 4);
    ck_assert_uint_eq(cli_spark_level(0, 0, 7), 0);
    ck_assert_uint_eq(cli_spark_level(3, 0, 7), 3);
    ck_assert_uint_eq(cli_spark_level(7, 0, 7), 7);
    ck_assert_uint_eq(cli_spark_level(-1, 0, 7), 0);
    cli_spark_history_add(&history, 2);
    cli_spark_history_add(&history, 9);
    cli_spark_history_add(&history, NAN);
    cli_spark_history_add(&history, INFINITY);
    ck_assert(cli_grid_reset(&grid, 2, 8));
    cli_spark_draw(&grid, 0, 1, 6, 0, &history, false);
    ck_assert_str_eq(row_of(&grid, 0), "   _#!!");
    cli_spark_draw(&grid, 1, 1, 6, 0, &history, true);
    ck_assert_str_eq(row_of(&grid, 1), "   -#!!");
    history = (struct cli_spark_history){0};
    cli_spark_history_add(&history, 0);
    cli_spark_draw(&grid, 1, 1, 6, 0, &history, true);
    ck_assert_str_eq(row_of(&grid, 1), "   -#!_");
    cli_spark_history_add(&history, 9);
    grid.utf8 = true;
    cli_spark_draw(&grid, 0, 0, 4, 0, &history, false);
    ck_assert_uint_eq(grid.cells[2].ch, 0x2581);
    ck_assert_uint_eq(grid.cells[3].ch, 0x2588);
    cli_grid_free(&grid);
}
END_TEST

/* The ends of the parts of a bar are rounded, not their lengths, so that the bar as a whole is as
 * long as their sum. */
START_TEST(test_bar)
{
    struct cli_grid grid = {0};
    const struct cli_bar_part parts[] = {{1.4, 'a', 0}, {1.4, 'b', 0}, {1.4, '=', 0}};

    ck_assert(cli_grid_reset(&grid, 1, 14));
    cli_bar_draw(&grid, 0, 0, 12, parts, 3, 10);
    ck_assert_str_eq(row_of(&grid, 0), "[abb=......]");
    cli_bar_draw(&grid, 0, 0, 12, parts, 3, 2);
    ck_assert_str_eq(row_of(&grid, 0), "[aaaaaaabbb]");
    cli_bar_draw(&grid, 0, 0, 12, parts, 0, 0);
    ck_assert_str_eq(row_of(&grid, 0), "[..........]");
    cli_grid_free(&grid);
}
END_TEST

/* -- model ------------------------------------------------------------------------------------ */

/* Rates are those between two samples: unknown at first, after another daemon has begun, and if a
 * count is smaller than before. */
START_TEST(test_rates)
{
    struct cli_top_model model = {0};
    Cistern__JobInfo job = job_of("a", 1, 2.5);
    const struct cli_top_job *seen;

    job.hits = 3;
    job.misses = 1;
    job.weight_wait_seconds = 1;
    sample(&model, 10, 1, &job, 1);
    seen = cli_top_model_find(&model, "a", 0);
    ck_assert(isnan(cli_top_rate_get(&model, seen, CLI_TOP_LINK)));
    ck_assert(isnan(cli_top_wait_rate(&model, seen)));
    ck_assert_double_eq(cli_top_hit_rate(seen), 0.75);
    job.hits = 4;
    job.late = 3;
    job.weight_wait_seconds = 2;
    job.n_updates = 20; /* Of 100 parameters each. */
    job.bytes_up = job.bytes_peer = 100;
    job.bytes_down = 200;
    job.drive_read_bytes = 10;
    job.drive_written_bytes = 30;
    sample(&model, 12, 1, &job, 1);
    ck_assert_double_eq(cli_top_rate_get(&model, seen, CLI_TOP_UPDATES), 1000);
    ck_assert_double_eq(cli_top_rate_get(&model, seen, CLI_TOP_LINK), 200);
    ck_assert_double_eq(cli_top_rate_get(&model, seen, CLI_TOP_READ), 5);
    ck_assert_double_eq(cli_top_rate_get(&model, seen, CLI_TOP_WRITE), 15);
    ck_assert_double_eq(cli_top_hit_rate(seen), 0.25);
    ck_assert_double_eq(cli_top_wait_rate(&model, seen), 0.25); /* Of two ranks. */
    sample(&model, 14, 2, &job, 1);
    ck_assert(isnan(cli_top_rate_get(&model, seen, CLI_TOP_LINK)));
    job.bytes_up = 0;
    sample(&model, 16, 2, &job, 1);
    ck_assert(isnan(cli_top_rate_get(&model, seen, CLI_TOP_LINK)));
    ck_assert_double_eq(cli_top_rate_get(&model, seen, CLI_TOP_READ), 0);
    cli_top_model_free(&model);
}
END_TEST

/* The loss is kept once for each step that was seen. A job that is in no sample is forgotten, and
 * its letter is used again. */
START_TEST(test_jobs)
{
    struct cli_top_model model = {0};
    Cistern__JobInfo jobs[] = {job_of("a", 1, 3), job_of("b", 0, 0), job_of("a", 5, 2)};

    jobs[2].uid = 12345678;
    sample(&model, 1, 1, jobs, 3);
    ck_assert_uint_eq(model.n_jobs, 3);
    ck_assert_int_eq(cli_top_model_find(&model, "a", 0)->mark, 'a');
    ck_assert_int_eq(cli_top_model_find(&model, "b", 0)->mark, 'b');
    ck_assert_str_eq(cli_top_model_find(&model, "a", 12345678)->user, "12345678");
    sample(&model, 2, 1, jobs, 1);
    ck_assert_uint_eq(model.n_jobs, 1);
    jobs[0].step = 2;
    jobs[0].last_loss = 2.5;
    sample(&model, 3, 1, jobs, 2);
    ck_assert_uint_eq(cli_top_model_find(&model, "a", 0)->losses.n, 2);
    ck_assert_double_eq(cli_spark_history_get(&cli_top_model_find(&model, "a", 0)->losses, 0), 2.5);
    ck_assert_uint_eq(cli_top_model_find(&model, "b", 0)->losses.n, 0);
    ck_assert_int_eq(cli_top_model_find(&model, "b", 0)->mark, 'b');
    cli_top_model_free(&model);
}
END_TEST

/* Names are sorted from a to z, numbers from the largest on, and unknown numbers are last. */
START_TEST(test_sort)
{
    struct cli_top_model model = {0};
    Cistern__JobInfo jobs[] = {job_of("c", 1, 3), job_of("a", 0, 0), job_of("b", 2, 4)};
    static const struct {
        const char *title, *order;
    } rows[] = {
        {"JOB", "abc"}, {"STEP", "bca"}, {"LOSS", "bca"}, {"STATE", "abc"}, {"HITS", "abc"}};
    unsigned n_found = 0;

    sample(&model, 1, 1, jobs, 3);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (unsigned c = 0; c < CLI_TOP_COLUMNS; c++) {
            if (strcmp(cli_top_columns[c].title, rows[i].title) == 0) {
                cli_top_sort(&model, c);
                n_found++;
                for (unsigned k = 0; k < 3; k++) {
                    ck_assert_int_eq(model.jobs[k]->name[0], rows[i].order[k]);
                }
            }
        }
    }
    ck_assert_uint_eq(n_found, sizeof rows / sizeof *rows);
    cli_top_model_free(&model);
}
END_TEST

/* The columns up to WAIT fit in a terminal of 80 columns with the letter of the job, and all of
 * them in one of 120. */
START_TEST(test_widths)
{
    unsigned widths[CLI_TOP_COLUMNS], used = 2, c = 0;

    cli_top_widths(78, widths);
    for (; strcmp(cli_top_columns[c].title, "PARAMS/s") != 0; c++) {
        used += widths[c] + 1;
    }
    ck_assert_uint_le(used - 1, 80);
    cli_top_widths(118, widths);
    for (c = 0, used = 2; c < CLI_TOP_COLUMNS; c++) {
        used += widths[c] + 1;
    }
    ck_assert_uint_eq(used - 1, 120);
    cli_top_widths(1000, widths);
    for (c = 0; c < CLI_TOP_COLUMNS; c++) {
        ck_assert_uint_eq(widths[c], cli_top_columns[c].most);
    }
}
END_TEST

/* -- view ------------------------------------------------------------------------------------- */

/* Bars show the memory of each job, and what is left as that of others. The chosen job stays chosen
 * and visible in another order and when there are more jobs than rows. */
START_TEST(test_view)
{
    struct cli_top_model model = {0};
    struct cli_top_view view = {.interval_s = 2};
    struct cli_grid grid = {0};
    Cistern__JobMemory memory = CISTERN__JOB_MEMORY__INIT, *pointer = &memory;
    Cistern__JobInfo jobs[12];
    char names[12][8];

    memory.place = TEXT("host");
    memory.bytes = 20;
    for (unsigned i = 0; i < 12; i++) {
        (void)snprintf(names[i], sizeof names[i], "job%02u", i);
        jobs[i] = job_of(names[i], i, 1);
    }
    jobs[1].memory = &pointer;
    jobs[1].n_memory = 1;
    sample(&model, 1, 1, jobs, 12);
    cli_top_sort(&model, 0);
    ck_assert(cli_grid_reset(&grid, 12, 90));
    cli_top_draw(&grid, &model, &view);
    ck_assert_str_eq(view.name, "job00");
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 0), "cisternd 1.0 on node"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 1), "[bbbbbb========..............] 50 B of 100 B"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 4), "JOB"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 5), "job00"));
    cli_top_choose(&model, &view, 100);
    ck_assert_str_eq(view.name, "job11");
    ck_assert(cli_grid_reset(&grid, 12, 90));
    cli_top_draw(&grid, &model, &view);
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 10), "job11"));
    cli_top_sort(&model, 4); /* By step, the largest first. */
    ck_assert(cli_grid_reset(&grid, 12, 90));
    cli_top_draw(&grid, &model, &view);
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 5), "job11"));
    cli_top_choose(&model, &view, -1);
    ck_assert_str_eq(view.name, "job11");
    cli_grid_free(&grid);
    cli_top_model_free(&model);
}
END_TEST

/* Jobs without a letter have a part of their own, and their number is beside the bar. */
START_TEST(test_many_parts)
{
    struct cli_top_model model = {0};
    struct cli_top_view view = {.interval_s = 2};
    struct cli_grid grid = {0};
    Cistern__JobMemory memory = CISTERN__JOB_MEMORY__INIT, *pointer = &memory;
    Cistern__JobInfo jobs[40];
    char names[40][8];

    memory.place = TEXT("host");
    memory.bytes = 1;
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(names[i], sizeof names[i], "job%02u", i);
        jobs[i] = job_of(names[i], i, 1);
        jobs[i].memory = &pointer;
        jobs[i].n_memory = 1;
    }
    sample(&model, 1, 1, jobs, 40);
    ck_assert(cli_grid_reset(&grid, 12, 306));
    cli_top_draw(&grid, &model, &view);
    /* Jobs of 1 byte in columns of 1 byte: 26 with letters, 14 without, and 10 bytes of others. */
    ck_assert_ptr_nonnull(
        strstr(row_of(&grid, 1), "abcdefghijklmnopqrstuvwxyz++++++++++++++==========...."));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 1), "+14 more"));
    cli_grid_free(&grid);
    cli_top_model_free(&model);
}
END_TEST

/* A job that waits for a node says so in its line, and in words that are never cut for the chosen
 * one. One that a node makes slow has its numbers, too. */
START_TEST(test_node_wait)
{
    struct cli_top_model model = {0};
    struct cli_top_view view = {.interval_s = 2};
    struct cli_grid grid = {0};
    Cistern__JobInfo jobs[] = {job_of("a", 2, 3), job_of("b", 2, 4.5)};

    jobs[0].node_wait = TEXT("waits for node c, away for 12 s");
    jobs[1].node_wait = TEXT("31 % of the step waits for node b");
    sample(&model, 1, 1, jobs, 2);
    cli_top_sort(&model, 0);
    ck_assert(cli_grid_reset(&grid, 14, 80));
    cli_top_draw(&grid, &model, &view);
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 4), "nodes      waits for node c, away for 12 s"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 5), "JOB"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 6), " 2 waits for node c, away for 12 s"));
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 7), "4.5000"));
    ck_assert_ptr_null(strstr(row_of(&grid, 7), "node"));
    cli_top_choose(&model, &view, 1);
    ck_assert(cli_grid_reset(&grid, 14, 80));
    cli_top_draw(&grid, &model, &view);
    ck_assert_ptr_nonnull(strstr(row_of(&grid, 4), "nodes      31 % of the step waits for node b"));
    cli_grid_free(&grid);
    cli_top_model_free(&model);
}
END_TEST

/* Terminals of any size can be drawn on. */
START_TEST(test_sizes)
{
    struct cli_top_model model = {0};
    Cistern__JobInfo job = job_of("a", 1, 3);

    job.node_wait = TEXT("waits for node c, away for 12 s");
    sample(&model, 1, 1, &job, 1);
    for (int page = CLI_TOP_MAIN; page <= CLI_TOP_HELP; page++) {
        for (unsigned rows = 0; rows < 30; rows++) {
            for (unsigned cols = 0; cols < 90; cols += 1 + cols / 8) {
                struct cli_top_view view = {.page = (enum cli_top_page)page, .text = "a b\nc"};
                struct cli_grid grid = {0};

                ck_assert(cli_grid_reset(&grid, rows, cols));
                cli_top_draw(&grid, &model, &view);
                view.skip = 100;
                cli_top_draw(&grid, &model, &view);
                cli_grid_free(&grid);
            }
        }
    }
    cli_top_model_free(&model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("top");
    TCase *tcase = suite_case(suite, "top", NULL, NULL);

    tcase_add_test(tcase, test_grid);
    tcase_add_test(tcase, test_page);
    tcase_add_test(tcase, test_history);
    tcase_add_test(tcase, test_spark);
    tcase_add_test(tcase, test_bar);
    tcase_add_test(tcase, test_rates);
    tcase_add_test(tcase, test_jobs);
    tcase_add_test(tcase, test_sort);
    tcase_add_test(tcase, test_widths);
    tcase_add_test(tcase, test_view);
    tcase_add_test(tcase, test_many_parts);
    tcase_add_test(tcase, test_node_wait);
    tcase_add_test(tcase, test_sizes);
    return suite_run(suite);
}
