/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is written beside the one whose place it takes, once it is whole: who reads the path
 * finds all of the new file or what was there before. What is there and is no plain file (a pipe, a
 * device, a link) is written itself. */
#ifndef CST_NEW_FILE_H
#define CST_NEW_FILE_H

#include "cistern/status.h"

#include <stdio.h>

struct cst_new_file {
    FILE *to;         /* for the caller to write */
    const char *path; /* borrowed until it is closed */
    char *beside;     /* PATH.new, NULL: path itself is written; owned */
};

/* CST_EIO; CST_ENOMEM: nothing is owned. */
int cst_new_file_open(struct cst_new_file *file, const char *path, struct cst_err *err);

/* With @rc CST_OK it takes the path's place; else it goes, and @rc comes back with the caller's
 * words. CST_EIO: it could not be written, and went. */
int cst_new_file_close(struct cst_new_file *file, int rc, struct cst_err *err);

#endif
