/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pipeline schedules: their lists, the verifier, predicted times and the text form. */
#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"
#include "offload/parallel/schedule_time.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, MOST_MICRO = 32, MOST_STAGES = 24 };

static struct cst_schedule schedule;
static struct cst_err err;

static void teardown(void)
{
    cst_schedule_close(&schedule);
}

static const struct cst_schedule_kind *kind_of(const char *name)
{
    const struct cst_schedule_kind *kind = NULL;

    suite_must(cst_schedule_find(&kind, name, &err) == CST_OK, "%s", err.text);
    return kind;
}

static void make(const char *name, uint32_t n_ranks, uint32_t n_stages, uint32_t n_micro,
                 const bool *recomputes)
{
    const struct cst_schedule_size size = {n_ranks, n_stages, n_micro, recomputes};

    cst_schedule_close(&schedule);
    suite_must(cst_schedule_make(&schedule, kind_of(name), &size, &err) == CST_OK, "%s", err.text);
    suite_must(cst_schedule_check(&schedule, &err) == CST_OK, "%s, %u ranks, %u micro-batches: %s",
               name, n_ranks, n_micro, err.text);
}

static void read_text(const char *text)
{
    cst_schedule_close(&schedule);
    suite_must(cst_schedule_read(&schedule, text, strlen(text), &err) == CST_OK, "%s", err.text);
}

/* Check the whole text of the schedule. */
static void is(const char *wanted)
{
    char *text;
    size_t n;

    ck_assert_int_eq(cst_schedule_write(&text, &n, &schedule, true, &err), CST_OK);
    ck_assert_uint_eq(n, strlen(text));
    ck_assert_str_eq(text, wanted);
    free(text);
}

/* Equal stages, without messages: F = R = I = W = 1. Returns the makespan. */
static double makespan(void)
{
    struct cst_stage_cost costs[MOST_STAGES];
    struct cst_schedule_times times;

    for (uint32_t s = 0; s < schedule.n_stages; s++) {
        costs[s] =
            (struct cst_stage_cost){.forward = 1, .backward = 1, .weight = 1, .recompute = 1};
    }
    suite_must(cst_schedule_time(&times, &schedule, costs, NULL, NULL, &err) == CST_OK, "%s",
               err.text);
    return times.makespan;
}

static const bool all[MOST_STAGES] = {
    true, true, true, true, true, true, true, true, true, true, true, true,
    true, true, true, true, true, true, true, true, true, true, true, true,
};

/* -- lists ------------------------------------------------------------------------------------ */

/* The lists of small schedules, in full. */
START_TEST(lists)
{
    make("gpipe", 2, 2, 3, NULL);
    is("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
    make("1f1b", 4, 4, 6, NULL);
    is("0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0B3,0B4,0B5\n"
       "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5\n"
       "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5\n"
       "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5\n");
    make("interleaved", 2, 4, 4, NULL);
    is("0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
       "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
    make("zb-h1", 3, 3, 4, NULL);
    is("0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n"
       "1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n"
       "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n");
}
END_TEST

/* Merak's order: one more forward pass on the rank before the last, no recomputation on the last
 * stage, recomputation before the gradient is awaited. */
START_TEST(shifted)
{
    make("shifted", 3, 3, 5, NULL);
    is("0F0,0F1,0F2,0UNSHARD0,0B0,0F3,0UNSHARD1,0B1,0F4,0UNSHARD2,0B2,0UNSHARD3,0B3,0UNSHARD4,0B4\n"
       "1F0,1F1,1F2,1UNSHARD0,1B0,1UNSHARD1,1B1,1F3,1UNSHARD2,1B2,1F4,1UNSHARD3,1B3,1UNSHARD4,1B4\n"
       "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4\n");
}
END_TEST

/* Merak itself recomputes early in fewer places, where its engine has time for it. Doing it before
 * every backward pass takes as long. */
START_TEST(as_merak)
{
    read_text("0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0UNSHARD3,0B3,0UNSHARD4,0B4,0UNSHARD5,0B5\n"
              "1F0,1F1,1F2,1UNSHARD0,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1UNSHARD4,1B4,1UNSHARD5,1B5\n"
              "2F0,2F1,2F2,2UNSHARD0,2B0,2UNSHARD1,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5\n"
              "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5\n");
    ck_assert_int_eq(cst_schedule_check(&schedule, &err), CST_OK);
    ck_assert(makespan() == (6 + 4 - 1) * 4 - 6);
    make("shifted", 4, 4, 6, NULL);
    ck_assert(makespan() == (6 + 4 - 1) * 4 - 6);
}
END_TEST

/* Return how many micro-batches @stage of the schedule @name has in flight, by its formula. */
static uint32_t expected_in_flight(const char *name, uint32_t p, uint32_t m, uint32_t stage)
{
    uint32_t n = p - stage;

    n = strcmp(name, "gpipe") == 0         ? m
        : strcmp(name, "interleaved") == 0 ? 2 * n - 1
        : strcmp(name, "zb-h1") == 0       ? p
                                           : n;
    n += strcmp(name, "shifted") == 0 && stage + 2 == p;
    return n < m ? n : m;
}

/* Return how many micro-batches @stage has between their backward passes and weight gradients. */
static uint32_t expected_restored(const char *name, uint32_t m, uint32_t stage)
{
    const uint32_t n = strcmp(name, "zb-h1") == 0 ? stage + 1 : 1;

    return n < m ? n : m;
}

/* Every schedule of up to 8 ranks and 32 micro-batches is legal, is read as it was written, and
 * has the known number of micro-batches in flight. */
START_TEST(all_are_legal)
{
    const struct cst_schedule_kind *kind = cst_schedule_kind((uint32_t)_i);
    uint32_t in_flight[MOST_RANKS], restored[MOST_RANKS];

    for (uint32_t p = 1; p <= MOST_RANKS; p++) {
        for (uint32_t m = 1; m <= MOST_MICRO; m++) {
            char *text;
            size_t n;

            make(kind->name, p, p, m, NULL);
            suite_must(cst_schedule_in_flight(&schedule, in_flight, restored, &err) == CST_OK, "%s",
                       err.text);
            for (uint32_t s = 0; s < p; s++) {
                suite_must(in_flight[s] == expected_in_flight(kind->name, p, m, s),
                           "%s, %u ranks, %u micro-batches: %u in flight on %u", kind->name, p, m,
                           in_flight[s], s);
                suite_must(restored[s] == expected_restored(kind->name, m, s),
                           "%s, %u ranks, %u micro-batches: %u restored on %u", kind->name, p, m,
                           restored[s], s);
            }
            suite_must(cst_schedule_write(&text, &n, &schedule, true, &err) == CST_OK, "%s",
                       err.text);
            read_text(text);
            suite_must(cst_schedule_check(&schedule, &err) == CST_OK, "%s", err.text);
            is(text);
            free(text);
        }
    }
}
END_TEST

/* Several stages per rank are legal, if the micro-batches divide into rounds; else they are refused
 * with a number that does. */
START_TEST(several_stages)
{
    static const char *const names[] = {"interleaved", "zb-h1"};

    for (uint32_t p = 1; p <= MOST_RANKS; p++) {
        for (uint32_t m = 1; m <= MOST_MICRO; m++) {
            for (uint32_t v = 2; v <= 3; v++) {
                const uint32_t rounds = m / p > 0 ? m / p : 1;

                if (m % rounds == 0) {
                    make(names[_i], p, v * p, m, NULL);
                } else {
                    const struct cst_schedule_size size = {p, v * p, m, NULL};

                    suite_must(cst_schedule_make(&schedule, kind_of(names[_i]), &size, &err) ==
                                   CST_EINVAL,
                               "%u ranks, %u micro-batches are taken", p, m);
                }
            }
        }
    }
}
END_TEST

/* -- times ------------------------------------------------------------------------------------ */

static void takes(double wanted, const char *name, uint32_t p, uint32_t m)
{
    const double got = makespan();

    suite_must(got == wanted, "%s, %u ranks, %u micro-batches: %g, not %g", name, p, m, got,
               wanted);
}

/* Makespans are the closed forms of the literature, with F = R = 1 and B = 2. */
START_TEST(closed_forms)
{
    for (uint32_t p = 1; p <= MOST_RANKS; p++) {
        for (uint32_t m = 1; m <= MOST_MICRO; m++) {
            make("gpipe", p, p, m, NULL);
            takes(3 * (m + p - 1), "gpipe", p, m);
            make("1f1b", p, p, m, NULL);
            takes(3 * (m + p - 1), "1f1b", p, m);
            make("1f1b", p, p, m, all);
            takes(4 * (m + p - 1), "1f1b that recomputes", p, m);
            make("early", p, p, m, all);
            takes(4 * (m + p - 1) - (p - 1), "early, on all", p, m);
            if (p >= 2 && m >= 2) {
                make("early", p, p, m, NULL);
                takes(4 * (m + p - 1) - (p + 1), "early", p, m);
            }
            if (p >= 2 && m >= 3) {
                make("shifted", p, p, m, NULL);
                takes(4 * (m + p - 1) - (p + 2), "shifted", p, m);
            }
            if (m >= p) {
                make("zb-h1", p, p, m, NULL);
                takes(3 * m + (p - 1), "zb-h1", p, m);
            }
            if (m % p == 0) {
                make("interleaved", p, 3 * p, m, NULL);
                takes(3 * (3 * m + p - 1), "interleaved", p, m);
            }
        }
    }
}
END_TEST

/* Messages delay what needs them, and follow each other on their way. */
START_TEST(messages)
{
    struct cst_stage_cost costs[2] = {
        {.forward = 1, .backward = 1, .weight = 1, .send = 4},
        {.forward = 1, .backward = 1, .weight = 1},
    };
    struct cst_schedule_times times;
    double begin[8];

    make("gpipe", 2, 2, 2, NULL);
    ck_assert_int_eq(cst_schedule_time(&times, &schedule, costs, NULL, begin, &err), CST_OK);
    /* 1F0 arrives at 1 + 4, 1F1 at 5 + 4; 1B0 ends at 12 and arrives at 16, 1B1 at 20. */
    ck_assert(begin[4] == 5 && begin[5] == 9 && begin[6] == 10 && begin[7] == 12);
    ck_assert(begin[0] == 0 && begin[1] == 1 && begin[2] == 16 && begin[3] == 20);
    ck_assert(times.makespan == 22 && times.busy == 12);
    ck_assert(fabs(times.bubble - (1 - 12. / 44)) < 1e-12);
}
END_TEST

/* Memory: a stage that recomputes keeps its inputs, and all of one micro-batch. */
START_TEST(memory)
{
    struct cst_stage_cost costs[MOST_STAGES];
    struct cst_schedule_times times;
    uint64_t peaks[MOST_RANKS];

    for (uint32_t s = 0; s < MOST_STAGES; s++) {
        costs[s] = (struct cst_stage_cost){.forward = 1, .kept_bytes = 1000, .input_bytes = 10};
    }
    make("1f1b", 4, 4, 6, NULL);
    ck_assert_int_eq(cst_schedule_time(&times, &schedule, costs, peaks, NULL, &err), CST_OK);
    ck_assert(peaks[0] == 4000 && peaks[1] == 3000 && peaks[2] == 2000 && peaks[3] == 1000);
    make("1f1b", 4, 4, 6, all);
    ck_assert_int_eq(cst_schedule_time(&times, &schedule, costs, peaks, NULL, &err), CST_OK);
    ck_assert(peaks[0] == 1030 && peaks[1] == 1020 && peaks[2] == 1010 && peaks[3] == 1000);
    make("shifted", 4, 4, 6, NULL);
    ck_assert_int_eq(cst_schedule_time(&times, &schedule, costs, peaks, NULL, &err), CST_OK);
    ck_assert(peaks[0] == 1030 && peaks[1] == 1020 && peaks[2] == 1020 && peaks[3] == 1000);
    make("zb-h1", 3, 3, 4, NULL); /* A micro-batch is kept until its weight gradients are done. */
    ck_assert_int_eq(cst_schedule_time(&times, &schedule, costs, peaks, NULL, &err), CST_OK);
    ck_assert(peaks[0] == 3000 && peaks[1] == 3000 && peaks[2] == 3000);
}
END_TEST

/* -- refusals --------------------------------------------------------------------------------- */

/* Numbers that cannot be are refused with those that can. */
START_TEST(wrong_sizes)
{
    static const struct {
        const char *kind;
        struct cst_schedule_size size;
        const char *words;
    } cases[] = {
        {"1f1b", {0, 1, 1, NULL}, "each must be at least 1"},
        {"1f1b", {4, 4, 0, NULL}, "each must be at least 1"},
        {"1f1b", {4, 8, 8, NULL}, "interleaved and zb-h1 can have more"},
        {"1f1b", {8, 4, 8, NULL}, "each rank needs a stage"},
        {"interleaved", {4, 10, 8, NULL}, "such as 8"},
        {"interleaved", {4, 8, 11, NULL}, "a multiple of the rounds (2), such as 8"},
        {"gpipe", {2000, 2000, 1, NULL}, "at most 1024"},
        {"gpipe", {1024, 1024, 16384, NULL}, "their product"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(cst_schedule_make(&schedule, kind_of(cases[i].kind), &cases[i].size, &err),
                         CST_EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].words) != NULL, "%s", err.text);
    }
}
END_TEST

START_TEST(no_such_kind)
{
    const struct cst_schedule_kind *kind;

    ck_assert_int_eq(cst_schedule_find(&kind, "2f2b", &err), CST_ENOTFOUND);
    ck_assert_str_eq(
        err.text, "no schedule '2f2b'; there are gpipe, 1f1b, interleaved, zb-h1, early, shifted");
}
END_TEST

/* Wrong lists are refused with the rank and the action. */
START_TEST(wrong_lists)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"0F0,0B0,0F0\n", "rank 0: 0F0 comes twice"},
        {"0F0\n", "rank 0: 0B0 is missing"},
        {"0F0,0I0\n", "rank 0: 0W0 is missing"},
        {"0B0,0F0\n", "rank 0: 0B0 comes before its forward pass"},
        {"0F0,0W0,0I0\n", "rank 0: 0W0 comes before the gradients of its inputs"},
        {"0F0,0B0,0UNSHARD0\n", "rank 0: 0R0 comes after its backward pass"},
        {"0F0,0B0,0I0,0W0\n", "rank 0: 0I0 is a second backward pass"},
        {"0F0,0B0,1F0\n1B0\n",
         "rank 1: 1B0 is of rank 0: all actions of a stage belong to one rank"},
        {"0F0,0B0,2F0,2B0\n", "rank 0: 1F0 is missing"},
        {"0F0,0B0,1F0,1B0\n\n", "rank 1 has no actions"},
        {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n", "uses another message than rank 0 sends next"},
        {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "rank 0 waits for ever before 0B0: it needs 1B0"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        read_text(cases[i].text);
        ck_assert_int_eq(cst_schedule_check(&schedule, &err), CST_EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].words) != NULL, "%s: %s", cases[i].text, err.text);
    }
}
END_TEST

/* Text that is no schedule is refused with its place. */
START_TEST(wrong_text)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "there are no actions"},
        {",,\n,\n", "there are no actions"},
        {"0F0,0X0\n", "row 1, cell 2: '0X0': wanted an action such as 2F0"},
        {"0F0\n1F0,,hello\n", "row 2, cell 3: 'hello': wanted an action"},
        {"0F\n", "'0F': wanted an action"},
        {"F0\n", "'F0': wanted an action"},
        {"0F0x\n", "'0F0x': wanted an action"},
        {"0SEND_F1\n", "PyTorch adds this action itself: wanted the compute-only form"},
        {"0UNSHARD\n", "PyTorch adds this action itself"},
        {"(0F1;0B0\n", "wanted (ACTION;ACTION)OVERLAP_F_B"},
        {"(0F1;0B0)OVERLAP\n", "wanted (ACTION;ACTION)OVERLAP_F_B"},
        {"1024F0\n", "'1024F0': wanted an action"},
        {"0F99999999999\n", "'0F99999999999': wanted an action"},
        {"1000F0,0F16000\n", "their product can be at most"},
        {"0F0000000000000000000000000000000000000000000000000000000x\n", "...': wanted an action"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(cst_schedule_read(&schedule, cases[i].text, strlen(cases[i].text), &err),
                         CST_EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].words) != NULL, "%s: %s", cases[i].text, err.text);
    }
}
END_TEST

/* Spaces, empty cells, lines of Windows and overlapped actions are read as PyTorch reads them. */
START_TEST(loose_text)
{
    read_text(",0F0 ,, (0F1; 0B0)OVERLAP_F_B,0B1\r\n");
    is("0F0,0F1,0B0,0B1\n");
}
END_TEST

/* What a long schedule has in flight is counted in one pass: a rank does the forward passes of all
 * units before it does their backward passes. */
START_TEST(many_are_in_flight)
{
    enum { STAGES = 512, MICRO = 512 };
    const struct cst_schedule_size size = {1, STAGES, MICRO, NULL};
    uint32_t in_flight[STAGES], restored[STAGES], n = 0;

    suite_must(cst_schedule_open(&schedule, &size, (size_t)2 * STAGES * MICRO, &err) == CST_OK,
               "%s", err.text);
    for (uint32_t s = 0; s < STAGES; s++) {
        for (uint32_t k = 0; k < MICRO; k++) {
            schedule.actions[n++] = (struct cst_stage_action){CST_STAGE_FORWARD, (uint16_t)s, k};
        }
    }
    for (uint32_t s = STAGES; s-- > 0;) {
        for (uint32_t k = 0; k < MICRO; k++) {
            schedule.actions[n++] = (struct cst_stage_action){CST_STAGE_BACKWARD, (uint16_t)s, k};
        }
    }
    schedule.first[1] = n;
    suite_must(cst_schedule_check(&schedule, &err) == CST_OK, "%s", err.text);
    suite_must(cst_schedule_in_flight(&schedule, in_flight, restored, &err) == CST_OK, "%s",
               err.text);
    for (uint32_t s = 0; s < STAGES; s++) {
        ck_assert_uint_eq(in_flight[s], MICRO);
        ck_assert_uint_eq(restored[s], 1);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_schedule");
    TCase *tc = suite_case(s, "lists", NULL, teardown);

    tcase_add_test(tc, lists);
    tcase_add_test(tc, shifted);
    tcase_add_test(tc, as_merak);
    tcase_add_loop_test(tc, all_are_legal, 0, 6);
    tcase_add_loop_test(tc, several_stages, 0, 2);
    tc = suite_case(s, "times", NULL, teardown);
    tcase_add_test(tc, closed_forms);
    tcase_add_test(tc, messages);
    tcase_add_test(tc, memory);
    tc = suite_case(s, "refusals", NULL, teardown);
    tcase_add_test(tc, wrong_sizes);
    tcase_add_test(tc, no_such_kind);
    tcase_add_test(tc, wrong_lists);
    tcase_add_test(tc, wrong_text);
    tcase_add_test(tc, loose_text);
    tcase_add_test(tc, many_are_in_flight);
    return suite_run(s);
}
