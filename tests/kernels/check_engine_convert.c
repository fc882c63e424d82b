/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process's conversions of moments: ranges, pieces and places. The bits are
 * those of kernels/math/moments.h, which has its own tests. */
#include "tests/lib/engine_rig.h"

#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "kernels/math/split.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS BIG_ELEMS /* elements of the row: several pieces, whole blocks */
#define VALUES 50       /* segment of fp32 values, as many as the row has */
#define ROWS 51         /* segment of two consecutive rows of moments */

static const struct {
    uint64_t first, n;
} ranges[] = {{0, ELEMS}, {0, 1}, {31, 2}, {5, ELEMS - 10}, {ELEMS - 33, 33}, {64, 0}, {96, 64}};

#define N_RANGES ((int)(sizeof ranges / sizeof ranges[0]))

static float *values;
static uint8_t *rows;

/* Bytes of a row in the longest format. */
static const uint64_t room = ELEMS * sizeof(float);

static void set_up(void)
{
    uint64_t state = 17;
    int fd;

    engine_rig_setup(false);
    fd = engine_proc_memfd(room, (void **)&values);
    engine_proc_must_add(&proc, VALUES, fd, room);
    fd = engine_proc_memfd(2 * room, (void **)&rows);
    engine_proc_must_add(&proc, ROWS, fd, 2 * room);
    for (uint64_t i = 0; i < ELEMS; i++) {
        values[i] = (float)((int64_t)(tiny_random(&state) >> 40) - (1 << 23)) * 0x1p-30f;
    }
}

static struct cst_update_moment row_at(enum cst_moments moments, uint8_t *at)
{
    return (struct cst_update_moment){.values = at,
                                      .exponents = moments == CST_MOMENTS_MX8 ? at + ELEMS : NULL};
}

static struct engine_command code(Engine__CommandKind kind, enum cst_moments moments,
                                  enum cst_row row, int range)
{
    return (struct engine_command){.kind = kind,
                                   .n_src = 1,
                                   .n_dst = 1,
                                   .n_elems = ranges[range].n,
                                   .moments = moments,
                                   .row = row,
                                   .first = ranges[range].first,
                                   .row_elems = ELEMS};
}

/* Fill both rows with moments that are not 0; those of the second row are positive. */
static void fill_rows(enum cst_moments moments)
{
    float *some = malloc(ELEMS * sizeof *some);
    uint64_t state = 5;

    ck_assert_ptr_nonnull(some);
    for (unsigned which = 0; which < 2; which++) {
        struct cst_update_moment row = row_at(moments, rows + which * room);

        for (uint64_t i = 0; i < ELEMS; i++) {
            some[i] = (float)(1 + tiny_random(&state) % 100) * (which == 0 && i % 3 == 0 ? -1 : 1);
        }
        cst_moments_encode(moments, which, 0, ELEMS, some, &row);
    }
    free(some);
}

/* A copy of both rows, which the caller frees. */
static uint8_t *copy_rows(void)
{
    uint8_t *copy = malloc(2 * room);

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, rows, 2 * room);
    return copy;
}

/* Values are encoded into elements of a row, and no byte around them changes, in ranges within
 * blocks and across many pieces. */
START_TEST(test_encode)
{
    for (unsigned m = 0; m < CST_MOMENTS_COUNT; m++) {
        for (unsigned which = 0; which < 2; which++) {
            struct engine_command c = code(ENGINE__COMMAND_KIND__ENCODE, (enum cst_moments)m,
                                           (enum cst_row)(CST_ROW_MOMENT + which), _i);
            struct cst_update_moment row;
            uint8_t *want;

            fill_rows((enum cst_moments)m);
            want = copy_rows();
            row = row_at((enum cst_moments)m, want + which * room);
            cst_moments_encode((enum cst_moments)m, which, ranges[_i].first, ranges[_i].n, values,
                               &row);
            c.src[0] = (struct cst_place){.segment = VALUES};
            c.dst[0] = (struct cst_place){.segment = ROWS, .offset = which * room};
            engine_rig_must(c);
            ck_assert_int_eq(memcmp(rows, want, 2 * room), 0);
            free(want);
        }
    }
}
END_TEST

/* Elements of a row are decoded into values, and nothing else changes. */
START_TEST(test_decode)
{
    float *want = malloc(room);

    ck_assert_ptr_nonnull(want);
    for (unsigned m = 0; m < CST_MOMENTS_COUNT; m++) {
        for (unsigned which = 0; which < 2; which++) {
            struct engine_command c = code(ENGINE__COMMAND_KIND__DECODE, (enum cst_moments)m,
                                           (enum cst_row)(CST_ROW_MOMENT + which), _i);
            struct cst_update_moment row = row_at((enum cst_moments)m, rows + which * room);
            uint8_t *before;

            fill_rows((enum cst_moments)m);
            before = copy_rows();
            memcpy(want, values, room);
            cst_moments_decode((enum cst_moments)m, which, ranges[_i].first, ranges[_i].n, &row,
                               want);
            c.src[0] = (struct cst_place){.segment = ROWS, .offset = which * room};
            c.dst[0] = (struct cst_place){.segment = VALUES};
            engine_rig_must(c);
            ck_assert_int_eq(memcmp(values, want, room), 0);
            ck_assert_int_eq(memcmp(rows, before, 2 * room), 0);
            free(before);
        }
    }
    free(want);
}
END_TEST

/* A write of master weights clears the moments of its range in each format, in one row or two, and
 * does not change other elements. */
START_TEST(test_clear)
{
    for (unsigned m = 0; m < CST_MOMENTS_COUNT; m++) {
        for (unsigned n_moments = 1; n_moments <= 2; n_moments++) {
            struct engine_command c =
                code(ENGINE__COMMAND_KIND__SET_MASTER, (enum cst_moments)m, CST_ROW_WEIGHT, _i);
            uint8_t *want;

            fill_rows((enum cst_moments)m);
            want = copy_rows();
            for (unsigned which = 0; which < n_moments; which++) {
                struct cst_update_moment row = row_at((enum cst_moments)m, want + which * room);

                cst_moments_clear((enum cst_moments)m, which, ranges[_i].first, ranges[_i].n, &row);
            }
            c.clear = true;
            c.src[0] = (struct cst_place){.segment = VALUES};
            c.dst[0] = tiny_job_row(&job, BIG, CST_ROW_MASTER);
            c.dst[1] = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
            c.dst[2] = (struct cst_place){.segment = ROWS};
            c.dst[3] = (struct cst_place){.segment = ROWS, .offset = room};
            c.n_dst = 2 + n_moments;
            engine_rig_must(c);
            ck_assert_int_eq(memcmp(rows, want, 2 * room), 0);
            ck_assert_int_eq(memcmp(engine_rig_at(c.dst[0]), values, c.n_elems * sizeof(float)), 0);
            free(want);
        }
    }
}
END_TEST

/* Master weights are the fp32 values of bf16 elements, and weights are these values rounded, in
 * each of several pieces. All bf16 values are there: only signalling NaNs change, and become quiet.
 */
START_TEST(test_from_bf16)
{
    struct engine_command c =
        code(ENGINE__COMMAND_KIND__SET_MASTER, CST_MOMENTS_MX8, CST_ROW_WEIGHT, _i);
    uint16_t *from = (uint16_t *)(void *)values;
    uint64_t n = ranges[_i].n;
    float *master = malloc((n + 1) * sizeof *master);
    uint16_t *weights = malloc((n + 1) * sizeof *weights);

    ck_assert(master != NULL && weights != NULL);
    for (uint64_t i = 0; i < n; i++) {
        from[i] = (uint16_t)i;
    }
    cst_upcast_ref(n, from, master);
    cst_cast_ref(n, master, weights);
    c.from_bf16 = c.clear = true;
    c.src[0] = (struct cst_place){.segment = VALUES};
    c.dst[0] = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    c.dst[1] = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    c.dst[2] = (struct cst_place){.segment = ROWS};
    c.n_dst = 3;
    engine_rig_must(c);
    ck_assert_int_eq(memcmp(engine_rig_at(c.dst[0]), master, n * sizeof *master), 0);
    ck_assert_int_eq(memcmp(engine_rig_at(c.dst[1]), weights, n * sizeof *weights), 0);
    free(master);
    free(weights);
}
END_TEST

/* Values become remainders and weights, of which a second command makes the values again. Other
 * elements do not change. */
START_TEST(test_split)
{
    struct engine_command c =
        code(ENGINE__COMMAND_KIND__SET_MASTER, CST_MOMENTS_FP32, CST_ROW_WEIGHT, _i);
    int16_t *remainder = engine_rig_at(tiny_job_row(&job, BIG, CST_ROW_MASTER));
    uint16_t *weight = engine_rig_at(tiny_job_row(&job, BIG, CST_ROW_WEIGHT));
    uint64_t n = c.n_elems;
    float *joined = (float *)(void *)rows;

    memset(remainder, 0x5a, (n + 1) * sizeof *remainder);
    memset(weight, 0x5a, (n + 1) * sizeof *weight);
    c.split = c.clear = true;
    c.src[0] = (struct cst_place){.segment = VALUES};
    c.dst[0] = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    c.dst[1] = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    c.dst[2] = (struct cst_place){.segment = ROWS, .offset = room};
    c.n_dst = 3;
    engine_rig_must(c);
    for (uint64_t i = 0; i < n; i++) {
        if (cst_split_join(weight[i], remainder[i]) != values[i]) {
            ck_abort_msg("element %llu", (unsigned long long)i);
        }
    }
    ck_assert(remainder[n] == 0x5a5a && weight[n] == 0x5a5a);
    memset(rows, 0x5a, (n + 1) * sizeof *joined);
    c = code(ENGINE__COMMAND_KIND__JOIN, CST_MOMENTS_FP32, CST_ROW_WEIGHT, _i);
    c.src[0] = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    c.src[1] = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    c.n_src = 2;
    c.dst[0] = (struct cst_place){.segment = ROWS};
    engine_rig_must(c);
    ck_assert_int_eq(memcmp(joined, values, n * sizeof *joined), 0);
    ck_assert_uint_eq(rows[n * sizeof *joined], 0x5a);
}
END_TEST

/* The weights of split masters without remainders are those that belong to remainders, of fp32 and
 * of bf16 values, also in the middle between two weights. */
START_TEST(test_split_weights)
{
    struct engine_command c =
        code(ENGINE__COMMAND_KIND__SET_MASTER, CST_MOMENTS_FP32, CST_ROW_WEIGHT, _i / 2);
    const uint16_t *want = engine_rig_at(tiny_job_row(&job, BIG, CST_ROW_WEIGHT));
    uint16_t *got = (uint16_t *)(void *)rows;
    uint64_t n = c.n_elems;

    for (uint64_t i = 0; i < n; i += 3) {
        const uint32_t tie = 0x3f808000u + ((uint32_t)i << 16 & 0x7f0000u);

        memcpy(&values[i], &tie, sizeof tie);
    }
    c.split = c.clear = true;
    c.from_bf16 = _i % 2 == 1;
    c.src[0] = (struct cst_place){.segment = VALUES};
    c.dst[0] = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    c.dst[1] = tiny_job_row(&job, BIG, CST_ROW_WEIGHT);
    c.n_dst = 2;
    engine_rig_must(c);
    memset(rows, 0x5a, (n + 1) * sizeof *got);
    c.kind = ENGINE__COMMAND_KIND__ROUND;
    c.clear = false;
    c.dst[0] = (struct cst_place){.segment = ROWS};
    c.n_dst = 1;
    engine_rig_must(c);
    ck_assert_mem_eq(got, want, n * sizeof *got);
    ck_assert_uint_eq(got[n], 0x5a5a);
}
END_TEST

/* Invalid conversions are refused with a message, and nothing is written. */
START_TEST(test_lies)
{
    struct engine_command good =
        code(ENGINE__COMMAND_KIND__ENCODE, CST_MOMENTS_MX8, CST_ROW_MOMENT, 3);
    struct engine_command lies[16];
    uint8_t *before;

    good.src[0] = (struct cst_place){.segment = VALUES};
    good.dst[0] = (struct cst_place){.segment = ROWS};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        lies[i] = good;
    }
    lies[0].fp32 = true;
    lies[1].moments = CST_MOMENTS_COUNT;
    lies[2].row = CST_ROW_MASTER;
    lies[3].first = 11;
    lies[4].row_elems = ELEMS - 16;
    lies[5].row_elems = UINT64_MAX - 31;
    lies[6].first = UINT64_MAX;
    lies[7].dst[0].offset = 2 * room - ELEMS;
    lies[8].src[0] = lies[8].dst[0];
    lies[9].dst[1] = lies[9].dst[0];
    lies[9].n_dst = 2;
    lies[10].moments = CST_MOMENTS_BF16;
    lies[10].dst[0].offset = 1;
    lies[11].from_bf16 = true;
    lies[12].n_src = 2;
    lies[12].src[1] = lies[12].src[0];
    lies[13].kind = ENGINE__COMMAND_KIND__JOIN; /* Without remainders. */
    lies[14] = lies[13];                        /* Remainders outside of their segment. */
    lies[14].n_src = 2;
    lies[14].src[1] = (struct cst_place){.segment = VALUES, .offset = room};
    lies[15] = lies[14]; /* Remainders that are overwritten. */
    lies[15].src[1] = lies[15].dst[0];
    fill_rows(CST_MOMENTS_MX8);
    before = copy_rows();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct engine_completion c = engine_rig_run(lies[i]);

        ck_assert_msg(c.status == CST_EINVAL, "lie %zu: %d: %s", i, c.status, c.text);
        ck_assert_uint_gt(strlen(c.text), 0);
    }
    ck_assert_int_eq(memcmp(rows, before, 2 * room), 0);
    engine_rig_must(good);
    free(before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_convert");
    TCase *tcase = suite_case(suite, "convert", set_up, engine_rig_teardown);

    suite_add_loop(tcase, test_encode, 0, N_RANGES);
    suite_add_loop(tcase, test_decode, 0, N_RANGES);
    suite_add_loop(tcase, test_clear, 0, N_RANGES);
    suite_add_loop(tcase, test_from_bf16, 0, N_RANGES);
    suite_add_loop(tcase, test_split, 0, N_RANGES);
    suite_add_loop(tcase, test_split_weights, 0, 2 * N_RANGES);
    tcase_add_test(tcase, test_lies);
    return suite_run(suite);
}
