/* SPDX-License-Identifier: Apache-2.0 */
/* libcistern: how a training worker uses the memory daemon, cisternd.
 *
 * A worker does the following:
 *   1. It opens a job as one of the job's ranks (cst_job_open).
 *   2. It declares the tensors and the operators of its model, and commits them (cst_commit).
 *   3. It waits for the other ranks (cst_sync).
 *   4. It calls cst_op_begin before each operator and cst_op_end after each operator.
 *   5. It ends each step with cst_step.
 * The daemon decides which weights are in memory and where updates run, and coordinates the ranks.
 *
 * This header includes one header for each subject:
 *   - cistern/client.h: the connection to the daemon.
 *   - cistern/job.h: the options of a job and of its ranks, and how a rank opens and leaves it.
 *   - cistern/launch.h: the numbers that a launcher has given to a rank.
 *   - cistern/model.h: tensors, operators, their commit, and the plan of the job.
 *   - cistern/step.h: the operators of a step, its commit, and the parameters of updates.
 *   - cistern/unit.h: models that are cut into stages.
 *   - cistern/edge.h: arrays that ranks pass to each other and to themselves.
 *   - cistern/state.h: reading and writing the states of tensors.
 *   - cistern/stat.h: counters of a rank.
 * A worker that saves checkpoints, calls collectives or has its pool on a GPU also includes
 * cistern/checkpoint.h, cistern/comm.h or cistern/cuda.h.
 *
 * Terms.
 *   - A job is one model in training. Its ranks are numbered processes, the workers.
 *   - A step consists of the forward and backward passes of its micro-batches (by default one), the
 *     commit and the updates. cst_step commits a step. A committed step is never repeated.
 *   - A step that is void is not committed, and must be done again. Each try at it is an attempt.
 *   - An operator is a part of the model that uses certain tensors, such as a layer.
 *   - The states of a tensor are its weights, gradient, master weights and moments.
 *   - A frozen tensor has only weights. It is never updated.
 *   - A chunk is a set of tensors whose elements are fetched, summed, updated and evicted together.
 *   - A row is an array with one state of a chunk, such as its weights.
 *   - A pool is a rank's memory for the weights and gradients in use, on its device. It consists of
 *     blocks. Each block holds the weights or the gradient of one chunk.
 *   - A plan is the choice of sizes for a job: chunks, pools, device updates, and how far ahead
 *     weights are prefetched.
 *   - A lease is a rank's right to use a block.
 *   - A rank hands in a gradient when it gives the block with the gradient to the daemon.
 *   - An engine is a process of the daemon that copies and computes, for one NUMA node or one
 *     accelerator. If it dies repeatedly, the daemon does not start it again, but gives it up
 *     (cisternd(8)).
 *   - A device update is the update of a chunk on an accelerator, not on the processor.
 *   - An edge is memory of the host or of a GPU through which a rank passes arrays, such as
 *     activations, to another rank or to itself. It consists of slots. Each slot holds one array.
 *
 * Threads. A client and its job must be used by one thread at a time. Different clients are
 * independent. The functions that have no client and no job as argument may be called by any
 * thread.
 *
 * fork(). The handles cannot be used in the child. Every call that returns a status returns
 * CST_EFORKED there. cst_disconnect only frees memory.
 *
 * Errors.
 *   - A call that returns int returns 0 (CST_OK) or a negative status of cistern/status.h. If the
 *     result is a number, such as a tensor's number, a failure is a negative status, too. A
 *     positive number is never a status.
 *   - If the last parameter is a struct cst_err and not NULL, the call writes the cause there.
 *   - Outputs are written only on success.
 *   - Pointers are not NULL, except where the comment of a function or field says what NULL means.
 *   - Every call can return CST_EFORKED, or the status that ended the connection (for example
 *     CST_ECONN, CST_EPROTO or CST_EDRAINING). Calls that send a request can return CST_ENOMEM.
 *   - If the daemon ends and the job is kept for its next process (cisternd(8), KEEPING JOBS),
 *     calls return CST_EPEERDIED instead. cst_sync then waits for that process. cst_commit,
 *     cst_tensor_read, cst_tensor_write, cst_set_steps, cst_missed_steps, cst_stat and
 *     cst_job_leave wait for it by themselves, if no operator is begun.
 *   - If the job is removed (cst_job_remove), waiting calls return CST_ECANCELLED, and later
 *     requests return CST_ENOTFOUND.
 *   - The comment of a function lists its other statuses.
 *
 * Waiting.
 *   - Calls block until they have an answer, except where the comment says "Never waits".
 *   - The cst_try_... forms never block. They return CST_EAGAIN if there is no answer yet. The
 *     worker then makes the same call with the same arguments again whenever cst_client_fd() polls
 *     readable, until the call returns another status. No other function returns CST_EAGAIN.
 *   - From the first CST_EAGAIN until another status, that call is pending. While a call is
 *     pending, all other calls for the client or its job that would have to wait return CST_EBUSY.
 *     Some calls that never wait also return CST_EBUSY then, as their comments say. */
#ifndef CISTERN_H
#define CISTERN_H

#include "cistern/client.h"
#include "cistern/dtype.h"
#include "cistern/edge.h"
#include "cistern/job.h"
#include "cistern/launch.h"
#include "cistern/model.h"
#include "cistern/reader.h"
#include "cistern/optimizer.h"
#include "cistern/pattern.h"
#include "cistern/stat.h"
#include "cistern/state.h"
#include "cistern/status.h"
#include "cistern/step.h"
#include "cistern/unit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#endif
