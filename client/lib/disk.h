/* SPDX-License-Identifier: Apache-2.0 */
/* Drives and files for the states of a job (struct cst_job_states). */
#ifndef CST_CLIENT_DISK_H
#define CST_CLIENT_DISK_H

#include "client/lib/client.h"
#include "cistern/job.h"

/* The drives of the directories of spec->states.disk, as a JobOpen has them. */
struct cstc_disk_drives {
    size_t n;
    char *list[CST_FRAME_MAX_FDS]; /* Points into text. */
    char text[CST_FRAME_MAX_FDS][24];
};

/* Find the drives that @spec names: none if its rank is not 0, or spec->states.disk is NULL. Makes
 * nothing. CST_EINVAL: too many directories, or an empty or too long one. CST_EIO: one is not
 * there; the error names it. */
int cstc_disk_find(const struct cst_job_spec *spec, struct cstc_disk_drives *out,
                   struct cst_err *err);

/* Make a file in each directory of spec->states.disk and give them to the daemon. The job of
 * @client is open. Statuses: those at struct cst_job_states, and those of a call. */
int cstc_disk_give(struct cst_client *client, const struct cst_job_spec *spec, struct cst_err *err);

#endif
