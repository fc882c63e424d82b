/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a tensor in its whole, the larger tensor of which it is a part (cst_layout_box). A
 * tensor that has no box is a box of itself: it covers its whole. Pure. */
#ifndef CST_BOX_H
#define CST_BOX_H

#include "offload/layout/layout.h"

#include <string.h>

/* More parts of one whole would take the daemon's time: each is compared with each. So would more
 * ranges of each part (CST_LAYOUT_MAX_PACKED). */
#define CST_BOX_MAX_PARTS 256

/* Check the box of @words, whose shapes are checked. CST_EINVAL: it is not within the whole, or the
 * number of its ranges of a dimension is none (cst_layout_box). */
int cst_box_check(const struct cst_tensor_words *words, struct cst_err *err);

/* Make the box of @words, which are checked, in one allocation of the caller. NULL: no memory. */
struct cst_layout_box *cst_box_make(const struct cst_tensor_words *words);

/* True if the whole of @t has a name of its own, so that its parts are cut and joined. */
static inline bool cst_box_is_named(const struct cst_layout_tensor *t)
{
    return t->box != NULL && t->box->name[0] != '\0';
}

static inline const char *cst_box_whole_name(const struct cst_layout_tensor *t)
{
    return cst_box_is_named(t) ? t->box->name : t->name;
}

static inline int64_t cst_box_whole_dim(const struct cst_layout_tensor *t, uint32_t d)
{
    return t->box != NULL ? t->box->whole[d] : t->shape[d];
}

/* How many equal parts of dimension @d of its whole the tensor has a range of. */
static inline int64_t cst_box_packed(const struct cst_layout_tensor *t, uint32_t d)
{
    return t->box != NULL ? t->box->packed[d] : 1;
}

/* True if the tensor has several ranges of a dimension. */
static inline bool cst_box_is_packed(const struct cst_layout_tensor *t)
{
    bool any = false;

    for (uint32_t d = 0; d < t->n_dims; d++) {
        any = any || cst_box_packed(t, d) > 1;
    }
    return any;
}

/* Where the first range of the tensor begins in dimension @d of its whole. */
static inline int64_t cst_box_begin(const struct cst_layout_tensor *t, uint32_t d)
{
    return t->box != NULL ? t->box->first[d] : 0;
}

/* Length of each range of dimension @d, and from where one begins to where the next one does. */
static inline int64_t cst_box_range(const struct cst_layout_tensor *t, uint32_t d)
{
    return t->shape[d] / cst_box_packed(t, d);
}

static inline int64_t cst_box_stride(const struct cst_layout_tensor *t, uint32_t d)
{
    return cst_box_whole_dim(t, d) / cst_box_packed(t, d);
}

/* Where row @row of dimension @d of the tensor is in the whole. */
static inline int64_t cst_box_place(const struct cst_layout_tensor *t, uint32_t d, int64_t row)
{
    const int64_t n = cst_box_range(t, d);

    return row / n * cst_box_stride(t, d) + cst_box_begin(t, d) + row % n;
}

/* How many rows of dimension @d of the tensor are before place @at of the whole, or of its end. */
static inline int64_t cst_box_before(const struct cst_layout_tensor *t, uint32_t d, int64_t at)
{
    const int64_t n = cst_box_range(t, d), stride = cst_box_stride(t, d);
    const int64_t in = at % stride - cst_box_begin(t, d);

    return at / stride * n + (in < 0 ? 0 : in < n ? in : n);
}

/* True if the tensor has place @at of dimension @d of the whole. */
static inline bool cst_box_has(const struct cst_layout_tensor *t, uint32_t d, int64_t at)
{
    return cst_box_before(t, d, at + 1) > cst_box_before(t, d, at);
}

/* Where the range ends that has place @at of dimension @d of the whole. */
static inline int64_t cst_box_end(const struct cst_layout_tensor *t, uint32_t d, int64_t at)
{
    return at / cst_box_stride(t, d) * cst_box_stride(t, d) + cst_box_begin(t, d) +
           cst_box_range(t, d);
}

/* True if the wholes of both tensors have the same shape. */
static inline bool cst_box_same_whole(const struct cst_layout_tensor *a,
                                      const struct cst_layout_tensor *b)
{
    bool same = a->n_dims == b->n_dims;

    for (uint32_t d = 0; same && d < a->n_dims; d++) {
        same = cst_box_whole_dim(a, d) == cst_box_whole_dim(b, d);
    }
    return same;
}

/* True if both tensors have the same place in dimension @d of their whole. */
static inline bool cst_box_same_extent(const struct cst_layout_tensor *a,
                                       const struct cst_layout_tensor *b, uint32_t d)
{
    return cst_box_begin(a, d) == cst_box_begin(b, d) && a->shape[d] == b->shape[d] &&
           cst_box_packed(a, d) == cst_box_packed(b, d);
}

/* True if both tensors, of wholes of the same shape, have the same place. */
static inline bool cst_box_same(const struct cst_layout_tensor *a,
                                const struct cst_layout_tensor *b)
{
    bool same = true;

    for (uint32_t d = 0; d < a->n_dims; d++) {
        same = same && cst_box_same_extent(a, b, d);
    }
    return same;
}

/* True if both tensors are the same part of the same whole, by its name and shape. */
static inline bool cst_box_same_part(const struct cst_layout_tensor *a,
                                     const struct cst_layout_tensor *b)
{
    return cst_box_same_whole(a, b) && cst_box_same(a, b) &&
           strcmp(cst_box_whole_name(a), cst_box_whole_name(b)) == 0;
}

/* Number of places of dimension @d of their whole that both tensors have. */
static inline int64_t cst_box_common_in(const struct cst_layout_tensor *a,
                                        const struct cst_layout_tensor *b, uint32_t d)
{
    const int64_t whole = cst_box_whole_dim(a, d);
    const int64_t n_a = cst_box_range(a, d), stride_a = cst_box_stride(a, d);
    const int64_t n_b = cst_box_range(b, d), stride_b = cst_box_stride(b, d);
    int64_t n = 0, at_a = cst_box_begin(a, d), at_b = cst_box_begin(b, d);

    while (at_a < whole && at_b < whole) {
        const int64_t end_a = at_a + n_a, end_b = at_b + n_b;
        const int64_t begin = at_a > at_b ? at_a : at_b, end = end_a < end_b ? end_a : end_b;

        n += end > begin ? end - begin : 0;
        at_a += end_a <= end_b ? stride_a : 0;
        at_b += end_a <= end_b ? 0 : stride_b;
    }
    return n;
}

/* Number of elements that both tensors have, of wholes of the same shape. */
static inline uint64_t cst_box_common(const struct cst_layout_tensor *a,
                                      const struct cst_layout_tensor *b)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < a->n_dims; d++) {
        n *= (uint64_t)cst_box_common_in(a, b, d);
    }
    return n;
}

#endif
