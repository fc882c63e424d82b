/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a durable job (proto/durable.h) that become a checkpoint or a clone: opened, and
 * what they say of the job and its steps read and checked. Anybody may have written them. Not here:
 * states (adopt.c). Used by the client's thread only. */
#ifndef CSTC_ADOPT_FILES_H
#define CSTC_ADOPT_FILES_H

#include "cistern/status.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"

#define CSTC_ADOPT_MAX_FILES 64 /* Of a job. */

struct cstc_adopt_files {
    const char *names[CSTC_ADOPT_MAX_FILES]; /* By number; borrowed. */
    int fds[CSTC_ADOPT_MAX_FILES];           /* By number; owned. -1: not open. */
    uint64_t bytes[CSTC_ADOPT_MAX_FILES];    /* Sizes of the files. */
    struct cst_durable_head head;            /* Of file 0. */
    Cistern__JobDescription *job;            /* Owned; NULL: not read. */
    /* Owned; NULL: not read. Rows lie within their files, and have the bytes of their formats; each
     * tensor has a chunk of it. */
    Cistern__DurableLayout *layout;
};

/* Make @a empty. */
void cstc_adopt_files_init(struct cstc_adopt_files *a);

/* Open the @n files @files, in any order, and read their description. CST_EINVAL: they are not all
 * files of one durable job, or are damaged. CST_EBUSY: a daemon uses one. CST_EIO, CST_ENOMEM. The
 * caller closes @a in any case. */
int cstc_adopt_files_open(struct cstc_adopt_files *a, const char *const *files, uint32_t n,
                          struct cst_err *err);

/* As cstc_adopt_files_open, with the open files @fds. Those that @a owns now, and closes, are -1.
 * @names: what messages call them. */
int cstc_adopt_files_take(struct cstc_adopt_files *a, int *fds, const char *const *names,
                          uint32_t n, struct cst_err *err);

void cstc_adopt_files_close(struct cstc_adopt_files *a);

/* Read @bytes at @at of file number @file to @to. CST_EINVAL: the file is too short. CST_EIO. */
int cstc_adopt_read(const struct cstc_adopt_files *a, uint32_t file, void *to, uint64_t bytes,
                    uint64_t at, struct cst_err *err);

/* Read the seal at place @i, 0 or 1, with a `sum` of 0. *out is NULL if it cannot be read or has a
 * wrong checksum, as one that was being written; the caller frees it. CST_ENOMEM. */
int cstc_adopt_seal(const struct cstc_adopt_files *a, uint32_t i, struct cst_durable_seal **out,
                    struct cst_err *err);

/* Row @row of @chunk, from CST_ROW_MASTER to CST_ROW_WEIGHT_OTHER; NULL: it is in no file. */
const Cistern__DurableRow *cstc_adopt_row(const Cistern__DurableChunk *chunk, uint32_t row);

#endif
