/* SPDX-License-Identifier: Apache-2.0 */
/* libcistern-cuda: for a rank whose pool is on a GPU. It is for programs that enqueue CUDA work on
 * a stream. This header needs no CUDA header.
 *
 *   cst_job_open(&job, client, &(struct cst_job_spec){.device = "cuda", ...}, &err);
 *   cst_cuda_open(&cuda, job, stream, &err);                 // before cst_commit
 *   ... declare, commit and sync as on the host ...
 *   cst_op_begin(job, op, CST_FORWARD, io, n_io, &err);      // io[0].weight: a device address
 *   kernel<<<..., stream>>>(io[0].weight, ...);              // enqueued, not waited for
 *   cst_op_end(job, op, &err);                               // the stream gives the blocks back
 *
 * Order of the work:
 *   - Work that is enqueued on the stream between cst_op_begin and cst_op_end finds the operator's
 *     weights in place, and may write its gradients.
 *   - The program orders work on other streams with work on this stream by CUDA events.
 *   - Within a step the worker waits for the GPU in two calls only: in cst_step, and in
 *     cst_op_begin if every block is still used by work that the stream has not done.
 *
 * The library finds the driver (libcuda.so.1) at run time. It uses the primary context of the job's
 * GPU, as the CUDA runtime does. After cst_cuda_open that context is current in the calling thread.
 *
 * Threads: a struct cst_cuda is used by the thread that uses its job. */
#ifndef CISTERN_CUDA_H
#define CISTERN_CUDA_H

#include "cistern/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cst_cuda; /* The GPU of a job. */

/* Prepare @job, whose device is a GPU, for work on @stream. Called once, after cst_job_open and
 * before cst_commit. @stream is a CUstream or cudaStream_t of the primary context of that GPU;
 * NULL: the default stream. It belongs to the caller and must exist until cst_cuda_close. *out
 * belongs to the caller, who frees it with cst_cuda_close after cst_disconnect. Statuses:
 *   - CST_EUNSUPPORTED: there is no driver or no GPU, the driver is too old, or the job is on the
 *     host or on a simulated accelerator.
 *   - CST_ENOTFOUND: this process does not see the job's GPU; the error names CUDA_VISIBLE_DEVICES.
 *   - CST_EINVAL: the job is committed already, or has the functions of a device already.
 *   - CST_EGPU: a call of the driver failed.
 *   - CST_ENOMEM. */
int cst_cuda_open(struct cst_cuda **out, struct cst_job *job, void *stream, struct cst_err *err);

/* Wait for the stream, then free @cuda. @cuda may be NULL. */
void cst_cuda_close(struct cst_cuda *cuda);

/* Return the number of the job's GPU in this process, in the numbering of cudaSetDevice. */
int cst_cuda_device(const struct cst_cuda *cuda);

/* Open a communicator of @group (cistern/comm.h) for arrays in the memory of the job's GPU. All
 * functions of cistern/comm.h apply to it, with these differences:
 *   - cst_comm_start returns when the call is in @stream, and the arrays belong to the library
 *     until the stream has done it. Work that is enqueued later finds the result. The first call of
 *     a communicator can wait for the other ranks. While a cst_try_... call is pending, it returns
 *     CST_EBUSY.
 *   - cst_comm_wait waits until the stream has done the call. The program need not call it in order
 *     to use the result in the stream, but before it starts more than CST_COMM_MAX_CALLS calls.
 *   - If each rank of the group has a GPU of its own, the GPUs access each other's memory as far as
 *     the processes see them, and all processes can load one version of NCCL (libnccl.so.2, from
 *     2.14 on), NCCL does the calls. The order of sums is that of NCCL. The ranks compare their
 *     calls by means of memory that they share: the first function that waits returns CST_EMISMATCH
 *     if they differ, and the results are not defined then. cst_comm_wait therefore also waits
 *     until all ranks have started the call.
 *   - In all other groups cst_comm_start exchanges the arrays as a communicator of ranks on the
 *     host does, with the same bits: sums in the order of the ranks. It waits for the other ranks
 *     each time. `cistern explain` says what is used, and why.
 *   - If the GPUs of such a group access each other's memory, or are the same, all processes see
 *     all of them, and there are at most 15 ranks, the arrays stay on the GPUs. The daemon makes
 *     16 MiB of GPU memory for each rank, which the others read. It counts in the budget for pools.
 *   - Otherwise, or if that budget has no such memory left, the arrays are copied to host memory,
 *     and the results back. The process keeps host memory of 1.25 times the input and the output of
 *     the largest call together until the communicator is closed. This memory is pinned if
 *     possible, and no budget counts it. cst_comm_close waits for the stream if the last copy has
 *     not ended.
 *   - If NCCL fails in a rank while it joins, or a rank cannot map the GPU memory of the others,
 *     all ranks use the next of these means instead: memory of the GPUs, or host memory. The
 *     function still succeeds. The daemon's log has a warning that names the rank and the cause,
 *     and `cistern explain` shows both. The next communicator of the group begins as this one did.
 *   - When the attempt ends, a thread of the library gives up all calls that have not ended, and
 *     the stream goes on. A program that waits for the stream by itself, as cudaStreamSynchronize
 *     does, waits no longer. The contents of the outputs are not defined, and the next function of
 *     cistern/comm.h returns CST_EPEERDIED with the cause. The thread does the same if the
 *     connection to the daemon ends, if the ranks' calls differ, or if another rank closes the
 *     communicator before it has done all these calls.
 *   - A call that the other ranks have done, or that a rank which has closed the communicator has
 *     done, can end after a failure: its cst_comm_wait returns CST_OK then, and later calls still
 *     fail.
 *
 * @stream is a CUstream or cudaStream_t of the primary context of that GPU, and may be the one of
 * cst_cuda_open; NULL: the default stream. It is borrowed until the communicator is closed.
 * Statuses beside those of cst_comm_open:
 *   - CST_EGPU, CST_EINTERNAL, CST_ENOMEM, CST_EUNSUPPORTED: a call of the driver failed, and host
 *     memory cannot be used, either. The other ranks get CST_ECANCELLED, from this function or from
 *     their calls, or CST_ETIMEDOUT if this rank failed before it had asked the daemon. */
int cst_cuda_comm_open(struct cst_comm **out, struct cst_cuda *cuda, int group, void *stream,
                       struct cst_err *err);

/* As cst_cuda_comm_open, for sums in the order of the ranks: NCCL does no call. The results have
 * the same bits as those of ranks on the host, wherever the arrays are exchanged. */
int cst_cuda_comm_open_in_order(struct cst_comm **out, struct cst_cuda *cuda, int group,
                                void *stream, struct cst_err *err);

/* Return whether this process can use a GPU: CST_OK, or CST_EUNSUPPORTED with the cause. Creates no
 * context. Any thread. */
int cst_cuda_available(struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
