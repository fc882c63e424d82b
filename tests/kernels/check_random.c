/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the random bits of stochastic rounding: their definition, their quality, and the
 * probabilities with which numbers are rounded up. A count may be off by five standard deviations,
 * and a sum of squares, whose distribution has a longer tail, by seven. */
#include "kernels/math/vec_ref.h"

#include "kernels/math/random.h"
#include "tests/kernels/update_rows.h"

/* The published test vectors of Philox4x32-10 (Random123, kat_vectors). */
START_TEST(test_philox)
{
    static const struct {
        uint32_t counter[4];
        uint64_t seed;
        uint32_t words[4];
    } known[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffffull,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822ull,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t words[4];

        memcpy(words, known[i].counter, sizeof words);
        cst_philox(known[i].seed, words);
        ck_assert_mem_eq(words, known[i].words, sizeof words);
    }
}
END_TEST

/* The words of a job stay the same in later versions. */
START_TEST(test_known_words)
{
    static const struct {
        uint64_t seed, span, t;
        uint32_t group;
        uint32_t first, last; /* Words 0 and 15 of the group. */
    } known[] = {
        {0, 0, 1, 0, 0x183555cd, 0x9e0e9fed},
        {1, 7, 1000, 127, 0xd8535932, 0x409fb40f},
        {0xffffffffffffffffull, 0x123456789abcull, 1ull << 40, 64, 0xacaa41eb, 0x2dffa37a},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct cst_vec_bits words[CST_VEC_GROUP / 2];

        cst_random_words(cst_random_key_of(known[i].seed, known[i].span, known[i].t),
                         known[i].group, words);
        ck_assert_uint_eq(words[0].x, known[i].first);
        ck_assert_uint_eq(words[15].x, known[i].last);
    }
}
END_TEST

/* An element's random bits of one moment in one step. */
struct place {
    uint64_t seed, t, element;
    unsigned which;
};

/* Returns the 16 bits that round a number at @place to bf16. */
static uint32_t bits_of(struct place place)
{
    const uint64_t group = place.element / CST_UPDATE_GROUP;
    struct cst_vec_bits words[CST_VEC_GROUP / 2], word;

    cst_random_words(cst_random_key_of(place.seed, group / CST_RANDOM_SPAN_GROUPS, place.t),
                     (uint32_t)(group % CST_RANDOM_SPAN_GROUPS), words);
    word = words[place.element % (CST_UPDATE_GROUP / 2)];
    word = place.which == 0 ? word : cst_random_other(word);
    return place.element % CST_UPDATE_GROUP < CST_UPDATE_GROUP / 2 ? word.x & 0xffffu
                                                                   : word.x >> 16;
}

/* How two places differ: what is added to the first one. */
static const struct place relations[] = {
    {.element = 1},
    {.element = 2},
    {.element = 8},
    {.element = 16},
    {.element = 32},
    {.element = 4096},
    {.t = 1},
    {.t = 1ull << 32},
    {.seed = 1},
    {.seed = 1ull << 32},
    {.which = 1},
    {.element = 16, .which = 1},
    {.element = 4, .which = 1},
    {.element = 1ull << 40},
    {.element = 4096, .t = 1},
};

#define N_RELATIONS ((int)(sizeof relations / sizeof relations[0]))
#define N_CELLS 256

/* Returns by how many standard deviations the counts of @n equally likely cells are too uneven. */
static double unevenness(const uint32_t counts[N_CELLS], double n)
{
    double expected = n / N_CELLS, sum = 0.0;

    for (int i = 0; i < N_CELLS; i++) {
        sum += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    }
    return (sum - (N_CELLS - 1)) / sqrt(2.0 * (N_CELLS - 1));
}

/* The bits of an element are uniform, and independent of those of its neighbours, of the other
 * moment, of other steps and other seeds: all values of four bits of one and four bits of the other
 * are equally likely. The four bits are the highest, the lowest, or one of each. */
START_TEST(test_bits_are_independent)
{
    enum { n = 1 << 16 };
    static const int shifts[3][2] = {{12, 12}, {0, 0}, {12, 0}};
    const struct place relation = relations[_i % N_RELATIONS];
    const int *shift = shifts[_i / N_RELATIONS];
    uint32_t pairs[N_CELLS] = {0}, high[N_CELLS] = {0}, low[N_CELLS] = {0};

    for (uint64_t i = 0; i < n; i++) {
        struct place place = {.seed = hostile_seed(), .t = 1 + i / 16384, .element = i % 16384};
        uint32_t a = bits_of(place), b;

        place.seed += relation.seed;
        place.t += relation.t;
        place.element += relation.element;
        place.which += relation.which;
        b = bits_of(place);
        pairs[(a >> shift[0] & 15) * 16 + (b >> shift[1] & 15)]++;
        high[b >> 8]++;
        low[b & 0xff]++;
    }
    ck_assert_msg(unevenness(pairs, n) < 7, "pairs: %g", unevenness(pairs, n));
    ck_assert_msg(unevenness(high, n) < 7, "upper bits: %g", unevenness(high, n));
    ck_assert_msg(unevenness(low, n) < 7, "lower bits: %g", unevenness(low, n));
}
END_TEST

/* Sums over many roundings. */
struct roundings {
    double excess;   /* Number rounded up, minus the sum of the probabilities. */
    double variance; /* Of that number. */
};

/* Add the rounding of @x to the bf16 number @result. It is rounded up with probability low / 2^16,
 * where low is the 16 bits that are cut off. */
static void count(struct roundings *sums, float x, uint16_t result)
{
    uint32_t bits = truth_bits(x);
    double p = (bits & 0xffffu) / 65536.0;
    uint32_t up = result - (bits >> 16);

    if (up > 1 || (up == 1 && p == 0.0)) { /* Check writes to a pipe for each assertion. */
        ck_abort_msg("%a became %#x", (double)x, result);
    }
    sums->excess += up - p;
    sums->variance += p * (1.0 - p);
}

/* Rounding to bf16 has no bias: exp_avg is the gradient here, and exp_avg_sq its square. The number
 * of roundings up is the expected one over all elements and steps, and of each element over the
 * steps. */
START_TEST(test_rounding_has_no_bias)
{
    enum { n = 2 * 4096, steps = 400 };
    const struct how how = {.optimizer = CST_OPTIMIZER_ADAMW,
                            .moments = CST_MOMENTS_BF16,
                            .rounding = CST_ROUNDING_STOCHASTIC,
                            .wide = true};
    const struct cst_kernels *kernels = hostile_row(_i);
    static struct roundings of[2][n];
    struct cst_update_scalars scalars;
    uint64_t state = hostile_seed();
    struct rows in, out;

    if (kernels == NULL) {
        return;
    }
    allocate(&in, how.moments, n);
    allocate(&out, how.moments, n);
    memset(of, 0, sizeof of);
    cst_update_prepare(&scalars, 0.0, 0.0, 0.0, 1e-8, 0.0, 1.0f, 1);
    for (size_t i = 0; i < n; i++) {
        in.grad_fp32[i] = ldexpf(hostile_unit(&state), -(int)(hostile_next(&state) % 16));
        in.master[i] = 0.0f;
    }
    for (uint64_t t = 1; t <= steps; t++) {
        const struct cst_update_random random = {.seed = hostile_seed(), .t = t, .element = 4096};
        const struct cst_update_rows rows = rows_from(how, &in, &out, 0);

        fn_of(kernels, how)(&scalars, &random, n, &rows, NULL);
        for (size_t i = 0; i < n; i++) {
            float g = in.grad_fp32[i];

            count(&of[0][i], g, ((uint16_t *)out.moments[0].values)[i]);
            count(&of[1][i], g * g, ((uint16_t *)out.moments[1].values)[i]);
        }
    }
    for (int k = 0; k < 2; k++) {
        struct roundings all = {0};
        double squares = 0.0, n_random = 0.0;

        for (size_t i = 0; i < n; i++) {
            all.excess += of[k][i].excess;
            all.variance += of[k][i].variance;
            /* Fewer are too far from a normal distribution. */
            if (of[k][i].variance > 5.0) {
                squares += of[k][i].excess * of[k][i].excess / of[k][i].variance;
                n_random++;
            }
        }
        ck_assert_msg(fabs(all.excess) < 5 * sqrt(all.variance), "%s, moment %d: %g of %g",
                      kernels->isa, k, all.excess, sqrt(all.variance));
        ck_assert_msg(n_random > n / 2 && fabs(squares - n_random) < 7 * sqrt(2 * n_random),
                      "%s, moment %d: %g of %g", kernels->isa, k, squares, n_random);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("random");
    TCase *random = suite_case(suite, "random", NULL, NULL);

    tcase_add_test(random, test_philox);
    tcase_add_test(random, test_known_words);
    tcase_add_loop_test(random, test_bits_are_independent, 0, 3 * N_RELATIONS);
    tcase_add_loop_test(random, test_rounding_has_no_bias, 0, hostile_n_rows());
    return hostile_main(suite);
}
