/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker declares before it commits: groups, tensors and operators, checked as far as that
 * needs no daemon, and packed into Declare messages (declare_message.c). Grows while declaring,
 * then constant. */
#ifndef CST_DECLARE_H
#define CST_DECLARE_H

#include "cistern/cistern.h"
#include "proto/cistern.pb-c.h"

#include <stdint.h>

#define CST_DECLARE_NAME_BYTES 64 /* with the NUL */
#define CST_DECLARE_MAX_DIMS 8
#define CST_DECLARE_MAX_TENSORS 65536
#define CST_DECLARE_MAX_OPERATORS 65536
#define CST_DECLARE_MAX_GROUPS 256 /* that of all ranks, number 0, included */
#define CST_DECLARE_MAX_ELEMS (1ll << 40)

/* Where a tensor lies in the larger one of which it is a box. */
struct cst_declare_box {
    int64_t whole[CST_DECLARE_MAX_DIMS]; /* shape of that one */
    int64_t first[CST_DECLARE_MAX_DIMS]; /* where the box begins */
};

struct cst_declare_tensor {
    char name[CST_DECLARE_NAME_BYTES];   /* NUL-terminated */
    int64_t shape[CST_DECLARE_MAX_DIMS]; /* elements, outermost first */
    uint32_t n_dims;                     /* entries in shape */
    uint32_t dtype;                      /* enum cst_dtype */
    uint64_t n_elems;                    /* product of shape */
    float lr_scale;                      /* multiplies lr */
    float decay_scale;                   /* multiplies weight_decay */
    uint32_t group;                      /* index into cst_declare.groups */
    enum cst_pattern_kind pattern;       /* how its ranks hold it */
    struct cst_declare_box *box;         /* CST_PATTERN_TENSOR; else NULL; owned */
};

struct cst_declare_operator {
    char name[CST_DECLARE_NAME_BYTES]; /* NUL-terminated */
    uint32_t *tensors;                 /* numbers; owned */
    uint32_t n_tensors;                /* entries in tensors */
    bool runs;                         /* this rank is in the groups of all its tensors */
    struct cst_operator_cost cost;     /* hints, as given */
};

/* Open addressing: a slot holds a number + 1, or 0. */
struct cst_declare_names {
    uint32_t *slots;  /* n_slots of them; owned */
    uint32_t n_slots; /* a power of two, or 0 */
    uint32_t n_used;  /* names in it */
};

struct cst_declare {
    uint32_t rank, world;                                  /* who declares */
    uint64_t groups[CST_DECLARE_MAX_GROUPS];               /* ranks of each, a bit each */
    uint32_t n_groups;                                     /* entries in groups; [0]: all ranks */
    struct cst_declare_tensor *tensors;                    /* by number; owned */
    struct cst_declare_operator *operators;                /* in the order of the forward pass */
    uint32_t n_tensors, n_operators;                       /* declared */
    uint32_t tensor_capacity, operator_capacity;           /* entries allocated */
    struct cst_declare_names tensor_names, operator_names; /* to find repeats */
    uint32_t *stamp;   /* per tensor: last operator + 1 that named it, for repeats */
    uint32_t n_stamps; /* entries in stamp */
};

/* For rank @rank of @world. */
void cst_declare_init(struct cst_declare *declare, uint32_t rank, uint32_t world);
void cst_declare_close(struct cst_declare *declare);

/* Add a group; its number is n_groups before the call. CST_EINVAL: no ranks, one that the job
 * lacks, the same one twice; too many groups. */
int cst_declare_add_group(struct cst_declare *declare, const uint32_t *ranks, uint32_t n_ranks,
                          struct cst_err *err);

/* Add a tensor; its number is n_tensors before the call. CST_EINVAL: a name that is empty, over 63
 * bytes or not printable; no dimensions or more than 8, one < 1, a product over 2^40; a scale that
 * is not finite; no such dtype, group or pattern; a box that is missing, not wanted, or not inside
 * of the whole tensor; too many. CST_EEXIST: the name is taken. CST_ENOMEM. Unchanged on failure.
 */
int cst_declare_add_tensor(struct cst_declare *declare, const struct cst_tensor_spec *spec,
                           struct cst_err *err);

/* Add an operator; @cost NULL: no hints. CST_EINVAL: no tensors, one that does not exist, the same
 * one twice; tensors of groups that no rank is in together; name; a hint that is negative or not
 * finite; too many. CST_EEXIST, CST_ENOMEM. */
int cst_declare_add_operator(struct cst_declare *declare, const char *name, const int *tensors,
                             uint32_t n_tensors, const struct cst_operator_cost *cost,
                             struct cst_err *err);

/* Tensors of @pattern have gradients and states. */
bool cst_declare_trains(enum cst_pattern_kind pattern);

/* Where the packing of Declare messages stands. Start with zeros. */
struct cst_declare_cursor {
    uint32_t group;  /* how many are packed, number 0 not counted */
    uint32_t tensor; /* the next one, when all groups are packed */
    uint32_t op;     /* the next one, when all tensors are packed */
};

/* The next Declare message: as many declarations as surely fit into a frame. *out is the caller's,
 * to free with cst_declare_free_message; NULL when there is nothing more. CST_EINVAL: an operator
 * too large for a message; CST_ENOMEM. */
int cst_declare_message(const struct cst_declare *declare, struct cst_declare_cursor *cursor,
                        Cistern__Declare **out, struct cst_err *err);
void cst_declare_free_message(Cistern__Declare *msg);

#endif
