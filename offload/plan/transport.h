/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a group exchange the arrays of collectives (cistern/comm.h). The daemon asks
 * once when a communicator is opened, so that all its ranks use the same way, and keeps the reason
 * for `cistern explain`.
 *
 *   host      every rank has its arrays in host memory: memory that the ranks share
 *   NCCL      every rank has its arrays on a GPU of its own, the GPUs access each other's memory
 *             as far as the processes see them, all processes have the same NCCL, and no rank
 *             wants sums in the order of the ranks
 *   peers     every rank has its arrays on a GPU, and sees the other ranks' GPUs, which access
 *             each other's memory or are the same: each rank has slots on its GPU, which the
 *             others read
 *   staged    all other groups: ranks on GPUs copy their arrays to the host and back, and exchange
 *             them there
 *
 * NCCL promises no order of sums, and does not take two ranks on one GPU. NCCL itself exchanges
 * data through host memory between GPUs that cannot access each other's memory; then staging does
 * the same with fixed sums and without the GPU kernels that wait for each other. */
#ifndef CST_PLAN_TRANSPORT_H
#define CST_PLAN_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those of the message CommTransport. */
enum cst_transport {
    CST_TRANSPORT_HOST = 1,
    CST_TRANSPORT_NCCL = 2,
    CST_TRANSPORT_STAGED = 3,
    CST_TRANSPORT_PEERS = 4
};

/* Most ranks with slots on GPUs: a message has the descriptors of all of them and one more. */
#define CST_TRANSPORT_MAX_PEERS 15

/* One rank of the group. All strings are borrowed. */
struct cst_transport_rank {
    uint32_t name;           /* Number of the rank in the job, for the reason. */
    const char *gpu;         /* UUID of the GPU that has the arrays; NULL: host memory. */
    uint32_t nccl;           /* Version of NCCL; 0: none that can be used. */
    const char *nccl_error;  /* Why there is none; NULL: not known. */
    bool reads_peers;        /* Its process can use slots on GPUs. */
    const char *peers_error; /* Why it cannot; NULL: not known. */
    bool in_order;           /* It wants sums in the order of the ranks. */
    /* UUIDs of other GPUs that its process sees, and whose memory its GPU can, or cannot, access.
     */
    const char *const *reachable, *const *unreachable;
    size_t n_reachable, n_unreachable; /* Numbers of entries. */
};

#define CST_TRANSPORT_WORDS 768 /* Bytes of a reason, including the final 0. */

/* Choose for the @n ranks of a group, n > 0. @why gets the reason, a sentence without a full stop
 * for people: why it is not NCCL, and then why it is not the memory of the GPUs. The result depends
 * on nothing else. */
enum cst_transport cst_transport_choose(const struct cst_transport_rank *ranks, size_t n,
                                        char why[CST_TRANSPORT_WORDS]);

/* Add a further reason to @why, unless it is the same: why memory of the GPUs is not used, either.
 */
void cst_transport_add_reason(char why[CST_TRANSPORT_WORDS], const char *more);

/* Return a static string: "host memory", "NCCL", "staging in host memory", "memory of the
 * GPUs". */
const char *cst_transport_name(enum cst_transport transport);

#endif
