/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/balance: k, step after step, from scripted rates and phases. */
#include "daemon/balance.h"
#include "tests/lib/suite.h"

#include <check.h>

static struct cst_balance balance;

/* 32 chunks of a million elements, one accelerator, room for three. A phase by the nodes alone
 * takes 0.1 s at the rates below, one with the accelerator about half of that. */
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
    balance = (struct cst_balance){
        .node.known = NODE, .device.known = DEVICE, .up.known = LINK, .down.known = LINK};
}

/* The rates that engines reach from now on. */
static void see(struct cst_balance_rate *rate, double per_second)
{
    rate->seen.n = 0;
    for (int i = 0; i < CST_RATES_SAMPLES; i++) {
        cst_rates_median_add(&rate->seen, (uint64_t)per_second, 1000000000);
    }
}

static double predicted(uint32_t k)
{
    struct cst_interleave m = cst_balance_machine(&balance, &machine);

    return cst_interleave_seconds(&m, k);
}

static bool phase(uint64_t number, uint32_t k, double seconds)
{
    return cst_balance_step(
        &balance, &machine,
        &(struct cst_balance_phase){.number = number, .k = k, .ns = (uint64_t)(seconds * 1e9)});
}

/* A step whose updates took @seconds. */
static bool step(double seconds)
{
    return phase(balance.phase + 1, balance.k, seconds);
}

/* So many, which are to change nothing. */
static void steady(unsigned n, double seconds)
{
    uint32_t k = balance.k;

    for (unsigned i = 0; i < n; i++) {
        ck_assert_msg(!step(seconds), "step %u of %u", i, n);
        ck_assert_uint_eq(balance.k, k);
    }
}

/* -- at first --------------------------------------------------------------------------------- */

/* The first k is the best by the known rates; without one of them nothing goes up. */
START_TEST(first)
{
    struct cst_interleave m = cst_balance_machine(&balance, &machine);

    ck_assert(m.node_elems == NODE && m.device_elems == DEVICE && m.up == LINK && m.down == LINK);
    cst_balance_begin(&balance, &machine);
    ck_assert_uint_eq(balance.k, cst_interleave_choose(&m));
    ck_assert_uint_ne(balance.k, CST_INTERLEAVE_NEVER);
    balance.up.known = 0;
    cst_balance_begin(&balance, &machine);
    ck_assert_uint_eq(balance.k, CST_INTERLEAVE_NEVER);
}
END_TEST

/* What is seen counts instead of what is known. */
START_TEST(seen)
{
    see(&balance.node, 2 * NODE);
    ck_assert(cst_balance_machine(&balance, &machine).node_elems == 2 * NODE);
    ck_assert(cst_balance_machine(&balance, &machine).up == LINK);
}
END_TEST

/* -- staying ---------------------------------------------------------------------------------- */

/* Phases as predicted, or longer by the same part, and rates as known: it stays. */
START_TEST(steady_machine)
{
    cst_balance_begin(&balance, &machine);
    steady(300, predicted(balance.k) * (_i == 0 ? 1 : 1.3));
}
END_TEST

/* A gain below the margin is none. */
START_TEST(small_gain)
{
    cst_balance_begin(&balance, &machine);
    balance.k = 3;
    see(&balance.up, 8e9);
    see(&balance.down, 8e9);
    while (predicted(2) < 0.96 * predicted(3)) { /* a link on which they are nearly alike */
        balance.up.seen.samples[0] -= 1e6;
        see(&balance.up, balance.up.seen.samples[0]);
        see(&balance.down, balance.up.seen.samples[0]);
    }
    ck_assert(predicted(2) < predicted(3));
    steady(50, predicted(3));
}
END_TEST

/* Nothing is known of phases with a k that is not in force yet, nor of such as nobody timed: they
 * change nothing, whatever the rates. */
START_TEST(nothing_known)
{
    cst_balance_begin(&balance, &machine);
    see(&balance.up, 100e6);
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(balance.phase + 1, balance.k + 1, 1));
        ck_assert(!step(0));
    }
}
END_TEST

/* A phase that was seen before says nothing, however often it is the last one that ended; nor does
 * one before the first. */
START_TEST(seen_before)
{
    cst_balance_begin(&balance, &machine);
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(0, balance.k, 1));
    }
    for (int i = 0; i < 50; i++) {
        ck_assert(!phase(1, balance.k, 1));
    }
    ck_assert(!phase(2, balance.k, 1));
    ck_assert(phase(3, balance.k, 1)); /* the third one that was as slow */
}
END_TEST

/* Proportions of an A100 box: k's own load changes the rates that are seen. With k = 1 the nodes
 * stand still, and the link gets all memory: by those rates 2 is better. With k = 2 nodes and link
 * are in each other's way: by those 1 is. In truth they are alike. Rates alone would make k swing
 * for ever; it is changed a few times in a thousand steps, ever more seldom. */
START_TEST(swing)
{
    unsigned n_changes = 0;

    balance.k = 1;
    for (unsigned i = 0; i < 1000; i++) {
        bool alone = balance.k == 1;

        see(&balance.up, alone ? 7e9 : 8e9);
        see(&balance.down, alone ? 7e9 : 8e9);
        see(&balance.node, alone ? 1.2 * NODE : 0.68 * NODE);
        ck_assert(alone ? predicted(2) < 0.9 * predicted(1) : predicted(1) < 0.9 * predicted(2));
        n_changes += step(alone ? 0.0640 : 0.0632 + 0.001 * (i % 3));
    }
    ck_assert_uint_le(n_changes, 10);
}
END_TEST

/* -- changing --------------------------------------------------------------------------------- */

/* The link is half as fast as was thought: when some phases have shown it, fewer go up. */
START_TEST(slower_link)
{
    uint32_t before, best;
    struct cst_interleave m;

    cst_balance_begin(&balance, &machine);
    before = balance.k;
    see(&balance.up, LINK / 2);
    see(&balance.down, LINK / 2);
    m = cst_balance_machine(&balance, &machine);
    best = cst_interleave_choose(&m);
    ck_assert_uint_gt(best, before);
    steady(CST_BALANCE_PHASES - 1, predicted(before));
    ck_assert(step(predicted(before)));
    ck_assert_uint_eq(balance.k, best);
    steady(300, predicted(best));
}
END_TEST

/* A k whose phases are longer than the nodes alone would take, though rates promise much: none goes
 * up; that is remembered for a while, and tried again, and the next time it is remembered for twice
 * as long. */
START_TEST(disappointing)
{
    double alone;
    uint32_t k;
    unsigned n;

    cst_balance_begin(&balance, &machine);
    k = balance.k;
    alone = predicted(CST_INTERLEAVE_NEVER);
    for (unsigned round = 0; round < 3; round++) {
        unsigned memory = CST_BALANCE_MEMORY << (round == 0 ? 0 : round);

        steady(CST_BALANCE_PHASES - 1, 1.02 * alone);
        ck_assert(step(1.02 * alone));
        ck_assert_uint_eq(balance.k, CST_INTERLEAVE_NEVER);
        for (n = 0; !step(alone); n++) {
            ck_assert_uint_lt(n, 10000);
        }
        ck_assert_uint_eq(balance.k, k);
        ck_assert_uint_ge(n + 2, memory);
        ck_assert_uint_le(n, memory + 1);
    }
}
END_TEST

/* What phases took stretches what is promised for others, but not for the nodes alone. */
START_TEST(promises)
{
    cst_balance_begin(&balance, &machine);
    ck_assert(cst_balance_promise(&balance, &machine, 5) == predicted(5));
    steady(CST_BALANCE_PHASES, 1.1 * predicted(balance.k));
    ck_assert_double_eq_tol(cst_balance_promise(&balance, &machine, balance.k),
                            1.1 * predicted(balance.k), 1e-6);
    ck_assert_double_eq_tol(cst_balance_promise(&balance, &machine, 5), 1.1 * predicted(5), 1e-6);
    ck_assert(cst_balance_promise(&balance, &machine, CST_INTERLEAVE_NEVER) ==
              predicted(CST_INTERLEAVE_NEVER));
    ck_assert_double_gt(cst_balance_promise(&balance, &machine, 1000), 0); /* as configured */
}
END_TEST

/* Of several k that were measured the nearest one speaks for another, of two that are as near the
 * lower one; the last one for any beyond. */
START_TEST(nearest)
{
    const struct {
        uint32_t k;
        double stretch;
    } known[] = {{4, 1.1}, {8, 1.2}, {20, 1.3}};

    balance.n_steps = 10;
    balance.k = 4;
    for (unsigned i = 0; i < 3; i++) {
        struct cst_balance_tried *tried = &balance.tried[known[i].k];

        tried->step = balance.n_steps;
        for (unsigned n = 0; n < CST_BALANCE_PHASES; n++) {
            cst_rates_median_add(&tried->phase, (uint64_t)N_ELEMS,
                                 (uint64_t)(predicted(known[i].k) * known[i].stretch * 1e9));
        }
    }
    for (uint32_t k = 1; k <= 100; k++) {
        double stretch = k <= 6 ? 1.1 : k <= 14 ? 1.2 : 1.3;

        ck_assert_double_eq_tol(cst_balance_promise(&balance, &machine, k), stretch * predicted(k),
                                1e-6);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("balance");
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
