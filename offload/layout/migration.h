/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the states of a job move to another layout of the same parameters, so that
 * little memory holds them twice. Pure; only allocates memory.
 *
 * The states move in portions. A portion moves some parameters, each with all its parts in both
 * models. Then at least one chunk of the old layout has no element that is still needed, and its
 * pages are given back:
 *
 *   portion old chunks          new chunks
 *           | 0 | 1 | 2 |     |           |
 *     0     |   | 1 | 2 |     | a         |      pages of chunk a, copies, then no pages of chunk 0
 *     1     |   |   | 2 |     | a | b     |
 *     2     |   |   |   |     | a | b | c |
 *
 * Parameters move in the order in which the old layout has them. Only pages of host memory count,
 * because a job with states on accelerators is not moved in this way. The order depends on models
 * and layouts alone: another process finds the same portions (CSTD_LEDGER_FORMAT). */
#ifndef CST_MIGRATION_H
#define CST_MIGRATION_H

#include "offload/layout/reshard.h"

struct cst_migration_portion {
    /* Where the lists of this portion end in `tensors`, `begun` and `ended`. They begin where those
     * of the portion before end. */
    uint32_t tensors_end, begun_end, ended_end;
};

struct cst_migration {
    uint32_t n_portions;
    struct cst_migration_portion *portions;
    uint32_t *tensors; /* Numbers of all tensors of the new model, portion by portion. */
    uint32_t *begun;   /* Chunks of the new layout, by the first portion that writes to them. */
    uint32_t *ended;   /* Chunks of the old layout, by the last portion that reads them. */
    /* The most bytes of pages in both layouts together at any time, minus those of the old layout.
     * Pages of the new layout that are in no chunk exist from the beginning. */
    uint64_t extra_bytes;
};

/* Plan the move from the layout @old of reshard->from to the layout @layout of reshard->to. The
 * caller closes *out. CST_ENOMEM. */
int cst_migration_open(struct cst_migration *out, const struct cst_reshard *reshard,
                       const struct cst_layout *old, const struct cst_layout *layout,
                       struct cst_err *err);

/* Free the plan. A zeroed plan is allowed. */
void cst_migration_close(struct cst_migration *migration);

/* Where the list of portion @portion begins in `tensors`, `begun` and `ended`. */
static inline struct cst_migration_portion
cst_migration_begin(const struct cst_migration *migration, uint32_t portion)
{
    return portion > 0 ? migration->portions[portion - 1] : (struct cst_migration_portion){0};
}

#endif
