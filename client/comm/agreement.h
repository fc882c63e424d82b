/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks of a communicator by NCCL make the same calls. NCCL does not compare them, and
 * its kernels wait for ever if they differ. Each rank says in the shared memory what it calls, in a
 * ring of CST_COMM_CALLS entries, before it enqueues the call.
 *
 * A rank uses an entry for a later call only after it has compared the earlier one with all ranks.
 * Another rank that finds the later call there knows that the earlier ones are the same.
 *
 * All functions are called with the lock of the watch. */
#ifndef CSTC_AGREEMENT_H
#define CSTC_AGREEMENT_H

#include "client/comm/comm.h"

/* Say that call comm->n_started is the one in its entry of comm->flow.calls, and wake the ranks
 * that wait for it. */
void cstc_agreement_say(struct cst_comm *comm);

/* Compare the first @n_calls calls, which this rank has said, as far as the others have said
 * theirs, and set comm->n_compared. CST_EMISMATCH: two ranks make different calls, and always will.
 */
int cstc_agreement_look(struct cst_comm *comm, uint64_t n_calls, struct cst_err *err);

#endif
