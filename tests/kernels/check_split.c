/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/split.h"
#include "kernels/math/update_undo.h"
#include "tests/kernels/update_rows.h"

/* Weights and remainders of master weights. */
struct split {
    uint16_t *weight;
    int16_t *remainder;
};

static struct split split_open(size_t n)
{
    return (struct split){.weight = hostile_buffer(n * sizeof(uint16_t)),
                          .remainder = hostile_buffer(n * sizeof(int16_t))};
}

static void split_all(const struct split *split, const struct rows *rows)
{
    for (size_t i = 0; i < rows->n; i++) {
        cst_split_cut(rows->master[i], &split->weight[i], &split->remainder[i]);
    }
}

static void check_one(uint32_t bits)
{
    float master = hostile_from_bits(bits), back, error;
    uint16_t weight;
    int16_t remainder;

    cst_split_cut(master, &weight, &remainder);
    back = cst_split_join(weight, remainder);
    if (truth_bits(back) != (isnan(master) ? CST_UPDATE_NAN : bits)) {
        ck_abort_msg("0x%08x comes back as 0x%08x", bits, truth_bits(back));
    }
    if ((bits & 0xffffu) == 0x8000u && isfinite(master)) {
        /* A tie: the number that is further from zero. */
        error = (float)(weight & 0x7fffu) - (float)(bits >> 16 & 0x7fffu);
        ck_assert(error == 1.0f && (weight & 0x8000u) == (bits >> 16 & 0x8000u));
    } else if (!isnan(master) && weight != cst_fp32_to_bf16(master)) {
        ck_abort_msg("the weight of 0x%08x is 0x%04x", bits, weight);
    }
}

/* The parts give the master weight back, and the weight is the nearest one: of all exponents and
 * signs with special fractions, and of random bits. */
START_TEST(test_parts)
{
    static const uint32_t lower[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xfffe, 0xffff};
    uint64_t state = hostile_seed();

    for (uint32_t upper = 0; upper < 0x10000; upper++) {
        for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++) {
            check_one(upper << 16 | lower[i]);
        }
    }
    for (int i = 0; i < 1000000; i++) {
        check_one((uint32_t)hostile_next(&state));
    }
}
END_TEST

static struct cst_update_rows split_rows(struct how how, const struct rows *rows,
                                         const struct split *in, const struct split *out,
                                         size_t first)
{
    struct cst_update_rows given = rows_from(how, rows, rows, first);

    given.master_in = given.master = NULL;
    given.weight_in = in->weight + first;
    given.remainder_in = in->remainder + first;
    given.remainder = out->remainder + first;
    given.weight = out->weight + first;
    return given;
}

static void assert_parts(const struct split *got, const struct rows *want, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++) {
        uint16_t weight;
        int16_t remainder;

        cst_split_cut(want->master[i], &weight, &remainder);
        if (got->weight[i] != weight || got->remainder[i] != remainder) {
            ck_abort_msg("element %zu is 0x%04x and %d, not 0x%04x and %d", i, got->weight[i],
                         got->remainder[i], weight, remainder);
        }
    }
}

/* Every variant gives split masters the bits of whole ones, with each optimizer, format, rounding
 * and type of gradient, in any length, in place, with the weights in another row, and with an undo
 * slot. Other elements do not change. */
START_TEST(test_same_masters)
{
    const struct cst_kernels *kernels = hostile_row(_i / N_HOWS);
    const struct how how = how_of(_i % N_HOWS);
    uint64_t state = hostile_seed() + (uint64_t)_i;
    const size_t total = 320;
    struct rows got, want;
    struct split in = split_open(total), other = split_open(total);

    if (kernels == NULL) {
        return;
    }
    allocate(&got, how.moments, total);
    allocate(&want, how.moments, total);
    for (int round = 0; round < 100; round++) {
        struct cst_update_scalars scalars =
            round % 4 == 0 ? hostile_scalars(&state) : ordinary_scalars(1 + (uint64_t)round);
        struct cst_update_random random = {
            .seed = hostile_next(&state), .t = 1 + (uint64_t)round, .element = 32};
        size_t first = hostile_next(&state) % 4 * 32;
        size_t n = hostile_next(&state) % (total - first + 1);
        bool elsewhere = round % 2 == 1;
        struct cst_update_undo undo = {.base = 0};
        struct split out = {elsewhere ? other.weight : in.weight, in.remainder};
        struct cst_update_rows rows;

        if (round % 3 == 0) {
            fill_hostile(&got, &state);
        } else {
            fill_ordinary(&got, &state);
        }
        copy_rows(&want, &got);
        split_all(&in, &got);
        memset(other.weight, 0x5a, total * sizeof *other.weight);
        rows = split_rows(how, &got, &in, &out, first);
        fn_of(kernels, how)(&scalars, &random, n, &rows, round % 5 == 0 ? &undo : NULL);
        truth_update(how, &scalars, &random, &want, first, n);
        assert_parts(&out, &want, first, n);
        if (!elsewhere) {
            assert_parts(&out, &want, 0, total);
        } else {
            assert_parts(&in, &want, 0, first);
            assert_parts(&in, &want, first + n, total - first - n);
            ck_assert(first == 0 || other.weight[first - 1] == 0x5a5a);
            ck_assert(first + n == total || other.weight[first + n] == 0x5a5a);
        }
        memcpy(got.master, want.master, total * sizeof *got.master); /* Not used by the update. */
        memcpy(got.weight, want.weight, total * sizeof *got.weight);
        assert_same(&got, &want);
    }
}
END_TEST

/* The undo slot holds the last group's old parts. */
START_TEST(test_undo_holds_the_parts)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    const struct how how = {.optimizer = CST_OPTIMIZER_ADAMW};
    const struct cst_update_scalars scalars = ordinary_scalars(3);
    uint64_t state = hostile_seed();
    const size_t total = 224;
    struct split split = split_open(total), before = split_open(total);
    struct rows rows;

    if (kernels == NULL) {
        return;
    }
    allocate(&rows, how.moments, total);
    for (size_t n = 1; n <= total; n++) {
        struct cst_update_undo undo = {.base = 0};
        struct cst_update_rows given = split_rows(how, &rows, &split, &split, 0);
        const struct cst_update_old *old;
        uint32_t first, last;

        fill_ordinary(&rows, &state);
        split_all(&split, &rows);
        split_all(&before, &rows);
        fn_of(kernels, how)(&scalars, NULL, n, &given, &undo);
        first = cst_update_undo_first(undo.held);
        last = cst_update_undo_n(undo.held);
        old = &undo.old[cst_update_undo_buffer(undo.held)];
        ck_assert_uint_eq(first + last, n);
        ck_assert_mem_eq(old->split.weight, before.weight + first, last * sizeof *before.weight);
        ck_assert_mem_eq(old->split.remainder, before.remainder + first,
                         last * sizeof *before.remainder);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("split");
    TCase *tcase = suite_case(suite, "split", NULL, NULL);

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_parts);
    tcase_add_loop_test(tcase, test_same_masters, 0, N_HOWS * (int)hostile_n_rows());
    tcase_add_loop_test(tcase, test_undo_holds_the_parts, 0, (int)hostile_n_rows());
    return hostile_main(suite);
}
