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
 *   - Every call can return CST_EFORKED, or the status that ended the connection (for example
 *     CST_ECONN, CST_EPROTO or CST_EDRAINING). Calls that send a request can return CST_ENOMEM.
 *   - If the daemon ends and the job is kept for its next process (cisternd(8), KEEPING JOBS),
 *     calls return CST_EPEERDIED instead. cst_sync then waits for that process. cst_tensor_read,
 *     cst_tensor_write, cst_stat and cst_job_leave wait for it by themselves, if no operator is
 *     begun.
 *   - If the job is removed (cst_job_remove), waiting calls return CST_ECANCELLED, and later
 * requests return CST_ENOTFOUND.
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

#include "cistern/dtype.h"
#include "cistern/optimizer.h"
#include "cistern/pattern.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_MAX_MICRO_BATCHES 65536
#define CST_MAX_PARAM_GROUPS 64

#define CST_DEFAULT_SOCKET "/run/cistern/cistern.sock"

struct cst_client; /* A connection to the daemon. */
struct cst_job;    /* This process as one rank of a job. */

/* -- connection ----------------------------------------------------------------------------- */

/* Connect to the daemon that listens at the path @path. If @path is NULL, the environment variable
 * CISTERN_SOCKET is used, or else CST_DEFAULT_SOCKET. *out belongs to the caller, who frees it with
 * cst_disconnect. Statuses:
 *   - CST_ECONN: no daemon listens at the path, or the daemon does not answer.
 *   - CST_EDENIED: the user may not connect.
 *   - CST_EVERSION: the daemon and this library have no common version of the protocol.
 *   - CST_EINVAL: the path is too long for a socket.
 *   - CST_EPROTO, CST_EIO, CST_ENOMEM. */
int cst_connect(struct cst_client **out, const char *path, struct cst_err *err);

/* Close the connection and free @client and its job. If the job has not been left with
 * cst_job_leave, the daemon treats the rank as if its process had died. If the pool is on a GPU,
 * this call waits for the work on the rank's stream first. @client may be NULL. */
void cst_disconnect(struct cst_client *client);

/* Return the file descriptor to poll for POLLIN after a cst_try_... call returned CST_EAGAIN, or a
 * negative status if the connection is over. The descriptor belongs to the client, and stays
 * the same until cst_disconnect. It also polls readable when a request that could not be sent at
 * once can be sent. The repeated call sends it. */
int cst_client_fd(const struct cst_client *client);

/* Return true if a cst_try_... call of @client or its job is pending. */
bool cst_client_is_pending(const struct cst_client *client);

/* Make one round trip to the daemon. *ns_out is its duration in nanoseconds; @ns_out may be NULL.
 * CST_EBUSY: a cst_try_... call is pending. */
int cst_ping(struct cst_client *client, uint64_t *ns_out, struct cst_err *err);

/* -- job ------------------------------------------------------------------------------------ */

/* A group is the set of ranks that hold a tensor. The gradient of the tensor is summed over the
 * group. CST_GROUP_ALL consists of all ranks of the job. cst_group makes other groups. */
enum cst_group { CST_GROUP_ALL = 0 };

/* A value of device_update_bytes and device_states in struct cst_job_spec: the daemon's plan
 * chooses the number of bytes. The plan divides the memory that the job may use on the device
 * between the pool, device updates and states, so that steps are as short as possible. For device
 * updates it chooses CST_DEVICE_UPDATE_LENT if steps are then as short as with the best number of
 * bytes. `cistern explain` says what was chosen, and why. If device_states is
 * CST_DEVICE_UPDATE_AUTO and device_update_bytes is 0, the plan chooses both.
 *
 * The choice is 0 bytes in each of these cases (`cistern explain` gives the reason for
 * device_states):
 *   - The daemon does not search for a plan, because chunk_elems or base is set.
 *   - The daemon does not search for a plan, because the ranks are on devices of different kinds.
 *   - The daemon does not search for a plan, because only some ranks have CST_DEVICE_UPDATE_LENT.
 *   - The daemon does not search for a plan, because `search` is no in [plan] of cistern.conf(5).
 *   - Steps are shortest if the pool gets all the memory.
 *   - Other jobs use the memory of the device already, or take it before the plan is finished.
 *
 * cst_job_open returns CST_EINVAL in each of these cases:
 *   - device_update_bytes is CST_DEVICE_UPDATE_AUTO, and device_states is a number of bytes.
 *   - device_states is CST_DEVICE_UPDATE_AUTO, and the moments are not fp32.
 *   - device_states is CST_DEVICE_UPDATE_AUTO, and grad_over_weight is set.
 *   - The rank's pool is on an accelerator, and pool_bytes is set. */
#define CST_DEVICE_UPDATE_AUTO UINT64_MAX

/* A value of device_update_bytes in struct cst_job_spec: nothing is reserved. Device updates use
 * blocks of the rank's pool that are empty when a step is committed. If a fetch needs such a block,
 * it waits at most for the update that is under way there. The other updates are then made in host
 * memory. Results do not depend on this.
 *
 * A pool lends memory for up to three chunks at a time, in addition to the smallest pool that the
 * model can run with. A smaller pool lends nothing. Each chunk takes two blocks for each fp32 row
 * and one for each bf16 row that its update reads, and as many for those that it writes: with
 * AdamW, fp32 moments and bf16 tensors 14, or 16 with micro-batches. At most eight ranks of a job
 * lend; of more, those with the lowest numbers.
 *
 * cst_job_open returns CST_EINVAL if the pool is in host memory, or if device_states is not 0. */
#define CST_DEVICE_UPDATE_LENT (UINT64_MAX - 1)

/* Options of a job and of one rank. `name` and `world` must be set. Every other field is 0 or NULL
 * for its default. If a field that is "equal in all ranks" differs from the job's value,
 * cst_job_open returns CST_EMISMATCH. cst_job_open copies everything. The strings belong to the
 * caller. */
struct cst_job_spec {
    /* 1 to 63 of the characters A-Z a-z 0-9 . _ -, of which the first is neither . nor -, unique
     * among the jobs of the user. The first rank that opens the name creates the job. */
    const char *name;
    uint32_t rank;  /* Number of this rank, from 0 to world - 1. Each rank is one process. */
    uint32_t world; /* Number of ranks, 1 to 64. Equal in all ranks. */
    /* Device of this rank's pool:
     *   - NULL or "auto": the device that this rank of the job has already, or else "host".
     *   - "host": host memory.
     *   - "paced:N": simulated accelerator N. "paced": N is the rank modulo the number of simulated
     *     accelerators.
     *   - "cuda:N": GPU N. "cuda": N is the rank modulo the number of GPUs.
     *   - A UUID ("GPU-..." or "MIG-..."): that GPU or MIG instance.
     * GPUs need libcistern-cuda (cistern/cuda.h). */
    const char *device;
    /* Bytes of this rank's pool, which holds the weights and gradients in use. 0: as many as the
     * rank can use. */
    uint64_t pool_bytes;
    /* Chunk capacity in bf16 elements; an fp32 element takes the place of two. 0: the daemon
     * chooses. Equal in all ranks. */
    uint64_t chunk_elems;
    /* Longest wait for other ranks in cst_commit, cst_sync and cst_step, in milliseconds. 0: the
     * default of the daemon. */
    uint32_t timeout_ms;
    /* Time to live in seconds: the daemon removes the job when it has had no worker for this time.
     * 0: the default of the daemon. CST_EINVAL: more than [quota] of cistern.conf(5) allows. */
    uint32_t ttl_s;
    /* Micro-batches per step, at most CST_MAX_MICRO_BATCHES (see cst_accumulate). 0 and 1 both
     * mean one. Equal in all ranks. */
    uint32_t micro_batches;
    /* Name of a base job, whose frozen tensors this job uses instead of storing its own. NULL: no
     * base. Equal in all ranks. Conditions:
     *   - The base job belongs to the same user, is initialised (cst_job_initialised), and has no
     *     base itself.
     *   - Every frozen tensor of this job is a frozen tensor of the base job, with the same name
     *     and shape.
     * While this job exists, the base job cannot be removed, and none of its frozen tensors can be
     * written. */
    const char *base;
    enum cst_optimizer optimizer; /* Equal in all ranks. */
    /* Where the bits of the master weights are stored. CST_MASTERS_SPLIT saves 2 bytes per
     * parameter and makes updates shorter, because the weights are a part of the master weights.
     * Master weights have the same bits; weights are rounded with ties away from zero. Weights of
     * parameters that are trained can then not be written (CST_STATE_WEIGHT, CST_EUNSUPPORTED),
     * only master weights. Equal in all ranks. CST_EINVAL: together with grad_over_weight or
     * device_states. */
    enum cst_masters masters;
    /* Format of the moments exp_avg and exp_avg_sq. Two moments together take 8 bytes per
     * parameter with fp32, 4 with bf16, and 2.06 with mx8. With mx8, no parameter moves by
     * more than lr in a step of AdamW or Adam. Equal in all ranks. */
    enum cst_moments moments;
    /* Rounding of moments that are not fp32. Equal in all ranks. */
    enum cst_rounding rounding;
    uint64_t seed; /* Seed of stochastic rounding. Equal in all ranks. */
    /* The time at which chunks are updated. Equal in all ranks. */
    enum cst_overlap overlap;
    /* CST_OVERLAP_DELAYED: number of the first step whose update is delayed, counted from 0. Must
     * be 0 with any other overlap (CST_EINVAL). Equal in all ranks. */
    uint64_t delay_from;
    /* Gradients are stored in place of their weights in host memory, which saves 2 bytes per
     * parameter. If a chunk is fetched again after its gradient was handed in, its weights are made
     * from its master weights. Equal in all ranks. CST_EINVAL: there is more than one
     * micro-batch, or overlap is CST_OVERLAP_EARLY or CST_OVERLAP_DELAYED, or masters is
     * CST_MASTERS_SPLIT. */
    bool grad_over_weight;
    /* Device reservation: bytes of this rank's device, in addition to the pool, in which the daemon
     * may update chunks (device updates). The worker must leave this memory free. 0: none.
     * CST_DEVICE_UPDATE_AUTO: the daemon chooses. CST_DEVICE_UPDATE_LENT: empty blocks of the pool
     * serve instead. If the pool is in host memory, the reservation is
     * on a simulated accelerator. If the daemon has no simulated accelerators, there is no
     * reservation. CST_EINVAL, from cst_commit: the ranks of a device together reserve fewer bytes
     * than the device's unit of allocation.
     *
     * The first cst_commit fixes device_update_bytes and device_states. In each of these two
     * fields, a later worker of the same rank must give the fixed value, 0 or
     * CST_DEVICE_UPDATE_AUTO (else CST_EMISMATCH). */
    uint64_t device_update_bytes;
    /* Bytes of this rank's device in which the states of some chunks stay for good. 0: none.
     * CST_DEVICE_UPDATE_AUTO: the daemon chooses. Fixed by the first cst_commit, as described at
     * device_update_bytes. If one of these conditions does not hold, cst_job_open or cst_commit
     * returns CST_EINVAL:
     *   - If device_states is a number of bytes, device_update_bytes is a number of bytes, too.
     *   - The moments are fp32, and masters is CST_MASTERS_FP32.
     *   - grad_over_weight is not set. */
    uint64_t device_states;
    /* Hint for the daemon's plan: the worker repeats each forward pass before its backward pass.
     * Only the hint of the rank that creates the job is used. */
    bool recompute;
    /* Path of a file that `cistern plan --save` wrote. cst_job_open reads the file and sends its
     * contents to the daemon. NULL: the daemon makes a plan, unless the job has a plan already. All
     * ranks that give a plan must give the same one.
     *
     * The plan decides the chunks, the pool of each rank, the prefetch depth, device_update_bytes
     * and device_states. In this struct, chunk_elems, pool_bytes, device_update_bytes and
     * device_states must be 0 or equal the plan's values. The last two may also be
     * CST_DEVICE_UPDATE_AUTO.
     *
     * Statuses:
     *   - cst_job_open, CST_EMISMATCH: one of the four fields named above differs from the plan's
     *     value. The error names the field and both values.
     *   - cst_job_open, CST_EMISMATCH: world, micro_batches, optimizer, masters, moments, overlap
     * or grad_over_weight differs from the plan's value. The error names the field and both values.
     *   - cst_job_open, CST_EMISMATCH: the job was created without this plan.
     *   - cst_commit, CST_EMISMATCH: the declared model is not the model of the plan.
     *   - cst_job_open, CST_EINVAL: `base` is set.
     *   - cst_job_open, CST_EINVAL: the file is not a plan. The error names the place in the file.
     *   - cst_job_open, CST_EIO: the file cannot be read. */
    const char *plan_file;
    /* Contents of the files config.json and adapter_config.json in the job's checkpoints, from
     * which other programs learn the architecture (cistern/checkpoint.h). At most
     * CST_MAX_CONFIG_BYTES (else CST_EINVAL). NULL: no file. Only the texts of the rank that
     * creates the job are used. A rank that gives another model_config has another model
     * (CST_EMISMATCH). With adapter_config, the weights that are trained are saved to
     * adapter_model.safetensors, as adapters of the frozen ones. */
    const char *model_config;
    const char *adapter_config;
    /* If the job exists, is committed and has no worker, open it again in place. The job gets
     * another world, other pools, chunks, options or another plan, as this struct and the
     * declarations say, and keeps its states:
     *   - Every tensor gets the master weights, weights and moments of the job's tensor with the
     *     same name. The parts of a larger tensor are cut and joined (`whole_name` of struct
     *     cst_tensor_spec). Bits stay the same. Only moments may change: to another format, or if
     *     the parts of a tensor in mx8 divide its blocks of 32 elements.
     *   - The numbers of steps, and of skipped steps, are kept.
     *   - The optimizer is the same, and the base job, if this struct names one.
     * Until all ranks have committed and the states are there, the job stays as it was: if a rank
     * dies or cst_commit fails, nothing has changed. Meanwhile it can be opened only with
     * `reshape`.
     *
     * How the states get there, the first that is possible:
     *   1. If chunks, formats and `micro_batches` > 1 are as before, they stay where they are, and
     *      need no further memory.
     *   2. They are copied, and there is memory for both the old and the new ones until the end.
     *   3. With chunk_elems 0 the chunks are left as they are.
     *   4. If no rank has an accelerator, they are moved in portions. Each portion ends with an old
     *      chunk that is not needed any more. The additional memory is that of the new chunks whose
     *      tensors have not all moved, and 8 MiB. From the end of the first portion on the job is
     *      the new one, whoever dies: ranks of the new world open it with `reshape`.
     *
     * If the job does not exist, it is created. If the job has a worker, `reshape` changes nothing.
     * Equal in all ranks.
     *
     * Statuses:
     *   - cst_job_open, CST_EBUSY: the job is the base of another job, or it is being saved.
     *   - cst_job_open, CST_EBUSY: a step was interrupted after its first early update.
     *   - cst_job_open, CST_EMISMATCH: another optimizer or base job.
     *   - cst_commit, CST_EMISMATCH: the job has other tensors, or tensors of other shapes.
     *   - cst_commit, CST_EBUDGET: there is no memory for any of these. The words say what the
     *     last one needs.
     *   - cst_commit, CST_ELOST, CST_ENOMEM, CST_EIO: a move in portions has stopped, because the
     *     engines cannot be started or the system has no memory. It goes on when the job is opened
     *     again. */
    bool reshape;
};

#define CST_MAX_CONFIG_BYTES 16384

/* Create a job, or attach to an existing job. A client can have one job. *out belongs to @client
 * and is freed by cst_disconnect. Statuses, in addition to those at struct cst_job_spec:
 *   - CST_EBUSY: a living worker has the rank; the error names its pid.
 *   - CST_EMISMATCH: an option that must be equal in all ranks differs from the job's; the error
 *     names the option and both values.
 *   - CST_ENOTFOUND: the base job or the device does not exist.
 *   - CST_EINVAL: an option is out of range.
 *   - CST_EINVAL: the base job is not initialised, has failed, or has a base itself.
 *   - CST_EINVAL: @client has a job already.
 *   - CST_EINVAL: CISTERN_DEBUG in the environment has an unknown value (libcistern(3)).
 *   - CST_EUNSUPPORTED: the daemon has no devices of this kind.
 *   - CST_EBUDGET: the user or the daemon has as many jobs as allowed.
 *   - CST_EDRAINING: the daemon is stopping. */
int cst_job_open(struct cst_job **out, struct cst_client *client, const struct cst_job_spec *spec,
                 struct cst_err *err);

/* Leave the job in good order. All leases are given back. The daemon keeps the job and its states
 * until cst_job_remove removes them or their time to live ends. Afterwards every call for @job
 * returns CST_EINVAL.
 *
 * All ranks should leave after the same step. Otherwise the ranks that go on with steps get
 * CST_EPEERDIED, and their cst_sync waits for a new worker of this rank. A rank that waits in
 * cst_commit gets CST_EPEERDIED, too.
 *
 * If the pool is on a GPU, this call waits for the work on the rank's stream first. Statuses:
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EGPU: the stream has failed; use cst_disconnect. */
int cst_job_leave(struct cst_job *job, struct cst_err *err);

/* Remove the job @name of this user with its states, as `cistern rm` does. Its workers get
 * CST_ECANCELLED from the calls in which they wait, and CST_ENOTFOUND later. Waits until the memory
 * of the job is free. @client may be without a job, or the client of a worker of this job or
 * another one. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EBUSY: the job is the base of another job; the error names that job.
 *   - CST_EBUSY: a cst_try_... call of this client is pending. */
int cst_job_remove(struct cst_client *client, const char *name, struct cst_err *err);

/* The rules for declarations (cst_group, cst_edge, cst_tensor..., cst_operator...):
 *   - Every rank declares all groups, edges, tensors and operators, in the same order and with the
 * same properties, even those that the rank does not hold or run.
 *   - They are declared after cst_job_open and before cst_commit.
 *   - The calls copy names, shapes and lists. They never wait.
 *   - On failure the cause is available from cst_job_error.
 *   - Some faults are reported by cst_commit only, such as a difference between ranks. */

/* Declare a bf16 tensor of the pattern CST_PATTERN_SHARD: all ranks of the group use one copy of
 * the tensor (cistern/pattern.h). @shape has @n_dims (1 to 8) numbers of elements, outermost
 * dimension first. @group is CST_GROUP_ALL or a number from cst_group. Returns the tensor's number
 * (>= 0) or a negative status:
 *   - CST_EINVAL: the name is empty, longer than 255 bytes or not printable.
 *   - CST_EINVAL: a dimension is less than 1, or there are more than 2^40 elements.
 *   - CST_EINVAL: the type or the group is unknown.
 *   - CST_EINVAL: there are more than 65536 tensors.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EEXIST: the name is taken.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *   - CST_ENOMEM. */
int cst_tensor(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
               const int64_t *shape, enum cst_group group);

/* Declare a tensor as cst_tensor does. In addition, multiply the learning rate by @lr_scale and the
 * weight decay by @decay_scale for this tensor. CST_EINVAL: a scale is not finite. */
int cst_tensor_scaled(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
                      const int64_t *shape, enum cst_group group, float lr_scale,
                      float decay_scale);

/* Declare a group of @n_ranks different ranks. A group is declared before the tensors that use it.
 * Returns the group's number (> 0) or a negative status:
 *   - CST_EINVAL: there are no ranks, a rank that the job does not have, or a rank given twice.
 *   - CST_EINVAL: there are more than 255 groups.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EBUSY: a cst_try_commit is pending. */
int cst_group(struct cst_job *job, const uint32_t *ranks, uint32_t n_ranks);

/* All properties of a tensor, for cst_tensor_as. */
struct cst_tensor_spec {
    const char *name;              /* 1 to 255 bytes, unique in the job. */
    enum cst_dtype dtype;          /* CST_BF16 or CST_FP32. */
    uint32_t n_dims;               /* Number of dimensions, 1 to 8. */
    const int64_t *shape;          /* n_dims numbers of elements: the part that one rank holds. */
    int group;                     /* CST_GROUP_ALL, or a number from cst_group. */
    enum cst_pattern_kind pattern; /* How the ranks hold the tensor. */
    float lr_scale;                /* Factor on the learning rate. 0 is 0, not the default. */
    float decay_scale;             /* Factor on the weight decay. 0 is 0, not the default. */
    /* CST_PATTERN_TENSOR: n_dims numbers, the shape of the larger tensor. This tensor is a part
     * (box) of the larger tensor. Other patterns: NULL. */
    const int64_t *whole_shape;
    /* CST_PATTERN_TENSOR: n_dims numbers, the index of the box's first element in the larger
     * tensor. Other patterns: NULL. */
    const int64_t *first;
    /* Names of the tensor in model files of other programs (cistern/checkpoint.h), 1 to 255 bytes
     * each. If there are several, the tensor consists of the rows of these external tensors, one
     * after the other, for example of those of q_proj, k_proj and v_proj. n_external 0: files have
     * the tensor under its own name. At most 64. */
    const char *const *external_names;
    const int64_t *external_rows; /* n_external numbers. NULL, if n_external is 1: all rows. */
    uint32_t n_external;
    /* The external tensors are columns of this matrix, and files have these columns as rows. */
    bool transposed;
    /* CST_PATTERN_TENSOR: name of the larger tensor, 1 to 255 bytes. Tensors with equal whole_name
     * are parts of one tensor. When the job is opened again for other ranks (`reshape` of struct
     * cst_job_spec), these parts are cut and joined. A tensor without whole_shape is the larger
     * tensor of its own name. NULL: `name`, and the tensor is never cut. Other patterns: NULL. */
    const char *whole_name;
    /* Number of the tensor's parameter group, less than CST_MAX_PARAM_GROUPS (cst_param_groups). */
    uint32_t param_group;
    /* With CST_OPTIMIZER_MUON: whether Muon updates the tensor. */
    enum cst_tensor_update update;
};

/* Declare a tensor with all its properties. Returns the tensor's number (>= 0) or a negative
 * status. The statuses are those of cst_tensor_scaled, and these:
 *   - CST_EINVAL: the pattern is unknown.
 *   - CST_EINVAL: the pattern is CST_PATTERN_TENSOR, and whole_shape or first is missing.
 *   - CST_EINVAL: the box is not inside of the larger tensor.
 *   - CST_EINVAL: whole_shape, first or whole_name is given, and the pattern is not
 *     CST_PATTERN_TENSOR.
 *   - CST_EINVAL: whole_name is empty, longer than 255 bytes or not printable.
 *   - CST_EINVAL: param_group is not less than CST_MAX_PARAM_GROUPS.
 *   - CST_EINVAL: `update` is unknown, or it is CST_TENSOR_UPDATE_MUON and the tensor does not have
 *     two or three dimensions.
 *   - CST_EINVAL: an external name is empty, too long, not printable or given twice.
 *   - CST_EINVAL: the external tensors together have more or fewer rows than this tensor has rows
 *     or, with `transposed`, columns.
 *   - CST_EINVAL: `transposed` is set without external names, or not for a matrix.
 *   - CST_EEXIST: another tensor has one of the external names, in files. */
int cst_tensor_as(struct cst_job *job, const struct cst_tensor_spec *spec);

/* Declare an operator, which uses the @n_tensors tensors with the numbers @tensors. Operators are
 * declared in the order of the forward pass. A rank runs an operator if the rank is in the groups
 * of all the operator's tensors. A step may leave out an operator. Returns the operator's number
 * (>= 0) or a negative status:
 *   - CST_EINVAL: the name is empty, longer than 255 bytes or not printable.
 *   - CST_EINVAL: there are no tensors, a tensor that does not exist, or a tensor given twice.
 *   - CST_EINVAL: no rank is in the groups of all tensors.
 *   - CST_EINVAL: there are more than 65536 operators.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EEXIST: the name is taken.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *   - CST_ENOMEM. */
int cst_operator(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors);

/* Hints for the daemon's plan. A field is 0 if its value is unknown. The hints of different ranks
 * are not compared. */
struct cst_operator_cost {
    /* Floating-point operations of the forward pass, per rank, in a micro-batch that uses the
     * operator. If a micro-batch uses the operator several times, they are the operations of all
     * these uses together. */
    double flops;
    /* Bytes kept from the forward pass to the backward pass, per micro-batch and rank. If the pool
     * is on a GPU whose budget is `pool = auto` (cistern.conf(5)), the daemon leaves the sum over
     * the rank's operators free on the GPU. The sum should then be all memory that the worker
     * allocates there, except the CUDA context and the workspaces of libraries. If all operators
     * have 0 here, the daemon leaves a tenth of the GPU free for all such ranks together. */
    uint64_t activation_bytes;
    /* Share of the micro-batches that use the operator. For an expert, these are the micro-batches
     * in which the expert receives tokens. 0 stands for 1, and so does a value above 1. */
    float expected_uses;
};

/* Declare an operator as cst_operator does, with hints on its cost. @cost may be NULL. CST_EINVAL
 * also means that a hint is negative or not finite. */
int cst_operator_as(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors,
                    const struct cst_operator_cost *cost);

/* Return the cause of the last declaration (cst_group, cst_edge, cst_tensor..., cst_operator...)
 * that failed.
 * The result belongs to @job and is valid until the next declaration. */
const struct cst_err *cst_job_error(const struct cst_job *job);

#define CST_ALL_RANKS UINT32_MAX

/* An edge of a job. */
struct cst_edge_spec {
    const char *name; /* 1 to 63 printable bytes, unique among the edges of the job. */
    uint32_t from; /* Rank that puts; or CST_ALL_RANKS, in `to`, too: every rank puts and takes. */
    uint32_t to;   /* Rank that takes. It may be `from`. */
    uint64_t slot_bytes; /* Bytes of a slot: the size of the largest array. */
    uint32_t n_slots;    /* Number of arrays that the edge can hold, 1 to 4096. */
    bool on_device;      /* The slots are in device memory, if possible (below). */
};

/* Declare an edge (cst_put, cst_take). Its slots are memory of the job, which cst_commit allocates
 * and charges to the budgets: host memory, unless on_device is true. With on_device they are in the
 * memory of the device of the rank `to`, and are charged to the budget of pools there, if
 *   - the pools of both ranks are on devices, and
 *   - both are on one device, or the device of `from` can access the memory of that of `to`.
 * Otherwise they are in host memory; `cistern explain` says why. What passes through such an edge
 * is the same in both cases. In device memory an array is copied from GPU to GPU, and not down to
 * the host and up again.
 *
 * In a model that is cut into stages (cst_stage), `from` and
 * `to` are the same rank or CST_ALL_RANKS: a step goes on without a rank that dies, and another
 * rank would wait for its arrays in vain. Returns the edge's number (>= 0) or a negative status:
 *   - CST_EINVAL: the name is empty, longer than 63 bytes or not printable.
 *   - CST_EINVAL: the job does not have one of the two ranks.
 *   - CST_EINVAL: there are no slots or more than 4096, or a slot has no bytes, or all slots
 *     together have more than 2^44 bytes.
 *   - CST_EINVAL: on_device is true in an edge of CST_ALL_RANKS.
 *   - CST_EINVAL: there are more than 256 edges.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EEXIST: the name is taken.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *   - CST_ENOMEM. */
int cst_edge(struct cst_job *job, const struct cst_edge_spec *spec);

/* Cut the model into stages, in a job with micro_batches > 1: the operators that are declared from
 * now on are in a new stage. The first stage begins before the first operator. Which rank runs a
 * stage is not declared, but is decided during the step (cst_next). Returns the stage's number
 * (>= 0) or a negative status:
 *   - CST_EINVAL: operators were declared before the first stage.
 *   - CST_EINVAL: the last stage has no operator.
 *   - CST_EINVAL: there are more than 64 stages.
 *   - CST_EINVAL: the job is committed.
 *   - CST_EBUSY: a cst_try_commit is pending.
 *
 * cst_commit returns CST_EINVAL if a model with stages has a job with one micro-batch, with
 * CST_OVERLAP_EARLY, with tensors that some ranks do not hold whole, or with an edge from one rank
 * to another one; or if the last stage has no operator. The daemon searches for no plan for such a
 * model. Tensors that several stages use are allowed: the earlier stage then waits in its backward
 * pass until the later one has done all micro-batches. */
int cst_stage(struct cst_job *job);

#define CST_PLAN_MAX_CLASSES 4

/* A size class: the chunks of one capacity. A huge embedding can have a class of its own, so that
 * the other chunks can be smaller. */
struct cst_plan_class {
    uint64_t chunk_elems; /* Capacity in bf16 elements. A block has 2 * chunk_elems bytes. */
    uint32_t n_blocks;    /* Number of blocks in this rank's pool. */
    uint32_t min_blocks;  /* Smallest number of blocks with which the model can run. */
};

/* The plan of a committed job. */
struct cst_plan {
    uint64_t n_params;    /* Number of elements of all tensors. */
    uint64_t chunk_elems; /* Chunk capacity of size class 0, in bf16 elements. */
    uint32_t n_chunks;    /* Number of chunks of all size classes. */
    uint32_t n_blocks;    /* Number of blocks of size class 0 in this rank's pool. */
    /* Smallest number of blocks of size class 0 with which the model can run. */
    uint32_t min_blocks;
    uint64_t block_bytes; /* Bytes of a block of size class 0: 2 * chunk_elems. */
    uint64_t pool_bytes;  /* Bytes of this rank's pool: the blocks of all size classes. */
    /* Bytes of host memory for the job's rows, for all ranks together. The tensors of a base job
     * are not counted. */
    uint64_t arena_bytes;
    uint32_t n_classes; /* Number of valid entries in classes, at least 1. */
    struct cst_plan_class classes[CST_PLAN_MAX_CLASSES]; /* By size class. */
};

/* Commit the declarations. Waits until every rank has committed and the job's memory is allocated.
 * Then maps the pool. @plan receives the plan. It may be NULL. Statuses:
 *   - CST_EPOOL: the pool is too small. The error names the operator, the blocks that it needs, and
 *     the number of bytes that are missing.
 *   - CST_EBUDGET: the job needs more memory than a budget allows.
 *   - CST_EMISMATCH: the ranks disagree. The error names the tensor, the operator or the option,
 *     both values and the ranks. All ranks get the same error as soon as the first difference is
 *     known.
 *   - CST_ENOTFOUND: the base job does not have a frozen tensor of this job.
 *   - CST_EINVAL: a frozen tensor of this job is trained in the base job.
 *   - CST_EMISMATCH: a frozen tensor of this job has another shape in the base job.
 *   - CST_EPEERDIED: another rank died or left before all ranks had committed.
 *   - CST_ETIMEDOUT: not all ranks have committed in timeout_ms.
 *   - CST_EUNSUPPORTED: the pool is on a device that needs a second library (cistern/device.h).
 *   - CST_EGPU, CST_EINTERNAL: memory on the GPU cannot be mapped. The error says what the driver
 *     refuses.
 *   - CST_EINVAL: there are no tensors or no operators, or the job is committed already.
 *   - CST_ENOMEM.
 * After any of these statuses the same declarations can be committed again, unless the job is
 * committed already. To change the declarations, connect again and open the job again. */
int cst_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err);
int cst_try_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err);

/* Return whether a cst_sync has ever completed in the job. The weights are then present, and a
 * worker that joins must not write them. Never waits. */
bool cst_job_initialised(const struct cst_job *job);

/* Return the number of committed steps that this process last learned from the daemon. Never waits.
 *
 * After cst_commit the number is exact. It is also exact in the new worker of a rank that died
 * during cst_step: by then the daemon has decided whether that step is committed.
 *
 * A worker that finds that all its steps are done should not call cst_sync. The other ranks may
 * have left after the last step, and cst_sync would wait for them. */
uint64_t cst_job_steps(const struct cst_job *job);

/* Wait until every rank has a worker, and every worker has called cst_sync. *step is the number of
 * committed steps, which is also the number of the step to do now, counted from 0. It is the same
 * for all ranks. @step may be NULL.
 *
 * A worker calls cst_sync once before its first step, and again after CST_EPEERDIED or CST_ESTALE.
 * These two statuses mean that the current step is void for all ranks. Nothing of the step is kept,
 * and it must be done again. A step with early updates is an exception: see cst_prepare_step.
 *
 * After the end of the daemon, cst_sync waits up to timeout_ms (60 s if it is 0) for its next
 * process, opens the job again and maps a new pool. The addresses of the old pool are not valid any
 * more. cst_try_sync does the same without waiting for the daemon, but it waits for the answers of
 * the new process, and for the work on the rank's stream.
 *
 * If a rank calls cst_sync during a step, the step is void for all ranks. The others get
 * CST_EPEERDIED from the call in which they wait or from their next call, and must call cst_sync,
 * too. But if every rank has already called cst_step, the step is committed first.
 *
 * Statuses:
 *   - CST_ETIMEDOUT: ranks are missing after timeout_ms; the error names them.
 *   - CST_ECONN: the daemon was not started again in time.
 *   - CST_ELOST: the daemon was started again and does not have the job.
 *   - CST_EENGINE, CST_ELOST: the device of this rank's pool is lost. The error names the device
 *     and the cause. The step is void. Unless the error names chunks, the states are not lost, and
 *     can be read and written.
 *   - CST_EENGINE: the daemon gave up the engine of a NUMA node. All ranks get this status. All
 *     ranks then leave and open the job again, and the daemon starts the engine again.
 *   - CST_ENOMEM, CST_EGPU, CST_EINTERNAL: the slots of an edge of this rank are elsewhere now,
 *     because a rank's device was lost, and cannot be mapped. The step is void. The next cst_sync
 *     tries again.
 *   - CST_EINVAL: the job is not committed.
 *   - CST_EBUSY: another call is pending.
 *
 * After the loss of its device, this worker leaves the job. Then it, or a new process, opens the
 * job as the same rank. The other ranks wait for that in cst_sync. The device is one of these:
 *   - the lost device, which the daemon then tries again;
 *   - "host";
 *   - a GPU that has a pool of this job.
 * The daemon makes a new pool of the same size there. */
int cst_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);
int cst_try_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);

/* -- a step --------------------------------------------------------------------------------- */

enum cst_direction { CST_FORWARD, CST_BACKWARD };

/* One tensor of an operator that has begun. The pointers are valid from cst_op_begin to cst_op_end
 * of this operator. They are addresses in the memory of the rank's device. */
struct cst_io {
    /* Weights: n_elems elements of the tensor's type (cistern/dtype.h), row-major in the declared
     * shape, 128-byte aligned. The worker must not write them. */
    void *weight;
    /* Gradient: n_elems elements of the tensor's type, in the layout of the weights. NULL in
     * CST_FORWARD and for frozen tensors. */
    void *grad;
    /* How to write the gradient. False: its memory has undefined contents, and the worker must
     * overwrite all elements. True: an earlier use of the tensor in this micro-batch has written
     * the gradient, and the worker must add to it. */
    bool accumulate;
    uint64_t n_elems; /* Number of elements of the tensor. */
};

/* Begin the operator @op: wait until the weights of all its tensors are in the pool. @io has @n_io
 * entries, as many as the operator has tensors. io[i] receives the i-th tensor of the declaration.
 * Only one operator can be begun at a time. In CST_BACKWARD the worker must write every io[i].grad
 * that is not NULL before cst_op_end.
 *
 * An operator may be begun with CST_FORWARD any number of times in a micro-batch, and also between
 * operators that are begun with CST_BACKWARD: to compute it again, to use its weights for the
 * gradient of an input, or to evaluate the model between two steps. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EINVAL: a gradient of the operator was already handed in during this micro-batch.
 *   - CST_EINVAL: there is no such operator, or this rank does not run it.
 *   - CST_EINVAL: another operator is begun.
 *   - CST_EINVAL: @n_io is wrong.
 *   - CST_EINVAL: cst_sync has not been called yet.
 *   - CST_EPOOL: the pool has too few blocks, because operators run in another order than declared.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: the daemon gave up an engine. If it is the engine of this rank's
 *     device, cst_sync does not help. The worker must leave and open the job again, as described at
 *     cst_sync. */
int cst_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                 uint32_t n_io, struct cst_err *err);
int cst_try_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                     uint32_t n_io, struct cst_err *err);

/* End the operator @op. In CST_BACKWARD, the gradients of a chunk are handed in when the last
 * operator of the micro-batch that uses the chunk ends. Never waits. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin.
 *   - CST_EINVAL: the operator is not begun.
 *   - CST_EINVAL: CISTERN_DEBUG has the word poison (libcistern(3)), and an element of a gradient
 * was not written. The error names the tensor and the first such element. The operator stays begun.
 */
int cst_op_end(struct cst_job *job, int op, struct cst_err *err);

/* Check whether gradients can be handed in now although their operator @op is not the next one in
 * the reverse order of declaration: the pool has blocks for its backward pass, for the forward pass
 * of any operator after it, and then for the backward passes of all other operators that have had
 * none in this micro-batch, in the reverse order of declaration.
 *
 * This is for workers that compute in another order than they declare. Such a worker keeps
 * gradients in memory of its own until this function returns CST_OK, and begins operators in
 * CST_BACKWARD only to hand them in. At the end of the micro-batch it hands in all that are left,
 * in the reverse order of declaration, and zeros for operators that it has not used. Then no call
 * of cst_op_begin returns CST_EPOOL. Not for models that are cut into stages: their units run in
 * the order of declaration. Never waits. Statuses:
 *   - CST_EPOOL: the gradients cannot be handed in yet. The text is the same for all operators.
 *   - CST_EINVAL: there is no such operator, this rank does not run it, or an operator is begun.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_op_fits(struct cst_job *job, int op, struct cst_err *err);

enum cst_hint {
    CST_PREFETCH = 1, /* Weights are wanted soon: fetch them, if a block can be spared. */
    CST_EVICT = 2,    /* Weights are not wanted soon: other weights may take their blocks. */
};

/* Tell the daemon whether this rank will want the weights of the operator @op, or of one tensor,
 * soon. Hints can change when weights are copied. They never change a result. A hint applies to
 * whole chunks, and therefore also to other tensors in the same chunks. Hints are useful if earlier
 * steps do not show what comes next. Examples are an evaluation between two steps, and a part of
 * the model that some steps leave out. The functions may be called at any time after cst_sync, even
 * while an operator is begun. They never wait.
 *
 * The daemon ignores a hint in these cases:
 *   - CST_PREFETCH: the weights are in the pool already, fetches wait for blocks, or the worker
 *     copies weights itself (cistern/device.h).
 *   - CST_EVICT: the weights are not in the pool, or their copy to the pool is under way.
 * Evicted weights come back when they are used, or earlier, if the daemon expects their use.
 *
 * Statuses:
 *   - CST_EBUSY: CST_EVICT was given for weights of a chunk that the current operator uses, or a
 *     cst_try_... call is pending.
 *   - CST_EINVAL: there is no such operator, tensor or hint; or this rank does not run the operator
 *     or any operator that uses the tensor.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_hint(struct cst_job *job, int op, enum cst_hint hint, struct cst_err *err);
int cst_hint_tensor(struct cst_job *job, int tensor, enum cst_hint hint, struct cst_err *err);

/* End a micro-batch that is not the last one of its step. Its gradients are added, in fp32, to
 * those of the step's earlier micro-batches. Afterwards the forward pass of the next micro-batch
 * can begin. In a job with micro_batches = M, a step has at most M - 1 calls of cst_accumulate; its
 * last micro-batch ends with cst_step. The order of the sums is fixed: by micro-batch, and within a
 * micro-batch by rank. Never waits. Statuses:
 *   - CST_EINVAL: the M-th call in a step, or an operator is begun.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_accumulate(struct cst_job *job, struct cst_err *err);

/* Parameters of a step's update. What follows from them, such as 1 - beta1, is computed in double;
 * the update itself computes in fp32. Every field except lr is 0 for its default. Every field
 * except loss must be finite, and not negative unless its comment says otherwise. (CST_EINVAL: the
 * error names the field, its value and its range.) */
struct cst_hyper_params {
    double lr; /* Learning rate. */
    /* Below 1. If beta1 and beta2 are both 0, beta1 is 0.9. If only beta1 is 0, it stays 0. With
     * SGD, beta1 is the momentum, and a negative beta1 means no momentum. */
    double beta1;
    double beta2;        /* Below 1. 0: 0.99 for Lion, 0.999 for the other optimizers. */
    double eps;          /* 0: 1e-8. */
    double weight_decay; /* 0: no decay. */
    double clip_norm;    /* Largest L2 norm of all gradients together. 0: no clipping. */
    double grad_scale;   /* Factor on the gradients after their sum over the ranks. 0: 1. */
    /* Loss of this rank, for reports. Any value, NaN too; ranks may differ. 0: unknown. */
    double loss;
};

/* Factors of a parameter group: the update of its tensors multiplies `lr` and `weight_decay` of
 * struct cst_hyper_params with them, and with lr_scale and decay_scale of the tensor. Finite, and
 * not negative. */
struct cst_param_group {
    double lr;
    double weight_decay;
};

/* Set the factors of the parameter groups 0 to @n - 1, of which each tensor is in one (param_group
 * of struct cst_tensor_spec), for this rank's later calls of cst_prepare_step and cst_step. The
 * factors of other groups, and of all groups at first and with @n 0, are 1. In a step all ranks
 * give the same @n and the same factors (else CST_EMISMATCH from cst_step). @groups is copied. May
 * be called at any time after cst_job_open. Never waits. Statuses:
 *   - CST_EINVAL: there are more than CST_MAX_PARAM_GROUPS groups, or a factor is out of range.
 *   - CST_EBUSY: a cst_try_... call is pending. */
int cst_param_groups(struct cst_job *job, const struct cst_param_group *groups, uint32_t n,
                     struct cst_err *err);

/* Give the parameters of this step's cst_step in advance, before the first backward pass. With
 * CST_OVERLAP_EARLY and without clipping, each chunk is then updated as soon as its gradient is
 * complete. With any other overlap the call has no effect. Never waits.
 *
 * An update treats a chunk in tiles, which are pieces of 4096 elements. If a gradient is not finite
 * or too large, an early update leaves out the tiles that have such gradients. The step is not
 * skipped as a whole. Its result then has `overflow`, not `skipped`.
 *
 * If a step is interrupted after its first update, it can only be finished, not undone:
 *   - The ranks must give the parameters with which the step was begun. Otherwise this call or a
 *     later one returns CST_EMISMATCH. The error has both values.
 *   - Gradients that are handed in again for chunks that were already updated are ignored.
 *     (`cistern job` shows how many these were.) Therefore each rank should compute the same batch
 *     again.
 *   - The alternative is to remove the job (cst_job_remove), and to begin again from states that
 * the program saved itself (cst_tensor_read).
 *
 * Statuses:
 *   - CST_EINVAL: a parameter is out of range, or the call was made before in this step with other
 *     parameters.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. */
int cst_prepare_step(struct cst_job *job, const struct cst_hyper_params *params,
                     struct cst_err *err);

struct cst_step_result {
    uint64_t step; /* Number of committed steps, including this one. */
    /* The step counts, but its update was skipped, and the states did not change. The reason is
     * that the norm of the gradients, after scaling and clipping, was NaN, infinite or too large.
     * Too large means larger than 2^63, so that the square cannot be summed in fp32. */
    bool skipped;
    double grad_norm;   /* L2 norm of all gradients, after grad_scale, before clipping. */
    float clip;         /* Factor by which clipping scaled the gradients; 1: no clipping. */
    double loss;        /* Mean of the ranks' losses, summed in the order of the ranks. */
    uint64_t n_skipped; /* Number of skipped steps since the job began. */
    /* The norm was NaN, infinite or too large. A dynamic loss scale should use this field, because
     * it covers two cases:
     *   - Without early updates, the step was skipped.
     *   - With early updates, the tiles whose own norm is NaN, infinite or too large were left out.
     *     There may be no such tile. */
    bool overflow;
};

/* Commit the step. Hands in all gradients that are left. A tensor whose gradient was not written
 * in this step has a gradient of zeros. Waits until every rank has called cst_step with equal
 * parameters and the norm is known. After CST_OK the step cannot be lost. Updates run at the time
 * that the job's `overlap` says. @result may be NULL. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EMISMATCH: the parameters differ between ranks.
 *   - CST_ETIMEDOUT: not all ranks have called cst_step in timeout_ms.
 *   - CST_EINVAL: a parameter is out of range, or an operator is begun.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_step(struct cst_job *job, const struct cst_hyper_params *params,
             struct cst_step_result *result, struct cst_err *err);
int cst_try_step(struct cst_job *job, const struct cst_hyper_params *params,
                 struct cst_step_result *result, struct cst_err *err);

/* -- units ---------------------------------------------------------------------------------- */

/* What a unit is: the forward or the backward pass of one stage over one micro-batch. */
enum cst_unit_kind {
    CST_UNIT_FORWARD = 0,
    CST_UNIT_BACKWARD = 1,
    CST_UNIT_STEP = 2, /* All units of the step are done: the rank calls cst_step. */
};

struct cst_unit {
    enum cst_unit_kind kind;
    uint32_t stage;       /* Number of the stage. CST_UNIT_STEP: 0. */
    uint32_t micro_batch; /* Number of the micro-batch, from 0. CST_UNIT_STEP: 0. */
};

/* The rank has done the unit that it got last, if it got one: hand in its gradients, and wait for
 * the next unit. For models that are cut into stages (cst_stage). @loss is the loss of the
 * micro-batch if the unit was a backward pass of the last stage, and is ignored otherwise.
 *
 * Ranks are interchangeable. Each one calls cst_sync, then cst_next until it gets CST_UNIT_STEP,
 * then cst_step, and so on. Not all ranks need to be there: each does as much as it can. All ranks
 * commit once (cst_commit). Then a rank may leave or die at any time, and another process may join
 * in its place at any time, in the middle of a step too. What a rank had in hand when it ended is
 * given to another rank. cst_step waits for the ranks that have called cst_sync and are there.
 *
 * A unit of a stage:
 *   - CST_UNIT_FORWARD: take what the stage before has put, run the stage's operators forward, and
 *     put the result. The last stage has no such units.
 *   - CST_UNIT_BACKWARD: run the operators forward again, from what the stage before has put, and
 *     then backward, from the gradient that the stage after it has put. Put the gradient for the
 *     stage before. In the last stage the forward pass ends with the loss.
 *
 * Arrays go from unit to unit through edges of CST_ALL_RANKS, with the number of the micro-batch as
 * their number. Nothing is put or taken that another rank could be writing: a unit is given out
 * when all that it takes was put. Arrays stay until the step ends, because a unit may be done
 * again.
 *
 * The bits of the results depend neither on the number of ranks nor on when they come or go,
 * provided that a unit has the same results in every rank. The gradient of a tensor is the sum of
 * the units' gradients in a fixed order, each added in fp32. `loss` of struct cst_step_result is
 * the mean over the micro-batches.
 *
 * A rank keeps a stage for all micro-batches, if it can, so that the weights of the stage are
 * loaded once for all of them. cst_accumulate and cst_prepare_step are not used. Statuses:
 *   - CST_EINVAL: the model has no stages, an operator is begun, or cst_sync has not been called.
 *   - CST_ETIMEDOUT: there was no unit for this rank, and no rank has done one in timeout_ms. The
 *     error names the rank whose unit others wait for.
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. The death of another rank is no
 *     reason for that.
 *   - CST_EBUSY: another call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin. */
int cst_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err);
int cst_try_next(struct cst_job *job, double loss, struct cst_unit *unit, struct cst_err *err);

/* -- edges ---------------------------------------------------------------------------------- */

/* Pass arrays through the edge @edge. (For edges of CST_ALL_RANKS, see below.) The rank `from` puts
 * an array into a slot, and the rank `to` takes it out. A number tells the arrays in an edge apart,
 * for example the number of the micro-batch. Arrays may be taken in another order than they were
 * put. Two arrays that are in an edge at the same time have different numbers.
 *
 * cst_put waits until a slot is free, and copies @bytes bytes of @data to it. cst_take waits until
 * the array with the number @number was put, copies its first @bytes bytes to @data, and frees the
 * slot. Both belong to the step: they need cst_sync, and may be called while an operator is begun.
 * They do not pass through the daemon. The other rank can change the bytes of a slot at any time.
 * An array that is not taken stays in its slot, also after cst_step.
 *
 * In an edge from a rank to itself, only this rank can free a slot or put an array. Then nothing
 * waits: cst_put returns CST_EINVAL if no slot is free, and cst_take returns CST_ENOTFOUND if the
 * array was not put.
 *
 * In an edge of CST_ALL_RANKS the array with the number i has the slot i: a number is less than
 * n_slots. Every rank can put it, which overwrites it, and take it, which leaves it there. Nothing
 * waits: cst_take returns CST_ENOTFOUND if the array was not put in this attempt. Who may put and
 * take, and when, follows from the units (cst_next).
 *
 * Arrays of a step that is void are lost: after cst_sync all slots are free. The ranks put them
 * again when they do the step again.
 *
 * If the job is on a GPU (cistern/cuda.h), @data may be in the GPU's memory. The GPU then copies
 * all arrays, those in host memory, too. A copy begins when the stream has done the work that it
 * had at the time of the call, so that a kernel may have written @data just before.
 *
 * Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync. If a rank dies, a call that waits
 *     returns this within a second. The error names the rank.
 *   - CST_ETIMEDOUT: the other rank neither took nor put in timeout_ms (300 s if it is 0).
 *   - CST_EINVAL: there is no such edge, or this rank is not the one that puts (takes) there.
 *   - CST_EINVAL: @bytes is larger than the slots, or @data is NULL.
 *   - CST_EINVAL: cst_sync has not been called yet.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_EENGINE, CST_ELOST: as for cst_op_begin.
 *   - CST_EGPU: the job's GPU has failed, and the step is void. */
int cst_put(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
            struct cst_err *err);
int cst_take(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
             struct cst_err *err);

/* Do cst_put or cst_take in two parts, without the copy. The first part waits for the slot. *slot
 * receives its address; the slot has slot_bytes bytes and is aligned to 64. Until the second part
 * the worker writes or reads the slot. Several arrays of an edge may be between the two parts. What
 * is written before cst_put_end is seen after cst_take_begin. cst_put_end and cst_take_end do not
 * wait.
 *
 * If the slots are in the memory of a GPU (cst_edge_on_device), *slot is an address there. Work
 * that is enqueued in the job's stream between the two parts writes or reads it. Then cst_put_end
 * and cst_take_end wait until the stream has done the work that it has; not in an edge from a rank
 * to itself.
 *
 * Statuses are those of cst_put and cst_take, and these:
 *   - cst_put_begin, cst_take_begin, CST_EINVAL: @number is between the two parts already.
 *   - cst_put_end, cst_take_end, CST_EINVAL: the first part was not called for @number, or a
 *     cst_sync has freed the slot meanwhile. */
int cst_put_begin(struct cst_job *job, int edge, uint32_t number, void **slot, struct cst_err *err);
int cst_put_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);
int cst_take_begin(struct cst_job *job, int edge, uint32_t number, const void **slot,
                   struct cst_err *err);
int cst_take_end(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);

/* Return 1 if the slots of @edge are in the memory of a GPU, and 0 if they are in host memory:
 * those of a simulated accelerator are. If a rank was opened again on another device, because its
 * own was lost, cst_sync can change the result. Never waits. Statuses:
 *   - CST_EINVAL: there is no such edge, this rank is no end of it, or the job is not committed. */
int cst_edge_on_device(const struct cst_job *job, int edge, struct cst_err *err);

/* Do cst_put or cst_take with a copy beside the computation, which a thread of the library does, or
 * the job's GPU in a stream of its own. The copies of a job are done in the order in which they are
 * started. From the first call to cst_edge_wait, the worker does not write the @data of a put, and
 * does not use the @data of a take.
 *
 * For activations that wait in host memory for their backward pass: each layer's are put when its
 * forward pass has ended, and are taken back in reverse order, one or more layers before their
 * backward pass begins.
 *
 * cst_put_start and cst_take_start wait as cst_put and cst_take do, but not for the copy. Statuses
 * are those of cst_put and cst_take, and these:
 *   - CST_EINVAL: @number is being put (taken) already.
 *   - CST_ENOMEM: the thread cannot be made.
 *
 * cst_edge_wait waits until the copy that was started for @number is done, and ends the put or
 * take. It waits for the copy even if it then returns a status that is not CST_OK. cst_sync waits
 * for all copies, too. On a GPU, in an edge from a rank to itself, the job's stream waits, and this
 * thread does not: the work that is enqueued afterwards finds the copy done. A worker whose @data
 * is host memory waits for the stream before it accesses @data. Statuses:
 *   - CST_EPEERDIED, CST_ESTALE: the step is void; call cst_sync.
 *   - CST_EGPU: the job's GPU has failed, and the step is void.
 *   - CST_EINVAL: no copy was started for @number. */
int cst_put_start(struct cst_job *job, int edge, uint32_t number, const void *data, uint64_t bytes,
                  struct cst_err *err);
int cst_take_start(struct cst_job *job, int edge, uint32_t number, void *data, uint64_t bytes,
                   struct cst_err *err);
int cst_edge_wait(struct cst_job *job, int edge, uint32_t number, struct cst_err *err);

/* -- states --------------------------------------------------------------------------------- */

/* The states of a tensor, and the type in which they are read and written. */
enum cst_state {
    CST_STATE_WEIGHT = 0, /* The tensor's type. */
    /* The tensor's type. The last gradient, summed over the ranks. With micro-batches it is their
     * fp32 sum, rounded if the tensor is bf16. Read only. */
    CST_STATE_GRAD = 1,
    /* fp32. A write also sets the weights and clears both moments. Of fp32 tensors it is the
     * weights. */
    CST_STATE_MASTER = 2,
    CST_STATE_EXP_AVG = 3, /* fp32, whatever the format of the moments. */
    /* fp32, whatever the format of the moments. CST_EUNSUPPORTED: the optimizer has one moment. */
    CST_STATE_EXP_AVG_SQ = 4,
};

/* Copy the elements [first, first + n_elems) of a tensor's state from the job's memory to @data
 * (cst_tensor_read), or from @data to the job's memory (cst_tensor_write). @data belongs to the
 * caller and has @n_elems elements of the state's type, in host memory. The job must be committed.
 * Reads are possible at any time, and see the updates of all committed steps. Writes are possible
 * only between steps. No other rank is needed.
 *
 * Statuses of both:
 *   - CST_EINVAL: the tensor, the state or the range does not exist, @data is NULL, or the job is
 *     not committed.
 *   - CST_EUNSUPPORTED: the tensor is frozen and the state is not the weight. Exception: a write of
 *     a frozen tensor's master weights sets its weights.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_ELOST, CST_EENGINE: the chunk or the engine is lost.
 *
 * Statuses of writes:
 *   - CST_EBUSY: a step is under way.
 *   - CST_EINVAL: a gradient was to be written.
 *   - CST_EDENIED: the tensor belongs to this job's base job.
 *   - CST_EBUSY: the tensor is frozen, and another job uses this job as its base.
 *
 * A gradient cannot be read while its sum is incomplete (CST_EBUSY).
 *
 * With grad_over_weight, for bf16 tensors:
 *   - A gradient can be read from the end of its sum to its update (else CST_EUNSUPPORTED).
 *   - Weights cannot be written (CST_EUNSUPPORTED); write the master weights.
 *   - Master weights cannot be written while a gradient of an interrupted attempt is still being
 *     copied to the place of the weights (CST_EBUSY).
 *
 * With early updates, from a step's first update to its commit, even between attempts:
 *   - Master weights and moments of updated chunks cannot be read (CST_EBUSY).
 *   - No state can be written (CST_EBUSY).
 *   - A gradient that was summed by its own update cannot be read (CST_EUNSUPPORTED).
 *
 * With delayed updates, a write of weights or master weights suspends the delay for one step: the
 * next step reads the results of all updates so far. */
int cst_tensor_read(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                    uint64_t n_elems, void *data, struct cst_err *err);
int cst_tensor_write(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                     uint64_t n_elems, const void *data, struct cst_err *err);

/* -- numbers -------------------------------------------------------------------------------- */

/* Counters of one rank. Each fetch of weights counts in one of hits, late and misses. */
struct cst_rank_stat {
    uint64_t hits; /* Fetches whose weights were in the pool before the worker waited for them. */
    /* Fetches whose weights were being copied to the pool when the worker began to wait. */
    uint64_t late;
    uint64_t misses;            /* All other fetches. */
    double weight_wait_seconds; /* Time for which the worker waited for weights. */
    /* Blocks of weights or of incomplete gradients that were emptied for other chunks. */
    uint64_t evictions;
    uint64_t prefetches; /* Weights that the daemon copied to the pool before their request. */
    /* Uses that the daemon did not expect from the order of earlier steps. */
    uint64_t surprises;
    uint64_t bytes_up;   /* Bytes copied from host memory to the pool. */
    uint64_t bytes_down; /* Bytes copied from the pool to host memory: gradients. */
    uint64_t pool_bytes; /* Size of the pool in bytes; 0 before cst_commit. */
    uint64_t step;       /* Number of committed steps. */
    double step_seconds; /* Time between the last two commits; 0 before the second one. */
    /* Time by which the steps of the job would have been shorter if updates took no time. */
    double exposed_seconds;
};

/* Get the daemon's counters of this rank. CST_EBUSY: a cst_try_... call is pending; CST_EINVAL: the
 * job was left; CST_ENOTFOUND: the daemon has no counters of this rank. */
int cst_stat(struct cst_job *job, struct cst_rank_stat *out, struct cst_err *err);

/* Get the ranks for which other ranks of the job @name wait in cst_commit, cst_sync or cst_step.
 * The result is text, such as "rank 1 (died in step 4), rank 3 (never attached)", or "" if there
 * are none. The job must belong to this user. The text is copied to @words, which has @size bytes.
 * If the text and its NUL do not fit, it is cut. The caller needs a second client, because the
 * client of a waiting call cannot ask. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EBUSY: a cst_try_... call of this client is pending. */
int cst_job_waits(struct cst_client *client, const char *name, char *words, size_t size,
                  struct cst_err *err);

/* Return the version of the library, "major.minor.patch". The string is static. */
const char *cst_version(void);

#ifdef __cplusplus
}
#endif

#endif
