/* Sends lists of lease items as Batch messages and feeds the results back into the books of leases.
 * A batch is awaited by the pending call or runs behind the worker's back; the failures of the
 * latter make the step void. */
#ifndef CST_BATCH_H
#define CST_BATCH_H

#include "client/job.h"

/* Send what job->leases has planned, in as many batches as the daemon's limit asks for, in order.
 * @awaited: job->n_awaited counts them until they are answered, and job->awaited takes the first
 * failure. CST_ENOMEM, or what ended the connection: the step is void. */
int cst_batch_send(struct cst_job *job, bool awaited, struct cst_err *err);

/* Free all batches. The connection is over. */
void cst_batch_free_all(struct cst_job *job);

#endif
