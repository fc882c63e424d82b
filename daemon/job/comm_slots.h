/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a communicator whose ranks read each other's GPU memory: a segment for each rank, on
 * its GPU, which that GPU's engine allocates. They are charged to the budget for pools. Loop thread
 * only. */
#ifndef CSTD_COMM_SLOTS_H
#define CSTD_COMM_SLOTS_H

#include "daemon/base/deferred.h"
#include "offload/plan/transport.h"
#include "cistern/status.h"

#include <stdint.h>

struct cstd_daemon;
struct cstd_quota_account;
struct cstd_segment;

/* All segments exist, or *err says why not. Never called inside a function of this module. */
typedef void (*cstd_comm_slots_cb)(void *arg, const struct cst_err *err);

/* Zeros: there are no slots. */
struct cstd_comm_slots {
    struct cstd_daemon *daemon;
    struct cstd_segment *v[CST_TRANSPORT_MAX_PEERS]; /* In the order of the ranks. */
    uint32_t n;
    uint32_t n_waiting;         /* Segments that their engines have not answered for. */
    uint64_t bytes;             /* Of each segment. */
    struct cst_err err;         /* The first error of an engine; status CST_OK: none. */
    struct cstd_deferred ready; /* The call of on_ready. */
    cstd_comm_slots_cb on_ready;
    void *arg; /* First argument of on_ready. */
};

/* The ranks of a communicator and their GPUs. */
struct cstd_comm_slots_request {
    /* Tiers of GPUs, in the order of the ranks. */
    const struct cstd_tier *tiers[CST_TRANSPORT_MAX_PEERS];
    uint32_t n;
    uint64_t bytes;                     /* What each rank needs. */
    struct cstd_quota_account *account; /* Charged for all of them. */
    const char *what;                   /* The purpose in messages. */
};

/* Make the slots that @request describes. @on_ready follows, unless they are closed before.
 * CST_EBUDGET, CST_ENOMEM: there are none, as before. */
int cstd_comm_slots_open(struct cstd_comm_slots *slots, struct cstd_daemon *daemon,
                         const struct cstd_comm_slots_request *request, cstd_comm_slots_cb on_ready,
                         void *arg, struct cst_err *err);

/* Give the slots back, if there are any. Ranks that map them keep the memory until they end. */
void cstd_comm_slots_close(struct cstd_comm_slots *slots);

#endif
