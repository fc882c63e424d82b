/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of declarations: what is accepted, what is refused with which message, and how ranks can
 * disagree. */
#include "offload/layout/layout.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct cst_model model;
static struct cst_err err;

static void setup(void)
{
    cst_model_init(&model);
    memset(&err, 0, sizeof err);
}

static void teardown(void)
{
    cst_model_close(&model);
}

static int tensor(const char *name, int64_t rows, int64_t columns)
{
    int64_t shape[2] = {rows, columns};

    return declare_tensor(&model, name, shape, 2, 1.0f, 1.0f, &err);
}

static void declare(uint32_t n)
{
    char name[32];

    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "tensor.%u", i);
        ck_assert_int_eq(tensor(name, 1, 1 + i % 3), CST_OK);
    }
}

/* Tensors are numbered in the order of declaration, found by name, and counted. */
START_TEST(numbered_and_found)
{
    declare(1000);
    ck_assert_uint_eq(model.n_tensors, 1000);
    ck_assert_uint_eq(cst_model_find(&model, "tensor.0"), 0);
    ck_assert_uint_eq(cst_model_find(&model, "tensor.999"), 999);
    ck_assert_uint_eq(cst_model_find(&model, "tensor.1000"), UINT32_MAX);
    ck_assert_uint_eq(model.tensors[7].n_elems, 2);
    ck_assert_uint_eq(model.n_params, 334 * 1 + 333 * 2 + 333 * 3);
}
END_TEST

/* Either all operators are in stages, each of which has one, or none is. Ranks can disagree. */
START_TEST(stages)
{
    struct cst_layout_operator other = {.name = "b", .tensors = (uint32_t[]){0}, .n_tensors = 1};
    uint32_t t = 0;

    ck_assert_int_eq(tensor("t", 1, 1), CST_OK);
    ck_assert_int_eq(cst_model_operator(&model, "early", &t, 1, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_model_stage(&model, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "'early'"));
    cst_model_close(&model);
    cst_model_init(&model);
    ck_assert_int_eq(tensor("t", 1, 1), CST_OK);
    for (uint32_t s = 0; s < CST_LAYOUT_MAX_STAGES; s++) {
        char name[32];

        (void)snprintf(name, sizeof name, "o%u", s);
        ck_assert_int_eq(cst_model_stage(&model, &err), CST_OK);
        ck_assert_int_eq(cst_model_stage(&model, &err), CST_EINVAL);
        ck_assert_int_eq(cst_model_operator(&model, name, &t, 1, NULL, &err), CST_OK);
        ck_assert_uint_eq(model.operators[s].stage, s);
    }
    ck_assert_int_eq(cst_model_stage(&model, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "more than 64 stages"));
    other.name = model.operators[5].name;
    other.stage = 4;
    ck_assert_int_eq(cst_model_same_operator(&model, 5, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_str_eq(err.text, "operator 'o5' is in stage 4 in rank 1 and in stage 5 in rank 0");
}
END_TEST

/* An empty model has no names. */
START_TEST(nothing_declared)
{
    ck_assert_uint_eq(cst_model_find(&model, "x"), UINT32_MAX);
}
END_TEST

/* A name that is in use is refused, and nothing changes. */
START_TEST(duplicates)
{
    uint32_t number = 0;

    ck_assert_int_eq(tensor("wte", 2, 3), CST_OK);
    ck_assert_int_eq(tensor("wte", 2, 3), CST_EEXIST);
    ck_assert_ptr_nonnull(strstr(err.text, "'wte'"));
    ck_assert_uint_eq(model.n_tensors, 1);
    ck_assert_uint_eq(model.n_params, 6);
    ck_assert_int_eq(cst_model_operator(&model, "wte", &number, 1, NULL, &err),
                     CST_OK); /* operators have a name space of their own */
    ck_assert_int_eq(cst_model_operator(&model, "wte", &number, 1, NULL, &err), CST_EEXIST);
    ck_assert_uint_eq(model.n_operators, 1);
    ck_assert_uint_eq(model.tensors[0].n_uses, 1);
}
END_TEST

/* Shapes with zero or negative dimensions, none, or too many, and products that overflow, are
 * refused. */
START_TEST(shapes)
{
    int64_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    int64_t huge[3] = {INT64_MAX, INT64_MAX, INT64_MAX};

    ck_assert_int_eq(tensor("a", 0, 3), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "dimension 0 is 0"));
    ck_assert_int_eq(tensor("a", 3, -1), CST_EINVAL);
    ck_assert_int_eq(tensor("a", INT64_C(1) << 20, (INT64_C(1) << 20) + 1), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "2^40"));
    ck_assert_int_eq(declare_tensor(&model, "a", huge, 3, 1, 1, &err), CST_EINVAL);
    ck_assert_int_eq(declare_tensor(&model, "a", ones, 0, 1, 1, &err), CST_EINVAL);
    ck_assert_int_eq(declare_tensor(&model, "a", ones, 9, 1, 1, &err), CST_EINVAL);
    ck_assert_uint_eq(model.n_tensors, 0);
    ck_assert_int_eq(tensor("a", INT64_C(1) << 20, INT64_C(1) << 20), CST_OK);
    ck_assert_int_eq(declare_tensor(&model, "b", ones, 8, 1, 1, &err), CST_OK);
}
END_TEST

/* Names that are empty, too long or not printable are refused. */
START_TEST(names)
{
    char name[CST_LAYOUT_NAME_BYTES + 1];

    memset(name, 'n', sizeof name);
    name[CST_LAYOUT_NAME_BYTES] = '\0';
    ck_assert_int_eq(tensor("", 1, 1), CST_EINVAL);
    ck_assert_int_eq(tensor(name, 1, 1), CST_EINVAL);
    name[CST_LAYOUT_NAME_BYTES - 1] = '\0';
    ck_assert_int_eq(tensor(name, 1, 1), CST_OK);
    ck_assert_uint_eq(cst_model_find(&model, name), 0);
    ck_assert_int_eq(tensor("a\tb", 1, 1), CST_EINVAL);
    ck_assert_int_eq(tensor("a\xff", 1, 1), CST_EINVAL);
}
END_TEST

/* Scale factors that are not finite are refused, because they would damage every update. */
START_TEST(factors)
{
    int64_t shape = 4;

    ck_assert_int_eq(declare_tensor(&model, "a", &shape, 1, NAN, 1, &err), CST_EINVAL);
    ck_assert_int_eq(declare_tensor(&model, "a", &shape, 1, 1, INFINITY, &err), CST_EINVAL);
    ck_assert_int_eq(declare_tensor(&model, "a", &shape, 1, 0, -1, &err), CST_OK);
}
END_TEST

/* An operator names declared tensors, each once. A refused operator leaves nothing behind. */
START_TEST(operators)
{
    uint32_t good[] = {2, 0};
    uint32_t twice[] = {1, 2, 1};
    uint32_t unknown[] = {0, 3};

    declare(3);
    ck_assert_int_eq(cst_model_operator(&model, "op", good, 0, NULL, &err), CST_EINVAL);
    ck_assert_int_eq(cst_model_operator(&model, "op", twice, 3, NULL, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "'tensor.1' twice"));
    ck_assert_int_eq(cst_model_operator(&model, "op", unknown, 2, NULL, &err), CST_EINVAL);
    ck_assert_uint_eq(model.n_operators, 0);
    ck_assert_int_eq(cst_model_operator(&model, "op", good, 2, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_model_operator(&model, "op2", good, 2, NULL, &err), CST_OK);
    ck_assert_uint_eq(model.tensors[0].n_uses, 2);
    ck_assert_uint_eq(model.tensors[1].n_uses, 0);
    ck_assert_uint_eq(model.operators[0].tensors[0], 2);
}
END_TEST

/* 65536 tensors and operators are accepted, and no more. */
START_TEST(limits)
{
    uint32_t number;
    char name[32];

    declare(CST_LAYOUT_MAX_TENSORS);
    ck_assert_int_eq(tensor("one more", 1, 1), CST_EINVAL);
    for (number = 0; number < CST_LAYOUT_MAX_OPERATORS; number++) {
        (void)snprintf(name, sizeof name, "op.%u", number);
        ck_assert_int_eq(cst_model_operator(&model, name, &number, 1, NULL, &err), CST_OK);
    }
    number = 0;
    ck_assert_int_eq(cst_model_operator(&model, "one more", &number, 1, NULL, &err), CST_EINVAL);
    ck_assert_uint_eq(cst_model_find(&model, "tensor.65535"), 65535);
}
END_TEST

/* The total number of tensors that operators use has a limit, because each use costs memory. */
START_TEST(uses_are_bounded)
{
    static uint32_t all[CST_LAYOUT_MAX_TENSORS];
    uint32_t n = CST_LAYOUT_MAX_USES / CST_LAYOUT_MAX_TENSORS;
    char name[32];

    declare(CST_LAYOUT_MAX_TENSORS);
    for (uint32_t i = 0; i < CST_LAYOUT_MAX_TENSORS; i++) {
        all[i] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "op.%u", i);
        ck_assert_int_eq(cst_model_operator(&model, name, all, CST_LAYOUT_MAX_TENSORS, NULL, &err),
                         CST_OK);
    }
    ck_assert_int_eq(cst_model_operator(&model, "more", all, 1, NULL, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "262144"));
    ck_assert_uint_eq(model.n_operators, n);
}
END_TEST

/* If ranks declare different tensors, the first difference is named. */
START_TEST(same_tensor)
{
    struct cst_layout_tensor other;

    declare(2);
    other = model.tensors[1];
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err), CST_OK);
    ck_assert_int_eq(cst_model_same_tensor(&model, 2, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "'tensor.1'"));
    ck_assert_ptr_nonnull(strstr(err.text, "'tensor.0'"));
    other.shape[1] = 9;
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "dimension 1 is 9 in rank 1 and 2 in rank 0"));
    other = model.tensors[1];
    other.n_dims = 3;
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    other = model.tensors[1];
    other.lr_scale = 0.5f;
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "lr_scale is 0.5 in rank 1 and 1 in rank 0"));
    other = model.tensors[1];
    other.decay_scale = 0.0f;
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
}
END_TEST

/* If ranks declare different operators, the first difference is named: the name, the number of
 * tensors, or a tensor. */
START_TEST(same_operator)
{
    uint32_t mine[] = {0, 1};
    uint32_t theirs[] = {0, 2};
    char name[] = "op";
    struct cst_layout_operator other = {.name = name, .tensors = mine, .n_tensors = 2};

    declare(3);
    ck_assert_int_eq(cst_model_operator(&model, "op", mine, 2, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_model_same_operator(&model, 0, &other, "rank 1", "rank 0", &err), CST_OK);
    ck_assert_int_eq(cst_model_same_operator(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    other.n_tensors = 1;
    ck_assert_int_eq(cst_model_same_operator(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    other.n_tensors = 2;
    other.tensors = theirs;
    ck_assert_int_eq(cst_model_same_operator(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "tensor 1 is number 2 in rank 1 and 1 in rank 0"));
    other.name[0] = 'x';
    ck_assert_int_eq(cst_model_same_operator(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
}
END_TEST

static int tensor_as(const char *name, uint32_t group, uint32_t pattern, const int64_t *whole,
                     const int64_t *first)
{
    int64_t shape[2] = {4, 6};

    return cst_model_tensor(&model,
                            &(struct cst_tensor_words){.name = name,
                                                       .shape = shape,
                                                       .n_dims = 2,
                                                       .lr_scale = 1,
                                                       .decay_scale = 1,
                                                       .group = group,
                                                       .pattern = pattern,
                                                       .whole = whole,
                                                       .first = first},
                            &err);
}

/* Groups are numbered from 1 and have ranks. A tensor names an existing group and a pattern. */
START_TEST(groups)
{
    ck_assert_uint_eq(model.n_groups, 1);
    ck_assert_int_eq(cst_model_group(&model, bits(0), &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "group 1 has no ranks"));
    ck_assert_int_eq(cst_model_group(&model, bits(5), &err), CST_OK);
    ck_assert_int_eq(tensor_as("a", 2, CST_PATTERN_SHARD, NULL, NULL), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "group 2, only 0..1"));
    ck_assert_int_eq(tensor_as("a", 1, CST_PATTERN_COUNT, NULL, NULL), CST_EINVAL);
    ck_assert_uint_eq(model.n_tensors, 0);
    ck_assert_int_eq(tensor_as("a", 1, CST_PATTERN_FROZEN, NULL, NULL), CST_OK);
    ck_assert_uint_eq(model.tensors[0].group, 1);
    ck_assert_int_eq(model.tensors[0].pattern, CST_PATTERN_FROZEN);
    for (uint32_t i = 2; i < CST_LAYOUT_MAX_GROUPS; i++) {
        ck_assert_int_eq(cst_model_group(&model, bits(i), &err), CST_OK);
    }
    ck_assert_int_eq(cst_model_group(&model, bits(1), &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "more than 255 groups"));
}
END_TEST

/* A box lies within the whole tensor. A pattern that needs a box gets one, a frozen tensor can have
 * one, and no other pattern has one. */
START_TEST(boxes)
{
    int64_t whole[2] = {8, 6}, first[2] = {4, 0}, beyond[2] = {5, 0}, before[2] = {-1, 0};
    int64_t small[2] = {3, 6}, empty[2] = {0, 6};

    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, NULL, NULL), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, whole, NULL), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_SHARD, whole, first), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_SHARD, NULL, first), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, whole, beyond), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(
        err.text, "in dimension 0 its box has 4 elements from 5 on, but the whole tensor has 8"));
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, whole, before), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, small, first), CST_EINVAL);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, empty, first), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "the whole of which it is a box: "));
    ck_assert_uint_eq(model.n_tensors, 0);
    ck_assert_int_eq(tensor_as("a", 0, CST_PATTERN_TENSOR, whole, first), CST_OK);
    ck_assert_int_eq(model.tensors[0].box->whole[0], 8);
    ck_assert_int_eq(model.tensors[0].box->first[0], 4);
    ck_assert_int_eq(tensor_as("b", 0, CST_PATTERN_FROZEN, whole, NULL), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "pattern frozen needs both the shape of the whole"));
    ck_assert_int_eq(tensor_as("b", 0, CST_PATTERN_FROZEN, NULL, first), CST_EINVAL);
    ck_assert_int_eq(tensor_as("b", 0, CST_PATTERN_FROZEN, whole, beyond), CST_EINVAL);
    ck_assert_int_eq(tensor_as("b", 0, CST_PATTERN_FROZEN, whole, first), CST_OK);
    ck_assert_int_eq(model.tensors[1].box->first[0], 4);
    ck_assert_int_eq(tensor_as("c", 0, CST_PATTERN_FROZEN, NULL, NULL), CST_OK);
    ck_assert_ptr_null(model.tensors[2].box);
}
END_TEST

/* An operator is run by the ranks that hold all its tensors, and there must be at least one. */
START_TEST(ranks_of_an_operator)
{
    struct cst_set both;

    ck_assert_int_eq(cst_model_group(&model, bits(0x3), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x6), &err), CST_OK);
    ck_assert_int_eq(cst_model_group(&model, bits(0x8), &err), CST_OK);
    ck_assert_int_eq(tensor_as("all", 0, CST_PATTERN_SHARD, NULL, NULL), CST_OK);
    ck_assert_int_eq(tensor_as("01", 1, CST_PATTERN_EXPERT, NULL, NULL), CST_OK);
    ck_assert_int_eq(tensor_as("12", 2, CST_PATTERN_EXPERT, NULL, NULL), CST_OK);
    ck_assert_int_eq(tensor_as("3", 3, CST_PATTERN_EXPERT, NULL, NULL), CST_OK);
    ck_assert_int_eq(cst_model_operator(&model, "a", (uint32_t[]){0}, 1, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_model_operator(&model, "b", (uint32_t[]){0, 1, 2}, 3, NULL, &err), CST_OK);
    ck_assert_int_eq(cst_model_operator(&model, "c", (uint32_t[]){0, 1, 3}, 3, NULL, &err),
                     CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "no rank holds tensor '3' and all those before it"));
    ck_assert_uint_eq(model.operators[0].group, 0);
    ck_assert_uint_eq(model.operators[1].group, CST_LAYOUT_MIXED);
    both = cst_model_runners(&model, &model.operators[1]);
    ck_assert_uint_eq(cst_set_count(&both), 1);
    for (uint32_t rank = 0; rank < 4; rank++) {
        ck_assert(cst_model_runs(&model, &model.operators[0], rank));
        ck_assert_int_eq(cst_model_runs(&model, &model.operators[1], rank), rank == 1);
        ck_assert_int_eq(cst_set_has(&both, rank), rank == 1);
    }
    /* The ranks of a group that is within the others are just those of the operator. */
    ck_assert_int_eq(cst_model_operator(&model, "d", (uint32_t[]){0, 2}, 2, NULL, &err), CST_OK);
    ck_assert_uint_eq(model.operators[2].group, 2);
    ck_assert_int_eq(cst_model_forget(&model, &(struct cst_model_extent){3, 0, 4, 2}, &err),
                     CST_OK);
    ck_assert_uint_eq(model.n_operators, 2);
    ck_assert_uint_eq(model.tensors[0].n_uses, 2);
}
END_TEST

/* Hints are kept. Without hints an operator is used once. */
START_TEST(hints_are_kept)
{
    struct cst_operator_hints hints = {.flops = 1e12, .activation_bytes = 77};

    declare(1);
    ck_assert_int_eq(cst_model_operator(&model, "a", (uint32_t[]){0}, 1, &hints, &err), CST_OK);
    ck_assert_double_eq(model.operators[0].flops, 1e12);
    ck_assert_uint_eq(model.operators[0].activation_bytes, 77);
    ck_assert_float_eq(model.operators[0].expected_uses, 1);
    hints.expected_uses = 0.25f;
    ck_assert_int_eq(cst_model_operator(&model, "b", (uint32_t[]){0}, 1, &hints, &err), CST_OK);
    ck_assert_float_eq(model.operators[1].expected_uses, 0.25f);
    ck_assert_int_eq(cst_model_operator(&model, "c", (uint32_t[]){0}, 1, NULL, &err), CST_OK);
    ck_assert_float_eq(model.operators[2].expected_uses, 1);
    hints.flops = NAN;
    ck_assert_int_eq(cst_model_operator(&model, "d", (uint32_t[]){0}, 1, &hints, &err), CST_EINVAL);
    hints = (struct cst_operator_hints){.expected_uses = -1};
    ck_assert_int_eq(cst_model_operator(&model, "d", (uint32_t[]){0}, 1, &hints, &err), CST_EINVAL);
}
END_TEST

/* Ranks must agree on groups, on the group and the pattern of a tensor, and on its box. */
START_TEST(same_patterns)
{
    int64_t whole[2] = {8, 6}, first[2] = {4, 0};
    struct cst_layout_tensor other;
    struct cst_layout_box box;

    ck_assert_int_eq(cst_model_group(&model, bits(0x6), &err), CST_OK);
    ck_assert_int_eq(cst_model_same_group(&model, 1, bits(0x6), "rank 1", "rank 0", &err), CST_OK);
    ck_assert_int_eq(cst_model_same_group(&model, 2, bits(0x6), "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_int_eq(cst_model_same_group(&model, 1, bits(0x5), "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "group 1 has rank 0 in rank 1 and not in rank 0"));
    ck_assert_int_eq(tensor_as("a", 1, CST_PATTERN_TENSOR, whole, first), CST_OK);
    other = model.tensors[0];
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err), CST_OK);
    other.group = 0;
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "of group 0 in rank 1 and of group 1 in rank 0"));
    other = model.tensors[0];
    other.pattern = CST_PATTERN_FROZEN;
    other.box = NULL;
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "is frozen in rank 1 and tensor in rank 0"));
    other = model.tensors[0];
    box = *other.box;
    other.box = &box;
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err), CST_OK);
    box.whole[1] = 7;
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "dimension 1 of the whole is 7 in rank 1 and 6"));
    box = *model.tensors[0].box;
    box.first[0] = 3;
    ck_assert_int_eq(cst_model_same_tensor(&model, 0, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "begins at 3 of dimension 0 in rank 1 and at 4"));
    ck_assert_int_eq(tensor_as("b", 1, CST_PATTERN_FROZEN, whole, first), CST_OK);
    other = model.tensors[1];
    other.box = NULL;
    ck_assert_int_eq(cst_model_same_tensor(&model, 1, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "tensor 'b' is a part of a larger one in rank 0 only"));
    ck_assert_int_eq(tensor_as("c", 1, CST_PATTERN_FROZEN, NULL, NULL), CST_OK);
    other = model.tensors[2];
    other.box = &box;
    ck_assert_int_eq(cst_model_same_tensor(&model, 2, &other, "rank 1", "rank 0", &err),
                     CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(err.text, "tensor 'c' is a part of a larger one in rank 1 only"));
}
END_TEST

/* The words of a tensor declare an equal tensor in another model with equal groups. */
START_TEST(words_again)
{
    int64_t whole[2] = {8, 6}, first[2] = {4, 0};
    struct cst_tensor_words words;
    struct cst_model copy;

    ck_assert_int_eq(cst_model_group(&model, bits(0x6), &err), CST_OK);
    ck_assert_int_eq(tensor_as("a", 1, CST_PATTERN_TENSOR, whole, first), CST_OK);
    ck_assert_int_eq(tensor_as("b", 1, CST_PATTERN_FROZEN, NULL, NULL), CST_OK);
    cst_model_init(&copy);
    ck_assert_int_eq(cst_model_copy_groups(&copy, &model, model.n_groups), CST_OK);
    for (uint32_t i = 0; i < 2; i++) {
        words = cst_model_words(&model, i);
        ck_assert_int_eq(cst_model_tensor(&copy, &words, &err), CST_OK);
        ck_assert_int_eq(cst_model_same_tensor(&model, i, &copy.tensors[i], "x", "y", &err),
                         CST_OK);
    }
    cst_model_close(&copy);
}
END_TEST

/* External names are compared between ranks, and copied with the other words. */
START_TEST(external_names)
{
    static const char *const two[] = {"q", "k"}, *const others[] = {"q", "v"};
    static const int64_t rows[] = {4, 2}, other_rows[] = {3, 3}, shape[] = {5, 6};
    struct cst_tensor_words words = {.name = "qk",
                                     .shape = shape,
                                     .n_dims = 2,
                                     .external_names = two,
                                     .external_rows = rows,
                                     .n_external = 2,
                                     .transposed = true};
    struct cst_model copy;

    ck_assert_int_eq(cst_model_tensor(&model, &words, &err), CST_OK);
    for (int i = 0; i < 4; i++) {
        words = cst_model_words(&model, 0);
        words.external_names = i == 1 ? others : words.external_names;
        words.external_rows = i == 2 ? other_rows : words.external_rows;
        words.n_external = i == 3 ? 0 : 2;
        words.transposed = i != 3;
        cst_model_init(&copy);
        ck_assert_int_eq(cst_model_tensor(&copy, &words, &err), CST_OK);
        ck_assert_int_eq(cst_model_same_tensor(&model, 0, &copy.tensors[0], "x", "y", &err),
                         i == 0 ? CST_OK : CST_EMISMATCH);
        cst_model_close(&copy);
    }
    ck_assert_str_eq(err.text, "tensor 'qk' has 0 external names in x and 2, transposed, in y");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("model");
    TCase *tc = suite_case(s, "declare", setup, teardown);

    tcase_add_test(tc, numbered_and_found);
    tcase_add_test(tc, nothing_declared);
    tcase_add_test(tc, stages);
    tcase_add_test(tc, duplicates);
    tcase_add_test(tc, shapes);
    tcase_add_test(tc, names);
    tcase_add_test(tc, factors);
    tcase_add_test(tc, operators);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, uses_are_bounded);
    tcase_add_test(tc, same_tensor);
    tcase_add_test(tc, same_operator);
    tcase_add_test(tc, external_names);
    tcase_add_test(tc, groups);
    tcase_add_test(tc, boxes);
    tcase_add_test(tc, ranks_of_an_operator);
    tcase_add_test(tc, hints_are_kept);
    tcase_add_test(tc, same_patterns);
    tcase_add_test(tc, words_again);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
