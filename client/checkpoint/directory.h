/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a job's checkpoints, all of one job: jobs are told apart by their names. A
 * checkpoint step-00000042 is made as .step-00000042.PID-NUMBER.tmp and renamed when it is whole.
 */
#ifndef CSTC_DIRECTORY_H
#define CSTC_DIRECTORY_H

#include "client/checkpoint/listing.h"

#include <stdbool.h>
#include <stdint.h>

/* A checkpoint that is being made. */
struct cstc_directory {
    uint64_t step;       /* Number of committed steps in it. */
    int parent;          /* The directory of the checkpoints. */
    int fd;              /* The checkpoint's own directory. */
    char name[64];       /* Its final name. */
    char temporary[128]; /* Its present name. */
    char path[256];      /* The parent's path, for messages. */
    char job[CSTC_LISTING_JOB_BYTES];
};

/* Make a directory for the checkpoint of @step of @job in @path, which is made as well if it does
 * not exist. Temporary directories that no living process has locked are removed. On failure there
 * is nothing to close. CST_EEXIST: a whole checkpoint of @step exists; CST_EINVAL: @path has
 * checkpoints of another job; CST_EIO: in addition to failed
 * calls, something that is not a checkpoint has the name, or a checkpoint with a foreign file. */
int cstc_directory_begin(struct cstc_directory *directory, const char *path, const char *job,
                         uint64_t step, struct cst_err *err);

/* All files are written and synchronised: give the checkpoint its name, so that it survives a crash
 * of the machine. A torn checkpoint of the same step is replaced. Closes @directory. CST_EEXIST:
 * another process has saved the same step since the beginning; CST_EINVAL: it has saved another
 * job; CST_EIO. On all of them, the files are removed, unless only the last call, which
 * synchronises the parent, has failed. */
int cstc_directory_commit(struct cstc_directory *directory, struct cst_err *err);

/* Remove the files and the directory, and close @directory. */
void cstc_directory_abandon(struct cstc_directory *directory);

/* Remove the oldest checkpoints of @job in @path until @keep whole ones remain, that of step
 * @newest, which was just made, included, and the torn ones that are older than these. The others
 * may be of later steps, if the job went back to an earlier one. A checkpoint that cannot be read
 * now, or that is of a format that this version does not know, is left alone, and so is a directory
 * without cistern.json, and checkpoints of other jobs. CST_EIO: a checkpoint could not be removed,
 * for example because it has a foreign file. It is as it was, unless its own files cannot be
 * unlinked. The others are removed nevertheless. */
int cstc_directory_keep(const char *path, const char *job, uint32_t keep, uint64_t newest,
                        struct cst_err *err);

#endif
