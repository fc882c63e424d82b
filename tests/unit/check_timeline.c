/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of trace files: they are valid JSON in Perfetto's form with any names, times are exact, and
 * intervals on a lane do not overlap. */
#include "client/cli/timeline.h"
#include "tests/lib/suite.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void add(struct cli_timeline *timeline, uint32_t lane, const char *name, uint64_t begin,
                uint64_t end)
{
    struct cli_span span = {.lane = lane,
                            .begin = begin,
                            .end = end,
                            .step = 1,
                            .chunk = CLI_TIMELINE_NONE,
                            .bytes = 4096,
                            .queued_ns = CLI_TIMELINE_NONE};

    (void)snprintf(span.name, sizeof span.name, "%s", name);
    cli_timeline_add(timeline, &span);
}

/* The array of events in the written file. */
static json_t *written(struct cli_timeline *timeline)
{
    struct cst_err err = {0};
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    json_t *root, *events;

    ck_assert_ptr_nonnull(to);
    ck_assert_int_eq(cli_timeline_write(timeline, to, &err), CST_OK);
    ck_assert_int_eq(fclose(to), 0);
    root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(root);
    events = json_object_get(root, "traceEvents");
    ck_assert(json_is_array(events));
    json_incref(events);
    json_decref(root);
    free(text);
    return events;
}

static const char *text_of(const json_t *event, const char *key)
{
    return json_string_value(json_object_get(event, key));
}

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

/* A file without events is valid. */
START_TEST(test_empty)
{
    struct cli_timeline timeline;
    json_t *events;

    cli_timeline_init(&timeline);
    events = written(&timeline);
    ck_assert_uint_eq(json_array_size(events), 0);
    json_decref(events);
    cli_timeline_close(&timeline);
}
END_TEST

/* Names may have quotes and control characters. Times have nanoseconds and count from the first
 * begin. Arguments are written if there are some, and events are in the order of their begin. */
START_TEST(test_events)
{
    struct cli_timeline timeline;
    json_t *events;
    const json_t *event;

    cli_timeline_init(&timeline);
    add(&timeline, cli_timeline_lane(&timeline, "rank 0", "compute"), "b", 5000000001, 5000001502);
    add(&timeline, cli_timeline_lane(&timeline, "rank \"0\"\n\\", "up"), "a\t\"\\", 5000000000,
        5000000001);
    events = written(&timeline);
    event = json_array_get(events, 0);
    ck_assert_str_eq(text_of(event, "ph"), "X");
    ck_assert_str_eq(text_of(event, "name"), "a\t\"\\");
    ck_assert_str_eq(text_of(event, "cat"), "up");
    ck_assert_double_eq(number_of(event, "ts"), 0);
    ck_assert_double_eq_tol(number_of(event, "dur"), 0.001, 1e-9);
    ck_assert_double_eq(number_of(event, "pid"), 2);
    event = json_array_get(events, 1);
    ck_assert_double_eq_tol(number_of(event, "ts"), 0.001, 1e-9);
    ck_assert_double_eq_tol(number_of(event, "dur"), 1.501, 1e-9);
    event = json_object_get(event, "args");
    ck_assert_uint_eq(json_object_size(event), 2);
    ck_assert_double_eq(number_of(event, "bytes"), 4096);
    json_decref(events);
    cli_timeline_close(&timeline);
}
END_TEST

/* Overlapping intervals of one lane get lanes of their own, and consecutive ones share a lane. Each
 * lane is named. */
START_TEST(test_overlap)
{
    struct cli_timeline timeline;
    double tids[4];
    unsigned n_named = 0;
    json_t *events, *event;
    size_t i;
    uint32_t lane;

    cli_timeline_init(&timeline);
    lane = cli_timeline_lane(&timeline, "p", "copies");
    ck_assert_uint_eq(cli_timeline_lane(&timeline, "p", "copies"), lane);
    ck_assert_uint_ne(cli_timeline_lane(&timeline, "q", "copies"), lane);
    add(&timeline, lane, "a", 0, 10);
    add(&timeline, lane, "b", 5, 20);
    add(&timeline, lane, "c", 10, 15);
    add(&timeline, lane, "d", 20, 30);
    events = written(&timeline);
    for (i = 0; i < 4; i++) {
        tids[i] = number_of(json_array_get(events, i), "tid");
    }
    ck_assert_double_ne(tids[0], tids[1]);
    ck_assert_double_eq(tids[0], tids[2]);
    ck_assert_double_eq(tids[0], tids[3]);
    json_array_foreach(events, i, event)
    {
        n_named += strcmp(text_of(event, "name"), "thread_name") == 0;
    }
    ck_assert_uint_eq(n_named, 2);
    json_decref(events);
    cli_timeline_close(&timeline);
}
END_TEST

/* A counter has its value after all changes at a time, in the order of time. It belongs to the
 * process of its name, and can begin before the first interval. */
START_TEST(test_counters)
{
    static const double times[] = {0, 0.2, 0.5}, values[] = {3, 7, 2};
    struct cli_timeline timeline;
    json_t *events, *event;
    size_t i, n = 0;

    cli_timeline_init(&timeline);
    add(&timeline, cli_timeline_lane(&timeline, "rank 0", "compute"), "a", 1100, 2000);
    add(&timeline, cli_timeline_lane(&timeline, "rank 1", "compute"), "a", 1100, 2000);
    cli_timeline_count(&timeline, "rank 1", "bytes", 1500, -5);
    cli_timeline_count(&timeline, "rank 1", "bytes", 1000, 3);
    cli_timeline_count(&timeline, "rank 0", "bytes", 1000, 1000);
    cli_timeline_count(&timeline, "rank 1", "bytes", 1200, 10);
    cli_timeline_count(&timeline, "rank 1", "bytes", 1200, -6);
    events = written(&timeline);
    ck_assert_double_eq_tol(number_of(json_array_get(events, 0), "ts"), 0.1, 1e-9);
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "ph"), "C") == 0 && number_of(event, "pid") == 2) {
            ck_assert_str_eq(text_of(event, "name"), "bytes");
            ck_assert_double_eq_tol(number_of(event, "ts"), times[n], 1e-9);
            ck_assert_double_eq(number_of(json_object_get(event, "args"), "value"), values[n]);
            n++;
        }
    }
    ck_assert_uint_eq(n, 3);
    json_decref(events);
    cli_timeline_close(&timeline);
}
END_TEST

static off_t size_of(const char *path)
{
    struct stat st;

    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

/* If a file cannot be written completely, the previous file stays, and no other file is left. The
 * next complete file replaces it. A symbolic link is followed, but none that has the temporary
 * name.
 */
START_TEST(test_replaced)
{
    char dir[] = "/tmp/cst-timeline-XXXXXX", path[64], beside[80], link[64];
    const struct rlimit small = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    const struct rlimit none = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    struct cli_timeline timeline;
    struct cst_err err = {0};
    off_t before;
    uint32_t lane;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/t.json", dir);
    (void)snprintf(beside, sizeof beside, "%s.%d.new", path, (int)getpid());
    (void)snprintf(link, sizeof link, "%s/link", dir);
    cli_timeline_init(&timeline);
    ck_assert_int_eq(cli_timeline_save(&timeline, path, &err), CST_OK);
    before = size_of(path);
    lane = cli_timeline_lane(&timeline, "p", "l");
    add(&timeline, lane, "a", 0, 10);
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(cli_timeline_save(&timeline, path, &err), CST_EIO);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
    ck_assert_int_eq(size_of(path), before);
    ck_assert_int_eq(access(beside, F_OK), -1);
    ck_assert_int_eq(symlink(path, beside), 0);
    ck_assert_int_eq(cli_timeline_save(&timeline, path, &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, beside));
    ck_assert_int_eq(size_of(path), before);
    ck_assert_int_eq(unlink(beside), 0);
    ck_assert_int_eq(symlink(path, link), 0);
    ck_assert_int_eq(cli_timeline_save(&timeline, link, &err), CST_OK);
    ck_assert_int_gt(size_of(path), before);
    cli_timeline_close(&timeline);
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* A write error is reported. */
START_TEST(test_full)
{
    struct cli_timeline timeline;
    struct cst_err err = {0};

    cli_timeline_init(&timeline);
    ck_assert_int_eq(cli_timeline_save(&timeline, "/dev/full", &err), CST_EIO);
    ck_assert_int_eq(cli_timeline_save(&timeline, "/nowhere/file", &err), CST_EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/file"));
    cli_timeline_close(&timeline);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("timeline");
    TCase *tcase = suite_case(suite, "timeline", NULL, NULL);

    tcase_add_test(tcase, test_empty);
    tcase_add_test(tcase, test_events);
    tcase_add_test(tcase, test_overlap);
    tcase_add_test(tcase, test_counters);
    tcase_add_test(tcase, test_full);
    tcase_add_test(tcase, test_replaced);
    return suite_run(suite);
}
