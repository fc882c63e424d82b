/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline schedules as text: the CSV of torch.distributed.pipelining in its compute-only form,
 * which torchtitan (pipeline_parallel_schedule_csv) and NeMo (pp_schedule_csv) read, too. A row per
 * rank, a cell per action:
 *
 *   0F0,0F1,0B0,0B1          <stage><F, B, I or W><micro-batch>
 *   ,1F0,1B0,1F1,1B1         an empty cell means nothing
 *
 * A recompute action is written as "0UNSHARD5": the form has no action of its own for it, and
 * PyTorch lets programs put functions of their own in the place of UNSHARD. PyTorch's reader of the
 * compute-only form refuses such cells; who runs the schedule takes them out and puts them back
 * before their backward pass. Pure; only allocates memory. */
#ifndef CST_SCHEDULE_TEXT_H
#define CST_SCHEDULE_TEXT_H

#include "offload/parallel/schedule.h"

/* Read the @n bytes @text. The ranks, stages and micro-batches are those that occur in it; a stage
 * recomputes if it has recompute actions. "(0F1;3B0)OVERLAP_F_B" is read as its two actions. The
 * lists may be wrong: see cst_schedule_check. The caller frees *out with cst_schedule_close.
 * Statuses:
 *   - CST_EINVAL: a cell is no action of this form, or a number is too large. The words name the
 * row and the cell, from 1 on.
 *   - CST_ENOMEM. */
int cst_schedule_read(struct cst_schedule *out, const char *text, size_t n, struct cst_err *err);

/* Write @schedule to *text, which the caller frees, and which has *n bytes and a final 0. Without
 * @recompute there are no recompute actions. CST_ENOMEM. */
int cst_schedule_write(char **text, size_t *n, const struct cst_schedule *schedule, bool recompute,
                       struct cst_err *err);

#endif
