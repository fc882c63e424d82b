/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoints a directory has, and whether they are whole. */
#ifndef CSTC_LISTING_H
#define CSTC_LISTING_H

#include "cistern/checkpoint.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CSTC_LISTING_JOB_BYTES = 64,      /* Most bytes of a job's name, with the terminator. */
    CSTC_LISTING_WARNING_BYTES = 256, /* Most bytes of a warning, with the terminator. */
};

/* Open a directory for reading. -1: an error, see errno. */
int cstc_dir_open(int dirfd, const char *name);

/* List the names in @dirfd, which stays open. NULL: an error, see errno. */
DIR *cstc_dir_list(int dirfd);

/* CST_OK if the checkpoint @out->name in @parent is whole. Sets its job and bytes as far as they
 * can be read. With @hashes, the checksums of all files are compared. CST_ENOTFOUND, CST_EINVAL,
 * CST_EUNSUPPORTED, CST_EIO, CST_ENOMEM. */
int cstc_listing_check(int parent, bool hashes, struct cst_checkpoint *out, struct cst_err *err);

/* List the checkpoints of @parent, which is the directory @path, by step. The caller frees *out.
 * CST_EIO, CST_ENOMEM. */
int cstc_listing_make(int parent, const char *path, bool hashes, struct cst_checkpoint **out,
                      uint32_t *n_out, struct cst_err *err);

/* Read of which job the checkpoints of @parent are. As all of them are of one job, one that can be
 * read says it. False: there is none. */
bool cstc_listing_job(int parent, char job[CSTC_LISTING_JOB_BYTES]);

/* Open the checkpoint @path or, if it is a directory of checkpoints, the newest whole one in it.
 * The caller closes *fd. @warning says which newer one is not whole; "": none. CST_ENOTFOUND: there
 * is none; CST_EINVAL: the directory has whole checkpoints of several jobs; CST_EUNSUPPORTED: a
 * newer one is of a later format, so that an older one would not be what is wanted; CST_EIO. */
int cstc_listing_open(const char *path, int *fd, char warning[CSTC_LISTING_WARNING_BYTES],
                      struct cst_err *err);

#endif
