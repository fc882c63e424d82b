/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/wholes.h"

#include "offload/layout/box.h"
#include "offload/layout/external.h"
#include "proto/patterns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The parts of one whole. */
struct parts {
    const struct cst_model *model;
    const uint32_t *numbers; /* Of the parts in `model`. */
    uint32_t n;
};

static const struct cst_layout_tensor *part(const struct parts *parts, uint32_t i)
{
    return &parts->model->tensors[parts->numbers[i]];
}

/* -- what the parts leave out ----------------------------------------------------------------- */

/* A range of elements of a whole. */
struct range {
    int64_t begin[CST_LAYOUT_MAX_DIMS], end[CST_LAYOUT_MAX_DIMS];
    uint32_t n_dims;
};

/* True if an earlier part has the same elements. */
static bool is_repeated(const struct parts *parts, uint32_t i)
{
    bool repeated = false;

    for (uint32_t k = 0; k < i && !repeated; k++) {
        repeated = cst_box_same(part(parts, i), part(parts, k));
    }
    return repeated;
}

/* Number of elements of @range that @t has. */
static uint64_t count(const struct cst_layout_tensor *t, const struct range *range)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < range->n_dims; d++) {
        n *=
            (uint64_t)(cst_box_before(t, d, range->end[d]) - cst_box_before(t, d, range->begin[d]));
    }
    return n;
}

/* True if the parts, which do not meet unless they are equal, have all elements of @range. */
static bool covers(const struct parts *parts, const struct range *range)
{
    uint64_t n = 1, has = 0;

    for (uint32_t d = 0; d < range->n_dims; d++) {
        n *= (uint64_t)(range->end[d] - range->begin[d]);
    }
    for (uint32_t i = 0; i < parts->n; i++) {
        has += is_repeated(parts, i) ? 0 : count(part(parts, i), range);
    }
    return has == n;
}

/* The first border of a part after @at in dimension @d, at most @end. */
static int64_t next_border(const struct parts *parts, uint32_t d, int64_t at, int64_t end)
{
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct cst_layout_tensor *t = part(parts, i);

        for (int64_t begin = cst_box_begin(t, d); begin < end; begin += cst_box_stride(t, d)) {
            const int64_t borders[2] = {begin, begin + cst_box_range(t, d)};

            for (int k = 0; k < 2; k++) {
                end = borders[k] > at && borders[k] < end ? borders[k] : end;
            }
        }
    }
    return end;
}

/* Narrow @range, which the parts do not cover, to a range of which no part has an element. */
static void find_gap(const struct parts *parts, struct range *range)
{
    for (uint32_t d = 0; d < range->n_dims; d++) {
        int64_t end = range->end[d];

        range->end[d] = next_border(parts, d, range->begin[d], end);
        while (covers(parts, range)) {
            range->begin[d] = range->end[d];
            range->end[d] = next_border(parts, d, range->begin[d], end);
        }
    }
}

static struct range range_of(const struct cst_layout_tensor *whole)
{
    struct range range = {.n_dims = whole->n_dims};

    memcpy(range.end, whole->shape, sizeof range.end);
    return range;
}

static int tell_gap(const struct parts *parts, const struct cst_layout_tensor *whole,
                    struct cst_err *err)
{
    struct range range = range_of(whole);
    char gap[64 * CST_LAYOUT_MAX_DIMS], shape[32 * CST_LAYOUT_MAX_DIMS];
    int n_gap = 0, n_shape = 0;

    find_gap(parts, &range);
    for (uint32_t d = 0; d < range.n_dims; d++) {
        n_gap += snprintf(gap + n_gap, sizeof gap - (size_t)n_gap, "%s%" PRId64 ":%" PRId64,
                          d > 0 ? ", " : "", range.begin[d], range.end[d]);
        n_shape += snprintf(shape + n_shape, sizeof shape - (size_t)n_shape, "%s%" PRId64,
                            d > 0 ? "x" : "", whole->shape[d]);
    }
    return cst_err_set(err, CST_EMISMATCH,
                       "no tensor of the job has the elements [%s] of '%s', whose shape is %s", gap,
                       whole->name, shape);
}

/* -- checks ----------------------------------------------------------------------------------- */

static int check_alike(const struct cst_layout_tensor *a, const struct cst_layout_tensor *b,
                       struct cst_err *err)
{
    const char *whole = cst_box_whole_name(a);

    if (!cst_box_same_whole(a, b)) {
        return cst_err_set(err, CST_EMISMATCH,
                           "'%s' has one shape as the whole of '%s' and another one as that of "
                           "'%s'",
                           whole, a->name, b->name);
    }
    if (a->dtype != b->dtype) {
        return cst_err_set(err, CST_EMISMATCH, "'%s' and '%s', parts of '%s', are %s and %s",
                           a->name, b->name, whole, cst_dtype_name(a->dtype),
                           cst_dtype_name(b->dtype));
    }
    if (cst_pattern(a->pattern)->has_states != cst_pattern(b->pattern)->has_states) {
        return cst_err_set(err, CST_EMISMATCH,
                           "'%s' and '%s' are parts of '%s', of which only one is frozen", a->name,
                           b->name, whole);
    }
    if (cst_box_is_named(a) != cst_box_is_named(b) || a->pattern != b->pattern) {
        return cst_err_set(err, CST_EMISMATCH,
                           "'%s' and '%s' have the whole '%s', of which only one is a part",
                           a->name, b->name, whole);
    }
    return cst_external_same(a, b, "one part", "another part of the same whole", err);
}

static int check_apart(const struct parts *parts, uint32_t i, struct cst_err *err)
{
    for (uint32_t k = 0; k < i; k++) {
        const struct cst_layout_tensor *a = part(parts, k), *b = part(parts, i);

        if (cst_box_common(a, b) > 0 && !cst_box_same(a, b)) {
            return cst_err_set(err, CST_EMISMATCH,
                               "'%s' and '%s', parts of '%s', meet without being equal", a->name,
                               b->name, cst_box_whole_name(a));
        }
    }
    return CST_OK;
}

/* Check the parts of @whole. */
static int check_whole(const struct parts *parts, const struct cst_layout_tensor *whole,
                       struct cst_err *err)
{
    const struct range range = range_of(whole);
    int rc = CST_OK;

    if (parts->n > CST_BOX_MAX_PARTS) {
        return cst_err_set(err, CST_EMISMATCH, "'%s' has more than %d parts", whole->name,
                           CST_BOX_MAX_PARTS);
    }
    for (uint32_t i = 1; rc == CST_OK && i < parts->n; i++) {
        rc = check_alike(part(parts, 0), part(parts, i), err);
        rc = rc == CST_OK ? check_apart(parts, i, err) : rc;
    }
    /* What is no part of a named whole is all there is of it. */
    return rc == CST_OK && whole->box == NULL && !covers(parts, &range)
               ? tell_gap(parts, whole, err)
               : rc;
}

/* Check all wholes of @out; of[i] is the number of the whole of tensor i. */
static int check_wholes(const struct cst_model *out, const struct cst_model *model,
                        const uint32_t *of, struct cst_err *err)
{
    uint32_t *first = calloc((size_t)out->n_tensors + 2, sizeof *first);
    uint32_t *numbers = calloc((size_t)model->n_tensors + 1, sizeof *numbers);
    int rc = CST_OK;

    if (first == NULL || numbers == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory to join tensors");
    }
    /* first[w + 1] is where the parts of whole w begin, and in the end where they end. */
    for (uint32_t i = 0; rc == CST_OK && i < model->n_tensors; i++) {
        first[of[i] + 2]++;
    }
    for (uint32_t w = 0; rc == CST_OK && w < out->n_tensors; w++) {
        first[w + 1] += first[w];
    }
    for (uint32_t i = 0; rc == CST_OK && i < model->n_tensors; i++) {
        numbers[first[of[i] + 1]++] = i;
    }
    for (uint32_t w = 0; rc == CST_OK && w < out->n_tensors; w++) {
        rc = check_whole(&(struct parts){model, numbers + first[w], first[w + 1] - first[w]},
                         &out->tensors[w], err);
    }
    free(first);
    free(numbers);
    return rc;
}

/* -- the model -------------------------------------------------------------------------------- */

/* Declare the whole of tensor @i of @model. */
static int declare_whole(struct cst_model *out, const struct cst_model *model, uint32_t i,
                         struct cst_err *err)
{
    struct cst_tensor_words words = cst_model_words(model, i);

    words.group = 0;
    if (words.whole_name != NULL) {
        words.name = words.whole_name;
        words.shape = words.whole;
        words.pattern =
            cst_pattern(words.pattern)->has_states ? CST_PATTERN_SHARD : CST_PATTERN_FROZEN;
        words.whole_name = NULL;
        words.whole = words.first = words.packed = NULL;
    }
    return cst_model_tensor(out, &words, err);
}

int cst_wholes_open(struct cst_model *out, const struct cst_model *model, uint32_t *of,
                    struct cst_err *err)
{
    uint32_t *numbers = calloc((size_t)model->n_tensors + 1, sizeof *numbers);
    int rc = numbers != NULL ? CST_OK : cst_err_set(err, CST_ENOMEM, "no memory to join tensors");

    cst_model_init(out);
    for (uint32_t i = 0; rc == CST_OK && i < model->n_tensors; i++) {
        numbers[i] = cst_model_find(out, cst_box_whole_name(&model->tensors[i]));
        if (numbers[i] == UINT32_MAX) {
            numbers[i] = out->n_tensors;
            rc = declare_whole(out, model, i, err);
        }
    }
    if (rc == CST_OK) {
        rc = check_wholes(out, model, numbers, err);
    }
    if (rc == CST_OK && of != NULL) {
        memcpy(of, numbers, model->n_tensors * sizeof *of);
    }
    if (rc != CST_OK) {
        cst_model_close(out);
    }
    free(numbers);
    return rc;
}
