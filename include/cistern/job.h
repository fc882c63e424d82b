/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: the options of a job and of its ranks, and how a rank opens and leaves it. cistern.h has
 * the terms, and what holds for all calls. */
#ifndef CISTERN_JOB_H
#define CISTERN_JOB_H

#include "cistern/client.h"
#include "cistern/optimizer.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_MAX_MICRO_BATCHES 65536

struct cst_job; /* This process as one rank of a job. */

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

/* Memory of one rank on its device. */
struct cst_job_memory {
    /* Bytes of this rank's pool, which holds the weights and gradients in use. 0: as many as the
     * rank can use. */
    uint64_t pool_bytes;
    /* Device reservation: bytes of this rank's device, in addition to the pool, in which the daemon
     * may update chunks (device updates). The worker must leave this memory free. 0: none.
     * CST_DEVICE_UPDATE_AUTO: the daemon chooses. CST_DEVICE_UPDATE_LENT: empty blocks of the pool
     * serve instead. If the pool is in host memory, the reservation is on a simulated accelerator.
     * If the daemon has no simulated accelerators, there is no reservation. CST_EINVAL, from
     * cst_commit: the ranks of a device together reserve fewer bytes than the device's unit of
     * allocation.
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
};

/* The optimizer, and how its states are stored. */
struct cst_job_states {
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
    /* Gradients are stored in place of their weights in host memory, which saves 2 bytes per
     * parameter. If a chunk is fetched again after its gradient was handed in, its weights are made
     * from its master weights. Equal in all ranks. CST_EINVAL: there is more than one
     * micro-batch, or overlap is CST_OVERLAP_EARLY or CST_OVERLAP_DELAYED, or masters is
     * CST_MASTERS_SPLIT, or there is `disk`. */
    bool grad_over_weight;
    /* Versions of the weights that readers can have (cistern/reader.h): the weights after each of
     * the last so many steps. 1: a reader loses a version when the next step is committed. 2: when
     * the step after the next one is, which takes 2 more bytes per parameter of a bf16 tensor, 4 of
     * an fp32 tensor. 0: 2 if overlap is CST_OVERLAP_EARLY or CST_OVERLAP_DELAYED, whose jobs have
     * two versions anyhow, else 1. Equal in all ranks. CST_EINVAL: 2 together with grad_over_weight
     * or durable; 1 together with an overlap other than CST_OVERLAP_COMMIT. */
    uint32_t versions;
    /* Files on drives (NVMe) in which states lie: master weights, or the remainders that split
     * masters add to the weights, and moments. Weights and gradients stay in host memory. In each
     * step the daemon reads the states once, updates them in buffers of host memory, and writes
     * them back. Results have the same bits as without files.
     *
     * Directories, one on each drive, separated by commas; NULL: states lie in memory. cst_job_open
     * of rank 0 makes a file without a name in each of them, with the rights of the process, and
     * gives it to the daemon. The file ends with the job. The file system must support O_DIRECT, as
     * ext4 and XFS do. Chunks take turns on the drives. The states of a large tensor stay in memory
     * if the buffers of its size, three for each drive, would take more than they do. The
     * directories of other ranks are not used.
     *
     * If rank 0 opens a job that is committed already, no file is made: the directories must be on
     * the drives of the job's files, as many and in any order. NULL stands for what the job has.
     * Statuses of cst_job_open:
     *   - CST_EIO: a directory is not there, or a file cannot be made; the error names it.
     *   - CST_EUNSUPPORTED: the file system does not support such files, or the daemon's jobs are
     * on as many drives as it can have.
     *   - CST_EINVAL: two directories are on the same drive, or there are more than 8.
     *   - CST_EMISMATCH: the job has its states in memory, or on other drives; the error names
     * both. `reshape` moves them, but not those of a durable job. */
    const char *disk;
    /* Bytes of states on all drives together, which the last chunks have. 0: all states. Equal in
     * all ranks. */
    uint64_t disk_bytes;
    /* Each committed step lasts, even if the machine stops or loses power: the files have names,
     * NAME.N.cistern in the directories of `disk` (the job's name, and a number for each), and stay
     * when the job ends. They have two places for each state, and so twice the size, and a record
     * of the last step; no state is written twice. Weights that are the master weights, as those of
     * fp32 tensors, or a part of them (CST_MASTERS_SPLIT), are written with the states, in addition
     * to host memory: 4 or 2 bytes per parameter and step. Frozen weights are written once, after
     * the first step. The space of the files is taken by cst_commit. cst_adopt and
     * `cistern adopt` make a checkpoint of the files. A step is committed when the one before is on
     * the drives: its states are written and flushed under the forward and the backward pass in
     * between. After a crash the last step that was reported may therefore be missing;
     * cst_job_leave waits for it. Equal in all ranks.
     *
     * Needs all states in files: CST_EINVAL without `disk`, and with disk_bytes, an overlap other
     * than CST_OVERLAP_COMMIT, CST_UNUSED_SKIP or a base job, and from cst_commit if states are in
     * memory of a device (device_states). Such a job cannot be
     * reshaped, and its states cannot be written after its first sync (CST_EUNSUPPORTED).
     * CST_EEXIST: a file of the name exists. It may be all that is left of an earlier job. */
    bool durable;
};

/* When and how the updates of a step are made. */
struct cst_job_updates {
    /* Micro-batches per step, at most CST_MAX_MICRO_BATCHES (see cst_accumulate). 0 and 1 both
     * mean one. With stages: of each rank block (block_ranks). Equal in all ranks. */
    uint32_t micro_batches;
    /* Number of consecutive ranks, counted through all nodes, whose gradients are added first, from
     * left to right; then these sums are added from left to right. Gradients then have the same
     * bits, however many nodes the ranks are on. Each node has a multiple of it (CST_EINVAL). 0:
     * all ranks of a node. With stages, so many ranks are the share of one batch: its
     * micro_batches are added first, whichever ranks of the node have done them (cst_next). Equal
     * in all ranks. */
    uint32_t block_ranks;
    /* The time at which chunks are updated. Equal in all ranks. */
    enum cst_overlap overlap;
    /* CST_OVERLAP_DELAYED: number of the first step whose update is delayed, counted from 0. Must
     * be 0 with any other overlap (CST_EINVAL). Equal in all ranks. */
    uint64_t delay_from;
    /* What a step does with tensors without a gradient. Equal in all ranks, but `reshape` can
     * change it. CST_EINVAL: CST_UNUSED_SKIP together with CST_OVERLAP_EARLY or, from cst_commit,
     * with stages. */
    enum cst_unused unused;
};

/* What the daemon's plan of a job depends on. */
struct cst_job_planning {
    /* Chunk capacity in bf16 elements; an fp32 element takes the place of two. 0: the daemon
     * chooses. Equal in all ranks. */
    uint64_t chunk_elems;
    /* Hint for the daemon's plan: the worker repeats each forward pass before its backward pass.
     * Only the hint of the rank that creates the job is used; it is not compared. */
    bool recompute;
    /* Number of chunks whose weights are loaded before they are asked for. 0: as many as the plan
     * says. Equal in all ranks. */
    uint32_t prefetch_depth;
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
     *     or grad_over_weight differs from the plan's value. The error names the field and both
     *     values.
     *   - cst_job_open, CST_EMISMATCH: the job was created without this plan.
     *   - cst_commit, CST_EMISMATCH: the declared model is not the model of the plan.
     *   - cst_job_open, CST_EINVAL: `base` is set.
     *   - cst_job_open, CST_EINVAL: the file is not a plan. The error names the place in the file.
     *   - cst_job_open, CST_EIO: the file cannot be read. */
    const char *plan_file;
};

/* Time limits. Those of the rank that creates the job count, or of the first one that reshapes it
 * (`reshape`); they are not compared with those of other ranks. */
struct cst_job_limits {
    /* Longest wait for other ranks in cst_commit, cst_sync and cst_step, in milliseconds. 0: the
     * default of the daemon. */
    uint32_t timeout_ms;
    /* Time to live in seconds: the daemon removes the job when it has had no worker for this time.
     * 0: the default of the daemon. CST_EINVAL: more than [quota] of cistern.conf(5) allows. */
    uint32_t ttl_s;
};

/* Where a job's model comes from, and what describes it. */
struct cst_job_model {
    /* Name of a base job, whose frozen tensors this job uses instead of storing its own. NULL: no
     * base. Equal in all ranks. Conditions:
     *   - The base job belongs to the same user, is initialised (cst_job_initialised), and has no
     *     base itself.
     *   - Every frozen tensor of this job is a frozen tensor of the base job, with the same name,
     *     shape and type. If it is a part of a larger tensor, it is the same part there.
     * While this job exists, the base job cannot be removed, and none of its frozen tensors can be
     * written. */
    const char *base;
    /* Contents of the files config.json and adapter_config.json in the job's checkpoints, from
     * which other programs learn the architecture (cistern/checkpoint.h). UTF-8, at most
     * CST_MAX_CONFIG_BYTES (else CST_EINVAL). NULL: no file. Only the texts of the rank that
     * creates the job are used. A rank that gives another model_config has another model
     * (CST_EMISMATCH); adapter_config is not compared. With adapter_config, the weights that are
     * trained are saved to adapter_model.safetensors, as adapters of the frozen ones. */
    const char *model_config;
    const char *adapter_config;
};

/* Where the ranks of a job are that has ranks on several nodes, each with its own daemon
 * (cistern-nodes(7)). The ranks of the job are numbered through all nodes; those on one node follow
 * each other. `rank` and `world` of struct cst_job_spec concern the ranks on this node alone. */
struct cst_job_nodes {
    uint32_t first_rank; /* Number in the whole job of this node's rank 0. */
    /* Number of ranks on all nodes; 0: all ranks are on this node. CST_EINVAL, from cst_job_open:
     * first_rank + world is larger. */
    uint32_t all_ranks;
    /* Nodes that have the states of each chunk, 1 to the number of nodes; 0: 1. With 2 or more, no
     * committed step is lost with a node. Equal in all ranks of the job. */
    uint32_t copies;
};

/* Options of a job and of one rank. `name` and `world` must be set. Every other field is 0 or NULL
 * for its default. If a field that is "equal in all ranks" differs from the job's value,
 * cst_job_open returns CST_EMISMATCH. cst_job_open copies everything. The strings belong to the
 * caller. */
struct cst_job_spec {
    /* 1 to 63 of the characters A-Z a-z 0-9 . _ -, of which the first is neither . nor -, unique
     * among the jobs of the user. The first rank that opens the name creates the job. */
    const char *name;
    uint32_t rank;  /* Number of this rank, from 0 to world - 1. Each rank is one process. */
    uint32_t world; /* Number of ranks, 1 to 512. Equal in all ranks. */
    struct cst_job_nodes nodes; /* Equal in all ranks on this node. */
    /* Device of this rank's pool:
     *   - NULL or "auto": the device that this rank of the job has already, or else "host".
     *   - "host": host memory.
     *   - "paced:N": simulated accelerator N. "paced": N is the rank modulo the number of simulated
     *     accelerators.
     *   - "cuda:N": GPU N. "cuda": N is the rank modulo the number of GPUs.
     *   - A UUID ("GPU-..." or "MIG-..."): that GPU or MIG instance.
     * GPUs need libcistern-cuda (cistern/cuda.h). */
    const char *device;
    struct cst_job_memory memory;
    struct cst_job_states states;
    struct cst_job_updates updates;
    struct cst_job_planning planning;
    struct cst_job_limits limits;
    struct cst_job_model model;
    /* If the job exists, is committed and has no worker, open it again in place. The job gets
     * another world, other pools, chunks, options or another plan, as this struct and the
     * declarations say, and keeps its states:
     *   - Every tensor gets the master weights, weights and moments of the job's tensor with the
     *     same name. The parts of a larger tensor are cut and joined (`whole_name` of struct
     *     cst_tensor_spec). Bits stay the same, with two exceptions. Moments change with their
     *     format, or if the parts of a tensor in mx8 divide its blocks of 32 elements. A weight
     *     that lies halfway between two bf16 numbers is rounded in the way of the masters, whole or
     *     split (cistern-optimizer(7)).
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
 *   - CST_EBUSY: the base job is being reshaped (`reshape`); it can be a base again after that.
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
 *   - CST_EBUSY: a cst_try_... call is pending. A cst_try_sync that is pending is given up instead.
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

/* What cst_job_pause has done. */
struct cst_pause_result {
    uint64_t step;   /* Number of committed steps. */
    double wait_s;   /* Time from the request until no step was under way. */
    double update_s; /* Time from then until all updates were over. */
    /* Time from the end of the step, or from the request if that came later, until the memory of
     * the pools was available to others. */
    double release_s;
    uint64_t released_bytes; /* Memory of the pools that was given back; 0: none. */
    bool already;            /* The job was paused before, and nothing has changed. */
};

/* Pause the job @name of this user, as `cistern pause` does. Waits until the step under way is
 * committed and its updates are over. From then on the workers of the job wait in their next calls,
 * without time limit, until cst_job_resume. Meanwhile:
 *   - The job can be read, saved, left and removed.
 *   - A worker that dies is reported to the other ranks as ever. New workers wait in cst_sync.
 *   - The pause outlives the workers, and also the daemon if the job does.
 *   - The time to live of a job without workers (`ttl_s`) runs.
 *
 * @release_pools: give the memory of all pools back, so that other jobs can use it. That for
 * updates (device_update_bytes) and for edges stays. New workers then wait in cst_commit. A job
 * that is paused already can be paused again to release its pools.
 *
 * If this call ends early, the job is paused all the same. *out may be NULL. @client may be without
 * a job, or the client of another job. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EINVAL: the job is not committed yet, or has failed.
 *   - CST_EINVAL: @client is that of a worker of the job, which would wait for itself.
 *   - CST_EBUSY: the job is being reshaped or resumed.
 *   - CST_EBUSY: a cst_try_... call of this client is pending.
 *   - CST_EUNSUPPORTED: the job has ranks on several nodes.
 *   - CST_EUNSUPPORTED: the pools are to be released, and the job uses a GPU.
 *   - CST_ECANCELLED: the job was resumed or removed meanwhile. */
int cst_job_pause(struct cst_client *client, const char *name, bool release_pools,
                  struct cst_pause_result *out, struct cst_err *err);

/* What cst_job_resume has done. */
struct cst_resume_result {
    uint64_t step;       /* Number of committed steps. */
    double paused_s;     /* Time for which the job was paused. */
    double resume_s;     /* Time that the resume took. */
    uint64_t pool_bytes; /* Memory that was taken for the pools; 0: they were there. */
};

/* End the pause of the job @name of this user, as `cistern resume` does. Waits until its pools are
 * there again, if they were released. *out may be NULL. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EINVAL: the job is not paused.
 *   - CST_EBUDGET, CST_ENOMEM: others use the memory of the pools. The job stays paused.
 *   - CST_EBUSY: the job is being resumed already.
 *   - CST_EBUSY: a cst_try_... call of this client is pending. */
int cst_job_resume(struct cst_client *client, const char *name, struct cst_resume_result *out,
                   struct cst_err *err);
/* Time for which a rank is reserved for a standby, in milliseconds: without another one, and at
 * most. */
#define CST_STANDBY_HOLD_MS 60000
#define CST_STANDBY_MAX_HOLD_MS 600000

/* Wait as a standby: until a rank of the job @name of this user, on this node, has lost its worker
 * and nobody has taken its place. *rank receives the number of this rank, with which the process
 * calls cst_job_open then. The job need not exist yet. A rank loses its worker when its process
 * ends without cst_job_leave. A rank that no process has opened yet is not given to a standby.
 *
 * No other process gets the rank or can open it for @hold_ms milliseconds (0: CST_STANDBY_HOLD_MS;
 * at most CST_STANDBY_MAX_HOLD_MS), unless the connection of @client ends before. If the process
 * has not opened the job until then, with @client or with another client of the process, the rank
 * is given to the next standby. What takes long, such as loading programs and data, is therefore
 * done before this call.
 *
 * If the daemon ends, this call connects to the next process of the daemon and goes on waiting. A
 * standby counts as a connection of the user. To end the wait, call cst_disconnect after
 * cst_try_standby, or end the process.
 *
 * Statuses:
 *   - CST_ECANCELLED: all ranks have left the job, or the job was removed. The program should end
 *     with success. If all ranks had left before the call, it waits for a worker instead.
 *   - CST_EINVAL: @name is not the name of a job, @hold_ms is too large, or @client has a job.
 *   - CST_EBUSY: a cst_try_... call is pending.
 *   - CST_ENOCREDIT: the user has too many requests in flight.
 *   - CST_ECONN: there was no daemon for 60 s. */
int cst_standby(struct cst_client *client, const char *name, uint32_t hold_ms, uint32_t *rank,
                struct cst_err *err);

/* Do the same as cst_standby, but return CST_EAGAIN instead of waiting. The call is then pending:
 * repeat it when cst_client_fd polls readable. */
int cst_try_standby(struct cst_client *client, const char *name, uint32_t hold_ms, uint32_t *rank,
                    struct cst_err *err);

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

/* Get the ranks for which other ranks of the job @name wait in cst_commit, cst_sync or cst_step.
 * The result is text, such as "rank 1 (died in step 4), rank 3 (never attached)", or "" if there
 * are none. The job must belong to this user. The text is copied to @words, which has @size bytes.
 * If the text and its NUL do not fit, it is cut. The caller needs a second client, because the
 * client of a waiting call cannot ask. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EBUSY: a cst_try_... call of this client is pending. */
int cst_job_waits(struct cst_client *client, const char *name, char *words, size_t size,
                  struct cst_err *err);

#ifdef __cplusplus
}
#endif

#endif
