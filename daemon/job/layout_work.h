/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the layout of a job in a thread. It takes milliseconds for a large model, and the loop
 * serves other users meanwhile. The thread reads the models of the job and of its base job, and
 * writes the job's layout; none of them changes while it runs. Loop thread only. */
#ifndef CST_LAYOUT_WORK_H
#define CST_LAYOUT_WORK_H

#include "daemon/job/job.h"

/* Called on the loop thread. @err: CST_OK, or why there is no layout (cst_layout_build). */
typedef void (*cstd_layout_work_cb)(struct cstd_job *job, struct cst_err *err);

/* Start building job->layout as the job's options and its plan say. @done follows, never within
 * this call; until then job->layout_work is set, and the job must not be freed. Errors: CST_ENOMEM,
 * and those of cstd_base_job_check and cstd_device_reservation_devices. */
int cstd_layout_work_start(struct cstd_job *job, cstd_layout_work_cb done, struct cst_err *err);

#endif
