/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the daemon for tests of struct cst_leases. It grants every request, counts blocks, and
 * asserts the rules of the protocol. Replies to requests that are sent ahead are kept until they
 * are delivered. */
#ifndef LEASE_RIG_H
#define LEASE_RIG_H

#include "offload/worker/lease.h"
#include "offload/layout/layout.h"

#define RIG_MAX_CHUNKS 512

/* The leases under test, and what the daemon would know of this rank. */
struct lease_rig {
    struct cst_model model;               /* the test declares it before lease_rig_open */
    struct cst_layout layout;             /* layout of `model` */
    struct cst_lease_operator *operators; /* borrowed by `leases` */
    uint32_t *tensor_chunk;               /* per tensor, its chunk; borrowed by `leases` */
    struct cst_lease_trait *traits;       /* per chunk; borrowed by `leases` */
    uint32_t rank;                        /* the rank to which `leases` belongs */
    uint32_t n_spare;                     /* blocks that the smallest pool has in addition */
    struct cst_leases leases;             /* the leases under test */
    uint64_t weight[RIG_MAX_CHUNKS];      /* generation of the weights' lease; 0: none */
    uint64_t grad[RIG_MAX_CHUNKS];
    /* Times that the gradient was handed in during this step. */
    uint32_t n_handed_in[RIG_MAX_CHUNKS];
    uint32_t n_leased;    /* blocks that are leased now */
    uint32_t most_leased; /* largest value of n_leased */
    uint64_t generation;  /* generation of the newest lease */
    /* Requests sent ahead that are granted, while their replies are kept. */
    struct cst_lease_item ahead[RIG_MAX_CHUNKS];
    uint32_t n_ahead;   /* entries in `ahead` */
    uint32_t n_demands; /* number of batches of requests that lease_rig_begin had to wait for */
    char said[512];     /* the items of the last plan in short form, as "W1 G2+ r3" */
};

/* Make a rig without a model. Close it with lease_rig_close. */
struct lease_rig *lease_rig_new(void);

/* Declare a tensor. Returns its number. */
uint32_t lease_rig_add_tensor(struct lease_rig *w, int64_t n_elems);
uint32_t lease_rig_add_tensor_as(struct lease_rig *w, int64_t n_elems, uint32_t group,
                                 enum cst_pattern_kind pattern);
/* Declare an operator that uses @n @tensors. */
void lease_rig_add_operator(struct lease_rig *w, const uint32_t *tensors, uint32_t n);

/* Lay the model out in chunks of @chunk_elems (0: chosen by the layout) with @n_blocks in the pool
 * (0: the fewest that suffice, and n_spare), and open the leases. */
void lease_rig_open(struct lease_rig *w, uint64_t chunk_elems, uint32_t n_blocks);
/* Free the rig and everything that it owns. */
void lease_rig_close(struct lease_rig *w);

/* Begin @op and check that it has the leases that it needs. Returns CST_OK, or CST_EPOOL if nothing
 * was sent. */
int lease_rig_begin(struct lease_rig *w, uint32_t op, bool backward);

/* lease_rig_ahead sends the requests that follow a begun operator, lease_rig_end ends the operator,
 * and lease_rig_run does begin, ahead and end. */
void lease_rig_ahead(struct lease_rig *w, uint32_t op, bool backward);
void lease_rig_end(struct lease_rig *w, uint32_t op, bool backward);
void lease_rig_run(struct lease_rig *w, uint32_t op, bool backward);

/* Deliver the replies to the requests sent ahead. */
void lease_rig_deliver_ahead(struct lease_rig *w);

/* Send the requests that w->leases has planned. */
void lease_rig_send_plan(struct lease_rig *w);

/* End a step: check that all leases are given back, and start the next step. */
void lease_rig_step(struct lease_rig *w);

/* A pseudo-random number below @n; @state is advanced. */
uint32_t lease_rig_draw(uint64_t *state, uint32_t n);

#endif
