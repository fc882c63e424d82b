/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the daemon for the books of leases: it grants everything, counts blocks, and asserts
 * the rules of the protocol. Replies to what is asked ahead are kept back until they are delivered.
 */
#ifndef LEASE_RIG_H
#define LEASE_RIG_H

#include "client/lease.h"
#include "offload/layout.h"

#define RIG_MAX_CHUNKS 512

/* What the daemon would know of this rank. */
struct lease_rig {
    struct cst_model model;               /* to be filled before rig_open */
    struct cst_layout layout;             /* of the model */
    struct cst_lease_operator *operators; /* what leases borrows */
    uint32_t *tensor_chunk;               /* too */
    struct cst_lease_trait *traits;       /* too */
    uint32_t rank;                        /* whose books these are */
    struct cst_leases leases;             /* under test */
    uint64_t weight[RIG_MAX_CHUNKS];      /* generation of the lease, 0: none */
    uint64_t grad[RIG_MAX_CHUNKS];
    uint32_t n_handed_in[RIG_MAX_CHUNKS]; /* in this step */
    uint32_t n_leased;                    /* blocks now */
    uint32_t most_leased;                 /* blocks ever */
    uint64_t generation;                  /* of the newest lease */
    struct cst_lease_item ahead;          /* granted, the reply is on its way */
    bool has_ahead;                       /* ahead is valid */
    uint32_t n_demands;                   /* batches that a begin waited for */
    char said[512];                       /* items of the last plan, in short */
};

/* A rig without a model; to rig_close. */
struct lease_rig *rig_new(void);

/* Declare; returns the tensor's number. */
uint32_t rig_add_tensor(struct lease_rig *w, int64_t n_elems);
uint32_t rig_add_tensor_as(struct lease_rig *w, int64_t n_elems, uint32_t group,
                           enum cst_pattern_kind pattern);
void rig_add_operator(struct lease_rig *w, const uint32_t *tensors, uint32_t n);

/* Lay the model out in chunks of @chunk_elems (0: chosen) with @n_blocks in the pool (0: the fewest
 * that can run) and open the books. */
void rig_open(struct lease_rig *w, uint64_t chunk_elems, uint32_t n_blocks);
void rig_close(struct lease_rig *w);

/* Begin @op and check that it has what it needs: CST_OK, or CST_EPOOL with nothing sent. */
int rig_begin(struct lease_rig *w, uint32_t op, bool backward);

/* What is sent behind a begun operator; its end; all three. */
void rig_ahead(struct lease_rig *w, uint32_t op, bool backward);
void rig_end(struct lease_rig *w, uint32_t op, bool backward);
void rig_run(struct lease_rig *w, uint32_t op, bool backward);

/* The reply to the fetch ahead arrives, if one is on its way. */
void rig_deliver_ahead(struct lease_rig *w);

/* Send what w->leases has planned. */
void rig_send_plan(struct lease_rig *w);

/* The end of a step: all is given back, and the next one starts. */
void rig_step(struct lease_rig *w);

/* Below @n. */
uint32_t rig_draw(uint64_t *state, uint32_t n);

#endif
