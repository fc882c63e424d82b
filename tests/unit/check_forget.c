/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of declarations that are removed from a model again. */
#include "offload/layout/layout.h"
#include "offload/layout/model_bytes.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static struct cst_model model;
static struct cst_err err;

static void setup(void)
{
    cst_model_init(&model);
}

static void teardown(void)
{
    cst_model_close(&model);
}

static void declare(uint32_t n)
{
    const int64_t shape = 3;
    char name[32];

    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "tensor.%u", i);
        ck_assert_int_eq(declare_tensor(&model, name, &shape, 1, 1.0f, 1.0f, &err), CST_OK);
    }
}

/* Declare tensor @i, every third with external names, and operators in stages as far as they go. */
static void declare_kinds(struct cst_model *m, uint32_t n_tensors, uint32_t n_operators)
{
    static const int64_t shape[] = {5, 6}, rows[] = {2, 3};
    char name[32], q[32], k[32];
    const char *two[] = {q, k};

    for (uint32_t i = m->n_tensors; i < n_tensors; i++) {
        struct cst_tensor_words words = {.name = name, .shape = shape, .n_dims = 2};

        (void)snprintf(name, sizeof name, "t%u", i);
        (void)snprintf(q, sizeof q, "q%u", i);
        (void)snprintf(k, sizeof k, "k%u", i);
        words.external_names = i % 3 == 0 ? two : NULL;
        words.external_rows = i % 3 == 0 ? rows : NULL;
        words.n_external = i % 3 == 0 ? 2 : 0;
        ck_assert_int_eq(cst_model_tensor(m, &words, &err), CST_OK);
    }
    for (uint32_t i = m->n_operators; i < n_operators; i++) {
        (void)snprintf(name, sizeof name, "o%u", i);
        if (i % 4 == 0) {
            ck_assert_int_eq(cst_model_stage(m, &err), CST_OK);
        }
        ck_assert_int_eq(
            cst_model_operator(m, name, (uint32_t[]){i % n_tensors, n_tensors - 1}, 2, NULL, &err),
            CST_OK);
    }
}

/* @model is like one in which only so much was declared. */
static void assert_like_new(uint32_t n_tensors, uint32_t n_operators)
{
    struct cst_model other;
    char name[32];

    cst_model_init(&other);
    declare_kinds(&other, n_tensors, 0);
    ck_assert_uint_eq(model.n_tensors, n_tensors);
    ck_assert_uint_eq(model.n_operators, n_operators);
    ck_assert_uint_eq(model.n_params, other.n_params);
    ck_assert_uint_eq(model.weight_bytes, other.weight_bytes);
    ck_assert_uint_eq(model.n_file_names, other.n_file_names);
    ck_assert_uint_eq(model.n_uses, 2 * n_operators);
    ck_assert_uint_eq(model.n_stages, (n_operators + 3) / 4);
    if (n_operators == 0) {
        ck_assert_uint_eq(cst_model_bytes(&model), cst_model_bytes(&other));
        ck_assert_uint_eq(cst_model_packed_bytes(&model), cst_model_packed_bytes(&other));
    }
    for (uint32_t i = 0; i < 320; i++) {
        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_uint_eq(cst_model_find(&model, name), i < n_tensors ? i : UINT32_MAX);
    }
    cst_model_close(&other);
}

/* The last declarations can be forgotten, and others declared in their place with the same names.
 * The tables shrink, and nothing of what was forgotten is counted. */
START_TEST(forgotten)
{
    unsigned seed = (unsigned)_i + 1;
    const struct cst_model_extent none = {0};

    for (int round = 0; round < 20; round++) {
        uint32_t n = 50 + (uint32_t)rand_r(&seed) % 250, n_ops = (uint32_t)rand_r(&seed) % 40;
        const struct cst_model_extent much = {.n_tensors = (uint32_t)rand_r(&seed) % n};

        declare_kinds(&model, n, n_ops);
        ck_assert_int_eq(
            cst_model_forget(
                &model, &(struct cst_model_extent){.n_tensors = n, .n_operators = n_ops / 2}, &err),
            CST_OK);
        assert_like_new(n, n_ops / 2);
        ck_assert_int_eq(cst_model_forget(&model, &much, &err), CST_OK);
        assert_like_new(much.n_tensors, 0);
    }
    ck_assert_int_eq(cst_model_forget(&model, &none, &err), CST_OK);
    assert_like_new(0, 0);
}
END_TEST

/* Nothing is left of a few declarations, and a few can be made again. _i: how many. */
START_TEST(few_are_forgotten)
{
    const struct cst_model_extent none = {0};

    for (int round = 0; round < 3; round++) {
        declare((uint32_t)_i);
        ck_assert_int_eq(cst_model_forget(&model, &none, &err), CST_OK);
        assert_like_new(0, 0);
    }
}
END_TEST

/* A tensor that an operator uses is not forgotten without the operator. */
START_TEST(used_tensors_are_not_forgotten)
{
    const struct cst_model_extent much = {.n_tensors = 5, .n_operators = 2};

    declare_kinds(&model, 10, 3);
    ck_assert_int_eq(cst_model_forget(&model, &much, &err), CST_EINVAL);
    ck_assert_uint_eq(model.n_tensors, 10);
}
END_TEST

/* Declare the part of the rows @first and @first + 1 of "w", whose names in files are q and k. */
static int declare_part(const char *name, int64_t first, bool external)
{
    static const int64_t shape[] = {2, 6}, whole[] = {6, 6}, rows[] = {4, 2};
    static const char *const names[] = {"q", "k"};
    const int64_t begin[] = {first, 0};
    const struct cst_tensor_words words = {.name = name,
                                           .shape = shape,
                                           .n_dims = 2,
                                           .pattern = CST_PATTERN_TENSOR,
                                           .group = 0,
                                           .whole_name = "w",
                                           .whole = whole,
                                           .first = begin,
                                           .external_names = external ? names : NULL,
                                           .external_rows = external ? rows : NULL,
                                           .n_external = external ? 2 : 0};

    return cst_model_tensor(&model, &words, &err);
}

/* Parts of one whole share its names in files. They are free again when the last part is forgotten,
 * and not before. _i: with external names. */
START_TEST(parts_of_a_whole_are_forgotten)
{
    const struct cst_model_extent none = {0}, one = {.n_tensors = 1};
    const char *taken = _i == 1 ? "q" : "w";
    const int64_t shape = 3;

    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(declare_part("w.0", 0, _i == 1), CST_OK);
        ck_assert_int_eq(declare_part("w.1", 2, _i == 1), CST_OK);
        ck_assert_int_eq(declare_part("w.2", 4, _i == 1), CST_OK);
        ck_assert_int_eq(cst_model_forget(&model, &one, &err), CST_OK);
        ck_assert_int_eq(declare_tensor(&model, taken, &shape, 1, 1.0f, 1.0f, &err), CST_EEXIST);
        ck_assert_int_eq(declare_part("w.1", 2, _i == 1), CST_OK);
        ck_assert_int_eq(cst_model_forget(&model, &none, &err), CST_OK);
        assert_like_new(0, 0);
        ck_assert_int_eq(declare_tensor(&model, taken, &shape, 1, 1.0f, 1.0f, &err), CST_OK);
        ck_assert_int_eq(cst_model_forget(&model, &none, &err), CST_OK);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("forget");
    TCase *tc = suite_case(suite, "forget", setup, teardown);

    tcase_add_loop_test(tc, forgotten, 0, 5);
    tcase_add_loop_test(tc, few_are_forgotten, 1, 20);
    tcase_add_test(tc, used_tensors_are_not_forgotten);
    tcase_add_loop_test(tc, parts_of_a_whole_are_forgotten, 0, 2);
    return suite_run(suite);
}
