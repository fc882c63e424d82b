/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/layout/buffers: the division of a reservation's memory. */
#include "offload/layout/buffers.h"
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

/* Elements of the largest chunk that fits a buffer. */
static uint64_t max_elems(const struct cst_buffers *b, const struct cst_layout *layout)
{
    uint64_t most = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        if (cst_buffers_hold(b, &layout->chunks[c]) && layout->chunks[c].n_elems > most) {
            most = layout->chunks[c].n_elems;
        }
    }
    return most;
}

/* A reservation has three buffers, and keeps gradients in the rest. It has two buffers or one if
 * three do not fit. */
START_TEST(depth)
{
    struct cst_layout layout = {.n_classes = 1, .classes = {{.capacity = 8192}}};
    struct cst_layout_chunk chunks[] = {{.n_elems = 4096}, {.n_elems = 8192}};
    struct cst_buffers b;
    uint64_t one = 28ull * 8192;

    divide(&b, &layout, chunks, 2, 3 * one + 5 * 16384 / 2);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.bytes, one);
    ck_assert_uint_eq(max_elems(&b, &layout), 8192);
    ck_assert_uint_eq(b.n_kept, 2);
    ck_assert_uint_eq(b.kept_first, 3 * one);
    divide(&b, &layout, chunks, 2, 3 * one - 1);
    ck_assert_uint_eq(b.n, 2);
    divide(&b, &layout, chunks, 2, 2 * one - 1); /* 3 x 4096 elements, or 1 x (4096 + 8192) */
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(max_elems(&b, &layout), 4096);
    divide(&b, &layout, chunks, 2, 3 * one / 2 - 1);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(max_elems(&b, &layout), 8192);
    divide(&b, &layout, chunks, 2, one - 1);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(max_elems(&b, &layout), 4096);
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
    ck_assert_uint_eq(max_elems(&b, &layout), 8000);
    ck_assert_uint_ge(cst_buffers_want(&layout, 1), 3 * 28ull * 8000);
    divide(&b, &layout, chunks, 21, cst_buffers_want(&layout, 1));
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(max_elems(&b, &layout), 8000);
    ck_assert_uint_eq(cst_buffers_want(&layout, 0), 0);
    ck_assert_uint_eq(cst_buffers_want(&layout, 2), 84ull * 32768);
    divide(&b, &layout, chunks, 21, 84ull * 32768);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(max_elems(&b, &layout), 32768);
    divide(&b, &layout, chunks, 21, 29 * 8192);
    ck_assert_uint_eq(b.n, 1);
    ck_assert_uint_eq(max_elems(&b, &layout), 8000);
}
END_TEST

/* Two buffers that hold all chunks are better than three that hold half of the chunks, because the
 * other half would never be updated in the reservation. The reservation has 20 MiB for 10 chunks of
 * 200 000 elements and 12 of 340 000. */
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
    ck_assert_uint_eq(max_elems(&b, &layout), 340000);
}
END_TEST

/* Fail unless the rows of a buffer have space for those of @chunk, begin at page boundaries, and do
 * not overlap. */
static void check_rows(const struct cst_buffers *b, const struct cst_layout *layout,
                       const struct cst_layout_chunk *chunk)
{
    for (int r = 0; r < CST_ROW_COUNT; r++) {
        uint64_t bytes = r == CST_ROW_GRAD ? cst_dtype_bytes(chunk->dtype) * chunk->n_elems
                                           : cst_layout_row_bytes(&layout->states, 2, chunk->dtype,
                                                                  r, chunk->n_elems);
        uint64_t in_end = r + 1 < CST_ROW_COUNT ? b->in[r + 1] : b->out[0];
        uint64_t out_end = r + 1 < CST_ROW_COUNT ? b->out[r + 1] : b->bytes;
        bool is_read = r != CST_ROW_WEIGHT || chunk->dtype == CST_FP32;

        ck_assert_uint_eq(b->in[r] % 4096 + b->out[r] % 4096, 0);
        ck_assert(!is_read || b->in[r] + bytes <= in_end);
        ck_assert(r == CST_ROW_GRAD || b->out[r] + bytes <= out_end);
    }
    ck_assert_uint_ge(b->kept_bytes, cst_dtype_bytes(chunk->dtype) * chunk->n_elems);
}

/* The rows of a buffer have the bytes of their formats, also for fp32 tensors. */
START_TEST(formats)
{
    struct cst_layout layout = {.n_classes = 1, .classes = {{.capacity = 8192}}};
    struct cst_layout_chunk bf16 = {.n_elems = 4160}, fp32 = {.n_elems = 2112, .dtype = CST_FP32};
    struct cst_layout_chunk chunks[] = {bf16, fp32};
    struct cst_buffers b;

    layout.states.moments = (enum cst_moments)_i;
    divide(&b, &layout, &bf16, 1, 1 << 20);
    check_rows(&b, &layout, &bf16);
    ck_assert_uint_eq(b.in[CST_ROW_WEIGHT], b.in[CST_ROW_WEIGHT + 1]);
    divide(&b, &layout, &fp32, 1, 1 << 20);
    check_rows(&b, &layout, &fp32);
    ck_assert_uint_eq(b.in[CST_ROW_MASTER], b.in[CST_ROW_MASTER + 1]);
    divide(&b, &layout, chunks, 2, 1 << 20);
    ck_assert(cst_buffers_hold(&b, &bf16) && cst_buffers_hold(&b, &fp32));
    check_rows(&b, &layout, &bf16);
    check_rows(&b, &layout, &fp32);
}
END_TEST

/* A buffer that is too small for the larger chunk of one type still holds the smaller one of the
 * other type. */
START_TEST(mixed)
{
    struct cst_layout layout = {.n_classes = 1, .classes = {{.capacity = 8192}}};
    struct cst_layout_chunk chunks[] = {{.n_elems = 8192}, {.n_elems = 2048, .dtype = CST_FP32}};
    struct cst_buffers b;

    /* 28 bytes per element, and the weights of the fp32 tensors that are read. */
    uint64_t one = 28ull * 8192 + 4ull * 2048, small = 28ull * 2048;

    divide(&b, &layout, chunks, 2, 3 * one);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.bytes, one);
    ck_assert_uint_eq(max_elems(&b, &layout), 8192);
    divide(&b, &layout, chunks, 2, one - 1);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(max_elems(&b, &layout), 2048);
    ck_assert_uint_eq(b.bytes, small);
    ck_assert_uint_eq(cst_buffers_least(&layout), small);
    ck_assert_uint_eq(cst_buffers_want(&layout, layout.n_classes), 3 * one);
}
END_TEST

/* With chunks that Muon updates, a buffer has the rows of the largest chunk of each kind and a
 * scratch after them. A buffer for smaller chunks, none of which are Muon's, has no scratch. */
START_TEST(scratch)
{
    struct cst_layout layout = {.n_classes = 1,
                                .classes = {{.capacity = 8192}},
                                .states.optimizer = CST_OPTIMIZER_MUON,
                                .scratch_bytes = 40960};
    struct cst_layout_chunk chunks[] = {{.n_elems = 4096}, {.n_elems = 8192, .muon = true}};
    struct cst_buffers b;
    /* Muon: 2 + 4 + 4 bytes are read of an element, 2 + 4 + 4 written. AdamW: 4 more of each. */
    uint64_t both = 20ull * 8192 + 8ull * 4096 + 40960, adamw = 28ull * 4096;

    divide(&b, &layout, chunks, 2, 3 * both);
    ck_assert_uint_eq(b.n, 3);
    ck_assert_uint_eq(b.bytes, both);
    ck_assert_uint_eq(b.scratch, both - 40960);
    ck_assert(cst_buffers_hold(&b, &chunks[0]) && cst_buffers_hold(&b, &chunks[1]));
    divide(&b, &layout, chunks, 2, both - 1);
    ck_assert_uint_eq(b.bytes, adamw);
    ck_assert(cst_buffers_hold(&b, &chunks[0]) && !cst_buffers_hold(&b, &chunks[1]));
}
END_TEST

/* Buffers made of blocks have no scratch. Chunks that Muon updates do not fit, and none of their
 * rows takes blocks. */
START_TEST(blocks)
{
    struct cst_layout_chunk chunks[] = {{.n_elems = 8192, .muon = true}, {.n_elems = 8192}};
    struct cst_layout layout = {.n_classes = 1,
                                .classes = {{.capacity = 8192}},
                                .states.optimizer = CST_OPTIMIZER_MUON,
                                .grad_bytes = 2,
                                .chunks = chunks,
                                .n_chunks = 1,
                                .scratch_bytes = 40960};
    struct cst_buffers b;

    cst_buffers_of_blocks(&b, &layout, 16384);
    ck_assert_uint_eq(b.bytes, 0);
    layout.n_chunks = 2;
    cst_buffers_of_blocks(&b, &layout, 16384);
    b.n = 1;
    /* Six rows of fp32 take two blocks each; gradient and weights one. */
    ck_assert_uint_eq(b.bytes, 14 * 16384);
    ck_assert(!cst_buffers_hold(&b, &chunks[0]) && cst_buffers_hold(&b, &chunks[1]));
}
END_TEST

/* The states of a large chunk stay in memory if buffers of its size, for each drive, take more than
 * they do: not if it is a little larger than the others, and not if the job is durable. If drives
 * save nothing at all, all states go there. */
START_TEST(drives)
{
    struct cst_layout layout = {.n_classes = 2,
                                .classes = {{.capacity = 8192}, {.capacity = 81920}}};
    struct cst_layout_chunk chunks[41] = {{.n_elems = 81920, .size_class = 1}};
    const uint64_t all = 40 * 12ull * 8192, small = 3 * 28ull * 8192;
    struct cst_buffers_drives b;
    struct cst_buffers unused;

    for (int i = 1; i <= 40; i++) {
        chunks[i] = (struct cst_layout_chunk){.n_elems = 8192, .base_chunk = CST_LAYOUT_OWN};
    }
    chunks[0].base_chunk = CST_LAYOUT_OWN;
    divide(&unused, &layout, chunks, 41, small);
    cst_buffers_drives(&b, &layout, 1, CST_LAYOUT_ALL);
    ck_assert_uint_eq(b.bytes, small);
    ck_assert_uint_eq(b.fit_bytes, all);
    ck_assert_uint_eq(b.stay_bytes, 12ull * 81920);
    ck_assert_uint_eq(b.n_stay, 1);
    layout.states.durable = true;
    cst_buffers_drives(&b, &layout, 1, CST_LAYOUT_ALL);
    ck_assert_uint_eq(b.bytes, 10 * small);
    ck_assert_uint_eq(b.n_stay, 0);
    layout.states.durable = false;
    chunks[0].n_elems = layout.classes[1].capacity = 9216; /* 3 x 28 x 1024 bytes, or 12 x 9216. */
    cst_buffers_drives(&b, &layout, 1, CST_LAYOUT_ALL);
    ck_assert_uint_eq(b.n_stay, 0);
    cst_buffers_drives(&b, &layout, 2, CST_LAYOUT_ALL); /* Both drives have buffers. */
    ck_assert_uint_eq(b.n_stay, 1);
    cst_buffers_drives(&b, &layout, 2, small / 2); /* Less than the buffers. */
    ck_assert_uint_eq(b.n_stay, 0);
    ck_assert_uint_eq(b.bytes, cst_buffers_want(&layout, 2));
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
    tcase_add_test(tc, mixed);
    tcase_add_test(tc, scratch);
    tcase_add_test(tc, blocks);
    tcase_add_test(tc, drives);
    return suite_run(suite);
}
