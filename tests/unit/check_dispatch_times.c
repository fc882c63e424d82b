/* SPDX-License-Identifier: Apache-2.0 */
/* How busy the ranks of a model that is cut into stages are, under a virtual clock. */
#include "offload/schedule/dispatch.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

/* Ranks that take equally long run one stage each, one micro-batch behind each other, and keep it:
 * nobody waits but at the beginning and at the end, and no stage is begun twice. */
START_TEST(ranks_keep_their_stages)
{
    enum { STAGES = 6, MICRO = 6, RANKS = 3 };
    const uint64_t after[STAGES] = {0};
    struct cst_dispatch d;
    uint32_t keeper[2 * STAGES - 1], turns = 0;

    memset(keeper, 0xff, sizeof keeper);
    ck_assert_int_eq(cst_dispatch_init(&d, STAGES, MICRO, RANKS, after), CST_OK);
    for (; !cst_dispatch_is_complete(&d); turns++) {
        struct cst_work_unit unit;

        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (cst_dispatch_take(&d, rank, &unit)) {
                ck_assert(keeper[unit.pass] == CST_DISPATCH_NONE || keeper[unit.pass] == rank);
                keeper[unit.pass] = rank;
            }
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (cst_dispatch_unit(&d, rank, &unit)) {
                cst_dispatch_done(&d, rank, 0);
            }
        }
    }
    ck_assert_uint_le(turns, (2 * STAGES - 1 + RANKS - 1) / RANKS * MICRO + RANKS - 1);
    cst_dispatch_close(&d);
}
END_TEST

/* Times in ms of a model of equal layers, a stage each, on accelerators that have a link each. */
struct times {
    double forward, backward; /* Of a unit, with the copies of activations. */
    double load;              /* Of a stage's weights, at the beginning of a pass. */
};

enum { MAX_RANKS = 8 };

/* The time of a step with @n_ranks ranks. The last stage shares a gradient with the first one. */
static double run_step(const struct times *times, uint32_t n_stages, uint32_t n_micro,
                       uint32_t n_ranks)
{
    uint64_t after[CST_DISPATCH_MAX_STAGES] = {1ull << (n_stages - 1)};
    double now = 0, ends[MAX_RANKS] = {0};
    struct cst_work_unit unit;
    struct cst_dispatch d;

    ck_assert_int_eq(cst_dispatch_init(&d, n_stages, n_micro, n_ranks, after), CST_OK);
    while (!cst_dispatch_is_complete(&d)) {
        uint32_t first = CST_DISPATCH_NONE;

        for (uint32_t r = 0; r < n_ranks; r++) {
            if (!cst_dispatch_unit(&d, r, &unit) && cst_dispatch_take(&d, r, &unit)) {
                ends[r] = now + (unit.backward ? times->backward : times->forward) +
                          (unit.begins ? times->load : 0);
            }
            if (cst_dispatch_unit(&d, r, &unit) &&
                (first == CST_DISPATCH_NONE || ends[r] < ends[first])) {
                first = r;
            }
        }
        ck_assert_uint_ne(first, CST_DISPATCH_NONE);
        now = ends[first];
        cst_dispatch_done(&d, first, 0);
    }
    cst_dispatch_close(&d);
    return now;
}

/* Eight accelerators without links between them do 0.93 x 8 times as much as one of them, with 64
 * stages and 16 micro-batches. Weights are loaded before a pass begins, by nobody else, and a
 * backward pass computes the forward pass again. The times are those of a layer of 315 million
 * parameters and of 16384 tokens, at 150 TFLOP/s and 25 GB/s; and of a link half as fast. */
START_TEST(eight_ranks_are_busy)
{
    static const struct times times[] = {
        {.forward = 96, .backward = 246, .load = 25},
        {.forward = 123, .backward = 286, .load = 50},
    };

    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        double one = run_step(&times[i], 64, 16, 1), eight = run_step(&times[i], 64, 16, 8);

        ck_assert_double_ge(one / eight, 0.93 * 8);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("times of dispatch");
    TCase *tc = suite_case(suite, "times", NULL, NULL);

    tcase_add_test(tc, ranks_keep_their_stages);
    tcase_add_test(tc, eight_ranks_are_busy);
    return suite_run(suite);
}
