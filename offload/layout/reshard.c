/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/reshard.h"

#include "proto/reason.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- tensors of one whole --------------------------------------------------------------------- */

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Equal boxes of a whole follow each other. */
static int by_whole(const void *a, const void *b, void *model)
{
    const struct cst_layout_tensor *tensors = ((const struct cst_model *)model)->tensors;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct cst_layout_tensor *s = &tensors[i], *t = &tensors[j];
    int order = strcmp(cst_box_whole_name(s), cst_box_whole_name(t));

    for (uint32_t d = 0; order == 0 && d < s->n_dims && d < t->n_dims; d++) {
        order = compare(cst_box_begin(s, d), cst_box_begin(t, d));
        order = order == 0 ? compare(s->shape[d], t->shape[d]) : order;
        order = order == 0 ? compare(cst_box_packed(s, d), cst_box_packed(t, d)) : order;
    }
    return order != 0 ? order : compare(i, j);
}

/* The numbers of all tensors of @model, ordered by whole. NULL: out of memory. */
static uint32_t *make_order(const struct cst_model *model)
{
    /* One more, because calloc(0) may return NULL. */
    uint32_t *order = calloc((size_t)model->n_tensors + 1, sizeof *order);

    for (uint32_t i = 0; order != NULL && i < model->n_tensors; i++) {
        order[i] = i;
    }
    if (order != NULL) {
        qsort_r(order, model->n_tensors, sizeof *order, by_whole, (void *)(uintptr_t)model);
    }
    return order;
}

/* The first place in @order whose tensor's whole is not before @name. */
static uint32_t find_whole(const struct cst_model *model, const uint32_t *order, const char *name)
{
    uint32_t low = 0, high = model->n_tensors;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (strcmp(cst_box_whole_name(&model->tensors[order[middle]]), name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_of_whole(const struct cst_model *model, const uint32_t *order, uint32_t i,
                        const char *name)
{
    return i < model->n_tensors && strcmp(cst_box_whole_name(&model->tensors[order[i]]), name) == 0;
}

/* True if place @i of @order has the box of the place before it: another rank's copy of the same
 * elements. @first: the first place of the whole. */
static bool is_repeated(const struct cst_model *model, const uint32_t *order, uint32_t first,
                        uint32_t i)
{
    return i > first && cst_box_same(&model->tensors[order[i - 1]], &model->tensors[order[i]]);
}

/* -- checks ----------------------------------------------------------------------------------- */

static int check_pair(const struct cst_layout_tensor *t, const struct cst_layout_tensor *other,
                      const char *here, const char *there, struct cst_err *err)
{
    if (!cst_box_same_whole(t, other)) {
        return cst_err_give_reason(err, CST_REASON_MODEL,
                                   cst_err_set(err, CST_EMISMATCH,
                                               "tensor '%s' has another shape in %s than in %s",
                                               t->name, here, there));
    }
    if (cst_pattern(t->pattern)->has_states != cst_pattern(other->pattern)->has_states) {
        return cst_err_give_reason(err, CST_REASON_PATTERN,
                                   cst_err_set(err, CST_EMISMATCH,
                                               "tensor '%s' is frozen in %s only", t->name,
                                               cst_pattern(t->pattern)->has_states ? there : here));
    }
    if (t->dtype != other->dtype) {
        return cst_err_give_reason(
            err, CST_REASON_DTYPE,
            cst_err_set(err, CST_EMISMATCH, "tensor '%s' is %s in %s and %s in %s", t->name,
                        cst_dtype_name(t->dtype), here, cst_dtype_name(other->dtype), there));
    }
    return CST_OK;
}

/* Check that each element of @t is once in @model. */
static int check_tensor(const struct cst_layout_tensor *t, const struct cst_model *model,
                        const uint32_t *order, const char *here, const char *there,
                        struct cst_err *err)
{
    const char *name = cst_box_whole_name(t);
    uint32_t first = find_whole(model, order, name);
    uint64_t n = 0;

    for (uint32_t i = first; is_of_whole(model, order, i, name); i++) {
        const struct cst_layout_tensor *other = &model->tensors[order[i]];

        if (i - first == CST_BOX_MAX_PARTS) {
            return cst_err_set(err, CST_EMISMATCH, "'%s' has more than %d parts in %s", name,
                               CST_BOX_MAX_PARTS, there);
        }
        if (check_pair(t, other, here, there, err) != CST_OK) {
            return err->status;
        }
        n += is_repeated(model, order, first, i) ? 0 : cst_box_common(t, other);
    }
    if (n == t->n_elems) {
        return CST_OK;
    }
    return cst_err_give_reason(
        err, CST_REASON_MODEL,
        n < t->n_elems
            ? cst_err_set(err, CST_EMISMATCH,
                          "tensor '%s' of %s: %s has %" PRIu64 " of its %" PRIu64 " elements",
                          t->name, here, there, n, t->n_elems)
            : cst_err_set(err, CST_EMISMATCH,
                          "tensor '%s' of %s: parts of '%s' meet in %s without being equal",
                          t->name, here, name, there));
}

/* Check that each element of @model is once in @other, whose order is @order. */
static int check_model(const struct cst_model *model, const struct cst_model *other,
                       const uint32_t *order, const char *here, const char *there,
                       struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t i = 0; rc == CST_OK && i < model->n_tensors; i++) {
        rc = check_tensor(&model->tensors[i], other, order, here, there, err);
    }
    return rc;
}

int cst_reshard_open(struct cst_reshard *reshard, const struct cst_model *from,
                     const struct cst_model *to, struct cst_err *err)
{
    uint32_t *order = make_order(from), *back = make_order(to);
    int rc = CST_OK;

    if (order == NULL || back == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "no memory to compare two models");
    }
    if (rc == CST_OK) {
        rc = check_model(to, from, order, "the new declaration", "the job", err);
    }
    if (rc == CST_OK) {
        rc = check_model(from, to, back, "the job", "the new declaration", err);
    }
    free(back);
    if (rc != CST_OK) {
        free(order);
        return rc;
    }
    *reshard = (struct cst_reshard){.from = from, .to = to, .order = order};
    return CST_OK;
}

void cst_reshard_close(struct cst_reshard *reshard)
{
    free(reshard->order);
    *reshard = (struct cst_reshard){.from = NULL};
}

/* -- runs ------------------------------------------------------------------------------------- */

/* Set @at to the place in the whole of element @element of @t. */
static void place_of(const struct cst_layout_tensor *t, uint64_t element, int64_t *at)
{
    for (uint32_t d = t->n_dims; d-- > 0;) {
        at[d] = cst_box_place(t, d, (int64_t)(element % (uint64_t)t->shape[d]));
        element /= (uint64_t)t->shape[d];
    }
}

static bool contains(const struct cst_layout_tensor *t, const int64_t *at)
{
    bool inside = true;

    for (uint32_t d = 0; d < t->n_dims; d++) {
        inside = inside && cst_box_has(t, d, at[d]);
    }
    return inside;
}

/* The number of the element of @t that is at @at of the whole. */
static uint64_t element_at(const struct cst_layout_tensor *t, const int64_t *at)
{
    uint64_t element = 0;

    for (uint32_t d = 0; d < t->n_dims; d++) {
        element = element * (uint64_t)t->shape[d] + (uint64_t)cst_box_before(t, d, at[d]);
    }
    return element;
}

/* The number of elements from @at on that follow each other in @a and in @b. A run goes beyond a
 * range of a dimension only if both boxes have the same extent in it, and it begins there. */
static uint64_t length(const struct cst_layout_tensor *a, const struct cst_layout_tensor *b,
                       const int64_t *at)
{
    uint64_t inner = 1;
    uint32_t d = a->n_dims - 1;
    int64_t end;

    while (cst_box_same_extent(a, b, d) && at[d] == cst_box_begin(a, d)) {
        inner *= (uint64_t)a->shape[d];
        if (d-- == 0) {
            return inner;
        }
    }
    end = cst_box_end(a, d, at[d]);
    end = end < cst_box_end(b, d, at[d]) ? end : cst_box_end(b, d, at[d]);
    return inner * (uint64_t)(end - at[d]);
}

struct cst_reshard_run cst_reshard_run(const struct cst_reshard *reshard, uint32_t tensor,
                                       uint64_t first, uint64_t most)
{
    const struct cst_layout_tensor *t = &reshard->to->tensors[tensor], *other;
    struct cst_reshard_run run;
    int64_t at[CST_LAYOUT_MAX_DIMS];
    uint32_t i = find_whole(reshard->from, reshard->order, cst_box_whole_name(t));

    place_of(t, first, at);
    /* cst_reshard_open has checked that one of the boxes has the element. */
    while (!contains(&reshard->from->tensors[reshard->order[i]], at)) {
        i++;
    }
    run.tensor = reshard->order[i];
    other = &reshard->from->tensors[run.tensor];
    run.first = element_at(other, at);
    run.n_elems = length(t, other, at);
    run.n_elems = run.n_elems < most ? run.n_elems : most;
    return run;
}

uint32_t cst_reshard_parts(const struct cst_reshard *reshard, uint32_t tensor, uint32_t *out)
{
    const struct cst_layout_tensor *t = &reshard->to->tensors[tensor];
    const struct cst_model *from = reshard->from;
    const char *name = cst_box_whole_name(t);
    const uint32_t first = find_whole(from, reshard->order, name);
    uint32_t n = 0;

    for (uint32_t i = first; is_of_whole(from, reshard->order, i, name); i++) {
        if (!is_repeated(from, reshard->order, first, i) &&
            cst_box_common(t, &from->tensors[reshard->order[i]]) > 0) {
            out[n++] = reshard->order[i];
        }
    }
    return n;
}

uint64_t cst_reshard_before(const struct cst_reshard *reshard, uint32_t tensor, uint64_t element,
                            uint32_t part)
{
    const struct cst_layout_tensor *t = &reshard->to->tensors[tensor],
                                   *p = &reshard->from->tensors[part];
    uint64_t n = 0, inner = p->n_elems;
    int64_t at[CST_LAYOUT_MAX_DIMS];

    if (element == t->n_elems) {
        return p->n_elems;
    }
    place_of(t, element, at);
    for (uint32_t d = 0; d < p->n_dims; d++) {
        inner /= (uint64_t)p->shape[d];
        n += (uint64_t)cst_box_before(p, d, at[d]) * inner;
        if (!cst_box_has(p, d, at[d])) {
            break;
        }
    }
    return n;
}

bool cst_reshard_is_whole(const struct cst_reshard *reshard, uint32_t tensor)
{
    const struct cst_layout_tensor *t = &reshard->to->tensors[tensor];
    struct cst_reshard_run run = cst_reshard_run(reshard, tensor, 0, t->n_elems);

    return run.n_elems == t->n_elems && reshard->from->tensors[run.tensor].n_elems == t->n_elems;
}

bool cst_reshard_keeps_blocks(const struct cst_reshard *reshard, uint32_t tensor, uint32_t block)
{
    uint64_t n_elems = reshard->to->tensors[tensor].n_elems, at = 0;
    bool keeps = true;

    while (keeps && at < n_elems) {
        struct cst_reshard_run run = cst_reshard_run(reshard, tensor, at, n_elems - at);
        uint64_t left = reshard->from->tensors[run.tensor].n_elems - run.first;

        keeps = at % block == 0 && run.first % block == 0 &&
                (run.n_elems % block == 0 || (run.n_elems == left && run.n_elems == n_elems - at));
        at += run.n_elems;
    }
    return keeps;
}

uint64_t cst_reshard_reach(const struct cst_reshard *reshard, uint32_t tensor, uint64_t first,
                           uint64_t most, uint32_t n_runs, uint32_t step)
{
    uint64_t left = reshard->to->tensors[tensor].n_elems - first, n = 0;

    most = most < left ? most : left;
    for (uint32_t i = 0; i < n_runs && n < most; i++) {
        n += cst_reshard_run(reshard, tensor, first + n, most - n).n_elems;
    }
    return n == left ? n : n - n % step;
}

/* -- wholes ----------------------------------------------------------------------------------- */

/* Give the tensors of the whole @name, in the order @order of @model, the number @item. */
static void number_whole(const struct cst_model *model, const uint32_t *order, const char *name,
                         uint32_t item, uint32_t *items)
{
    for (uint32_t i = find_whole(model, order, name); is_of_whole(model, order, i, name); i++) {
        items[order[i]] = item;
    }
}

int cst_reshard_number(const struct cst_reshard *reshard, const struct cst_layout *layout,
                       uint32_t *items_from, uint32_t *items_to, uint32_t *n_items,
                       struct cst_err *err)
{
    const struct cst_model *from = reshard->from, *to = reshard->to;
    uint32_t *order = make_order(to), n = 0;

    if (order == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to compare two models");
    }
    memset(items_from, 0xff, from->n_tensors * sizeof *items_from);
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        uint32_t t = layout->order[i];

        if (items_from[t] == UINT32_MAX) {
            const char *name = cst_box_whole_name(&from->tensors[t]);

            number_whole(from, reshard->order, name, n, items_from);
            number_whole(to, order, name, n, items_to);
            n++;
        }
    }
    free(order);
    *n_items = n;
    return CST_OK;
}

/* -- layouts ---------------------------------------------------------------------------------- */

static bool same_states(const struct cst_layout *old, const struct cst_layout_states *states,
                        uint32_t grad_bytes)
{
    return old->grad_bytes == grad_bytes && old->states.optimizer == states->optimizer &&
           old->states.moments == states->moments && old->states.masters == states->masters &&
           old->states.two_weights == states->two_weights &&
           old->states.grad_over_weight == states->grad_over_weight;
}

static bool same_segments(const struct cst_layout *a, const struct cst_layout *b)
{
    bool same = a->n_segments == b->n_segments && a->device_bytes == 0 && b->device_bytes == 0;

    for (uint32_t i = 0; same && i < a->n_segments; i++) {
        const struct cst_layout_segment *s = &a->segments[i], *t = &b->segments[i];

        same = s->bytes == t->bytes && s->tier == t->tier && s->node == t->node &&
               s->is_base == t->is_base && s->base_segment == t->base_segment;
    }
    return same;
}

static bool same_row(const struct cst_layout_row *a, const struct cst_layout_row *b)
{
    return a->segment == b->segment && (a->segment == CST_LAYOUT_NO_ROW || a->offset == b->offset);
}

static bool same_chunk(const struct cst_layout_chunk *a, const struct cst_layout_chunk *b)
{
    bool same = a->n_elems == b->n_elems && a->n_tensors == b->n_tensors &&
                a->base_chunk == b->base_chunk && same_row(&a->other_weight, &b->other_weight);

    for (int r = 0; r < CST_ROW_COUNT; r++) {
        same = same && same_row(&a->rows[r], &b->rows[r]);
    }
    return same;
}

static bool same_tensor(const struct cst_layout_tensor *a, const struct cst_layout_tensor *b)
{
    return a->offset == b->offset && cst_box_same_part(a, b);
}

bool cst_reshard_may_stay(const struct cst_reshard *reshard, const struct cst_layout *old,
                          const struct cst_layout_states *states, uint32_t grad_bytes)
{
    bool same =
        same_states(old, states, grad_bytes) && reshard->from->n_tensors == reshard->to->n_tensors;

    for (uint32_t i = 0; same && i < reshard->to->n_tensors; i++) {
        same = cst_reshard_is_whole(reshard, i);
    }
    return same;
}

bool cst_reshard_is_in_place(const struct cst_model *from, const struct cst_layout *old,
                             const struct cst_model *to, const struct cst_layout *layout)
{
    bool same = same_states(old, &layout->states, layout->grad_bytes) &&
                same_segments(old, layout) && old->n_chunks == layout->n_chunks &&
                from->n_tensors == to->n_tensors;

    for (uint32_t c = 0; same && c < layout->n_chunks; c++) {
        same = same_chunk(&old->chunks[c], &layout->chunks[c]);
    }
    for (uint32_t i = 0; same && i < to->n_tensors; i++) {
        same = same_tensor(&from->tensors[old->order[i]], &to->tensors[layout->order[i]]);
    }
    return same;
}
