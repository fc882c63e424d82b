/* SPDX-License-Identifier: Apache-2.0 */
/* The expected way of a worker: the order of operators in a micro-batch. These are the forward
 * passes in the order of declaration, then the backward passes in reverse order, of the operators
 * that the rank runs. */
#ifndef CST_LEASE_WAY_H
#define CST_LEASE_WAY_H

#include <stdbool.h>
#include <stdint.h>

#define CST_LEASE_NONE UINT32_MAX

struct cst_lease_model;

/* A "place" below is an index on the way: forward 0 to n - 1, backward n to 2 * n - 1. */
struct cst_lease_way {
    uint32_t *ops;   /* Operators that this rank runs, in the order of declaration. Owned. */
    uint32_t n;      /* Number of entries in ops. */
    uint32_t *place; /* Per operator: its index in ops. Owned. */
    /* Per place: the first later place, before another stage comes, whose operator uses a chunk
     * that the operator of this place does not use; 2 * n: there is none. Owned. */
    uint32_t *next;
};

/* Find the way of @model. The chunks of operator i are op_chunks[op_first[i]] to
 * op_chunks[op_first[i + 1] - 1], without repeats. All arguments are borrowed for the call alone.
 * CST_ENOMEM: nothing is allocated, and no error text is set. */
int cst_lease_way_open(struct cst_lease_way *way, const struct cst_lease_model *model,
                       const uint32_t *op_first, const uint32_t *op_chunks);
void cst_lease_way_close(struct cst_lease_way *way);

/* Return the next operator on the way that uses chunks which @op does not use. CST_LEASE_NONE: the
 * way or the stage ends before. @op is one that the rank runs. */
uint32_t cst_lease_way_next(const struct cst_lease_way *way, uint32_t op, bool backward);

/* Return the operator whose backward pass is before that of @op, or CST_LEASE_NONE. @op is one that
 * the rank runs. */
uint32_t cst_lease_way_before_backward(const struct cst_lease_way *way, uint32_t op);

#endif
