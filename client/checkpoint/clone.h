/* SPDX-License-Identifier: Apache-2.0 */
/* Clones of durable jobs: copies of the job's files (proto/durable.h), all of one recorded step,
 * that share their blocks with the files of the job until it writes there anew. cst_adopt makes a
 * checkpoint of them. Used by the client's thread only. */
#ifndef CSTC_CLONE_H
#define CSTC_CLONE_H

#include "client/checkpoint/adopt_files.h"

#include <limits.h>

struct cst_client;

struct cstc_clone_result {
    uint64_t step;       /* Number of committed steps in the clone. */
    uint64_t bytes;      /* Of all its files, which are the job's as well until it writes there. */
    double seconds;      /* Duration of the call. */
    double held_seconds; /* Time for which a commit of the job had to wait, at most. */
    uint32_t n;          /* Number of files. */
    char paths[CSTC_ADOPT_MAX_FILES][PATH_MAX];
};

/* Clone the files of the job @job, which is durable and may train, into the @n directories @dirs:
 * each file into the first one that is in its file system, as JOB.step-00000042.0.cistern. The next
 * commit waits until all are cloned. The clone has an identity of its own, so that its files are
 * not taken for the job's, and the states of its step alone. The names are there when everything is
 * on the drives. On failure nothing remains of it. *out is set on success. Statuses:
 *   - CST_ENOTFOUND: there is no such job.
 *   - CST_EINVAL: the job is not durable, no step of it is recorded yet, a file is not the one that
 *     the daemon uses, or no directory is in the file system of a file.
 *   - CST_EUNSUPPORTED: a file system cannot clone.
 *   - CST_EBUDGET: a file system has too little space for what the job's next steps write anew.
 *   - CST_EEXIST: there is a clone of this step, or another file of that name.
 *   - CST_EBUSY: the job is being saved.
 *   - CST_EIO, CST_ENOMEM, CST_ETIMEDOUT: as for cst_save. */
int cstc_clone(struct cst_client *client, const char *job, char *const *dirs, uint32_t n,
               struct cstc_clone_result *out, struct cst_err *err);

#endif
