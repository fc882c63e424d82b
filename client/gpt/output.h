/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the worker writes. */
#ifndef GPT_OUTPUT_H
#define GPT_OUTPUT_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdio.h>

/* Open @path for writing: anew, or with @append at its end. A name of what standard output or
 * standard error goes to already ("/dev/stdout") is written behind what is there, in turn with it,
 * and never emptied. The caller's, to fclose. CST_EIO, with the words of @what. */
int gpt_output_open(FILE **out, const char *path, bool append, const char *what,
                    struct cst_err *err);

#endif
