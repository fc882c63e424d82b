/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a job: its tensors and operators, which every rank declares, and the plan that the
 * daemon makes for them when they are committed. edge.h and unit.h have declarations of their own.
 * cistern.h has the terms, and what holds for all calls. */
#ifndef CISTERN_MODEL_H
#define CISTERN_MODEL_H

#include "cistern/dtype.h"
#include "cistern/job.h"
#include "cistern/optimizer.h"
#include "cistern/pattern.h"
#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_MAX_PARAM_GROUPS 64

/* The rules for declarations (cst_group, cst_edge, cst_tensor..., cst_operator...):
 *   - Every rank declares all groups, edges, tensors and operators, in the same order and with the
 *     same properties, even those that the rank does not hold or run.
 *   - They are declared after cst_job_open and before cst_commit.
 *   - The calls copy names, shapes and lists. They never wait.
 *   - On failure the cause is available from cst_job_error.
 *   - Some faults are reported by cst_commit only, such as a difference between ranks. */

/* A group is the set of ranks that hold a tensor. The gradient of the tensor is summed over the
 * group. CST_GROUP_ALL consists of all ranks of the job. cst_group makes other groups. */
enum cst_group { CST_GROUP_ALL = 0 };

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
     * (box) of the larger tensor. CST_PATTERN_FROZEN: the same, or NULL. Other patterns: NULL. */
    const int64_t *whole_shape;
    /* n_dims numbers, the index of the box's first element in the larger tensor. NULL, if
     * whole_shape is. */
    const int64_t *first;
    /* n_dims numbers, or NULL, which is 1 of each. In a dimension with the number k, the larger
     * tensor is k equal tensors one after the other, such as a gate and an up projection. This
     * tensor is a range of each of them; `first` is that in the first of them. NULL, if whole_shape
     * is. */
    const int64_t *packed;
    /* Names of the tensor in model files of other programs (cistern/checkpoint.h), 1 to 255 bytes
     * each. If there are several, the tensor consists of the rows of these external tensors, one
     * after the other, for example of those of q_proj, k_proj and v_proj. n_external 0: files have
     * the tensor under its own name. At most 64. If the tensor has a whole_name, files have the
     * larger tensor: these are its names, equal in all its parts. */
    const char *const *external_names;
    const int64_t *external_rows; /* n_external numbers. NULL, if n_external is 1: all rows. */
    uint32_t n_external;
    /* The external tensors are columns of this matrix, and files have these columns as rows. */
    bool transposed;
    /* Name of the larger tensor, 1 to 255 bytes. Tensors with equal whole_name are parts of one
     * tensor, and all or none of them are frozen. When the job is opened again for other ranks
     * (`reshape` of struct cst_job_spec), these parts are cut and joined. Checkpoints have the
     * larger tensor, of which a job of other ranks loads its parts (cistern/checkpoint.h). A tensor
     * without whole_shape is the larger tensor of its own name, and has no whole_name. NULL with
     * whole_shape: `name`, and the tensor is never cut. */
    const char *whole_name;
    /* Number of the tensor's parameter group, less than CST_MAX_PARAM_GROUPS (cst_param_groups). */
    uint32_t param_group;
    /* With CST_OPTIMIZER_MUON: whether Muon updates the tensor. */
    enum cst_tensor_update update;
};

/* Declare a tensor with all its properties. Returns the tensor's number (>= 0) or a negative
 * status. The statuses are those of cst_tensor, and these:
 *   - CST_EINVAL: a scale is not finite.
 *   - CST_EINVAL: the pattern is unknown.
 *   - CST_EINVAL: the pattern is CST_PATTERN_TENSOR, and whole_shape or first is missing.
 *   - CST_EINVAL: the box is not inside of the larger tensor, or a number of `packed` does not
 *     divide the dimension of both, or is not 1 to 16.
 *   - CST_EINVAL: whole_shape, first or whole_name is given, and the pattern is neither
 *     CST_PATTERN_TENSOR nor CST_PATTERN_FROZEN.
 *   - CST_EINVAL: one of whole_shape and first is missing, or both, and there is a whole_name.
 *   - CST_EINVAL: whole_name is empty, longer than 255 bytes or not printable.
 *   - CST_EINVAL: param_group is not less than CST_MAX_PARAM_GROUPS.
 *   - CST_EINVAL: `update` is unknown, or it is CST_TENSOR_UPDATE_MUON and the tensor does not have
 *     two or three dimensions.
 *   - CST_EINVAL: an external name is empty, too long, not printable or given twice.
 *   - CST_EINVAL: the external tensors together have more or fewer rows than this tensor, or the
 *     larger tensor if it has a whole_name, has rows or, with `transposed`, columns.
 *   - CST_EINVAL: `transposed` is set without external names, or not for a matrix.
 *   - CST_EEXIST: another tensor, which is no part of the same larger tensor, has one of the
 *     external names, in files. */
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

/* Return the cause of the last declaration (cst_group, cst_edge, cst_tensor..., cst_operator...,
 * cst_stage) that failed. The result belongs to @job and is valid until the next declaration. */
const struct cst_err *cst_job_error(const struct cst_job *job);

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
 * Then maps the pool. @plan receives the plan. It may be NULL. If the daemon ends when all ranks
 * have committed, and the job outlives it, the call goes on with its next process: cst_commit waits
 * for that process as cst_sync does, and cst_try_commit for its answers, as cst_try_sync does.
 * Statuses:
 *   - CST_ECONN: the daemon was not started again in time.
 *   - CST_ELOST: the daemon was started again and does not have the job.
 *   - CST_EPOOL: the pool is too small. The error names the operator, the blocks that it needs, and
 *     the number of bytes that are missing.
 *   - CST_EBUDGET: the job needs more memory than a budget allows.
 *   - CST_EBUDGET: this rank cannot map the slots of an edge in device memory, and a budget does
 *     not allow slots in host memory instead.
 *   - CST_EMISMATCH: the ranks disagree. The error names the tensor, the operator or the option,
 *     both values and the ranks. All ranks get the same error as soon as the first difference is
 *     known.
 *   - CST_ENOTFOUND: the base job does not have a frozen tensor of this job.
 *   - CST_EINVAL: a frozen tensor of this job is trained in the base job.
 *   - CST_EMISMATCH: a frozen tensor of this job has another shape or type in the base job, or is
 *     another part of a larger tensor there.
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

#ifdef __cplusplus
}
#endif

#endif
