/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the cuts of a model into stages, and of the units that recompute. */
#include "offload/parallel/stages.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { MOST_UNITS = 10, MOST_STAGES = 4 };

static struct cst_unit_cost units[CST_STAGES_MAX_UNITS];
static struct cst_unit_tie tie;
static uint32_t in_flight[CST_STAGES_MAX], restored[CST_STAGES_MAX];
static struct cst_stages_input input;
static struct cst_stage_cut stages[CST_STAGES_MAX];
static struct cst_err err;
static double seconds;

static void setup(void)
{
    input = (struct cst_stages_input){.units = units,
                                      .ties = &tie,
                                      .n_micro = 8,
                                      .in_flight = in_flight,
                                      .restored = restored,
                                      .stage_bytes = UINT64_MAX / 4};
    for (uint32_t i = 0; i < CST_STAGES_MAX_UNITS; i++) {
        units[i] = (struct cst_unit_cost){.forward = 1,
                                          .backward = 2,
                                          .send = 0.5,
                                          .kept_bytes = 100,
                                          .input_bytes = 10,
                                          .fixed_bytes = 1000};
    }
    for (uint32_t s = 0; s < CST_STAGES_MAX; s++) {
        in_flight[s] = restored[s] = 1;
    }
}

static void cut(uint32_t n_units, uint32_t n_stages)
{
    input.n_units = n_units;
    input.n_stages = n_stages;
    suite_must(cst_stages_cut(stages, &seconds, &input, &err) == CST_OK, "%s", err.text);
}

/* -- examples --------------------------------------------------------------------------------- */

/* Units that do not divide evenly: no unit is lost, and no stage is more than one unit longer. */
START_TEST(uneven)
{
    cut(30, 4);
    ck_assert_uint_eq(stages[0].first, 0);
    for (uint32_t s = 0; s < 4; s++) {
        ck_assert(stages[s].n_units == 7 || stages[s].n_units == 8);
        ck_assert_uint_eq(s == 3 ? 30 : stages[s + 1].first, stages[s].first + stages[s].n_units);
    }
    ck_assert(seconds == 3 * 30 + 7 * 3 * 8);
    ck_assert(stages[0].send == 0.5 && stages[3].send == 0);
}
END_TEST

/* A large output layer gets a stage with fewer others. */
START_TEST(large_head)
{
    units[12].forward = 4;
    units[12].backward = 8;
    cut(13, 4);
    ck_assert_uint_eq(stages[3].n_units, 1);
    ck_assert_uint_eq(stages[0].n_units, 4);
}
END_TEST

/* With less memory the first stage, which has most in flight, recomputes most, and the last one,
 * which has one, nothing. */
START_TEST(recompute)
{
    for (uint32_t s = 0; s < 4; s++) {
        in_flight[s] = 4 - s;
    }
    input.stage_bytes = 8 * 1000 + 8 * 100 + 1000;
    cut(32, 4);
    for (uint32_t s = 0; s < 4; s++) {
        ck_assert_uint_eq(stages[s].n_units, 8);
        ck_assert_uint_le(cst_stage_bytes(&stages[s], in_flight[s], restored[s]),
                          input.stage_bytes);
    }
    /* 3, 2 and 1 more in flight may have 1000 bytes: 8 - k units of 100 and k of 10 each. */
    ck_assert_uint_eq(stages[0].n_recomputed, 6);
    ck_assert_uint_eq(stages[1].n_recomputed, 4);
    ck_assert_uint_eq(stages[2].n_recomputed, 0);
    ck_assert_uint_eq(stages[3].n_recomputed, 0);
    ck_assert(stages[0].recompute == 6 && stages[0].reduced_bytes == 260);
}
END_TEST

/* A stage with both units of a tie has the shared weights once; two stages have a copy each. */
START_TEST(ties)
{
    tie = (struct cst_unit_tie){0, 3, 900};
    input.n_ties = 1;
    cut(4, 1);
    ck_assert_uint_eq(stages[0].fixed_bytes, 3100);
    cut(4, 2);
    ck_assert(stages[0].fixed_bytes == 2000 && stages[1].fixed_bytes == 2000);
}
END_TEST

/* Stages end earlier than they could if the next one has no memory for what would follow. */
START_TEST(unit_of_the_last_stage)
{
    in_flight[0] = in_flight[1] = 2;
    units[3].kept_bytes = units[3].input_bytes = 5000;
    input.stage_bytes = 8000;
    cut(5, 3);
    ck_assert_uint_eq(stages[2].first, 3);
    input.stage_bytes = 7100;
    cut(5, 3);
    input.stage_bytes = 7099;
    ck_assert_int_eq(cst_stages_cut(stages, &seconds, &input, &err), CST_EBUDGET);
    ck_assert_ptr_nonnull(strstr(err.text, "(7100 bytes), even"));
}
END_TEST

/* Refusals say which numbers are possible, and which memory. */
START_TEST(refusals)
{
    input.n_units = 4;
    input.n_stages = 5;
    ck_assert_int_eq(cst_stages_cut(stages, &seconds, &input, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "5 stages: a model of 4 units can be cut into 1 to 4");
    input.n_units = 0;
    ck_assert_int_eq(cst_stages_cut(stages, &seconds, &input, &err), CST_EINVAL);
    input.n_units = 6;
    input.n_stages = 2;
    in_flight[0] = 2;
    input.stage_bytes = 3000;
    ck_assert_int_eq(cst_stages_cut(stages, &seconds, &input, &err), CST_EBUDGET);
    ck_assert_str_eq(err.text, "each of 2 stages needs 3.3 KiB (3330 bytes), even if all its units "
                               "recompute, and has 2.9 KiB (3000 bytes)");
    input.stage_bytes = 3329;
    ck_assert_int_eq(cst_stages_cut(stages, &seconds, &input, &err), CST_EBUDGET);
    input.stage_bytes = 3330;
    cut(6, 2);
    ck_assert_uint_eq(stages[0].n_recomputed, 3);
}
END_TEST

/* A large model ends soon. */
START_TEST(large)
{
    for (uint32_t i = 0; i < CST_STAGES_MAX_UNITS; i++) {
        units[i].forward = 1 + (i * 7919 % 100) / 50.;
    }
    cut(CST_STAGES_MAX_UNITS, 32);
    ck_assert_uint_eq(stages[31].first + stages[31].n_units, CST_STAGES_MAX_UNITS);
}
END_TEST

/* -- brute force ------------------------------------------------------------------------------ */

static uint64_t state;

static uint32_t draw(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* The stages that are tried: their ends, and the best value so far. */
struct attempt {
    uint32_t ends[MOST_STAGES];
    double best;
};

/* Return the least time of a stage over all numbers of units that recompute; infinity: none fits.
 */
static double time_of(uint32_t stage, uint32_t first, uint32_t end)
{
    double least = INFINITY;

    for (uint32_t k = 0; k <= end - first; k++) {
        uint64_t fixed = 0, kept = 0, reduced = 0;
        double time = 0;

        for (uint32_t i = first; i < end; i++) {
            const struct cst_unit_cost *u = &units[i];
            const bool again = i < first + k;

            fixed += u->fixed_bytes;
            kept += u->kept_bytes;
            reduced += again && u->input_bytes < u->kept_bytes ? u->input_bytes : u->kept_bytes;
            time += u->forward + u->backward + (again ? u->forward : 0);
        }
        if (input.n_ties > 0 && tie.first >= first && tie.last < end) {
            fixed -= tie.bytes;
        }
        if (fixed + (in_flight[stage] - restored[stage]) * reduced + restored[stage] * kept <=
                input.stage_bytes &&
            time < least) {
            least = time;
        }
    }
    return least;
}

static void try_all(struct attempt *attempt, uint32_t stage, uint32_t first, double sum, double max)
{
    const bool last = stage + 1 == input.n_stages;

    for (uint32_t end = last ? input.n_units : first + 1; end <= input.n_units; end++) {
        const double time = end > first ? time_of(stage, first, end) : INFINITY;
        const double longest = time > max ? time : max;

        if (last) {
            const double value = sum + time + (input.n_micro - 1) * longest;

            attempt->best = value < attempt->best ? value : attempt->best;
        } else {
            try_all(attempt, stage + 1, end, sum + time, longest);
        }
    }
}

/* Check that what was found is what it says: a partition, within the memory. */
static void is_sound(void)
{
    double sum = 0, max = 0;
    uint32_t next = 0;

    for (uint32_t s = 0; s < input.n_stages; s++) {
        const double time = stages[s].forward + stages[s].backward + stages[s].recompute;

        ck_assert_uint_eq(stages[s].first, next);
        ck_assert_uint_ge(stages[s].n_units, 1);
        next += stages[s].n_units;
        ck_assert_uint_le(cst_stage_bytes(&stages[s], in_flight[s], restored[s]),
                          input.stage_bytes);
        sum += time;
        max = time > max ? time : max;
    }
    ck_assert_uint_eq(next, input.n_units);
    ck_assert(fabs(seconds - (sum + (input.n_micro - 1) * max)) <= 1e-9 * seconds);
}

/* Random models of up to 10 units in up to 4 stages have the cuts that trying all of them finds. */
START_TEST(brute_force)
{
    uint32_t n_found = 0, n_refused = 0;

    state = suite_seed();
    for (uint32_t turn = 0; turn < 3000; turn++) {
        struct attempt attempt = {.best = INFINITY};
        int rc;

        input.n_units = 1 + draw(MOST_UNITS);
        input.n_stages = 1 + draw(input.n_units < MOST_STAGES ? input.n_units : MOST_STAGES);
        input.n_micro = 1 + draw(12);
        input.stage_bytes = 500 + draw(6000);
        input.n_ties = draw(2);
        for (uint32_t i = 0; i < input.n_units; i++) {
            units[i] = (struct cst_unit_cost){.forward = (1 + draw(9)) / 7.,
                                              .backward = (1 + draw(20)) / 7.,
                                              .kept_bytes = draw(300),
                                              .input_bytes = draw(60),
                                              .fixed_bytes = 100 + draw(500)};
        }
        tie.first = draw(input.n_units);
        tie.last = tie.first + draw(input.n_units - tie.first);
        tie.bytes = tie.last > tie.first ? draw(100) : 0;
        for (uint32_t s = 0; s < input.n_stages; s++) {
            in_flight[s] = 1 + draw(5);
            restored[s] = 1 + draw(in_flight[s] < 3 ? in_flight[s] : 3);
        }
        try_all(&attempt, 0, 0, 0, 0);
        rc = cst_stages_cut(stages, &seconds, &input, &err);
        suite_must(rc == (attempt.best < INFINITY ? CST_OK : CST_EBUDGET), "turn %u: status %d",
                   turn, rc);
        if (rc == CST_OK) {
            is_sound();
            suite_must(fabs(seconds - attempt.best) <= 1e-9 * seconds, "turn %u: %.12g, not %.12g",
                       turn, seconds, attempt.best);
        }
        n_found += rc == CST_OK;
        n_refused += rc != CST_OK;
    }
    ck_assert_uint_gt(n_found, 500);
    ck_assert_uint_gt(n_refused, 100);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_stages");
    TCase *tc = suite_case(s, "examples", setup, NULL);

    tcase_add_test(tc, uneven);
    tcase_add_test(tc, large_head);
    tcase_add_test(tc, recompute);
    tcase_add_test(tc, ties);
    tcase_add_test(tc, unit_of_the_last_stage);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, large);
    tc = suite_case(s, "brute_force", setup, NULL);
    tcase_add_test(tc, brute_force);
    return suite_run(s);
}
