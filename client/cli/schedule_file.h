/* SPDX-License-Identifier: Apache-2.0 */
/* Files with pipeline schedules, in PyTorch's CSV (offload/parallel/schedule_text.h). */
#ifndef CLI_SCHEDULE_FILE_H
#define CLI_SCHEDULE_FILE_H

#include "offload/parallel/schedule.h"

/* Read the schedule of the file @path ("-": standard input), and verify it. The caller frees *out
 * with cst_schedule_close. CST_EIO; CST_EINVAL: the file is too large, or has no legal schedule;
 * the words begin with the path. CST_ENOMEM. */
int cli_schedule_read(struct cst_schedule *out, const char *path, struct cst_err *err);

/* Write the schedule to the file @path, without recompute actions; "-": to standard output, whose
 * errors main reports. CST_EIO, CST_ENOMEM. */
int cli_schedule_write(const struct cst_schedule *schedule, const char *path, struct cst_err *err);

#endif
