/* SPDX-License-Identifier: Apache-2.0 */
/* libcistern-cuda: a rank whose pool is on a GPU. For programs that enqueue CUDA work on a stream;
 * it needs no CUDA header.
 *
 *   cst_job_open(&job, client, &(struct cst_job_spec){ .device = "cuda", ... }, &err);
 *   cst_cuda_open(&cuda, job, stream, &err);        // before cst_commit
 *   ... declare, commit, sync as on the host ...
 *   cst_op_begin(job, op, CST_FORWARD, io, &err);   // io[0].weight is a device address; the bytes
 * are there kernel<<<.., stream>>>(io[0].weight, ...);      // enqueued, not waited for
 *   cst_op_end(job, op, &err);                      // the lease goes back when the stream has
 * passed this point
 *
 * Ordering: work enqueued on the stream between begin and end sees the operator's weights and may
 * write its gradients. Work on other streams has to be ordered with the stream by the program
 * (events). Nothing in a step waits for the GPU but cst_step, and a begin for which every block is
 * still in use by work that the stream has not done.
 *
 * The library finds the driver at run time (libcuda.so.1) and uses the primary context of the job's
 * GPU, as the CUDA runtime does; that context is current in the calling thread afterwards. */
#ifndef CISTERN_CUDA_H
#define CISTERN_CUDA_H

#include "cistern/cistern.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cst_cuda; /* a job's GPU */

/* Prepare @job, whose device is a GPU, for work on @stream (a CUstream or cudaStream_t of the
 * primary context of that GPU; NULL: the default stream). *out is the caller's, to be closed after
 * cst_disconnect. CST_EUNSUPPORTED: no driver, no device, driver too old, or the job is on the host
 * device; CST_ENOTFOUND: this process does not see the job's GPU (CUDA_VISIBLE_DEVICES is named);
 * CST_EGPU. */
int cst_cuda_open(struct cst_cuda **out, struct cst_job *job, void *stream, struct cst_err *err);

/* Waits for the stream, then frees. NULL is allowed. */
void cst_cuda_close(struct cst_cuda *cuda);

/* Number of the job's GPU in this process, as cudaSetDevice takes it. */
int cst_cuda_device(const struct cst_cuda *cuda);

/* Why there is no GPU for this process: 0 if there is one, else CST_EUNSUPPORTED with words.
 * Creates no context. */
int cst_cuda_available(struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
