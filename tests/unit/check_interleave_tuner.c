/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/job/interleave_tuner: the choice of k in each step, from scripted rates and
 * durations of update phases. */
#include "daemon/job/interleave_tuner.h"
#include "tests/lib/suite.h"

#include <check.h>

static struct cstd_interleave_tuner tuner;

/* 32 chunks of a million elements, and one accelerator whose reservation holds three. An update
 * phase of the nodes alone takes 0.1 s at the rates below; with the accelerator it takes about half
 * as long. */
static const struct cst_interleave machine = {.n_chunks = 32,
                                              .chunk_elems = 1e6,
                                              .n_links = 1,
                                              .buffers = 3,
                                              .up_bytes = 14,
                                              .down_bytes = 14,
                                              .fetch_bytes = 2};

#define N_ELEMS 32e6
#define NODE 320e6
#define DEVICE 10e9
#define LINK 6e9

static void setup(void)
{
    tuner = (struct cstd_interleave_tuner){
        .node.known = NODE, .device.known = DEVICE, .up.known = LINK, .down.known = LINK};
}

/* Let the engines reach the rate @per_second from now on. */
static void see(struct cstd_interleave_tuner_rate *rate, double per_second)
{
    rate->seen.n = 0;
    for (int i = 0; i < CSTD_RATES_SAMPLES; i++) {
        cstd_rates_median_add(&rate->seen, (uint64_t)per_second, 1000000000);
    }
}

static double predicted(uint32_t k)
{
    struct cst_interleave m = cstd_interleave_tuner_machine(&tuner, &machine);

    return cst_interleave_seconds(&m, k);
}

static bool phase(uint64_t number, uint32_t k, double seconds)
{
    return cstd_interleave_tuner_step(
        &tuner, &machine,
        &(struct cstd_interleave_tuner_phase){
            .number = number, .k = k, .ns = (uint64_t)(seconds * 1e9)});
}

/* Run a step whose update phase takes @seconds. True if k was changed. */
static bool step(double seconds)
{
    return phase(tuner.phase + 1, tuner.k, seconds);
}

/* Run @n steps, none of which may change k. */
static void steady(unsigned n, double seconds)
{
    uint32_t k = tuner.k;

    for (unsigned i = 0; i < n; i++) {
        ck_assert_msg(!step(seconds), "step %u of %u", i, n);
        ck_assert_uint_eq(tuner.k, k);
    }
}

/* -- the first k ------------------------------------------------------------------------------ */

/* The first k is the best one by the known rates. If a rate is unknown, no chunk is updated on the
 * accelerator. */
START_TEST(first)
{
    struct cst_interleave m = cstd_interleave_tuner_machine(&tuner, &machine);

    ck_assert(m.node_elems == NODE && m.device_elems == DEVICE && m.up == LINK && m.down == LINK);
    cstd_interleave_tuner_begin(&tuner, &machine);
    ck_assert_uint_eq(tuner.k, cst_interleave_choose(&m));
    ck_assert_uint_ne(tuner.k, CST_INTERLEAVE_NEVER);
    tuner.up.known = 0;
    cstd_interleave_tuner_begin(&tuner, &machine);
    ck_assert_uint_eq(tuner.k, CST_INTERLEAVE_NEVER);
}
END_TEST

/* Observed rates replace the known ones. */
START_TEST(seen)
{
    see(&tuner.node, 2 * NODE);
    ck_assert(cstd_interleave_tuner_machine(&tuner, &machine).node_elems == 2 * NODE);
    ck_assert(cstd_interleave_tuner_machine(&tuner, &machine).up == LINK);
}
END_TEST

/* -- k does not change ------------------------------------------------------------------------ */

/* k stays if rates are as known and phases take as long as predicted, or are all longer by the same
 * factor. */
START_TEST(steady_machine)
{
    cstd_interleave_tuner_begin(&tuner, &machine);
    steady(300, predicted(tuner.k) * (_i == 0 ? 1 : 1.3));
}
END_TEST

/* A gain below the margin does not change k. */
START_TEST(small_gain)
{
    cstd_interleave_tuner_begin(&tuner, &machine);
    tuner.k = 3;
    see(&tuner.up, 8e9);
    see(&tuner.down, 8e9);
    /* Find a link with which 2 and 3 are nearly equal. */
    while (predicted(2) < 0.96 * predicted(3)) {
        tuner.up.seen.samples[0] -= 1e6;
        see(&tuner.up, tuner.up.seen.samples[0]);
        see(&tuner.down, tuner.up.seen.samples[0]);
    }
    ck_assert(predicted(2) < predicted(3));
    steady(50, predicted(3));
}
END_TEST

/* Phases that were run with another k, or that were not timed, change nothing, whatever the rates
 * are. */
START_TEST(nothing_known)
{
    cstd_interleave_tuner_begin(&tuner, &machine);
    see(&tuner.up, 100e6);
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(tuner.phase + 1, tuner.k + 1, 1));
        ck_assert(!step(0));
    }
}
END_TEST

/* A phase that was seen before gives no information, even if it is reported as the last one again.
 * Nor does the phase before the first step. */
START_TEST(seen_before)
{
    cstd_interleave_tuner_begin(&tuner, &machine);
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(0, tuner.k, 1));
    }
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(1, tuner.k, 1));
    }
    ck_assert(!phase(2, tuner.k, 1));
    ck_assert(phase(3, tuner.k, 1)); /* the third phase that was this slow */
}
END_TEST

/* k is not changed back and forth for ever if k's own load changes the observed rates. The numbers
 * have the proportions of an A100 machine. With k = 1 the nodes are idle and the link has the whole
 * memory bandwidth: by the rates observed then, 2 is better. With k = 2 nodes and link slow each
 * other down: by those rates, 1 is better. Both are in fact equally fast. k may change only a few
 * times in a thousand steps, at growing intervals. */
START_TEST(swing)
{
    unsigned n_changes = 0;

    tuner.k = 1;
    for (unsigned i = 0; i < 1000; i++) {
        bool alone = tuner.k == 1;

        see(&tuner.up, alone ? 7e9 : 8e9);
        see(&tuner.down, alone ? 7e9 : 8e9);
        see(&tuner.node, alone ? 1.2 * NODE : 0.68 * NODE);
        ck_assert(alone ? predicted(2) < 0.9 * predicted(1) : predicted(1) < 0.9 * predicted(2));
        n_changes += step(alone ? 0.0640 : 0.0632 + 0.001 * (i % 3));
    }
    ck_assert_uint_le(n_changes, 10);
}
END_TEST

/* -- k changes -------------------------------------------------------------------------------- */

/* If the link is half as fast as assumed, k grows after some phases, so that fewer chunks use
 * it. */
START_TEST(slower_link)
{
    uint32_t before, best;
    struct cst_interleave m;

    cstd_interleave_tuner_begin(&tuner, &machine);
    before = tuner.k;
    see(&tuner.up, LINK / 2);
    see(&tuner.down, LINK / 2);
    m = cstd_interleave_tuner_machine(&tuner, &machine);
    best = cst_interleave_choose(&m);
    ck_assert_uint_gt(best, before);
    steady(CSTD_INTERLEAVE_TUNER_PHASES - 1, predicted(before));
    ck_assert(step(predicted(before)));
    ck_assert_uint_eq(tuner.k, best);
    steady(300, predicted(best));
}
END_TEST

/* If the phases with a k take longer than those of the nodes alone would, although the rates
 * promise a gain, no chunk is updated on the accelerator. This is remembered for a while before k
 * is tried again, and after a second failure for twice as long. */
START_TEST(disappointing)
{
    double alone;
    uint32_t k;
    unsigned n;

    cstd_interleave_tuner_begin(&tuner, &machine);
    k = tuner.k;
    alone = predicted(CST_INTERLEAVE_NEVER);
    for (unsigned round = 0; round < 3; round++) {
        unsigned memory = CSTD_INTERLEAVE_TUNER_MEMORY << (round == 0 ? 0 : round);

        steady(CSTD_INTERLEAVE_TUNER_PHASES - 1, 1.02 * alone);
        ck_assert(step(1.02 * alone));
        ck_assert_uint_eq(tuner.k, CST_INTERLEAVE_NEVER);
        for (n = 0; !step(alone); n++) {
            ck_assert_uint_lt(n, 10000);
        }
        ck_assert_uint_eq(tuner.k, k);
        ck_assert_uint_ge(n + 2, memory);
        ck_assert_uint_le(n, memory + 1);
    }
}
END_TEST

/* The measured phases scale the predictions for other values of k, but not the prediction for the
 * nodes alone. */
START_TEST(promises)
{
    cstd_interleave_tuner_begin(&tuner, &machine);
    ck_assert(cstd_interleave_tuner_promise(&tuner, &machine, 5) == predicted(5));
    steady(CSTD_INTERLEAVE_TUNER_PHASES, 1.1 * predicted(tuner.k));
    ck_assert_double_eq_tol(cstd_interleave_tuner_promise(&tuner, &machine, tuner.k),
                            1.1 * predicted(tuner.k), 1e-6);
    ck_assert_double_eq_tol(cstd_interleave_tuner_promise(&tuner, &machine, 5), 1.1 * predicted(5),
                            1e-6);
    ck_assert(cstd_interleave_tuner_promise(&tuner, &machine, CST_INTERLEAVE_NEVER) ==
              predicted(CST_INTERLEAVE_NEVER));
    ck_assert_double_gt(cstd_interleave_tuner_promise(&tuner, &machine, 1000),
                        0); /* as configured */
}
END_TEST

/* The prediction for a k is scaled by the nearest k that was measured: by the lower one of two that
 * are equally near, and by the last one for any k beyond it. */
START_TEST(nearest)
{
    const struct {
        uint32_t k;
        double stretch;
    } known[] = {{4, 1.1}, {8, 1.2}, {20, 1.3}};

    tuner.n_steps = 10;
    tuner.k = 4;
    for (unsigned i = 0; i < 3; i++) {
        struct cstd_interleave_tuner_tried *tried = &tuner.tried[known[i].k];

        tried->step = tuner.n_steps;
        for (unsigned n = 0; n < CSTD_INTERLEAVE_TUNER_PHASES; n++) {
            cstd_rates_median_add(&tried->phase, (uint64_t)N_ELEMS,
                                  (uint64_t)(predicted(known[i].k) * known[i].stretch * 1e9));
        }
    }
    for (uint32_t k = 1; k <= 100; k++) {
        double stretch = k <= 6 ? 1.1 : k <= 14 ? 1.2 : 1.3;

        ck_assert_double_eq_tol(cstd_interleave_tuner_promise(&tuner, &machine, k),
                                stretch * predicted(k), 1e-6);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("interleave_tuner");
    TCase *start = suite_case(suite, "first", setup, NULL);
    TCase *stays = suite_case(suite, "stays", setup, NULL);
    TCase *changes = suite_case(suite, "changes", setup, NULL);

    tcase_add_test(start, first);
    tcase_add_test(start, seen);
    tcase_add_loop_test(stays, steady_machine, 0, 2);
    tcase_add_test(stays, small_gain);
    tcase_add_test(stays, nothing_known);
    tcase_add_test(stays, seen_before);
    tcase_add_test(stays, swing);
    tcase_add_test(changes, slower_link);
    tcase_add_test(changes, disappointing);
    tcase_add_test(changes, promises);
    tcase_add_test(changes, nearest);
    return suite_run(suite);
}
