/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the layout of jobs with Muon: which tensors it updates, their rows, and its scratch. */
#include "offload/layout/layout.h"
#include "offload/layout/matrices.h"
#include "proto/muon.h"
#include "tests/lib/suite.h"
#include "tests/unit/layout_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static struct cst_model model;
static struct cst_layout layout;
static struct cst_layout_config config;
static struct cst_err err;

static void setup(void)
{
    cst_model_init(&model);
    memset(&layout, 0, sizeof layout);
    config = (struct cst_layout_config){
        .n_nodes = 1, .world = 1, .states.optimizer = CST_OPTIMIZER_MUON};
}

static void teardown(void)
{
    cst_layout_close(&layout);
    cst_model_close(&model);
}

static int declare(const struct cst_tensor_words *given, uint32_t n_dims, const int64_t *shape)
{
    struct cst_tensor_words words = *given;
    char name[32];

    (void)snprintf(name, sizeof name, "t%u", model.n_tensors);
    words.name = name;
    words.shape = shape;
    words.n_dims = n_dims;
    words.lr_scale = 1;
    words.decay_scale = 1;
    return cst_model_tensor(&model, &words, &err);
}

/* Declare a tensor of this shape, which an operator of its own uses. */
static uint32_t tensor(enum cst_tensor_update update, uint32_t n_dims, const int64_t *shape)
{
    uint32_t t = model.n_tensors;
    char name[32];

    ck_assert_msg(declare(&(struct cst_tensor_words){.update = update}, n_dims, shape) == CST_OK,
                  "%s", err.text);
    (void)snprintf(name, sizeof name, "op%u", t);
    ck_assert_int_eq(cst_model_operator(&model, name, &t, 1, NULL, &err), CST_OK);
    return t;
}

static uint32_t matrix(int64_t rows, int64_t columns)
{
    return tensor(CST_TENSOR_UPDATE_AUTO, 2, (int64_t[]){rows, columns});
}

/* Declare a tensor of the first or last operator, which AdamW updates. */
static void end(void)
{
    matrix(8, 8);
}

static void build(void)
{
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
    rig_check_layout(&layout, &model, &config);
}

static bool has_second(uint32_t tensor)
{
    const struct cst_layout_chunk *chunk = &layout.chunks[model.tensors[tensor].chunk];

    return chunk->rows[CST_ROW_MOMENT + 1].segment != CST_LAYOUT_NO_ROW;
}

static void check_choice(uint32_t tensor, bool muon)
{
    const struct cst_layout_chunk *chunk = &layout.chunks[model.tensors[tensor].chunk];

    ck_assert_msg(chunk->muon == muon, "tensor %u", tensor);
    ck_assert_msg(has_second(tensor) == !muon, "tensor %u", tensor);
}

/* Matrices and stacks of matrices are updated by Muon, but not those of the first and the last
 * operator, and not vectors, single rows or columns, and tensors of four dimensions. */
START_TEST(automatic_choice)
{
    static const struct {
        uint32_t n_dims;
        int64_t shape[4];
        bool muon;
    } cases[] = {
        {2, {64, 32}, false}, /* The first operator. */
        {2, {64, 32}, true},     {2, {2, 2}, true},        {3, {4, 16, 8}, true},
        {1, {64}, false},        {2, {1, 64}, false},      {2, {64, 1}, false},
        {3, {64, 1, 16}, false}, {4, {2, 2, 4, 4}, false}, {2, {64, 32}, true},
        {2, {64, 32}, false}, /* The last operator. */
    };
    const uint32_t n = sizeof cases / sizeof *cases;

    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(tensor(CST_TENSOR_UPDATE_AUTO, cases[i].n_dims, cases[i].shape), i);
    }
    build();
    for (uint32_t i = 0; i < n; i++) {
        check_choice(i, cases[i].muon);
    }
}
END_TEST

/* All matrices that the first or the last operator uses are not hidden, even if others use them,
 * too. */
START_TEST(shared_ends)
{
    matrix(8, 8);
    matrix(16, 16);
    matrix(16, 16);
    ck_assert_int_eq(cst_model_operator(&model, "last", (uint32_t[]){0, 1}, 2, NULL, &err), CST_OK);
    build();
    check_choice(0, false);
    check_choice(1, false);
    check_choice(2, true);
}
END_TEST

/* A declared update is used whatever the shape and the operator are. Other optimizers ignore it. */
START_TEST(declared_choice)
{
    uint32_t first = tensor(CST_TENSOR_UPDATE_MUON, 2, (int64_t[]){64, 32});
    uint32_t row = tensor(CST_TENSOR_UPDATE_MUON, 2, (int64_t[]){1, 32});
    uint32_t hidden = tensor(CST_TENSOR_UPDATE_ADAMW, 2, (int64_t[]){32, 32});

    end();
    build();
    check_choice(first, true);
    check_choice(row, true);
    check_choice(hidden, false);
    cst_layout_close(&layout);
    config.states.optimizer = CST_OPTIMIZER_ADAMW;
    build();
    for (uint32_t t = first; t <= hidden; t++) {
        check_choice(t, false);
    }
}
END_TEST

/* Matrices in bf16 and in fp32, and vectors in both types, do not share chunks. Muon updates the
 * matrices of both types. An fp32 matrix has no row of master weights. */
START_TEST(both_types)
{
    static const int64_t shapes[][2] = {{64, 32}, {64, 1}};
    uint32_t t[4];

    end();
    for (uint32_t i = 0; i < 4; i++) {
        const struct cst_tensor_words words = {.dtype = i % 2 == 0 ? CST_BF16 : CST_FP32};

        t[i] = model.n_tensors;
        ck_assert_int_eq(declare(&words, i < 2 ? 2 : 1, shapes[i / 2]), CST_OK);
    }
    ck_assert_int_eq(cst_model_operator(&model, "hidden", t, 4, NULL, &err), CST_OK);
    end();
    build();
    for (uint32_t i = 0; i < 4; i++) {
        const struct cst_layout_chunk *chunk = &layout.chunks[model.tensors[t[i]].chunk];

        check_choice(t[i], i < 2);
        ck_assert_int_eq((int)chunk->dtype, i % 2 == 0 ? CST_BF16 : CST_FP32);
        ck_assert((chunk->rows[CST_ROW_MASTER].segment == CST_LAYOUT_NO_ROW) == (i % 2 == 1));
        for (uint32_t k = 0; k < i; k++) {
            ck_assert_uint_ne(model.tensors[t[i]].chunk, model.tensors[t[k]].chunk);
        }
    }
}
END_TEST

/* Frozen matrices have no update. */
START_TEST(frozen)
{
    end();
    ck_assert_int_eq(
        declare(&(struct cst_tensor_words){.pattern = CST_PATTERN_FROZEN}, 2, (int64_t[]){32, 32}),
        CST_OK);
    end();
    build();
    ck_assert(!layout.chunks[model.tensors[1].chunk].muon);
    ck_assert_ptr_null(layout.scratches);
}
END_TEST

/* What Muon cannot update is refused in words: a vector that is declared for it, an unknown update,
 * and a part of a matrix. A part can be given to AdamW. */
START_TEST(refusals)
{
    int64_t whole[] = {32, 64}, first[] = {0, 32}, shape[] = {32, 32};
    struct cst_tensor_words part = {.pattern = CST_PATTERN_TENSOR, .whole = whole, .first = first};

    ck_assert_int_eq(
        declare(&(struct cst_tensor_words){.update = CST_TENSOR_UPDATE_MUON}, 1, shape),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "has 1 dimensions"));
    ck_assert_int_eq(
        declare(&(struct cst_tensor_words){.update = CST_TENSOR_UPDATE_COUNT}, 2, shape),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "update 3 is unknown"));
    ck_assert_int_eq(declare(&part, 2, shape), CST_OK);
    ck_assert_int_eq(cst_layout_build(&layout, &model, &config, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "32 of 64 elements in dimension 1"));
    model.tensors[0].update = CST_TENSOR_UPDATE_ADAMW;
    build();
    check_choice(0, false);
}
END_TEST

/* Bytes of a tensor of @n matrices of @rows and @columns: two arrays of values, and per matrix two
 * Gram matrices, all in multiples of 64, and @n_sums sums in one line of 64 bytes or more. */
static uint64_t bytes_of(uint64_t n, uint64_t rows, uint64_t columns, uint64_t n_sums)
{
    uint64_t side = rows < columns ? rows : columns;

    return 2 * ((2 * n * rows * columns + 63) / 64 * 64) +
           n * 2 * ((2 * side * side + 63) / 64 * 64) + (8 * n * n_sums + 63) / 64 * 64;
}

/* The scratch holds all tensors of the fullest chunk of its node. */
START_TEST(scratch_of_a_chunk)
{
    uint64_t bytes = bytes_of(1, 32, 48, 1) + bytes_of(3, 20, 10, 1);

    end();
    matrix(32, 48);
    tensor(CST_TENSOR_UPDATE_AUTO, 3, (int64_t[]){3, 20, 10});
    end();
    build();
    ck_assert_uint_eq(model.tensors[1].chunk, model.tensors[2].chunk);
    ck_assert_uint_eq(cst_matrices_scratch_bytes(&layout, &model, 0), 64 + bytes);
    ck_assert_uint_eq(layout.segments[layout.scratches[0].segment].bytes,
                      (64 + bytes + 4095) / 4096 * 4096);
}
END_TEST

/* The scratch has at most CST_MUON_SCRATCH_BYTES, and always enough for the largest tensor. */
START_TEST(scratch_has_a_limit)
{
    config.chunk_elems = 16u << 20;
    end();
    for (uint32_t i = 0; i < 16; i++) {
        matrix(1024, 1024);
    }
    end();
    build();
    ck_assert_uint_gt(16 * bytes_of(1, 1024, 1024, 16), CST_MUON_SCRATCH_BYTES);
    ck_assert_uint_eq(cst_matrices_scratch_bytes(&layout, &model, 0), 64 + (64u << 20));
    cst_layout_close(&layout);
    matrix(4096, 4096);
    end();
    build();
    ck_assert_uint_eq(cst_matrices_scratch_bytes(&layout, &model, 0),
                      64 + bytes_of(1, 4096, 4096, 256));
}
END_TEST

/* Each node has its own scratch, and a node without such chunks has none. */
START_TEST(scratch_of_a_node)
{
    config.n_nodes = 2;
    config.chunk_elems = 4096;
    tensor(CST_TENSOR_UPDATE_AUTO, 1, (int64_t[]){4096});
    matrix(64, 64);
    end();
    build();
    for (uint32_t node = 0; node < 2; node++) {
        bool muon = layout.chunks[model.tensors[1].chunk].node == node;

        ck_assert_uint_eq(cst_matrices_scratch_bytes(&layout, &model, node),
                          muon ? 64 + bytes_of(1, 64, 64, 1) : 0);
        ck_assert((layout.scratches[node].segment != CST_LAYOUT_NO_ROW) == muon);
    }
}
END_TEST

/* Operations of the products of a matrix, counted tile by tile. */
static double count_flops(uint32_t rows, uint32_t columns)
{
    uint32_t side = rows < columns ? rows : columns, other = rows < columns ? columns : rows;
    double symmetric = 0;

    for (uint32_t i = 0; i < side; i++) {
        for (uint32_t k = 0; k < side; k++) {
            symmetric += i / CST_MUON_TILE >= k / CST_MUON_TILE ? 1 : 0;
        }
    }
    return 10 * (symmetric * other + symmetric * side + (double)rows * columns * side);
}

/* Chunks have the operations of all their matrices, of stacks too, and other chunks have none. */
START_TEST(operations)
{
    double sum = 0;

    end();
    matrix(300, 700);
    matrix(513, 256);
    tensor(CST_TENSOR_UPDATE_AUTO, 3, (int64_t[]){3, 20, 10});
    end();
    build();
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        ck_assert((layout.chunks[c].muon_flops > 0) == layout.chunks[c].muon);
        sum += layout.chunks[c].muon_flops;
    }
    ck_assert_double_eq_tol(
        sum, count_flops(300, 700) + count_flops(513, 256) + 3 * count_flops(20, 10), 1);
}
END_TEST

/* On several cores, an update takes as long as the core with most tiles of each product. A chunk
 * with one matrix of 256 rows and 1024 columns has 1, 1 and 4 tiles, and one with two has twice as
 * many. A scratch that holds only one of them makes two batches. */
START_TEST(operations_of_a_core)
{
    const double gram = 2.0 * 256 * 256 * 1024, polynomial = 2.0 * 256 * 256 * 256;
    const double one = 5 * (gram + polynomial + gram / 4), two = 5 * (gram + polynomial + gram / 2);
    struct cst_layout_chunk *chunk;

    end();
    matrix(256, 1024);
    if (_i > 0) {
        matrix(256, 1024);
    }
    end();
    config.chunk_elems = 1u << 19;
    build();
    chunk = &layout.chunks[model.tensors[1].chunk];
    ck_assert_uint_eq(chunk->n_tensors, _i == 0 ? 1 : 2);
    if (_i == 2) {
        layout.segments[layout.scratches[0].segment].bytes -= 4096;
    }
    ck_assert_double_eq_tol(cst_matrices_core_flops(&layout, &model, chunk, 1), chunk->muon_flops,
                            1);
    ck_assert_double_eq_tol(cst_matrices_core_flops(&layout, &model, chunk, 4),
                            _i == 0   ? one
                            : _i == 1 ? two
                                      : 2 * one,
                            1);
}
END_TEST

/* A core that makes a tile with many operations can have more of them than all other cores: the
 * Gram of 256 rows and 768 columns has three times as many as that of 256 rows and 256 columns. */
START_TEST(operations_of_a_large_tile)
{
    const double cube = 2.0 * 256 * 256 * 256;
    const struct cst_layout_chunk *chunk;

    end();
    matrix(256, 768);
    matrix(256, 256);
    end();
    config.chunk_elems = 1u << 18;
    build();
    chunk = &layout.chunks[model.tensors[1].chunk];
    ck_assert_uint_eq(chunk->n_tensors, 2);
    ck_assert_double_eq_tol(cst_matrices_core_flops(&layout, &model, chunk, 2),
                            5 * (3 * cube + cube + 2 * cube), 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("layout of Muon");
    TCase *tc = suite_case(s, "build", setup, teardown);

    tcase_add_test(tc, automatic_choice);
    tcase_add_test(tc, shared_ends);
    tcase_add_test(tc, declared_choice);
    tcase_add_test(tc, both_types);
    tcase_add_test(tc, frozen);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, scratch_of_a_chunk);
    tcase_add_test(tc, scratch_has_a_limit);
    tcase_add_test(tc, scratch_of_a_node);
    tcase_add_test(tc, operations);
    tcase_add_loop_test(tc, operations_of_a_core, 0, 3);
    tcase_add_test(tc, operations_of_a_large_tile);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
