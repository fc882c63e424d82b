/* SPDX-License-Identifier: Apache-2.0 */
/* libcistern: a training worker's view of the memory daemon.
 *
 * A worker opens a job as one rank, declares its tensors and operators, commits, and then brackets
 * each operator of its compute with cst_op_begin/cst_op_end and each step with cst_step. Chunks,
 * eviction, other ranks, and where an update runs do not show.
 *
 * Threads: a client and its job are used by one thread at a time; different clients are
 * independent. After fork() the child's handles are dead: every call answers CST_EFORKED, and
 * cst_disconnect only frees memory. Errors: 0 or a negative status of cistern/status.h, words in
 * *err where given. Outputs are set on success alone. CST_EAGAIN is never final and comes from the
 * cst_try_... forms alone; positive numbers are no statuses. Waiting: calls block. The cst_try_...
 * forms never do: they return CST_EAGAIN, and the same call with the same arguments is made again
 * when cst_client_fd() polls readable, until it returns something else. Meanwhile all other calls
 * that would wait, of this client and its job, return CST_EBUSY. */
#ifndef CISTERN_H
#define CISTERN_H

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

#define CST_DEFAULT_SOCKET "/run/cistern/cistern.sock"

struct cst_client; /* a connection */
struct cst_job;    /* this process as one rank of a job */

/* -- connection ----------------------------------------------------------------------------- */

/* Connect to the daemon at @path; NULL: $CISTERN_SOCKET or CST_DEFAULT_SOCKET. *out is the
 * caller's, to cst_disconnect. CST_ECONN: nobody listens there; CST_EVERSION; CST_EDENIED. */
int cst_connect(struct cst_client **out, const char *path, struct cst_err *err);

/* Close the connection and free it; its job, if open, is left in whatever state it is (as if the
 * process had died) and freed too. For good order, cst_job_leave first. NULL is allowed. */
void cst_disconnect(struct cst_client *client);

/* To poll for POLLIN together with the cst_try_... calls. Owned by the client. Negative: a status.
 */
int cst_client_fd(const struct cst_client *client);

/* One round trip; *ns_out its duration in nanoseconds. */
int cst_ping(struct cst_client *client, uint64_t *ns_out, struct cst_err *err);

/* -- job ------------------------------------------------------------------------------------ */

enum cst_dtype { CST_BF16 = 1 };
enum cst_group {
    CST_GROUP_ALL = 0
}; /* the ranks that hold the same tensor and whose gradients are summed: all of the job, or see
      cst_group */

/* As update_room, device_states: the daemon's plan says how many bytes: the fastest split of what
 * is left of the device between pool, room and states. Nothing, where it makes no plan (chunk_elems
 * or base given, no operators declared), none pays, or other jobs have all of it or are quicker to
 * take it; `cistern explain` says why. device_states so and update_room 0: both. CST_EINVAL:
 * device_states of a size, update_room so; pool_bytes given, on a device of the rank's own;
 * device_states so, and moments not fp32 or gradients over weights. */
#define CST_ROOM_AUTO UINT64_MAX

struct cst_job_spec {
    const char *
        name; /* 1..63 of [A-Za-z0-9._-], unique per user; the first rank to come creates the job */
    uint32_t rank;      /* 0..world-1, one process each */
    uint32_t world;     /* ranks, 1..64 */
    const char *device; /* "auto" (or NULL), "host", "paced" or "paced:N" (a simulated accelerator);
                           of libcistern-cuda: "cuda" ... */
    uint64_t pool_bytes;  /* memory for this rank's weights and gradients on the device; 0: all that
                             it can use */
    uint64_t chunk_elems; /* chunk capacity in elements; 0: chosen; the same in every rank */
    uint32_t timeout_ms;  /* longest wait for other ranks; 0: the daemon's default */
    uint32_t ttl_s; /* the daemon removes the job after so long without a worker; 0: the daemon's
                       default. More than [quota] of cistern.conf(5) allows: CST_EINVAL */
    uint32_t micro_batches; /* per step, see cst_accumulate; 0 and 1: one. The same in every rank */
    const char
        *base; /* name of another job of this user, which is initialised and has no base itself: all
                * frozen tensors of this one are its (same name and shape, frozen there too) and are
                * not stored again. While this job is there the base cannot be removed, and no
                * frozen tensor of it can be written. NULL: none. The same in every rank */
    enum cst_optimizer
        optimizer; /* this and what follows, up to grad_over_weight: the same in every rank */
    enum cst_moments
        moments; /* format of exp_avg and exp_avg_sq. fp32: 8 bytes per parameter of an optimizer
                  * with two; bf16: 4; mx8: 2.06, and no step of adamw or adam is longer than lr */
    enum cst_rounding rounding; /* of moments that are not fp32 */
    uint64_t seed;              /* of stochastic rounding */
    enum cst_overlap overlap;   /* when chunks are updated */
    uint64_t delay_from;        /* CST_OVERLAP_DELAYED: steps before it are not delayed */
    bool grad_over_weight;  /* gradients take the place of the weights that they belong to: 14 bytes
                             * per parameter instead of 16. The weights of a   chunk that is fetched
                             * again after its gradient was handed in are made from its master
                             * weights. One micro-batch   (CST_EINVAL), and not with EARLY or DELAYED
                             */
    uint64_t update_room;   /* bytes of this rank's device, beside the pool, which the worker leaves
                             * free for updates; 0: none. On the   host: of a paced accelerator, where
                             * the daemon has one */
    uint64_t device_states; /* bytes of this rank's device for states that stay there; 0: none. Both
                             * are decided by the first commit: who takes the rank later gets what
                             * it has, and says the same, 0 or CST_ROOM_AUTO (else CST_EMISMATCH) */
    bool recompute; /* a hint for the daemon's plan: this worker does each forward pass again before
                     * its backward pass. Of the rank that creates the job */
    const char
        *plan_file; /* file that `cistern plan --save` wrote: cst_job_open reads it, and its
                     * contents travel to the daemon. NULL: the daemon plans, or the job has a plan
                     * already. The same plan in every rank that names one, see below */
};

/* A plan that was made before decides chunks, the pool of each rank, prefetch, update_room and
 * device_states. These are left open in the spec (0, or CST_ROOM_AUTO) or have the plan's values.
 * The plan is refused with CST_EMISMATCH, which names the field and both values:
 *   - by cst_job_open, where the job's ranks, micro-batches, optimizer, moments, overlap,
 * grad_over_weight, or a value above, are not the plan's, or the job was created without this plan;
 *   - by cst_commit, where the declared model is not the plan's.
 * A plan is not for jobs with a base (CST_EINVAL). CST_EIO, CST_EINVAL: the file cannot be read or
 * is no plan, with its place. */

/* Create or re-attach. *out belongs to @client and is freed with it. CST_EBUSY: the rank has a
 * living worker (its pid is in the words); CST_EMISMATCH: an option that is the same in every rank
 * is not that of the job, with its name and both values; CST_ENOTFOUND: there is no such base;
 * CST_EINVAL: also a base that is not initialised, has failed, or has a base; CST_EDRAINING. One
 * job per client. */
int cst_job_open(struct cst_job **out, struct cst_client *client, const struct cst_job_spec *spec,
                 struct cst_err *err);

/* Go in good order: leases are given back, the job and its states stay until `cistern rm` or the
 * time to live. Other ranks that go on get CST_EPEERDIED, and their cst_sync waits for a worker
 * that takes this one's place: so all leave with the same step. Reading states needs no other rank.
 * A cst_commit that waits gets CST_EPEERDIED. CST_EBUSY: a cst_try_... call is pending. */
int cst_job_leave(struct cst_job *job, struct cst_err *err);

/* Declare a bf16 tensor of @shape; returns its number (>= 0) or a negative status. Errors of
 * content (duplicate, zero-size, overflow, over 65536 tensors, not as another rank declared it) are
 * reported here or by cst_commit. */
int cst_tensor(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
               const int64_t *shape, enum cst_group group);

/* As cst_tensor, with factors on the learning rate and on the weight decay of this tensor. */
int cst_tensor_scaled(struct cst_job *job, const char *name, enum cst_dtype dtype, uint32_t n_dims,
                      const int64_t *shape, enum cst_group group, float lr_scale,
                      float decay_scale);

/* A group of @n_ranks different ranks; returns its number (> 0) or a negative status. Before the
 * tensors that name it. */
int cst_group(struct cst_job *job, const uint32_t *ranks, uint32_t n_ranks);

/* All that can be said of a tensor. Every rank declares every tensor and operator in the same
 * words, held by it or not. */
struct cst_tensor_spec {
    const char *name;
    enum cst_dtype dtype;
    uint32_t n_dims;      /* 1..8 */
    const int64_t *shape; /* of what one rank holds */
    int group;            /* CST_GROUP_ALL, or of cst_group */
    enum cst_pattern_kind pattern;
    float lr_scale;             /* on the learning rate */
    float decay_scale;          /* on the weight decay */
    const int64_t *whole_shape; /* CST_PATTERN_TENSOR: of the tensor that this is a box of, n_dims;
                                   else NULL */
    const int64_t *first;       /* where the box begins in it, n_dims; else NULL */
};

/* As cst_tensor. */
int cst_tensor_as(struct cst_job *job, const struct cst_tensor_spec *spec);

/* Declare an operator that uses @tensors (numbers), in the order of the forward pass; returns its
 * number or a negative status. Ranks that are in the groups of all its tensors run it; cst_op_begin
 * of another rank's operator is CST_EINVAL. An operator may be left out of a step. */
int cst_operator(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors);

/* Hints for the plan; 0: not known. They are not compared between ranks. */
struct cst_operator_cost {
    double flops;              /* of the forward pass, per micro-batch and rank */
    uint64_t activation_bytes; /* kept from forward to backward, per micro-batch and rank */
    float expected_uses;       /* forward passes per micro-batch; 0: 1. An expert: the share of
                                  micro-batches in which tokens come. More than 1 counts as 1: flops are
                                  of all of them */
};

/* As cst_operator. */
int cst_operator_as(struct cst_job *job, const char *name, const int *tensors, uint32_t n_tensors,
                    const struct cst_operator_cost *cost);

/* Words for the last negative number that cst_tensor or cst_operator returned. Borrowed, until the
 * next call. */
const struct cst_err *cst_job_error(const struct cst_job *job);

#define CST_PLAN_MAX_CLASSES 4

/* Chunks of one size: a huge embedding has one of its own and does not force the others'. */
struct cst_plan_class {
    uint64_t chunk_elems; /* capacity; a block has 2 x chunk_elems bytes */
    uint32_t n_blocks;    /* in this rank's pool */
    uint32_t min_blocks;  /* the least that can run */
};

struct cst_plan {
    uint64_t n_params;    /* elements in all tensors */
    uint64_t chunk_elems; /* capacity of size class 0 */
    uint32_t n_chunks;    /* of all classes */
    uint32_t n_blocks;    /* of class 0 in this rank's pool */
    uint32_t min_blocks;  /* of class 0, the least that can run */
    uint64_t block_bytes; /* of one block of class 0: 2 x chunk_elems */
    uint64_t pool_bytes;  /* of all classes' blocks */
    uint64_t arena_bytes; /* host memory of the job, for all ranks together; what its base has is
                             not counted */
    uint32_t n_classes;   /* entries in classes, at least 1 */
    struct cst_plan_class classes[CST_PLAN_MAX_CLASSES];
};

/* Commit the declarations: waits until every rank has done so and the memory is populated; maps the
 * pool. CST_EPOOL: pool too small, with the operator, what it needs of which size and the bytes
 * that are short; CST_EBUDGET; CST_ENOTFOUND, CST_EINVAL, CST_EMISMATCH: a frozen tensor that the
 * base lacks, trains, or has in another shape; CST_EMISMATCH: ranks disagree, with the tensor,
 * operator or option, both values and the ranks: all ranks get it, with the same words, as soon as
 * the first difference is known; CST_EPEERDIED: a rank died or left before all had committed;
 * CST_ETIMEDOUT. After any of them the same declarations can be committed again; to declare
 * otherwise, connect and open the job anew. @plan may be NULL. */
int cst_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err);
int cst_try_commit(struct cst_job *job, struct cst_plan *plan, struct cst_err *err);

/* True once a sync has completed in the life of the job: the weights are there and a worker that
 * comes (back) must not write them. */
bool cst_job_initialised(const struct cst_job *job);

/* Steps committed, as last heard from the daemon. After cst_commit it is exact for a worker that
 * takes the place of a dead one: a step in which that one had asked for the commit is decided by
 * then. A worker that finds all its steps done has nothing to sync for: its peers may have left
 * with the last one. */
uint64_t cst_job_steps(const struct cst_job *job);

/* Wait until every rank is attached and has called cst_sync; *step (may be NULL) is the number of
 * steps committed, the same for all ranks: the step to do now. To be called once before the first
 * step, and after CST_EPEERDIED or CST_ESTALE, which mean: the step that was under way is void for
 * all ranks, nothing of it is kept; do it again. CST_ETIMEDOUT names the missing ranks.
 *
 * A rank that calls cst_sync while a step runs gives that step up for all: the others get
 * CST_EPEERDIED, from whatever they wait in or call next, and must sync too. If every rank has
 * called cst_step already, the step is committed first.
 *
 * CST_EENGINE, CST_ELOST: the device of this rank's pool is gone, the words say which and why. The
 * step is void for all ranks, the states are not lost: they can be read and written. The others
 * wait in cst_sync for this rank to come back: it, or a process in its place, leaves and opens the
 * job again, on the same device, which the daemon tries again, or on another one: "host", or a GPU
 * that a pool of the job is on. There the pool is made anew, as large as it was. CST_EENGINE can
 * also mean that the engine of host memory was given up. Then every rank gets it. All ranks leave
 * and open the job again, and the daemon tries the engine again. */
int cst_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);
int cst_try_sync(struct cst_job *job, uint64_t *step, struct cst_err *err);

/* -- a step --------------------------------------------------------------------------------- */

enum cst_direction { CST_FORWARD, CST_BACKWARD };

/* One tensor of an operator, while it is begun. Pointers are valid from begin to end of this
 * operator, no longer. */
struct cst_io {
    void *weight; /* bf16, n_elems, row-major in the declared shape, 128-byte aligned; read only */
    void *grad;   /* bf16, same shape; NULL in CST_FORWARD, and of frozen tensors */
    bool accumulate; /* grad: false: holds nothing yet, write it whole; true: an earlier use of this
                        tensor in this micro-batch wrote it: add */
    uint64_t n_elems;
};

/* Begin @op: all its tensors in memory, io[i] for its i-th tensor as declared; @io has @n_io =
 * n_tensors entries. In CST_BACKWARD every io[i].grad that is not NULL must be written before
 * cst_op_end. One operator is begun at a time. CST_EPEERDIED, CST_ESTALE: call cst_sync;
 * CST_EINVAL: a gradient of this tensor was handed in already in this micro-batch, or the operator
 * is not this rank's; CST_ECONN; CST_EENGINE, CST_ELOST: an engine was given up. Where that is the
 * one of this rank's device, no cst_sync helps: see there. */
int cst_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                 uint32_t n_io, struct cst_err *err);
int cst_try_op_begin(struct cst_job *job, int op, enum cst_direction direction, struct cst_io *io,
                     uint32_t n_io, struct cst_err *err);

/* End @op. When the last use of a chunk's last tensor ends in CST_BACKWARD its gradients are handed
 * in. Never waits. CST_EINVAL: it is not the operator that is begun; or, with CISTERN_DEBUG=poison
 * in the environment (libcistern(3)), a gradient of it was not written, with the tensor and the
 * first such element: the operator stays begun. CST_EPEERDIED, CST_ESTALE: call cst_sync. */
int cst_op_end(struct cst_job *job, int op, struct cst_err *err);

enum cst_hint {
    CST_PREFETCH =
        1,         /* wanted soon: bring the weights into the pool, if there is a block to spare */
    CST_EVICT = 2, /* not wanted soon: let others have their blocks */
};

/* Tell the daemon about the weights of operator @op, or of one tensor, of this rank. It changes
 * when weights are copied, never a result. A hint covers whole chunks, and so other tensors in
 * them. It is for what the sequence of operators does not show: an evaluation between two steps, a
 * part of the model that is left out for a while. Never waits; to be called after cst_sync, between
 * or inside of operators.
 *
 * - The daemon does nothing where it cannot: CST_PREFETCH of weights that are in the pool, while
 * fetches wait for blocks, or where the worker copies weights itself; CST_EVICT of weights that are
 * not there or on their way.
 * - Weights that were evicted come back when they are used, or sooner, where the daemon expects
 * their use.
 * - CST_EBUSY: CST_EVICT of weights that the operator which is begun uses; or a cst_try_... call is
 * pending. CST_EINVAL: no such operator or tensor, not one of this rank's, or no such hint.
 * CST_EPEERDIED, CST_ESTALE: call cst_sync. */
int cst_hint(struct cst_job *job, int op, enum cst_hint hint, struct cst_err *err);
int cst_hint_tensor(struct cst_job *job, int tensor, enum cst_hint hint, struct cst_err *err);

/* End a micro-batch that is not the step's last: its gradients are added, in fp32, to those of the
 * micro-batches before it, and the next one's forward may begin. In a step of a job with
 * micro_batches = M it is called M - 1 times, the last one ends with cst_step; a step with fewer is
 * legal. The order of the sums is fixed: micro-batch by micro-batch, in each rank by rank. Never
 * waits. CST_EINVAL: M times. */
int cst_accumulate(struct cst_job *job, struct cst_err *err);

/* All zero but lr is what the optimizer usually takes. Infinities, NaN and, but for beta1 of SGD,
 * negative values are CST_EINVAL, which names the field, its value and the range. */
struct cst_hyper_params {
    float lr; /* >= 0 */
    float
        beta1; /* below 1; 0: 0.9 if beta2 is 0, too, else 0. SGD: the momentum (negative: none) */
    float beta2; /* below 1; 0: 0.999; Lion: 0.99 */
    float eps;   /* 0: 1e-8 */
    float weight_decay;
    float clip_norm;  /* global L2 norm; 0: no clipping */
    float grad_scale; /* gradients are summed over the ranks, then multiplied by it; 0: 1 */
    double loss;      /* of this rank; only carried */
};

/* Say, before the first backward, what this step's cst_step will say: with CST_OVERLAP_EARLY and
 * without clipping, updates then begin as soon as a chunk's gradient is complete. A gradient that
 * is not finite, or too large, then spares 4096 elements at a time instead of the whole step: the
 * result has `overflow`, not `skipped`. Never waits. Without effect where the job's overlap is
 * another one. CST_EINVAL: as cst_step; called twice in a step with different parameters.
 *
 * A step that is interrupted after its first update is only ever finished, not undone, and with the
 * parameters that it was begun with: a worker that names others gets CST_EMISMATCH, from this or a
 * later call, with both values. Chunks that have had their update take nothing more: what is handed
 * in again for them is dropped (`cistern job` has the count), so each rank should compute the same
 * batch again. The other way out is to remove the job (`cistern rm`) and begin from the last
 * checkpoint. */
int cst_prepare_step(struct cst_job *job, const struct cst_hyper_params *params,
                     struct cst_err *err);

struct cst_step_result {
    uint64_t step; /* steps committed, this one included */
    bool skipped;  /* the norm of the gradients was NaN, infinite, or scaled and clipped larger than
                    * 2^63, whose square fp32 cannot sum:  states untouched, the step counts */
    double grad_norm;   /* after grad_scale, before clipping */
    float clip;         /* factor that clipping applied */
    double loss;        /* mean over the ranks, summed in rank order */
    uint64_t n_skipped; /* in the life of the job */
    bool overflow; /* the norm was so: the step was skipped, or, where it had been prepared, those
                    * tiles of 4096 elements were spared whose own norm is, if there are any. What a
                    * dynamic scale of the loss goes by */
};

/* The commit point: hands in what is left (a tensor without a gradient counts as zero), waits until
 * every rank has called it with the same parameters and the norm is known. After CST_OK the step
 * cannot be lost; updates run when the job's `overlap` says. CST_EPEERDIED; CST_EMISMATCH:
 * parameters differ between ranks; CST_ETIMEDOUT. @result may be NULL. */
int cst_step(struct cst_job *job, const struct cst_hyper_params *params,
             struct cst_step_result *result, struct cst_err *err);
int cst_try_step(struct cst_job *job, const struct cst_hyper_params *params,
                 struct cst_step_result *result, struct cst_err *err);

/* -- states --------------------------------------------------------------------------------- */

enum cst_state {
    CST_STATE_WEIGHT = 0, /* bf16 */
    CST_STATE_GRAD = 1,   /* bf16: the last reduced gradient; read only. With micro-batches: the sum
                             in fp32, rounded */
    CST_STATE_MASTER = 2, /* fp32; writing it sets the weight too and clears both moments */
    CST_STATE_EXP_AVG = 3,    /* fp32 */
    CST_STATE_EXP_AVG_SQ = 4, /* fp32; of optimizers with two moments (else CST_EUNSUPPORTED) */
};

/* Copy elements [first, first + n_elems) of a tensor's state out of, or into, the job's memory;
 * @data has n_elems of the state's type. After commit, at any time for reads; writes between steps
 * only (CST_EBUSY). Reads see all committed steps. A frozen tensor has a weight alone: other states
 * of it cannot be read (CST_EUNSUPPORTED), and writing its master weights sets the weight. What a
 * base has cannot be written by who uses it (CST_EDENIED), nor in the base while somebody does
 * (CST_EBUSY). With grad_over_weight a gradient can be read from its sum to its update, and weights
 * are written by writing master weights alone (both CST_EUNSUPPORTED). With early updates, from a
 * step's first update to its commit, its master weights and moments cannot be read, nor states be
 * written, between attempts of it either (CST_EBUSY), and a gradient that was summed in its update
 * cannot be read (CST_EUNSUPPORTED). With delayed ones a write of weights or master weights lets
 * the next step see all updates so far. */
int cst_tensor_read(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                    uint64_t n_elems, void *data, struct cst_err *err);
int cst_tensor_write(struct cst_job *job, int tensor, enum cst_state state, uint64_t first,
                     uint64_t n_elems, const void *data, struct cst_err *err);

/* -- numbers -------------------------------------------------------------------------------- */

struct cst_rank_stat {
    /* Fetches of weights by this rank, each counted once. */
    uint64_t hits;   /* the weights were in the pool before the worker waited for them */
    uint64_t late;   /* they were on their way there, and the worker waited for the rest of it */
    uint64_t misses; /* they were neither */
    double weight_wait_seconds; /* in which this rank's worker waited for weights */
    uint64_t evictions;  /* blocks that were made free for others: of weights, or of gradients that
                            are not complete */
    uint64_t prefetches; /* weights that the daemon brought before they were asked for */
    uint64_t surprises; /* uses that the daemon, by the order of the steps before, did not expect */
    uint64_t bytes_up;  /* copied into the pool */
    uint64_t bytes_down; /* copied out of it: gradients */
    uint64_t pool_bytes; /* size of the pool; 0 before cst_commit */
    uint64_t step;       /* steps committed */
    double step_seconds; /* between the last two commits; 0 before there were two */
};

/* This rank's numbers, as the daemon counts them. */
int cst_stat(struct cst_job *job, struct cst_rank_stat *out, struct cst_err *err);

/* For whom ranks of this user's job @name wait, in cst_commit, cst_sync or cst_step: "rank 1 (died
 * in step 4), rank 3 (never attached)"; "": for nobody. They are copied to @words, cut where @size
 * bytes, with the NUL, do not hold them. For another client than the one whose call waits: that one
 * answers CST_EBUSY while a cst_try_... call is pending. CST_ENOTFOUND. */
int cst_job_waits(struct cst_client *client, const char *name, char *words, size_t size,
                  struct cst_err *err);

/* Version of the library, "major.minor.patch". */
const char *cst_version(void);

#ifdef __cplusplus
}
#endif

#endif
