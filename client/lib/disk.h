/* SPDX-License-Identifier: Apache-2.0 */
/* Files for the states of a job (struct cst_job_states). */
#ifndef CST_CLIENT_DISK_H
#define CST_CLIENT_DISK_H

#include "client/lib/client.h"
#include "cistern/job.h"

/* Make a file in each directory of spec->states.disk and give them to the daemon. The job of
 * @client is open. Statuses: those at struct cst_job_states, and those of a call. */
int cstc_disk_give(struct cst_client *client, const struct cst_job_spec *spec, struct cst_err *err);

#endif
