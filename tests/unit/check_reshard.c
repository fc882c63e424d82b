/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/layout/reshard: the elements of tensors that are cut into boxes for some ranks
 * are found in the boxes for others. An element's value is its place in the whole. */
#include "offload/layout/reshard.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_DIMS = 3, MAX_PARTS = 4 };

/* How a whole tensor is cut: into parts[d] pieces in dimension d. Pieces of uneven wholes differ in
 * size. Where packed[d] is more than 1, each of as many equal tensors is cut so, and a piece has a
 * range of each. */
struct cut {
    int64_t whole[N_DIMS];
    int64_t parts[N_DIMS];
    int64_t packed[N_DIMS]; /* 0 is 1. */
};

static int64_t packed_in(const struct cut *cut, uint32_t d)
{
    return cut->packed[d] > 0 ? cut->packed[d] : 1;
}

static int64_t border(const struct cut *cut, uint32_t d, int64_t i)
{
    return cut->whole[d] / packed_in(cut, d) * i / cut->parts[d];
}

static void declare(struct cst_model *model, const struct cst_tensor_words *words)
{
    struct cst_err err = {0};

    ck_assert_msg(cst_model_tensor(model, words, &err) == CST_OK, "%s", err.text);
}

/* Declare all parts of tensor @name. A tensor that is not cut has no box. */
static void declare_cut(struct cst_model *model, const char *name, const struct cut *cut)
{
    int64_t n = cut->parts[0] * cut->parts[1] * cut->parts[2];

    for (int64_t i = 0; i < n; i++) {
        const int64_t at[N_DIMS] = {i / (cut->parts[1] * cut->parts[2]),
                                    i / cut->parts[2] % cut->parts[1], i % cut->parts[2]};
        int64_t first[N_DIMS], shape[N_DIMS], packed[N_DIMS];
        char part[CST_LAYOUT_NAME_BYTES];

        for (uint32_t d = 0; d < N_DIMS; d++) {
            first[d] = border(cut, d, at[d]);
            packed[d] = packed_in(cut, d);
            shape[d] = packed[d] * (border(cut, d, at[d] + 1) - first[d]);
        }
        (void)snprintf(part, sizeof part, n > 1 ? "%s.%d" : "%s", name, (int)i);
        declare(model, &(struct cst_tensor_words){.name = part,
                                                  .shape = shape,
                                                  .n_dims = N_DIMS,
                                                  .lr_scale = 1,
                                                  .decay_scale = 1,
                                                  .pattern = n > 1 ? CST_PATTERN_TENSOR
                                                                   : CST_PATTERN_SHARD,
                                                  .whole_name = n > 1 ? name : NULL,
                                                  .whole = n > 1 ? cut->whole : NULL,
                                                  .first = n > 1 ? first : NULL,
                                                  .packed = n > 1 ? packed : NULL});
    }
}

/* True if @t has place @at of dimension @d of its whole. */
static bool has(const struct cst_layout_tensor *t, uint32_t d, int64_t at)
{
    const int64_t n = t->box != NULL ? t->box->packed[d] : 1,
                  in = t->box != NULL ? at % (t->box->whole[d] / n) - t->box->first[d] : at;

    return in >= 0 && in < t->shape[d] / n;
}

/* The values of tensor @t, an array of the caller. */
static uint32_t *values_of(const struct cst_layout_tensor *t, const struct cut *cut)
{
    uint32_t *values = calloc(t->n_elems, sizeof *values), n = 0;

    ck_assert_ptr_nonnull(values);
    for (int64_t i = 0; i < cut->whole[0]; i++) {
        for (int64_t j = 0; j < cut->whole[1]; j++) {
            for (int64_t k = 0; k < cut->whole[2]; k++) {
                if (has(t, 0, i) && has(t, 1, j) && has(t, 2, k)) {
                    values[n++] = (uint32_t)((i * cut->whole[1] + j) * cut->whole[2] + k);
                }
            }
        }
    }
    ck_assert_uint_eq(n, t->n_elems);
    return values;
}

/* Copy tensor @t of reshard->to by runs of at most @most elements, and check all values. */
static void check_copy(const struct cst_reshard *reshard, uint32_t t, uint64_t most,
                       const struct cut *from, const struct cut *to)
{
    const struct cst_layout_tensor *tensor = &reshard->to->tensors[t];
    uint32_t *expected = values_of(tensor, to);
    uint64_t n = 0;

    while (n < tensor->n_elems) {
        uint64_t left = tensor->n_elems - n;
        struct cst_reshard_run run = cst_reshard_run(reshard, t, n, left < most ? left : most);
        const struct cst_layout_tensor *source = &reshard->from->tensors[run.tensor];
        uint32_t *values = values_of(source, from);

        ck_assert_uint_ge(run.n_elems, 1);
        ck_assert_uint_le(run.n_elems, left < most ? left : most);
        ck_assert_uint_le(run.first + run.n_elems, source->n_elems);
        ck_assert_int_eq(memcmp(values + run.first, expected + n, run.n_elems * sizeof *expected),
                         0);
        free(values);
        n += run.n_elems;
    }
    free(expected);
}

static void check_cuts(const struct cut *from, const struct cut *to, uint64_t most)
{
    struct cst_model old, new;
    struct cst_reshard reshard;
    struct cst_err err = {0};

    cst_model_init(&old);
    cst_model_init(&new);
    declare_cut(&old, "w", from);
    declare_cut(&new, "w", to);
    ck_assert_msg(cst_reshard_open(&reshard, &old, &new, &err) == CST_OK, "%s", err.text);
    for (uint32_t t = 0; t < new.n_tensors; t++) {
        check_copy(&reshard, t, most, from, to);
    }
    cst_reshard_close(&reshard);
    cst_model_close(&old);
    cst_model_close(&new);
}

/* Two ranks that hold halves of the rows become two that hold halves of the columns, then one that
 * holds all, then three. */
START_TEST(halves_whole_thirds)
{
    static const struct cut cuts[] = {{{6, 12, 1}, {2, 1, 1}, {0}},
                                      {{6, 12, 1}, {1, 2, 1}, {0}},
                                      {{6, 12, 1}, {1, 1, 1}, {0}},
                                      {{6, 12, 1}, {1, 3, 1}, {0}},
                                      {{6, 12, 1}, {3, 1, 1}, {0}}};

    for (unsigned i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        for (unsigned k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            check_cuts(&cuts[i], &cuts[k], UINT64_MAX);
        }
    }
}
END_TEST

/* Count by hand how many elements of the whole before element @element of tensor @t, in the order
 * of the whole, are in @part. */
static void check_before(const struct cst_reshard *reshard, uint32_t t, const struct cut *cut)
{
    const struct cst_layout_tensor *tensor = &reshard->to->tensors[t];
    uint32_t parts[CST_BOX_MAX_PARTS], *mine = values_of(tensor, cut);
    const uint32_t n_parts = cst_reshard_parts(reshard, t, parts);

    for (uint32_t p = 0; p < n_parts; p++) {
        const struct cst_layout_tensor *part = &reshard->from->tensors[parts[p]];
        uint32_t *theirs = values_of(part, cut);

        for (uint64_t e = 0; e < tensor->n_elems; e++) {
            uint64_t n = 0;

            while (n < part->n_elems && theirs[n] < mine[e]) {
                n++;
            }
            ck_assert_uint_eq(cst_reshard_before(reshard, t, e, parts[p]), n);
        }
        free(theirs);
    }
    free(mine);
}

/* Two tensors in one of which each rank has a range each: for 2 ranks and for 3, and joined, and as
 * plain rows. A part that both models have is one run, although it is several ranges. */
START_TEST(ranges_of_packed_tensors)
{
    static const struct cut cuts[] = {
        {{12, 5, 1}, {2, 1, 1}, {2, 1, 1}}, {{12, 5, 1}, {3, 1, 1}, {2, 1, 1}},
        {{12, 5, 1}, {2, 5, 1}, {3, 1, 1}}, {{12, 5, 1}, {1, 1, 1}, {0}},
        {{12, 5, 1}, {3, 1, 1}, {0}},       {{12, 5, 1}, {4, 1, 1}, {3, 1, 1}}};
    const unsigned n = sizeof cuts / sizeof cuts[0];

    for (unsigned i = 0; i < n * n; i++) {
        check_cuts(&cuts[i / n], &cuts[i % n], UINT64_MAX);
    }
    for (unsigned i = 0; i < n; i++) {
        struct cst_model old, new;
        struct cst_reshard reshard;
        struct cst_err err = {0};

        cst_model_init(&old);
        cst_model_init(&new);
        declare_cut(&old, "w", &cuts[i]);
        declare_cut(&new, "w", &cuts[3]);
        ck_assert_int_eq(cst_reshard_open(&reshard, &old, &old, &err), CST_OK);
        ck_assert(cst_reshard_is_whole(&reshard, 0));
        cst_reshard_close(&reshard);
        ck_assert_int_eq(cst_reshard_open(&reshard, &old, &new, &err), CST_OK);
        check_before(&reshard, 0, &cuts[i]);
        cst_reshard_close(&reshard);
        cst_model_close(&old);
        cst_model_close(&new);
    }
}
END_TEST

/* Blocks of four elements of the whole are blocks of parts of rows whose lengths are multiples of
 * two, and of columns by four; the last block may be shorter. */
START_TEST(blocks)
{
    static const struct {
        struct cut from, to;
        bool keeps;
    } cases[] = {
        {{{4, 6, 1}, {2, 1, 1}, {0}}, {{4, 6, 1}, {1, 1, 1}, {0}}, true},
        {{{4, 6, 1}, {1, 1, 1}, {0}}, {{4, 6, 1}, {2, 1, 1}, {0}}, true},
        {{{6, 3, 1}, {2, 1, 1}, {0}}, {{6, 3, 1}, {1, 1, 1}, {0}}, false},
        {{{4, 8, 1}, {1, 2, 1}, {0}}, {{4, 8, 1}, {1, 1, 1}, {0}}, true},
        {{{4, 6, 1}, {1, 2, 1}, {0}}, {{4, 6, 1}, {1, 1, 1}, {0}}, false},
        {{{4, 6, 1}, {1, 1, 1}, {0}}, {{4, 6, 1}, {1, 2, 1}, {0}}, false},
        {{{3, 3, 1}, {1, 1, 1}, {0}}, {{3, 3, 1}, {1, 1, 1}, {0}}, true},
        {{{8, 1, 1}, {2, 1, 1}, {0}}, {{8, 1, 1}, {4, 1, 1}, {0}}, false},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cst_model old, new;
        struct cst_reshard reshard;
        struct cst_err err = {0};

        cst_model_init(&old);
        cst_model_init(&new);
        declare_cut(&old, "w", &cases[i].from);
        declare_cut(&new, "w", &cases[i].to);
        ck_assert_msg(cst_reshard_open(&reshard, &old, &new, &err) == CST_OK, "%s", err.text);
        ck_assert_msg(cst_reshard_keeps_blocks(&reshard, 0, 4) == cases[i].keeps, "case %u", i);
        cst_reshard_close(&reshard);
        cst_model_close(&old);
        cst_model_close(&new);
    }
}
END_TEST

/* Cuts drawn at random, uneven ones among them, in three dimensions. */
START_TEST(random_cuts)
{
    srandom((unsigned)suite_seed());
    for (unsigned i = 0; i < 200; i++) {
        struct cut from, to;

        for (uint32_t d = 0; d < N_DIMS; d++) {
            from.packed[d] = 1 + random() % 2;
            to.packed[d] = 1 + random() % 2;
            from.whole[d] = to.whole[d] =
                from.packed[d] * to.packed[d] > 1 ? 8 + random() % 2 * 2 : 4 + random() % 6;
            from.parts[d] = 1 + random() % MAX_PARTS;
            to.parts[d] = 1 + random() % MAX_PARTS;
        }
        check_cuts(&from, &to, 1 + (uint64_t)(random() % 50));
    }
}
END_TEST

/* Rows that both models have whole are one run. */
START_TEST(runs_are_long)
{
    const struct cut from = {{6, 12, 2}, {2, 1, 1}, {0}}, to = {{6, 12, 2}, {3, 1, 1}, {0}};
    struct cst_model old, new;
    struct cst_reshard reshard;
    struct cst_reshard_run run;
    struct cst_err err;

    cst_model_init(&old);
    cst_model_init(&new);
    declare_cut(&old, "w", &from);
    declare_cut(&new, "w", &to);
    ck_assert_int_eq(cst_reshard_open(&reshard, &old, &new, &err), CST_OK);
    run = cst_reshard_run(&reshard, 0, 0, UINT64_MAX); /* rows 0 and 1 of 0 to 2 */
    ck_assert_uint_eq(run.n_elems, 2u * 12 * 2);
    run = cst_reshard_run(&reshard, 1, 0, UINT64_MAX); /* row 2 of 2 and 3; row 3 is elsewhere */
    ck_assert_uint_eq(run.n_elems, 12u * 2);
    ck_assert_uint_eq(run.first, 2u * 12 * 2);
    ck_assert_uint_eq(cst_reshard_reach(&reshard, 1, 0, 1024, 32, 32), 2u * 12 * 2);
    ck_assert_uint_eq(cst_reshard_reach(&reshard, 1, 0, 32, 32, 32), 32);
    ck_assert_uint_eq(cst_reshard_reach(&reshard, 1, 0, 1024, 1, 16), 16);
    ck_assert(!cst_reshard_is_whole(&reshard, 0));
    cst_reshard_close(&reshard);
    ck_assert_int_eq(cst_reshard_open(&reshard, &old, &old, &err), CST_OK);
    ck_assert(cst_reshard_is_whole(&reshard, 1));
    cst_reshard_close(&reshard);
    cst_model_close(&old);
    cst_model_close(&new);
}
END_TEST

static void declare_one(struct cst_model *model, const char *name, int64_t n,
                        enum cst_pattern_kind pattern)
{
    declare(model, &(struct cst_tensor_words){.name = name,
                                              .shape = &n,
                                              .n_dims = 1,
                                              .lr_scale = 1,
                                              .decay_scale = 1,
                                              .pattern = pattern});
}

static void declare_box(struct cst_model *model, const char *name, int64_t first, int64_t n)
{
    declare(model, &(struct cst_tensor_words){.name = name,
                                              .shape = &n,
                                              .n_dims = 1,
                                              .lr_scale = 1,
                                              .decay_scale = 1,
                                              .pattern = CST_PATTERN_TENSOR,
                                              .whole_name = "w",
                                              .whole = (int64_t[]){10},
                                              .first = &first});
}

static void refused(const struct cst_model *old, const struct cst_model *new, const char *words)
{
    struct cst_reshard reshard;
    struct cst_err err = {0};

    ck_assert_int_eq(cst_reshard_open(&reshard, old, new, &err), CST_EMISMATCH);
    ck_assert_msg(strstr(err.text, words) != NULL, "%s", err.text);
}

/* Models that do not have the same elements are refused with the tensor's name. */
START_TEST(other_elements)
{
    struct cst_model old, new;

    cst_model_init(&old);
    cst_model_init(&new);
    declare_one(&old, "w", 10, CST_PATTERN_SHARD);
    declare_box(&new, "a", 0, 6);
    refused(&old, &new, "tensor 'w' of the job: the new declaration has 6 of its 10 elements");
    refused(&new, &old, "tensor 'w' of the new declaration: the job has 6 of its 10 elements");
    declare_box(&new, "b", 5, 5);
    refused(&old, &new, "parts of 'w' meet in the new declaration");
    cst_model_close(&new);
    cst_model_init(&new);
    declare_one(&new, "w", 11, CST_PATTERN_SHARD);
    refused(&old, &new, "tensor 'w' has another shape");
    cst_model_close(&new);
    cst_model_init(&new);
    declare_one(&new, "w", 10, CST_PATTERN_FROZEN);
    refused(&old, &new, "tensor 'w' is frozen in the new declaration only");
    cst_model_close(&new);
    cst_model_init(&new);
    declare_one(&new, "w", 10, CST_PATTERN_SHARD);
    declare_one(&new, "x", 10, CST_PATTERN_SHARD);
    refused(&old, &new, "tensor 'x' of the new declaration: the job has 0 of its 10 elements");
    cst_model_close(&new);
    cst_model_close(&old);
}
END_TEST

/* Ranks may hold equal copies of a box; one of them is read. */
START_TEST(equal_copies)
{
    struct cst_model old, new;
    struct cst_reshard reshard;
    struct cst_err err = {0};

    cst_model_init(&old);
    cst_model_init(&new);
    declare_box(&old, "a", 0, 5);
    declare_box(&old, "b", 5, 5);
    declare_box(&old, "c", 0, 5);
    declare_one(&new, "w", 10, CST_PATTERN_SHARD);
    ck_assert_msg(cst_reshard_open(&reshard, &old, &new, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(cst_reshard_run(&reshard, 0, 0, 10).tensor, 0);
    ck_assert_uint_eq(cst_reshard_run(&reshard, 0, 5, 10).tensor, 1);
    cst_reshard_close(&reshard);
    for (int64_t i = 0; i < 257; i++) {
        char name[16];

        (void)snprintf(name, sizeof name, "d%d", (int)i);
        declare_box(&old, name, 0, 5);
    }
    refused(&old, &new, "'w' has more than 256 parts in the job");
    cst_model_close(&old);
    cst_model_close(&new);
}
END_TEST

/* Declare two tensors and lay them out for @world ranks. */
static void lay_out(struct cst_model *model, struct cst_layout *layout, const char *second,
                    uint32_t world, uint64_t chunk_elems, enum cst_moments moments)
{
    const struct cst_layout_config config = {
        .chunk_elems = chunk_elems, .n_nodes = 1, .world = world, .states = {.moments = moments}};
    struct cst_err err = {0};

    cst_model_init(model);
    declare_one(model, "w", 4000, CST_PATTERN_SHARD);
    declare_one(model, second, 3000, CST_PATTERN_SHARD);
    for (uint32_t t = 0; t < 2; t++) {
        ck_assert_int_eq(cst_model_operator(model, model->tensors[t].name, &t, 1, NULL, &err),
                         CST_OK);
    }
    ck_assert_msg(cst_layout_build(layout, model, &config, &err) == CST_OK, "%s", err.text);
}

/* Memory stays if only the number of ranks differs, and not with other chunks, other formats or
 * other names. */
START_TEST(memory_stays)
{
    static const struct {
        const char *second;
        uint32_t world;
        uint64_t chunk_elems;
        enum cst_moments moments;
        bool stays;
    } cases[] = {{"x", 1, 4096, CST_MOMENTS_FP32, true},
                 {"x", 4, 4096, CST_MOMENTS_FP32, true},
                 {"x", 4, 8192, CST_MOMENTS_FP32, false},
                 {"x", 4, 4096, CST_MOMENTS_BF16, false},
                 {"y", 4, 4096, CST_MOMENTS_FP32, false}};
    struct cst_model old, new;
    struct cst_layout before, after;

    lay_out(&old, &before, "x", 2, 4096, CST_MOMENTS_FP32);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lay_out(&new, &after, cases[i].second, cases[i].world, cases[i].chunk_elems,
                cases[i].moments);
        ck_assert_int_eq(cst_reshard_is_in_place(&old, &before, &new, &after), cases[i].stays);
        cst_layout_close(&after);
        cst_model_close(&new);
    }
    cst_layout_close(&before);
    cst_model_close(&old);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reshard");
    TCase *tcase = suite_case(suite, "reshard", NULL, NULL);

    tcase_add_test(tcase, halves_whole_thirds);
    tcase_add_test(tcase, ranges_of_packed_tensors);
    tcase_add_test(tcase, blocks);
    tcase_add_test(tcase, random_cuts);
    tcase_add_test(tcase, runs_are_long);
    tcase_add_test(tcase, other_elements);
    tcase_add_test(tcase, equal_copies);
    tcase_add_test(tcase, memory_stays);
    return suite_run(suite);
}
