/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a file under a temporary name, PATH.PID.new, and renames it when it is complete. A reader
 * of the path finds either the whole new file or the old one. No file that exists under the
 * temporary name is written, and several processes may write one path. If the path exists and is
 * not a regular file (a pipe, a device, a symbolic link), it is written directly. */
#ifndef CST_NEW_FILE_H
#define CST_NEW_FILE_H

#include "cistern/status.h"

#include <stdio.h>

struct cst_new_file {
    FILE *to;         /* Stream for the caller to write to. */
    const char *path; /* Borrowed until the file is closed. */
    char *beside;     /* Temporary name, owned; NULL: path itself is written. */
};

/* Open @file for writing. CST_EIO, also if the temporary name is taken; CST_ENOMEM. On failure
 * nothing is owned. */
int cst_new_file_open(struct cst_new_file *file, const char *path, struct cst_err *err);

/* Check that a file could be opened for writing at @path, without making one: for programs that
 * work long before they write. CST_EIO: the path is a directory, or it, or the directory in which
 * the new file would be, is missing or not writable; CST_ENOMEM. */
int cst_new_file_check(const char *path, struct cst_err *err);

/* Close @file. If @rc is CST_OK the new file takes the place of the path; otherwise it is removed,
 * and @rc is returned with @err unchanged. CST_EIO: it could not be written, and is removed. */
int cst_new_file_close(struct cst_new_file *file, int rc, struct cst_err *err);

#endif
