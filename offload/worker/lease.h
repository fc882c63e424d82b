/* SPDX-License-Identifier: Apache-2.0 */
/* The leases of this rank, and the messages about them between operators. This module has no
 * sockets and does not access tensors: it fills a list of items, the caller sends them to the
 * daemon and reports each result back.
 *
 *   begin(op)  RELEASE the weights that neither this operator needs nor are wanted ahead,
 *              FETCH what the operator lacks: one batch, for which the worker waits
 *   ahead(op)  FETCH the weights that are wanted ahead: those that this operator does not use, of
 *              the first operator on the expected way that uses such weights, as far as the pool
 *              has blocks to spare. The worker does not wait for them
 *   end(op)    REDUCE_SCATTER (hand in the gradient) of the chunks whose last backward use this was
 *   flush()    at the step: REDUCE_SCATTER of chunks with incomplete gradients, RELEASE of all
 *              weights
 *   turn()     between two micro-batches: REDUCE_SCATTER as in flush, then ACCUMULATE
 *
 * The expected way is that of offload/worker/lease_way.h. A forward pass of an operator counts as a
 * part of its backward pass if the next operator has had its backward pass and it has not: a worker
 * may open the weights so while it computes gradients. The gradient of a chunk is complete when the
 * backward passes of all operators that use the chunk have ended.
 *
 * At any time the rank has leases on the weights of the operator's chunks, on the open gradients,
 * and on weights ahead. The smallest pool has blocks for this with one chunk ahead:
 * cst_layout_need (offload/layout/layout.h). Blocks are counted per size class. */
#ifndef CST_LEASE_H
#define CST_LEASE_H

#include "cistern/status.h"
#include "offload/worker/lease_way.h"

#include <stdbool.h>
#include <stdint.h>

#define CST_LEASE_MAX_CLASSES 4

/* Kinds of items. The numbers below 100 are those of BatchItem.Kind in proto/cistern.proto. */
enum cst_lease_kind {
    CST_LEASE_FETCH_WEIGHT = 1,
    CST_LEASE_FETCH_GRAD = 2,
    CST_LEASE_RELEASE = 3,
    CST_LEASE_REDUCE_SCATTER = 4,
    CST_LEASE_PREFETCH = 5,
    CST_LEASE_EVICT = 6,
    CST_LEASE_WANT = 7,
    /* End of a micro-batch: has no chunk, and is sent as a separate message, in order with
     * items. */
    CST_LEASE_ACCUMULATE = 100,
};

enum cst_lease_state { CST_LEASE_FREE, CST_LEASE_ASKED, CST_LEASE_HELD };

/* A lease on one block. */
struct cst_lease {
    enum cst_lease_state state; /* The other fields are valid if it is HELD. */
    uint32_t slab;              /* Number of the block's slab. */
    uint64_t offset;            /* Offset of the block in the slab, in bytes. */
    uint64_t generation;        /* Identifies the lease when it is given back. */
};

struct cst_lease_item {
    enum cst_lease_kind kind; /* Kind of the request. */
    uint32_t chunk;           /* Number of the chunk. */
    bool ahead;               /* FETCH_WEIGHT: the worker does not wait for it yet. */
    struct cst_lease lease;   /* RELEASE, REDUCE_SCATTER: the lease that is given back. */
};

struct cst_lease_operator {
    const char *name;        /* For errors. Borrowed. */
    const uint32_t *tensors; /* Numbers of the tensors that it uses. Borrowed. */
    uint32_t n_tensors;      /* Number of entries in tensors. */
    uint32_t stage;          /* Number of its stage; nothing is fetched ahead of another stage. */
    bool runs;               /* This rank runs the operator. */
};

struct cst_lease_trait {
    uint8_t size_class; /* Size class of the chunk, below CST_LEASE_MAX_CLASSES. */
    bool trains;        /* The chunk has gradients. */
};

struct cst_lease_model {
    const struct cst_lease_operator *operators; /* In the order of declaration. Borrowed. */
    const uint32_t *tensor_chunk;               /* Per tensor: number of its chunk. Borrowed. */
    uint32_t n_operators;                       /* Number of entries in operators. */
    uint32_t n_tensors;                         /* Number of entries in tensor_chunk. */
    uint32_t n_chunks;                          /* Number of chunks. */
    const struct cst_lease_trait *traits;       /* Per chunk. Borrowed. */
    uint32_t blocks[CST_LEASE_MAX_CLASSES];     /* Per size class: blocks in this rank's pool. */
};

struct cst_lease_chunk {
    struct cst_lease weight; /* Lease on the block with the weights. */
    struct cst_lease grad;   /* Lease on the block with the gradient. */
    uint32_t n_uses;         /* Number of uses of its tensors by operators of this rank. */
    /* Number of these uses whose backward pass has not ended in this micro-batch. */
    uint32_t uses_left;
    uint32_t first_tensor; /* Index of its first tensor in cst_leases.by_chunk. */
    uint32_t n_tensors;    /* Number of its tensors. */
    uint32_t mark;         /* Equals cst_leases.mark: the operator under inspection uses it. */
    /* Equals cst_leases.wanted_mark: during that operator, its weights are wanted ahead. */
    uint32_t wanted;
    bool handed_in; /* Its gradient was handed in in this micro-batch. */
    /* In the simulation of cst_lease_fits: whether the gradient is open, and uses_left. */
    bool sim_open;
    uint32_t sim_left;
};

struct cst_leases {
    struct cst_lease_model model;   /* Copied; its arrays are borrowed. */
    struct cst_lease_chunk *chunks; /* Per chunk. Owned, as all following arrays. */
    uint32_t *by_chunk;             /* Numbers of tensors, sorted by chunk. */
    /* Per operator: index of its first chunk in op_chunks. Has one more entry, for the end. */
    uint32_t *op_first;
    uint32_t *op_chunks; /* Chunks of each operator, without repeats. */
    struct cst_lease_way way;
    bool *written;           /* Per tensor: its gradient was written in this micro-batch. */
    bool *op_done;           /* Per operator: its backward pass ended in this micro-batch. */
    uint32_t *held;          /* Chunks whose weights are HELD or ASKED. */
    uint32_t *open;          /* Chunks whose gradient is HELD or ASKED. */
    uint32_t n_held, n_open; /* Numbers of entries in held and open. */
    uint32_t n_open_in[CST_LEASE_MAX_CLASSES];    /* Per size class: number of entries in open. */
    uint32_t most_weights[CST_LEASE_MAX_CLASSES]; /* Per size class: most chunks of an operator. */
    bool always_fits;     /* The pool has blocks for all gradients and any operator's weights. */
    uint32_t *asked;      /* Chunks of the FETCHes ahead in flight. */
    uint32_t n_asked;     /* Number of entries in asked. */
    uint32_t mark;        /* Number of the last inspection, see cst_lease_chunk.mark. */
    uint32_t wanted_mark; /* Likewise, see cst_lease_chunk.wanted. */
    struct cst_lease_item *items; /* Items to send, filled by the functions below. */
    uint32_t n_items;             /* Number of entries in items. */
};

/* Prepare the leases of a model; none is held. @model is copied, its arrays are borrowed until
 * cst_lease_close. CST_ENOMEM: nothing is allocated. */
int cst_lease_init(struct cst_leases *leases, const struct cst_lease_model *model,
                   struct cst_err *err);
void cst_lease_close(struct cst_leases *leases);

/* Forget all leases and begin a new step (after a sync). */
void cst_lease_forget(struct cst_leases *leases);

/* Forget which gradients were written and handed in, because a step was committed or a micro-batch
 * has ended. Leases on weights stay. */
void cst_lease_reset_step(struct cst_leases *leases);

/* Return whether cst_lease_begin(@op) must wait for the replies to the FETCHes ahead: the operator
 * needs one of these chunks, or it needs something else and one of the chunks, which is not wanted
 * ahead any more, must be released first to make room. */
bool cst_lease_must_settle(struct cst_leases *leases, uint32_t op, bool backward);

/* Plan to tell the daemon that the worker now waits for the FETCHes ahead in flight. */
void cst_lease_want(struct cst_leases *leases);

/* Remove all planned items: they were sent. */
void cst_lease_clear(struct cst_leases *leases);

/* Remove all planned items: they are not sent, and the fetches among them are refused. */
void cst_lease_give_up(struct cst_leases *leases);

/* Plan to tell the daemon that the weights of @chunk are wanted soon, unless they are HELD or
 * ASKED. Adds to the planned items, as cst_lease_evict does. */
void cst_lease_prefetch(struct cst_leases *leases, uint32_t chunk);

/* Plan to release the weights of @chunk if they are HELD, and to tell the daemon that they are not
 * wanted soon. Plans nothing if they are ASKED. The operator that has begun must not use them. */
void cst_lease_evict(struct cst_leases *leases, uint32_t chunk);

/* Return a tensor of @op whose gradient was already handed in in this micro-batch, or
 * CST_LEASE_NONE. */
uint32_t cst_lease_handed_in(const struct cst_leases *leases, uint32_t op);

/* Fill most_weights and always_fits. cst_lease_init calls this. */
void cst_lease_count_most(struct cst_leases *leases);

/* Return whether the pool has blocks for the backward pass of @op now, for the forward pass of any
 * operator after it, and for the backward passes of all other operators after that, in the reverse
 * order of declaration, of those that have not ended in this micro-batch. No operator is begun.
 * Takes time proportional to the uses of tensors, unless the pool has blocks for everything. */
bool cst_lease_fits(struct cst_leases *leases, uint32_t op);

/* Plan the batch for which @op waits. n_items is 0 if the operator has everything. CST_EPOOL: the
 * pool has not enough blocks for the operator and the open gradients, because operators run in
 * another order than declared. */
int cst_lease_begin(struct cst_leases *leases, uint32_t op, bool backward, struct cst_err *err);

/* Plan the items that are sent after @op has begun, and for which nobody waits. */
void cst_lease_ahead(struct cst_leases *leases, uint32_t op, bool backward);

/* End @op, and plan the hand-in of chunks whose gradients are complete. Before the items are sent,
 * the caller must clear the gradients of their tensors that are not `written`. */
void cst_lease_end(struct cst_leases *leases, uint32_t op, bool backward);

/* Plan the end of the step. The caller clears gradients as for cst_lease_end. n_asked must be 0. */
void cst_lease_flush(struct cst_leases *leases);

/* Plan the end of a micro-batch that is not the last one of its step. The caller clears gradients
 * as for cst_lease_end, sends the items, and then calls cst_lease_reset_step. */
void cst_lease_turn(struct cst_leases *leases);

/* The daemon granted @item, a FETCH. @hit, for a gradient: the block still has the data that this
 * attempt wrote before. */
void cst_lease_grant(struct cst_leases *leases, const struct cst_lease_item *item,
                     const struct cst_lease *lease, bool hit);

/* The daemon refused @item, a FETCH: the chunk is not held. */
void cst_lease_refuse(struct cst_leases *leases, const struct cst_lease_item *item);

/* Return the chunks of @op; *n_out is their number. Borrowed from @leases. */
const uint32_t *cst_lease_op_chunks(const struct cst_leases *leases, uint32_t op, uint32_t *n_out);

#endif
