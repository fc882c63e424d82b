/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that was made before its job: `cistern plan --save` writes it to a file, a worker gives it
 * to its job (cst_job_spec.plan_file), and the daemon then lays out the job as the plan says.
 *
 *   {"cistern_plan": 1,
 *    "for":  {"fingerprint": ..., "n_params": ..., "world": 2, "optimizer": "adamw", ...},
 *    "plan": {"classes": [{"chunk_elems": 4194304, "n_blocks": 12}, ...], "pool_bytes": ..., ...},
 *    "made": {...}}
 *
 * "for" is what the plan was made for; the job must equal it. "plan" is what the plan decides.
 * "made" tells people with which rates and budgets the plan was made; no program reads it. */
#ifndef CST_SAVED_PLAN_H
#define CST_SAVED_PLAN_H

#include "cistern/status.h"

#include <stdint.h>

struct json_t; /* Defined by jansson. */

#define CST_SAVED_PLAN_VERSION 1
#define CST_SAVED_PLAN_CLASSES 4 /* Most size classes of a plan. */

struct cst_saved_plan {
    /* What the plan was made for. */
    /* Fingerprint of the model's tensors, groups and operators (offload/layout/digest.h). */
    uint64_t fingerprint;
    uint64_t n_params;         /* Sum of the elements of all tensors. */
    uint32_t n_tensors;        /* Number of declared tensors. */
    uint32_t n_operators;      /* Number of declared operators. */
    uint32_t world;            /* Number of ranks. */
    uint32_t micro_batches;    /* Micro-batches per step, at least 1. */
    uint32_t optimizer;        /* enum cst_optimizer */
    uint32_t masters;          /* enum cst_masters */
    uint32_t moments;          /* enum cst_moments */
    uint32_t overlap;          /* enum cst_overlap */
    uint32_t grad_over_weight; /* 1: gradients take the place of weights in host memory. */
    /* What the plan decides. */
    uint32_t n_classes; /* Number of size classes, at least 1. */
    /* Capacity of the chunks of each class, ascending from the second class on. */
    uint64_t chunk_elems[CST_SAVED_PLAN_CLASSES];
    uint32_t n_blocks[CST_SAVED_PLAN_CLASSES]; /* Blocks of each class in each rank's pool. */
    uint32_t n_chunks;                         /* Number of chunks of all classes. */
    uint64_t pool_bytes;                       /* Size of each rank's pool. */
    uint32_t prefetch_depth; /* Chunks; 0: as many as the blocks allow; UINT32_MAX: no prefetch. */
    uint64_t device_update_bytes; /* Device reservation of each rank, bytes. */
    uint32_t lent;                /* 1: pools lend memory for updates instead. */
    uint64_t device_states;       /* Bytes of each rank's accelerator for states that stay there. */
    double step_s;                /* Predicted time of a step, seconds. */
};

/* Compare only the fields that say what a plan was made for. CST_OK: @plan was made for @job.
 * CST_EMISMATCH: the words name the field and both values. */
int cst_saved_plan_is_for(const struct cst_saved_plan *plan, const struct cst_saved_plan *job,
                          struct cst_err *err);

/* CST_OK: @plan equals @other, the plan of rank @rank. CST_EMISMATCH: the words name the first
 * field that differs and both values. */
int cst_saved_plan_same(const struct cst_saved_plan *plan, const struct cst_saved_plan *other,
                        uint32_t rank, struct cst_err *err);

/* Check a plan that comes from outside. CST_EINVAL, with the field's name: an unknown name, no
 * classes, blocks or chunks, a negative time of a step or one of years. */
int cst_saved_plan_check(const struct cst_saved_plan *plan, struct cst_err *err);

/* Read the plan in the file @path. CST_ENOTFOUND: there is no such file; CST_EIO: it cannot be
 * read; CST_EINVAL: "FILE:LINE:COLUMN: ..." if it is not JSON, "FILE: plan.n_chunks: ..." if it is
 * not a plan or has another version. On failure @out is unchanged. */
int cst_saved_plan_read(struct cst_saved_plan *out, const char *path, struct cst_err *err);

/* Write @plan to the file @path, which the new file replaces when it is complete. @made becomes the
 * object "made", and its reference is dropped in any case; NULL: the caller ran out of memory.
 * CST_EIO, CST_ENOMEM. */
int cst_saved_plan_write(const struct cst_saved_plan *plan, struct json_t *made, const char *path,
                         struct cst_err *err);

#endif
