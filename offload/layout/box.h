/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a tensor in its whole, the larger tensor of which it is a part (cst_layout_box). A
 * tensor that has no box is a box of itself: it covers its whole. Pure. */
#ifndef CST_BOX_H
#define CST_BOX_H

#include "offload/layout/layout.h"

#include <string.h>

/* More parts of one whole would take the daemon's time: each is compared with each. */
#define CST_BOX_MAX_PARTS 256

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

/* Where the tensor begins and ends in dimension @d of its whole. */
static inline int64_t cst_box_begin(const struct cst_layout_tensor *t, uint32_t d)
{
    return t->box != NULL ? t->box->first[d] : 0;
}

static inline int64_t cst_box_end(const struct cst_layout_tensor *t, uint32_t d)
{
    return cst_box_begin(t, d) + t->shape[d];
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
    return cst_box_begin(a, d) == cst_box_begin(b, d) && a->shape[d] == b->shape[d];
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

/* Number of elements that both tensors have. */
static inline uint64_t cst_box_common(const struct cst_layout_tensor *a,
                                      const struct cst_layout_tensor *b)
{
    uint64_t n = 1;

    for (uint32_t d = 0; d < a->n_dims; d++) {
        int64_t begin =
            cst_box_begin(a, d) > cst_box_begin(b, d) ? cst_box_begin(a, d) : cst_box_begin(b, d);
        int64_t end = cst_box_end(a, d) < cst_box_end(b, d) ? cst_box_end(a, d) : cst_box_end(b, d);

        n *= end > begin ? (uint64_t)(end - begin) : 0;
    }
    return n;
}

#endif
