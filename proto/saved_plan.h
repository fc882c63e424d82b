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
#define CST_PLAN_OPTION(member, ...) uint32_t member;
#define CST_PLAN_MODEL(type, member) type member;
#define CST_PLAN_CHOICE(type, member, ...) type member;
#include "proto/saved_plan.def"
    uint32_t n_classes; /* Number of size classes, at least 1. */
    /* Capacity of the chunks of each class, ascending from the second class on. */
    uint64_t chunk_elems[CST_SAVED_PLAN_CLASSES];
    uint32_t n_blocks[CST_SAVED_PLAN_CLASSES]; /* Blocks of each class in each rank's pool. */
    double step_s;                             /* Predicted time of a step, seconds. */
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
