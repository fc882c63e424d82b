/* SPDX-License-Identifier: Apache-2.0 */
/* Where the programs of cistern that other programs start are: one search for the daemon and the
 * command line. No state; any thread. */
#ifndef CST_PROGRAM_H
#define CST_PROGRAM_H

#include "cistern/status.h"

#include <stddef.h>

/* Find the program @name ("cistern-engine-host") and write its path to @out of @size bytes. Looked
 * for in this order:
 *
 *   1. @given, unless it is NULL or empty: what the configuration or an option says
 *   2. the environment variable @variable
 *   3. the build tree that the calling program lies in (libtool keeps programs there in .libs)
 *   4. the libexec directory of the tree that the calling program is installed in, wherever that
 * tree was moved to
 *   5. the libexec directory that configure was told
 *
 * CST_ENOTFOUND: @given or @variable names a program that cannot be run; CST_EAGAIN: there is none
 * in any of 3 to 5. Both have words that name the places. *out is "" then. */
int cst_program_find(const char *name, const char *given, const char *variable, char *out,
                     size_t size, struct cst_err *err);

#endif
