/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the planned lease items (offload/worker/lease.h) to the daemon as Batch messages, and
 * reports each result back to the leases. Either the pending call waits for a batch, or nobody
 * does; if a batch for which nobody waits fails, the step is void. */
#ifndef CSTC_BATCH_H
#define CSTC_BATCH_H

#include "client/lib/job.h"

/* Send the @n items @items in order, in as many batches as the daemon's limit requires. ACCUMULATE
 * is sent as a separate message. If @awaited, job->sequence.n_awaited counts the batches until they
 * are answered, and job->sequence.refused receives the first failure. CST_ENOMEM, or the status
 * that ended the connection: the step is void, and fetches that were not sent are refused. Never
 * waits. */
int cstc_batch_send(struct cst_job *job, const struct cst_lease_item *items, uint32_t n,
                    bool awaited, struct cst_err *err);

/* Send the parameters of the current step in advance (PrepareStep). Nobody waits for the reply; if
 * it is a failure, the step is void. @hyper is borrowed during the call. */
int cstc_batch_prepare(struct cst_job *job, Cistern__Hyper *hyper, struct cst_err *err);

/* Free all batches. The connection must be over. */
void cstc_batch_free_all(struct cst_job *job);

#endif
