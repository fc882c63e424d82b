/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations of a worker before it commits: groups, tensors and operators. This module checks
 * what can be checked without the daemon (declare.c) and packs them into Declare messages
 * (declare_message.c). After cst_commit the declarations are constant. Used by the job's thread
 * only. */
#ifndef CST_DECLARE_H
#define CST_DECLARE_H

#include "cistern/cistern.h"
#include "proto/cistern.pb-c.h"

#include <stdint.h>

#define CSTC_DECLARE_NAME_BYTES 64 /* Including the NUL. */
#define CSTC_DECLARE_MAX_DIMS 8
#define CSTC_DECLARE_MAX_TENSORS 65536
#define CSTC_DECLARE_MAX_OPERATORS 65536
#define CSTC_DECLARE_MAX_GROUPS 256 /* Including group 0, which has all ranks. */
#define CSTC_DECLARE_MAX_ELEMS (1ll << 40)

/* Place of a tensor in the larger tensor of which it is a box. */
struct cstc_declare_box {
    int64_t whole[CSTC_DECLARE_MAX_DIMS]; /* Shape of the larger tensor. */
    int64_t first[CSTC_DECLARE_MAX_DIMS]; /* Index of the box's first element. */
};

struct cstc_declare_tensor {
    char name[CSTC_DECLARE_NAME_BYTES];   /* NUL-terminated. */
    int64_t shape[CSTC_DECLARE_MAX_DIMS]; /* Numbers of elements, outermost dimension first. */
    uint32_t n_dims;                      /* Number of entries in shape. */
    uint32_t dtype;                       /* enum cst_dtype */
    uint64_t n_elems;                     /* Number of elements: product of shape. */
    float lr_scale;                       /* Factor on the learning rate. */
    float decay_scale;                    /* Factor on the weight decay. */
    uint32_t group;                       /* Index into cstc_declare.groups. */
    enum cst_pattern_kind pattern;        /* How the ranks hold the tensor. */
    struct cstc_declare_box *box;         /* CST_PATTERN_TENSOR; else NULL. Owned. */
};

struct cstc_declare_operator {
    char name[CSTC_DECLARE_NAME_BYTES]; /* NUL-terminated. */
    uint32_t *tensors;                  /* Numbers of the tensors that it uses. Owned. */
    uint32_t n_tensors;                 /* Number of entries in tensors. */
    bool runs;                          /* This rank is in the groups of all its tensors. */
    struct cst_operator_cost cost;      /* Hints of the worker. */
};

/* A set of names: a hash table with open addressing. A slot has a tensor's or operator's number +
 * 1; 0: the slot is free. */
struct cstc_declare_names {
    uint32_t *slots;  /* n_slots entries. Owned. */
    uint32_t n_slots; /* A power of two, or 0. */
    uint32_t n_used;  /* Number of names. */
};

struct cstc_declare {
    uint32_t rank, world;                     /* This rank, and the number of ranks. */
    uint64_t groups[CSTC_DECLARE_MAX_GROUPS]; /* The ranks of each group; bit r: rank r. */
    uint32_t n_groups;                        /* Number of entries in groups. Group 0: all ranks. */
    struct cstc_declare_tensor *tensors;      /* By number. Owned. */
    struct cstc_declare_operator *operators;  /* By number: the order of the forward pass. Owned. */
    uint32_t n_tensors, n_operators;          /* Numbers of tensors and operators declared. */
    uint32_t tensor_capacity, operator_capacity; /* Numbers of entries allocated. */
    /* Names that are taken. */
    struct cstc_declare_names tensor_names, operator_names;
    /* Per tensor: 1 + number of the last operator that used it. Finds tensors that one operator
     * names twice. */
    uint32_t *stamp;
    uint32_t n_stamps; /* Number of entries in stamp. */
};

/* Begin the declarations of rank @rank of @world. */
void cstc_declare_init(struct cstc_declare *declare, uint32_t rank, uint32_t world);
void cstc_declare_close(struct cstc_declare *declare);

/* Add a group. The group's number is n_groups before the call. CST_EINVAL: no ranks, a rank that
 * the job does not have, a rank given twice, or too many groups. */
int cstc_declare_add_group(struct cstc_declare *declare, const uint32_t *ranks, uint32_t n_ranks,
                           struct cst_err *err);

/* Add a tensor. The tensor's number is n_tensors before the call. @spec is copied. On failure
 * nothing changes. Statuses:
 *   - CST_EINVAL: the name is empty, longer than 63 bytes or not printable.
 *   - CST_EINVAL: there are no dimensions or more than 8, a dimension is less than 1, or there are
 *     more than 2^40 elements.
 *   - CST_EINVAL: a scale is not finite, or the type, group or pattern does not exist.
 *   - CST_EINVAL: the box is missing, not wanted, or not inside of the larger tensor.
 *   - CST_EINVAL: there are too many tensors.
 *   - CST_EEXIST: the name is taken.
 *   - CST_ENOMEM. */
int cstc_declare_add_tensor(struct cstc_declare *declare, const struct cst_tensor_spec *spec,
                            struct cst_err *err);

/* Add an operator. The operator's number is n_operators before the call. Everything is copied;
 * @cost may be NULL. On failure nothing changes. Statuses:
 *   - CST_EINVAL: the name is empty, longer than 63 bytes or not printable.
 *   - CST_EINVAL: there are no tensors, a tensor does not exist or is given twice, or no rank is in
 *     the groups of all tensors.
 *   - CST_EINVAL: a hint is negative or not finite.
 *   - CST_EINVAL: there are too many operators.
 *   - CST_EEXIST: the name is taken.
 *   - CST_ENOMEM. */
int cstc_declare_add_operator(struct cstc_declare *declare, const char *name, const int *tensors,
                              uint32_t n_tensors, const struct cst_operator_cost *cost,
                              struct cst_err *err);

/* Return whether tensors of @pattern have gradients, master weights and moments. */
bool cstc_declare_trains(enum cst_pattern_kind pattern);

/* Progress of packing the declarations into Declare messages. Begins with zeros. */
struct cstc_declare_cursor {
    uint32_t group;  /* Number of groups that are packed, without group 0. */
    uint32_t tensor; /* Number of tensors that are packed. Tensors follow the groups. */
    uint32_t op;     /* Number of operators that are packed. Operators follow the tensors. */
};

/* Make the next Declare message, with as many declarations as are sure to fit into a frame, and
 * advance @cursor. *out belongs to the caller, who frees it with cstc_declare_free_message; it
 * borrows from @declare. *out is NULL if all declarations are packed. CST_EINVAL: an operator is
 * too large for a message; CST_ENOMEM. After a failure @cursor is undefined. */
int cstc_declare_message(const struct cstc_declare *declare, struct cstc_declare_cursor *cursor,
                         Cistern__Declare **out, struct cst_err *err);
void cstc_declare_free_message(Cistern__Declare *msg);

#endif
