/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks this rank holds, and what to say to the daemon at each border between operators.
 * Pure: no sockets, no memory of tensors; it fills a list of items, the caller sends them and
 * reports each result back.
 *
 *   begin(op)  RELEASE what neither this operator nor the chunk asked ahead needs,
 *              FETCH what it lacks: one batch, waited for
 *   ahead(op)  FETCH the first chunk on the expected way that this operator does not use:
 *              not waited for
 *   end(op)    REDUCE_SCATTER of the chunks whose last use in backward this was
 *   flush()    at the step: REDUCE_SCATTER of chunks begun and not complete, RELEASE of all weights
 *   turn()     between two micro-batches: REDUCE_SCATTER as in flush, ACCUMULATE
 *
 * The expected way is forward in order of declaration, then backward in reverse, of the operators
 * that this rank runs. A chunk's gradient is complete when all of those have ended that use it.
 * Leased at once are the operator's weight chunks, the open gradient chunks and one chunk ahead:
 * what cst_layout_need (offload/layout.h) promises for the smallest pool. All that is counted per
 * size class of chunks. */
#ifndef CST_LEASE_H
#define CST_LEASE_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_LEASE_NONE UINT32_MAX
#define CST_LEASE_MAX_CLASSES 4

enum cst_lease_kind {
    CST_LEASE_FETCH_WEIGHT = 1, /* numbers as BatchItem.Kind of proto/cistern.proto */
    CST_LEASE_FETCH_GRAD = 2,
    CST_LEASE_RELEASE = 3,
    CST_LEASE_REDUCE_SCATTER = 4,
    CST_LEASE_PREFETCH = 5,
    CST_LEASE_EVICT = 6,
    CST_LEASE_WANT = 7,
    CST_LEASE_ACCUMULATE = 100, /* of no chunk; a message of its own, in order with the items */
};

enum cst_lease_state { CST_LEASE_FREE, CST_LEASE_ASKED, CST_LEASE_HELD };

struct cst_lease {
    enum cst_lease_state state; /* the rest counts when HELD */
    uint32_t slab;              /* where the block is, when HELD */
    uint64_t offset;            /* bytes in the slab */
    uint64_t generation;        /* names the lease when it is given back */
};

struct cst_lease_item {
    enum cst_lease_kind kind; /* what is asked */
    uint32_t chunk;           /* of which chunk */
    bool ahead;               /* FETCH_WEIGHT: nobody waits for it yet */
    struct cst_lease lease;   /* RELEASE, REDUCE_SCATTER: the one given back */
};

struct cst_lease_operator {
    const uint32_t *tensors; /* numbers; borrowed */
    uint32_t n_tensors;      /* entries in tensors */
    bool runs;               /* in this rank */
};

struct cst_lease_trait {
    uint8_t size_class; /* below CST_LEASE_MAX_CLASSES */
    bool trains;        /* it has gradients */
};

struct cst_lease_model {
    const struct cst_lease_operator *operators; /* in order of declaration; borrowed */
    const uint32_t *tensor_chunk;               /* per tensor; borrowed */
    uint32_t n_operators;                       /* entries in operators */
    uint32_t n_tensors;                         /* entries in tensor_chunk */
    uint32_t n_chunks;                          /* each of tensor_chunk is below it */
    const struct cst_lease_trait *traits;       /* per chunk; borrowed */
    uint32_t blocks[CST_LEASE_MAX_CLASSES];     /* in this rank's pool, by size class */
};

struct cst_lease_chunk {
    struct cst_lease weight; /* on its weight row */
    struct cst_lease grad;   /* on a block for its gradients */
    uint32_t n_uses;         /* uses of all its tensors by operators of this rank */
    uint32_t uses_left;      /* of them, not ended in this micro-batch's backward */
    uint32_t first_tensor;   /* index into by_chunk */
    uint32_t n_tensors;      /* its tensors in by_chunk */
    uint32_t mark;           /* equals leases.mark: used by the operator looked at */
    bool handed_in;          /* in this micro-batch */
};

struct cst_leases {
    struct cst_lease_model model;   /* copied; its arrays are borrowed */
    struct cst_lease_chunk *chunks; /* model.n_chunks of them */
    uint32_t *by_chunk;             /* tensor numbers, chunk by chunk */
    uint32_t *op_first;             /* per operator: index into op_chunks; one more at the end */
    uint32_t *op_chunks;            /* an operator's chunks, without repeats */
    uint32_t *way;                  /* operators of this rank, in order */
    uint32_t *place;                /* per operator: its index in way */
    uint32_t n_way;                 /* entries in way; the way has twice as many places */
    uint32_t *ahead; /* per place on the way: the first later chunk that it does not use, or NONE */
    uint32_t *ahead_at;      /* per place: where on the way that is */
    bool *written;           /* per tensor: has a gradient of this micro-batch */
    bool *op_done;           /* per operator: its backward ended in this micro-batch */
    uint32_t *held;          /* chunks whose weight is HELD or ASKED */
    uint32_t *open;          /* chunks whose grad is HELD or ASKED */
    uint32_t n_held, n_open; /* entries in held and open */
    uint32_t n_open_in[CST_LEASE_MAX_CLASSES]; /* of n_open, by size class */
    uint32_t asked_ahead;                      /* chunk of the FETCH ahead in flight, or NONE */
    uint32_t mark;                             /* see cst_lease_chunk.mark */
    struct cst_lease_item *items;              /* what to send, filled by the calls below */
    uint32_t n_items;                          /* entries in items */
};

/* CST_ENOMEM. On failure nothing is held. */
int cst_lease_init(struct cst_leases *leases, const struct cst_lease_model *model,
                   struct cst_err *err);
void cst_lease_close(struct cst_leases *leases);

/* All leases are void and a step starts anew (after a sync). */
void cst_lease_forget(struct cst_leases *leases);

/* A step was committed, or a micro-batch has ended: the records of its gradients are wiped. Held
 * weights stay. */
void cst_lease_reset_step(struct cst_leases *leases);

/* True while the reply to the FETCH ahead must come before begin can be planned: this operator
 * needs that chunk, or a wrong guess has to be given back to make room. */
bool cst_lease_must_settle(struct cst_leases *leases, uint32_t op, bool backward);

/* Plan to say that the FETCH ahead in flight is waited for. */
void cst_lease_want(struct cst_leases *leases);

/* Plan nothing. Before hints, which add to what is planned. */
void cst_lease_clear(struct cst_leases *leases);

/* Plan to say that the weights of @chunk are wanted soon. Nothing is said where they are held, or
 * asked for already. */
void cst_lease_prefetch(struct cst_leases *leases, uint32_t chunk);

/* Plan to give the weights of @chunk back, if they are held, and to say that they are not wanted
 * soon. No operator that uses them is begun. Nothing is said where they were just asked for. */
void cst_lease_evict(struct cst_leases *leases, uint32_t chunk);

/* A tensor of @op whose gradient was handed in already in this micro-batch, or CST_LEASE_NONE. */
uint32_t cst_lease_handed_in(const struct cst_leases *leases, uint32_t op);

/* Plan the batch that @op waits for; n_items is 0 where all is held. CST_EPOOL: with the gradients
 * that are open the pool has not enough blocks for it (operators used in another order than
 * declared). */
int cst_lease_begin(struct cst_leases *leases, uint32_t op, bool backward, struct cst_err *err);

/* Plan what is sent behind a begun operator, without waiting. */
void cst_lease_ahead(struct cst_leases *leases, uint32_t op, bool backward);

/* @op ends. Plans the hand-in of completed chunks; before it is sent, the stretches of tensors that
 * are not `written` have to be zeroed by the caller. */
void cst_lease_end(struct cst_leases *leases, uint32_t op, bool backward);

/* Plan the end of the step; the same duty of zeroing. asked_ahead must be NONE. */
void cst_lease_flush(struct cst_leases *leases);

/* Plan the end of a micro-batch behind which another one comes; the same duty of zeroing, and then
 * cst_lease_reset_step. */
void cst_lease_turn(struct cst_leases *leases);

/* The daemon granted @item, a FETCH. @hit, for a gradient: the block has this attempt's earlier
 * data. */
void cst_lease_grant(struct cst_leases *leases, const struct cst_lease_item *item,
                     const struct cst_lease *lease, bool hit);

/* @item, a FETCH, was refused: it is not held. */
void cst_lease_refuse(struct cst_leases *leases, const struct cst_lease_item *item);

/* Chunks of @op, *n_out of them. Borrowed. */
const uint32_t *cst_lease_op_chunks(const struct cst_leases *leases, uint32_t op, uint32_t *n_out);

#endif
