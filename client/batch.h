/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the planned lease items (offload/worker/lease.h) to the daemon as Batch messages, and
 * reports each result back to the leases. Either the pending call waits for a batch, or nobody
 * does; if a batch for which nobody waits fails, the step is void. */
#ifndef CST_BATCH_H
#define CST_BATCH_H

#include "client/job.h"

/* Send the items that job->leases has planned, in order, in as many batches as the daemon's limit
 * requires. ACCUMULATE is sent as a separate message. If @awaited, job->n_awaited counts the
 * batches until they are answered, and job->awaited receives the first failure. CST_ENOMEM, or the
 * status that ended the connection: the step is void. Never waits. */
int cstc_batch_send(struct cst_job *job, bool awaited, struct cst_err *err);

/* Send the @n items @items in order. Nobody waits for their replies. Otherwise as
 * cstc_batch_send. */
int cstc_batch_send_items(struct cst_job *job, const struct cst_lease_item *items, uint32_t n);

/* Send the parameters of the current step in advance (PrepareStep). Nobody waits for the reply; if
 * it is a failure, the step is void. @hyper is borrowed during the call. */
int cstc_batch_prepare(struct cst_job *job, Cistern__Hyper *hyper, struct cst_err *err);

/* Cancel the items that job->leases has planned, because of @why: planned fetches are not held, and
 * the step is void. */
void cstc_batch_give_up(struct cst_job *job, const struct cst_err *why);

/* Free all batches. The connection must be over. */
void cstc_batch_free_all(struct cst_job *job);

#endif
