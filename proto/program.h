/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the programs of cistern that other programs start: the same search for the daemon and the
 * command line. No state; any thread. */
#ifndef CST_PROGRAM_H
#define CST_PROGRAM_H

#include "cistern/status.h"

#include <stddef.h>

/* Find the program @name ("cistern-engine-host") and write its path to @out of @size bytes. The
 * search order is:
 *
 *   1. @given, unless it is NULL or empty: the value of the configuration or of an option
 *   2. the environment variable @variable
 *   3. the build tree of the calling program (libtool keeps programs there in .libs)
 *   4. the libexec directory of the installation of the calling program, even if that was moved
 *   5. the libexec directory that was given to configure
 *
 * On failure *out is "", and the words name the places. CST_ENOTFOUND: @given or @variable names a
 * program that cannot be run. CST_EAGAIN: neither is set, and 3 to 5 have no such program. */
int cst_program_find(const char *name, const char *given, const char *variable, char *out,
                     size_t size, struct cst_err *err);

#endif
