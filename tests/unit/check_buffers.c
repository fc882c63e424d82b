/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/update/buffers: the division of a room's memory. */
#include "offload/update/buffers.h"
#include "tests/lib/suite.h"

#include <check.h>

static void divide(struct cst_buffers *b, struct cst_layout *layout,
                   struct cst_layout_chunk *chunks, uint32_t n, uint64_t bytes)
{
    layout->chunks = chunks;
    layout->n_chunks = n;
    layout->grad_bytes = 2;
    cst_buffers_divide(b, layout, bytes);
}

/* A room has three buffers, and keeps gradients in the rest. It has two buffers or one if three do
 * not fit. */
START_TEST(depth)
{
    struct cst_layout layout = {.n_classes = 1, .classes = {{.capacity = 8192}}};
    struct cst_layout_chunk chunks[] = {{.n_elems = 4096}, {.n_elems = 8192}};
    struct cst_buffers b;
    uint64_t one = 28ull * 8192;

    divide(&b, &layout, chunks, 2, 3 * one + 5 * 16384 / 2);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.bytes, one);
    ck_assert_uint_eq(b.max_elems, 8192);
    ck_assert_uint_eq(b.n_kept, 2);
    ck_assert_uint_eq(b.kept_first, 3 * one);
    divide(&b, &layout, chunks, 2, 3 * one - 1);
    ck_assert_uint_eq(b.n, 2);
    divide(&b, &layout, chunks, 2, 2 * one - 1); /* 3 x 4096 elements, or 1 x (4096 + 8192) */
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.max_elems, 4096);
    divide(&b, &layout, chunks, 2, 3 * one / 2 - 1);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(b.max_elems, 8192);
    divide(&b, &layout, chunks, 2, one - 1);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(b.max_elems, 4096);
    divide(&b, &layout, chunks, 2, one / 2 - 1);
    ck_assert_uint_eq(b.n, 0);
    ck_assert_uint_eq(cst_buffers_want(&layout, layout.n_classes), 3 * one);
}
END_TEST

/* Three buffers that hold almost all elements are better than one buffer that also holds an
 * outlier. */
START_TEST(outlier)
{
    struct cst_layout layout = {.n_classes = 2,
                                .classes = {{.capacity = 8192}, {.capacity = 32768}}};
    struct cst_layout_chunk chunks[21];
    struct cst_buffers b;

    for (uint32_t c = 0; c < 20; c++) {
        chunks[c] = (struct cst_layout_chunk){.n_elems = 8000};
    }
    chunks[20] = (struct cst_layout_chunk){.n_elems = 32768, .size_class = 1};
    divide(&b, &layout, chunks, 21, 28ull * 32768);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.max_elems, 8000);
    ck_assert_uint_ge(cst_buffers_want(&layout, 1), 3 * 28ull * 8000);
    divide(&b, &layout, chunks, 21, cst_buffers_want(&layout, 1));
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.max_elems, 8000);
    ck_assert_uint_eq(cst_buffers_want(&layout, 0), 0);
    ck_assert_uint_eq(cst_buffers_want(&layout, 2), 84ull * 32768);
    divide(&b, &layout, chunks, 21, 84ull * 32768);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.max_elems, 32768);
    divide(&b, &layout, chunks, 21, 29 * 8192);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(b.max_elems, 8000);
}
END_TEST

/* Two buffers that hold all chunks are better than three that hold half of the chunks, because the
 * other half would never be updated in the room. The room has 20 MiB for 10 chunks of 200 000
 * elements and 12 of 340 000. */
START_TEST(two_for_all)
{
    struct cst_layout layout = {.n_classes = 2,
                                .classes = {{.capacity = 200000}, {.capacity = 340000}}};
    struct cst_layout_chunk chunks[22];
    struct cst_buffers b;

    for (uint32_t c = 0; c < 22; c++) {
        chunks[c] =
            (struct cst_layout_chunk){.n_elems = c < 10 ? 200000 : 340000, .size_class = c >= 10};
    }
    divide(&b, &layout, chunks, 22, 20 << 20);
    ck_assert_uint_eq(b.n, 2);
    ck_assert_uint_eq(b.max_elems, 340000);
}
END_TEST

/* The rows of a buffer have the bytes of their formats, begin at page boundaries, and do not
 * overlap. */
START_TEST(formats)
{
    struct cst_layout layout = {.n_classes = 1, .classes = {{.capacity = 8192}}};
    struct cst_layout_chunk chunks[] = {{.n_elems = 4160}};
    struct cst_buffers b;

    layout.states.moments = (enum cst_moments)_i;
    divide(&b, &layout, chunks, 1, 1 << 20);
    for (int r = 0; r < CST_ROW_COUNT; r++) {
        uint64_t bytes =
            r == CST_ROW_GRAD ? 2 * 4160 : cst_layout_row_bytes(&layout.states, 2, r, 4160);
        uint64_t in_end = r + 1 < CST_ROW_COUNT ? b.in[r + 1] : b.out[0];
        uint64_t out_end = r + 1 < CST_ROW_COUNT ? b.out[r + 1] : b.bytes;

        ck_assert_uint_eq(b.in[r] % 4096 + b.out[r] % 4096, 0);
        ck_assert(r == CST_ROW_WEIGHT || b.in[r] + bytes <= in_end);
        ck_assert(r == CST_ROW_GRAD || b.out[r] + bytes <= out_end);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("buffers");
    TCase *tc = suite_case(suite, "divide", NULL, NULL);

    tcase_add_test(tc, depth);
    tcase_add_test(tc, outlier);
    tcase_add_test(tc, two_for_all);
    tcase_add_loop_test(tc, formats, 0, CST_MOMENTS_COUNT);
    return suite_run(suite);
}
