/* The trace: what is expected before the first record, what a record predicts, and what an
 * unexpected use does. */
#include "offload/trace.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static uint32_t first[] = {0};
static uint32_t second[] = {1};
static uint32_t third[] = {1, 2};
static struct cst_layout_use uses[] = {{first, 1}, {second, 1}, {third, 2}};
static struct cst_layout layout = {.n_chunks = 3, .uses = uses};
static struct cst_trace trace;

static void setup(void)
{
    ck_assert_int_eq(cst_trace_init(&trace, &layout, 3), CST_OK);
}

static void teardown(void)
{
    cst_trace_close(&trace);
}

static void use_all(uint32_t n, const uint32_t *v)
{
    for (uint32_t i = 0; i < n; i++) {
        cst_trace_use(&trace, v[i], false);
    }
}

/* Before the first step: forward over the operators, then backward, where gradients are opened too;
 * what the operator before still has is not fetched again. */
START_TEST(declared_order)
{
    static const uint32_t expected[] = {CST_TRACE_ENTRY(0, false), CST_TRACE_ENTRY(1, false),
                                        CST_TRACE_ENTRY(2, false), CST_TRACE_ENTRY(1, true),
                                        CST_TRACE_ENTRY(2, true),  CST_TRACE_ENTRY(0, false),
                                        CST_TRACE_ENTRY(0, true)};

    ck_assert_uint_eq(trace.n_expected, 7);
    ck_assert_mem_eq(trace.expected, expected, sizeof expected);
    ck_assert(!trace.known);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 0); /* nothing is known: nothing is a surprise */
}
END_TEST

/* A worker that fetches for ever without a step (it evaluates, say) costs no more memory for it:
 * such a record is given up, and the one before predicts on. */
START_TEST(record_is_bounded)
{
    use_all(3, (uint32_t[]){2, 1, 0});
    cst_trace_end_step(&trace);
    for (uint32_t i = 0; i < 3 * CST_TRACE_MAX_RECORD; i++) {
        cst_trace_use(&trace, i % 3, false);
    }
    ck_assert_uint_le(trace.record_capacity, CST_TRACE_MAX_RECORD);
    cst_trace_end_step(&trace);
    ck_assert_uint_eq(trace.n_expected, 3);
    ck_assert(trace.known);
}
END_TEST

/* A complete step's record predicts the next; a step begun anew forgets what it recorded. */
START_TEST(record_predicts)
{
    use_all(3, (uint32_t[]){2, 1, 0});
    cst_trace_restart(&trace);
    use_all(4, (uint32_t[]){1, 2, 1, 0});
    cst_trace_use(&trace, 0, true);
    cst_trace_end_step(&trace);
    ck_assert(trace.known);
    ck_assert_uint_eq(trace.n_expected, 5);
    ck_assert_uint_eq(trace.position, 0);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 1), 0);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 0), 3);
    cst_trace_use(&trace, 1, false);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 1), 2);
    use_all(2, (uint32_t[]){2, 1});
    ck_assert_uint_eq(cst_trace_next_use(&trace, 1), CST_TRACE_NEVER);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 0), 3);
    cst_trace_use(&trace, 0, false);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 0),
                      CST_TRACE_NEVER); /* its gradient is not its weights */
    ck_assert_uint_eq(trace.surprises, 0);
}
END_TEST

/* An unexpected use is counted, and what follows is expected again: from its next place on, or, if
 * it went back, from its first. */
START_TEST(resynchronises)
{
    use_all(6, (uint32_t[]){0, 1, 2, 1, 0, 2});
    cst_trace_end_step(&trace);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 1);
    ck_assert_uint_eq(trace.position, 3);
    use_all(3, (uint32_t[]){1, 0, 2});
    ck_assert_uint_eq(trace.surprises, 1);
    cst_trace_use(&trace, 1, false);
    ck_assert_uint_eq(trace.surprises, 2);
    ck_assert_uint_eq(trace.position, 2);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 2);
}
END_TEST

/* What the record does not have at all changes nothing but the count. */
START_TEST(never_seen)
{
    use_all(2, (uint32_t[]){0, 1});
    cst_trace_end_step(&trace);
    cst_trace_use(&trace, 0, false);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 1);
    ck_assert_uint_eq(trace.position, 1);
    cst_trace_use(&trace, 1, false);
    ck_assert_uint_eq(trace.surprises, 1);
}
END_TEST

/* A record longer than any before it, and an empty one. */
START_TEST(any_length)
{
    for (uint32_t i = 0; i < 10000; i++) {
        cst_trace_use(&trace, i % 3, i % 2 == 0);
    }
    cst_trace_end_step(&trace);
    ck_assert_uint_eq(trace.n_expected, 10000);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 0), 3);
    cst_trace_end_step(&trace);
    ck_assert_uint_eq(trace.n_expected, 0);
    ck_assert_uint_eq(cst_trace_next_use(&trace, 0), CST_TRACE_NEVER);
    cst_trace_use(&trace, 0, false);
    ck_assert_uint_eq(trace.surprises, 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("trace");
    TCase *tc = tcase_create("trace");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, declared_order);
    tcase_add_test(tc, record_is_bounded);
    tcase_add_test(tc, record_predicts);
    tcase_add_test(tc, resynchronises);
    tcase_add_test(tc, never_seen);
    tcase_add_test(tc, any_length);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
