/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the trace: the prediction before the first record, and from a record; unexpected uses;
 * and what stays of a learned record when a rank does something else for a while. */
#include "offload/books/trace.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

#define N 12 /* number of chunks; each has one operator, but the last operator uses two chunks */

static struct cst_model model;
static struct cst_layout layout;
static struct cst_layout_chunk chunks[N];
static uint32_t used[N];
static struct cst_layout_use uses[N];
static struct cst_layout_operator operators[N];
static struct cst_set groups[] = {{{1}}, {{2}}}; /* Rank 0 alone, and rank 1. */
static struct cst_trace trace;

static void open_trace(uint32_t n_chunks)
{
    for (uint32_t i = 0; i < N; i++) {
        used[i] = i;
        uses[i] = (struct cst_layout_use){&used[i], 1};
        operators[i].group = 1;
    }
    layout = (struct cst_layout){.n_chunks = n_chunks, .uses = uses, .chunks = chunks};
    model = (struct cst_model){
        .operators = operators, .n_operators = n_chunks, .groups = groups, .n_groups = 3};
    ck_assert_int_eq(cst_trace_init(&trace, &layout, &model, 0, 1), CST_OK);
}

static void setup(void)
{
    memset(chunks, 0, sizeof chunks);
    memset(operators, 0, sizeof operators);
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

/* Use the weights of all chunks in ascending order, except those in the bit mask @without. */
static void go_forward(uint32_t without)
{
    for (uint32_t c = 0; c < trace.n_chunks; c++) {
        if ((without & 1u << c) == 0) {
            cst_trace_use(&trace, c, false);
        }
    }
}

/* Use the weights and gradients of all chunks in descending order. */
static void go_backward(uint32_t without)
{
    for (uint32_t c = trace.n_chunks; c-- > 0;) {
        if ((without & 1u << c) == 0) {
            cst_trace_use(&trace, c, false);
            cst_trace_use(&trace, c, true);
        }
    }
}

static void train(uint32_t without)
{
    go_forward(without);
    go_backward(without);
    cst_trace_end_step(&trace);
}

/* Distance in requests of @chunk's next use. */
static uint64_t wait_for(uint32_t chunk)
{
    uint64_t next = cst_trace_next_use(&trace, chunk);

    return next == CST_TRACE_NEVER ? next : next - cst_trace_now(&trace);
}

/* Before the first step the prediction is forward over the operators, then backward, in which
 * gradients are opened too. Each operator also fetches the weights of the next one ahead. Weights
 * that the previous operator had for either reason are not expected again, nor are other ranks'
 * operators, or gradients of frozen chunks. */
START_TEST(declared_order)
{
    static const uint32_t expected[] = {CST_TRACE_ENTRY(0, false), CST_TRACE_ENTRY(2, false),
                                        CST_TRACE_ENTRY(3, false), CST_TRACE_ENTRY(3, true),
                                        CST_TRACE_ENTRY(0, false), CST_TRACE_ENTRY(0, true)};
    uint32_t n;

    chunks[2].pattern = CST_PATTERN_FROZEN;
    open_trace(4);
    cst_trace_close(&trace);
    operators[1].group = 2;
    ck_assert_int_eq(cst_trace_init(&trace, &layout, &model, 0, 1), CST_OK);
    ck_assert_mem_eq(cst_trace_expected(&trace, &n), expected, sizeof expected);
    ck_assert_uint_eq(n, 6);
    cst_trace_use(&trace, 3, false);
    ck_assert_uint_eq(trace.surprises, 0); /* nothing is known, so nothing is a surprise */
}
END_TEST

/* A worker that fetches without ever stepping or repeating itself needs no more memory for that:
 * such a record is dropped, and the previous record stays the prediction. */
START_TEST(record_is_bounded)
{
    uint64_t random = 1;
    uint32_t n;

    open_trace(3);
    use_all(3, (uint32_t[]){2, 1, 0});
    cst_trace_end_step(&trace);
    for (uint32_t i = 0; i < 3 * CST_TRACE_MAX_RECORD; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        cst_trace_use(&trace, (uint32_t)(random >> 33) % 3, (random >> 60 & 1) != 0);
    }
    ck_assert_uint_le(trace.record_capacity, CST_TRACE_MAX_RECORD);
    cst_trace_end_step(&trace);
    ck_assert_ptr_nonnull(cst_trace_expected(&trace, &n));
    ck_assert_uint_le(n, CST_TRACE_MAX_RECORD);
}
END_TEST

/* A record that may have fewer entries has no more, and what was known before is still expected.
 * When it may have more again, the next step is learned. */
START_TEST(a_limited_record)
{
    uint32_t n;

    open_trace(3);
    trace.max_record = 4;
    for (uint32_t i = 0; i < 100; i++) {
        use_all(3, (uint32_t[]){2, 1, 0});
    }
    ck_assert_uint_eq(trace.n_record, 4);
    cst_trace_end_step(&trace);
    ck_assert_ptr_nonnull(cst_trace_expected(&trace, &n));
    trace.max_record = 64;
    use_all(3, (uint32_t[]){2, 1, 0});
    cst_trace_end_step(&trace);
    ck_assert_uint_eq(cst_trace_expected(&trace, &n)[0], CST_TRACE_ENTRY(2, false));
    ck_assert_uint_eq(n, 3);
}
END_TEST

/* The record of a complete step predicts the next one. A step that begins again drops what it has
 * recorded. */
START_TEST(record_predicts)
{
    uint32_t n;

    open_trace(3);
    use_all(3, (uint32_t[]){2, 1, 0});
    cst_trace_restart(&trace);
    use_all(4, (uint32_t[]){1, 2, 1, 0});
    cst_trace_use(&trace, 0, true);
    cst_trace_end_step(&trace);
    (void)cst_trace_expected(&trace, &n);
    ck_assert_uint_eq(n, 5);
    ck_assert_uint_eq(wait_for(1), 0);
    ck_assert_uint_eq(wait_for(0), 3);
    cst_trace_use(&trace, 1, false);
    ck_assert_uint_eq(wait_for(1), 1);
    use_all(2, (uint32_t[]){2, 1});
    ck_assert_uint_eq(wait_for(1), CST_TRACE_NEVER); /* before the commit */
    ck_assert_uint_eq(wait_for(0), 0);
    cst_trace_use(&trace, 0, false);
    /* The use of a gradient is not a use of the weights. */
    ck_assert_uint_eq(wait_for(0), CST_TRACE_NEVER);
    ck_assert_uint_eq(trace.surprises, 0);
}
END_TEST

/* An unexpected use is counted, and the prediction continues at the next place of that use. */
START_TEST(resynchronises)
{
    open_trace(3);
    use_all(6, (uint32_t[]){0, 1, 2, 1, 0, 2});
    cst_trace_end_step(&trace);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 1);
    ck_assert_uint_eq(wait_for(1), 0);
    use_all(3, (uint32_t[]){1, 0, 2});
    ck_assert_uint_eq(trace.surprises, 1);
}
END_TEST

/* A use that comes slightly early skips the uses in between. A use that comes much too early lets
 * prediction begin anew at its place. Both are surprises, and the expected use is none. */
START_TEST(skips_are_short)
{
    uint64_t now, epoch;

    open_trace(N);
    train(0);
    ck_assert(cst_trace_use(&trace, 0, false));
    now = cst_trace_now(&trace);
    epoch = trace.epoch;
    ck_assert(!cst_trace_use(&trace, 3, false)); /* without chunks 1 and 2 */
    ck_assert_uint_eq(cst_trace_now(&trace), now + 3);
    ck_assert_uint_eq(trace.epoch, epoch);
    ck_assert(!cst_trace_use(&trace, 5, true));
    ck_assert_uint_eq(cst_trace_now(&trace), now + 3);
    ck_assert_uint_gt(trace.epoch, epoch);
    ck_assert_uint_eq(wait_for(4), 0);
    ck_assert(cst_trace_use(&trace, 4, false));
    ck_assert_uint_eq(trace.surprises, 2);
}
END_TEST

/* If a use occurs at several places, the uses before it determine the place. */
START_TEST(context_decides)
{
    open_trace(9);
    use_all(9, (uint32_t[]){0, 1, 2, 3, 4, 1, 2, 5, 6});
    cst_trace_end_step(&trace);
    use_all(2, (uint32_t[]){0, 4}); /* out of order */
    ck_assert_uint_eq(wait_for(1), 0);
    use_all(3, (uint32_t[]){1, 2, 5});
    ck_assert_uint_eq(trace.surprises, 1);
    ck_assert_uint_eq(wait_for(6), 0);
}
END_TEST

/* A use that the record does not contain is counted and changes nothing else. */
START_TEST(never_seen)
{
    open_trace(3);
    use_all(2, (uint32_t[]){0, 1});
    cst_trace_end_step(&trace);
    cst_trace_use(&trace, 0, false);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(trace.surprises, 1);
    ck_assert_uint_eq(wait_for(1), 0);
    cst_trace_use(&trace, 1, false);
    ck_assert_uint_eq(trace.surprises, 1);
}
END_TEST

/* A record may be longer than any before. A step without requests changes no record. */
START_TEST(any_length)
{
    uint32_t n;

    open_trace(3);
    for (uint32_t i = 0; i < 10000; i++) {
        cst_trace_use(&trace, i % 3, i % 2 == 0);
    }
    cst_trace_end_step(&trace);
    (void)cst_trace_expected(&trace, &n);
    ck_assert_uint_eq(n, 10000);
    ck_assert_uint_eq(wait_for(0), 3);
    cst_trace_end_step(&trace);
    (void)cst_trace_expected(&trace, &n);
    ck_assert_uint_eq(n, 10000);
}
END_TEST

/* An evaluation consists of any number of forward passes, after which training goes on. The
 * evaluation is separated from the step that follows. It is expected to go on until it ends, and
 * training is then expected as before. Each change costs one surprise. */
START_TEST(evaluation_destroys_nothing)
{
    uint64_t before;

    open_trace(N);
    for (int i = 0; i < 3; i++) {
        train(0);
    }
    ck_assert_uint_eq(trace.surprises, 0);
    go_forward(0);
    go_forward(0);
    go_forward(0);
    train(0);
    before = trace.surprises;
    ck_assert_uint_le(before, 4); /* the first time, the evaluation is learned */
    train(0);
    train(0);
    ck_assert_uint_le(trace.surprises, before + 1);
    before = trace.surprises;
    go_forward(0);
    go_forward(0);
    go_forward(0);
    ck_assert_uint_eq(wait_for(0), 0); /* another evaluation is expected */
    train(0);
    ck_assert_uint_le(trace.surprises, before + 2);
    before = trace.surprises;
    train(0);
    train(0);
    ck_assert_uint_le(trace.surprises, before + 1);
    go_forward(0);
    ck_assert_uint_eq(wait_for(N - 1), 0);
    ck_assert_uint_eq(wait_for(N - 3), 4);
}
END_TEST

/* Two sequences of operators that alternate are both known: each step predicts the one that
 * followed it the last time. */
START_TEST(sequences_take_turns)
{
    static const uint32_t a[] = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
    static const uint32_t b[] = {6, 7, 8, 2, 9, 10, 10, 9, 2, 8, 7, 6};
    uint64_t before = 0;

    open_trace(N);
    for (int i = 0; i < 6; i++) {
        if (i == 4) {
            before = trace.surprises;
        }
        use_all(12, a);
        cst_trace_end_step(&trace);
        use_all(12, b);
        cst_trace_end_step(&trace);
    }
    ck_assert_uint_eq(trace.surprises, before);
    ck_assert_uint_eq(wait_for(0), 0);
}
END_TEST

/* A step that runs each operator's forward again before its backward is a normal record after one
 * step. */
START_TEST(recomputation)
{
    open_trace(N);
    train(0);
    for (int i = 0; i < 3; i++) {
        uint64_t before = trace.surprises;

        go_forward(0);
        for (uint32_t c = N; c-- > 0;) {
            cst_trace_use(&trace, c, false);
            cst_trace_use(&trace, c, false);
            cst_trace_use(&trace, c, true);
        }
        cst_trace_end_step(&trace);
        ck_assert(i == 0 || trace.surprises == before);
    }
}
END_TEST

/* An expert that is left out is no surprise, nor is one that comes back. An expert that runs in
 * most steps is expected, and one that hardly ever runs is not. */
START_TEST(experts_come_and_go)
{
    for (uint32_t c = 2; c < 6; c++) {
        chunks[c].pattern = CST_PATTERN_EXPERT;
    }
    open_trace(8);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t without = (i % 8 == 0 ? 0u : 1u << 3) | (i % 3 == 0 ? 1u << 2 : 0);

        if (i > 30) {
            ck_assert_uint_ne(wait_for(2), CST_TRACE_NEVER);
            ck_assert_uint_ne(wait_for(4), CST_TRACE_NEVER);
            ck_assert_uint_eq(wait_for(3), CST_TRACE_NEVER);
        }
        train(without);
    }
    ck_assert_uint_eq(trace.surprises, 0);
}
END_TEST

/* Frozen weights stay valid after the commit, so their next use may be in the next step. */
START_TEST(frozen_weights_are_wanted_again)
{
    chunks[0].pattern = CST_PATTERN_FROZEN;
    open_trace(3);
    for (int i = 0; i < 2; i++) {
        use_all(3, (uint32_t[]){0, 1, 2});
        cst_trace_end_step(&trace);
    }
    use_all(2, (uint32_t[]){0, 1});
    ck_assert_uint_eq(wait_for(0), 1);
    ck_assert_uint_eq(wait_for(1), CST_TRACE_NEVER);
    cst_trace_use(&trace, 2, false);
    ck_assert_uint_eq(wait_for(0), 0);
    cst_trace_end_step(&trace);
    ck_assert_uint_eq(wait_for(0), 0);
}
END_TEST

/* With random requests, predicted time never decreases, and each expected use has a chunk. */
START_TEST(time_goes_on)
{
    uint64_t random = (uint64_t)_i + 1;
    uint64_t last = 0;

    for (uint32_t c = 0; c < N; c++) {
        chunks[c].pattern = (enum cst_pattern_kind)((c * 7 + (uint32_t)_i) % CST_PATTERN_COUNT);
    }
    open_trace(N);
    for (uint32_t i = 0; i < 20000; i++) {
        struct cst_trace_entry entry;
        uint64_t now;

        random = random * 6364136223846793005ull + 1442695040888963407ull;
        if ((random >> 40) % 200 == 0) {
            cst_trace_end_step(&trace);
        } else if ((random >> 40) % 2000 == 1) {
            cst_trace_restart(&trace);
        } else if ((random >> 40) % 50 == 2) {
            cst_trace_use(&trace, (uint32_t)(random >> 33) % N, (random >> 60 & 1) != 0);
        } else if (cst_trace_at(&trace, cst_trace_now(&trace), &entry)) {
            cst_trace_use(&trace, entry.chunk, entry.grad);
        } else {
            cst_trace_use(&trace, 0, false);
        }
        now = cst_trace_now(&trace);
        suite_must(now >= last, "the time goes back");
        last = now;
        for (uint64_t t = now; cst_trace_at(&trace, t, &entry) && t < now + 5; t++) {
            suite_must(entry.chunk < N, "chunk %u", entry.chunk);
        }
        suite_must(cst_trace_next_use(&trace, i % N) >= now, "a use in the past");
    }
}
END_TEST

/* In a dispatched job the declared order of the unit's stage is the prediction when a rank begins
 * to do such units, whatever it did before, and the unit comes again after it. A worker with
 * another order is followed from its second unit on. */
START_TEST(units)
{
    static const uint32_t forward[] = {CST_TRACE_ENTRY(0, false), CST_TRACE_ENTRY(1, false)};
    static const uint32_t first[] = {CST_TRACE_ENTRY(0, false), CST_TRACE_ENTRY(1, false),
                                     CST_TRACE_ENTRY(1, true), CST_TRACE_ENTRY(0, false),
                                     CST_TRACE_ENTRY(0, true)};
    static const uint32_t last[] = {CST_TRACE_ENTRY(2, false), CST_TRACE_ENTRY(3, false),
                                    CST_TRACE_ENTRY(3, true), CST_TRACE_ENTRY(2, true)};
    const struct {
        struct cst_trace_unit unit;
        const uint32_t *entries;
        uint32_t n;
    } kinds[] = {{{0, false}, forward, 2}, {{1, true}, last, 4}, {{0, true}, first, 5}};

    operators[2].stage = operators[3].stage = 1;
    open_trace(4);
    model.n_stages = 2;
    for (unsigned k = 0; k < 9; k++) {
        const struct cst_trace_unit *unit = &kinds[k % 3].unit;
        uint32_t n, chunk = 2 * unit->stage;

        cst_trace_begin_units(&trace, &layout, &model, 0, unit);
        ck_assert_mem_eq(cst_trace_expected(&trace, &n), kinds[k % 3].entries,
                         kinds[k % 3].n * sizeof(uint32_t));
        ck_assert_uint_eq(n, kinds[k % 3].n);
        for (unsigned micro = 0; micro < 3; micro++) {
            for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_eq(wait_for(chunk), i == 0 ? 0 : n == 5 && i <= 3 ? 3 - i : n - i);
                ck_assert(cst_trace_use(&trace, kinds[k % 3].entries[i] >> 1,
                                        (kinds[k % 3].entries[i] & 1) != 0));
            }
            cst_trace_next_unit(&trace);
        }
    }
    for (unsigned micro = 0; micro < 3; micro++) {
        use_all(3, (uint32_t[]){1, 0, 2});
        cst_trace_next_unit(&trace);
    }
    ck_assert(wait_for(1) == 0 && wait_for(0) == 1 && wait_for(2) == 2);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("trace");
    TCase *tc = suite_case(s, "trace", setup, teardown);

    tcase_add_test(tc, declared_order);
    tcase_add_test(tc, record_is_bounded);
    tcase_add_test(tc, a_limited_record);
    tcase_add_test(tc, record_predicts);
    tcase_add_test(tc, resynchronises);
    tcase_add_test(tc, skips_are_short);
    tcase_add_test(tc, context_decides);
    tcase_add_test(tc, never_seen);
    tcase_add_test(tc, any_length);
    tcase_add_test(tc, evaluation_destroys_nothing);
    tcase_add_test(tc, sequences_take_turns);
    tcase_add_test(tc, recomputation);
    tcase_add_test(tc, experts_come_and_go);
    tcase_add_test(tc, frozen_weights_are_wanted_again);
    tcase_add_test(tc, units);
    tcase_add_loop_test(tc, time_goes_on, 0, 20);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
