/* SPDX-License-Identifier: Apache-2.0 */
/* Where the elements of one model are in another model, which describes the same parameters for
 * other ranks. Pure; only allocates memory.
 *
 * A tensor that has no box is a box of itself: it covers its whole. Tensors of both models belong
 * together if their wholes have the same name and shape. The elements of a tensor are found in all
 * boxes of the other model that meet its own box:
 *
 *   from (two ranks)    to (one rank)    to (three ranks)
 *   +---+---+           +-------+        +-------+
 *   | a | b |           |   c   |        |___d___|      d is made from rows of a and b
 *   |   |   |           |       |        |___e___|
 *   +---+---+           +-------+        +---f---+
 *
 * A run is a range of elements that follow each other in both models. */
#ifndef CST_RESHARD_H
#define CST_RESHARD_H

#include "offload/layout/box.h"

struct cst_reshard {
    const struct cst_model *from, *to; /* Borrowed. */
    /* Numbers of all tensors of `from`, ordered by the name of their whole and by box. Owned. */
    uint32_t *order;
};

/* Consecutive elements of a tensor of `to`, and where they are in `from`. */
struct cst_reshard_run {
    uint32_t tensor;  /* Number of the tensor in `from`. */
    uint64_t first;   /* First element in that tensor. */
    uint64_t n_elems; /* Number of elements. */
};

/* Make the way from @from to @to, which must not change while it is used. Every element of either
 * model must be in the other one. The caller closes *reshard. Statuses:
 *
 *   - CST_EMISMATCH: an element is in one model only, or is frozen in one model only; boxes of one
 *     model meet without being equal; the wholes of the same name have different shapes; a whole
 *     has more than 256 parts. The words name the tensor.
 *   - CST_ENOMEM. */
int cst_reshard_open(struct cst_reshard *reshard, const struct cst_model *from,
                     const struct cst_model *to, struct cst_err *err);

/* Free the mapping. A zeroed mapping is allowed. */
void cst_reshard_close(struct cst_reshard *reshard);

/* Find the run that begins at element @first of tensor @tensor of `to` and has at most @most
 * elements. */
struct cst_reshard_run cst_reshard_run(const struct cst_reshard *reshard, uint32_t tensor,
                                       uint64_t first, uint64_t most);

/* Store the numbers of the tensors of `from` that have elements of tensor @tensor of `to` in @out,
 * which has CST_BOX_MAX_PARTS places. Of equal ones, the first is stored. Returns how many. */
uint32_t cst_reshard_parts(const struct cst_reshard *reshard, uint32_t tensor, uint32_t *out);

/* The number of elements of tensor @part of `from` that come before element @element, or before the
 * end, of tensor @tensor of `to`, which is the whole of @part. */
uint64_t cst_reshard_before(const struct cst_reshard *reshard, uint32_t tensor, uint64_t element,
                            uint32_t part);

/* True if tensor @tensor of `to` has all its elements, in the same order, in one tensor of `from`,
 * which has no others. */
bool cst_reshard_is_whole(const struct cst_reshard *reshard, uint32_t tensor);

/* True if each block of @block elements of tensor @tensor of `to`, counted from its first element,
 * is such a block of a tensor of `from`. The last block of a tensor may be shorter. */
bool cst_reshard_keeps_blocks(const struct cst_reshard *reshard, uint32_t tensor, uint32_t block);

/* The number of elements of tensor @tensor from @first on, at most @most, that are in at most
 * @n_runs runs. A number that does not reach the end of the tensor is a multiple of @step, which
 * divides @most and is at most @n_runs. */
uint64_t cst_reshard_reach(const struct cst_reshard *reshard, uint32_t tensor, uint64_t first,
                           uint64_t most, uint32_t n_runs, uint32_t step);

/* Number the wholes in the order in which @layout, of the model `from`, has them. items_from[i] and
 * items_to[i] get the number of the whole of tensor i of either model. Returns the number of wholes
 * in *n_items. CST_ENOMEM. */
int cst_reshard_number(const struct cst_reshard *reshard, const struct cst_layout *layout,
                       uint32_t *items_from, uint32_t *items_to, uint32_t *n_items,
                       struct cst_err *err);

/* True if memory of the layout @old could serve for the model `to` with rows as @states and
 * @grad_bytes say, provided that the chunks had the capacities of @old's. */
bool cst_reshard_may_stay(const struct cst_reshard *reshard, const struct cst_layout *old,
                          const struct cst_layout_states *states, uint32_t grad_bytes);

/* True if every row of @layout, of the model @to, is where @old, of the model @from, has the same
 * elements in the same format, in host memory. Memory of the one then serves as memory of the
 * other. */
bool cst_reshard_is_in_place(const struct cst_model *from, const struct cst_layout *old,
                             const struct cst_model *to, const struct cst_layout *layout);

#endif
