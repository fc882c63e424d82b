/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that was made before its job: what `cistern plan --save` writes into a file, what a worker
 * gives its job (cst_job_spec.plan_file) and what the daemon then holds the job to.
 *
 *   {"cistern_plan": 1,
 *    "for":  {"fingerprint": ..., "n_params": ..., "world": 2, "optimizer": "adamw", ...},
 *    "plan": {"classes": [{"chunk_elems": 4194304, "n_blocks": 12}, ...], "pool_bytes": ..., ...},
 *    "made": {...}}
 *
 * "for" is what the plan was made for, and must be what the job is. "plan" is what the plan
 * decides. "made" says with which rates and budgets it was made: for people, nothing reads it. */
#ifndef CST_SAVED_PLAN_H
#define CST_SAVED_PLAN_H

#include "cistern/status.h"

#include <stdint.h>

struct json_t; /* jansson's */

#define CST_SAVED_PLAN_VERSION 1
#define CST_SAVED_PLAN_CLASSES 4 /* size classes of chunks, at most */

struct cst_saved_plan {
    /* What it was made for. */
    uint64_t fingerprint;      /* of the model's tensors, groups and operators (offload/digest.h) */
    uint64_t n_params;         /* elements of all tensors */
    uint32_t n_tensors;        /* declared */
    uint32_t n_operators;      /* declared */
    uint32_t world;            /* ranks */
    uint32_t micro_batches;    /* per step, at least 1 */
    uint32_t optimizer;        /* enum cst_optimizer */
    uint32_t moments;          /* enum cst_moments */
    uint32_t overlap;          /* enum cst_overlap */
    uint32_t grad_over_weight; /* 1: gradients take the weights' places */
    /* What it decides. */
    uint32_t n_classes;                           /* size classes of chunks, at least 1 */
    uint64_t chunk_elems[CST_SAVED_PLAN_CLASSES]; /* capacity of each class, ascending from the
                                                   * second class on */
    uint32_t n_blocks[CST_SAVED_PLAN_CLASSES];    /* of each class, in each rank's pool */
    uint32_t n_chunks;                            /* of all classes */
    uint64_t pool_bytes;                          /* of each rank's pool */
    uint32_t prefetch_depth; /* chunks; 0: as many as blocks allow; UINT32_MAX: none */
    uint32_t eviction;       /* enum cst_core_eviction */
    uint64_t update_room;    /* bytes of each rank's accelerator in which chunks are updated */
    uint64_t device_states;  /* bytes of each rank's accelerator for states that stay there */
    double step_s;           /* predicted duration of a step, seconds */
};

/* CST_OK if @plan was made for what @job is, whose first group of fields alone is looked at; else
 * CST_EMISMATCH with the field's name and both values. */
int cst_saved_plan_is_for(const struct cst_saved_plan *plan, const struct cst_saved_plan *job,
                          struct cst_err *err);

/* CST_OK if @plan and @other, that of rank @rank, are the same; else CST_EMISMATCH with the first
 * field that differs and both values. */
int cst_saved_plan_same(const struct cst_saved_plan *plan, const struct cst_saved_plan *other,
                        uint32_t rank, struct cst_err *err);

/* CST_EINVAL: numbers that no plan has (names that are none, no classes, blocks or chunks, a step
 * of less than 0 s or of years), with the field. For plans that come from outside. */
int cst_saved_plan_check(const struct cst_saved_plan *plan, struct cst_err *err);

/* The plan in the file @path. CST_EIO: it cannot be read; CST_EINVAL: "FILE:LINE:COLUMN: ..." where
 * it is not JSON, "FILE: plan.n_chunks: ..." where it is no plan, also of another version. */
int cst_saved_plan_read(struct cst_saved_plan *out, const char *path, struct cst_err *err);

/* Write @plan to the file @path, whose place a new file takes once it is whole. @made: a new object
 * that becomes its "made", and is dropped in any case; NULL: out of memory. CST_EIO, CST_ENOMEM. */
int cst_saved_plan_write(const struct cst_saved_plan *plan, struct json_t *made, const char *path,
                         struct cst_err *err);

#endif
