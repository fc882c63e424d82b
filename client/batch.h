/* SPDX-License-Identifier: Apache-2.0 */
/* Sends lists of lease items as Batch messages and feeds the results back into the books of leases.
 * A batch is awaited by the pending call or runs behind the worker's back; the failures of the
 * latter make the step void. */
#ifndef CST_BATCH_H
#define CST_BATCH_H

#include "client/job.h"

/* Send what job->leases has planned, in as many batches as the daemon's limit asks for, in order;
 * an ACCUMULATE goes as a message of its own.
 * @awaited: job->n_awaited counts them until they are answered, and job->awaited takes the first
 * failure. CST_ENOMEM, or what ended the connection: the step is void. */
int cst_batch_send(struct cst_job *job, bool awaited, struct cst_err *err);

/* The same for @n @items that give back, in their order; nobody waits for them. */
int cst_batch_send_items(struct cst_job *job, const struct cst_lease_item *items, uint32_t n);

/* Send what the step will be done with. Nobody waits for it; if it fails, the step is void. */
int cst_batch_prepare(struct cst_job *job, Cistern__Hyper *hyper, struct cst_err *err);

/* What job->leases has planned cannot be sent, because of @why: the step is void. */
void cst_batch_give_up(struct cst_job *job, const struct cst_err *why);

/* Free all batches. The connection is over. */
void cst_batch_free_all(struct cst_job *job);

#endif
