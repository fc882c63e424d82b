/* SPDX-License-Identifier: Apache-2.0 */
/* Opening of the files that the worker writes. */
#ifndef GPT_OUTPUT_H
#define GPT_OUTPUT_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdio.h>

/* Open @path for writing; the caller closes it with fclose. @append: write after the file's
 * contents, else the file is emptied. If @path is another name of standard output or standard error
 * ("/dev/stdout"), the new stream shares its offset, so that lines of both follow each other, and
 * the file is never emptied. CST_EIO: the file cannot be opened; the error text begins with
 * @what. */
int gpt_output_open(FILE **out, const char *path, bool append, const char *what,
                    struct cst_err *err);

/* Check that @path can be opened so, and that files can be made in the directory @path, which need
 * not exist: before the run, at whose end it would be too late. CST_EINVAL: they cannot; the error
 * begins with @what and says what to do. */
int gpt_output_check(const char *path, const char *what, struct cst_err *err);
int gpt_output_check_directory(const char *path, const char *what, struct cst_err *err);

#endif
