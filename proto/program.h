/* SPDX-License-Identifier: Apache-2.0 */
/* What all programs of cistern do in the same way: they find the programs that they start, and make
 * sure that their standard files are open. No state. */
#ifndef CST_PROGRAM_H
#define CST_PROGRAM_H

#include "cistern/status.h"

#include <stddef.h>

/* Open /dev/null in place of each of the descriptors 0, 1 and 2 that is closed. Otherwise the
 * program's next socket or file gets the number of such a descriptor, and receives what is printed.
 * Reading from or writing to a descriptor that was closed still fails with EBADF, so that lost
 * output is noticed. Called at the start of main, before there are threads. CST_EIO: /dev/null
 * cannot be opened. */
int cst_program_open_standard_files(struct cst_err *err);

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
 * program that cannot be run. CST_EAGAIN: neither is set, and 3 to 5 have no such program. Any
 * thread. */
int cst_program_find(const char *name, const char *given, const char *variable, char *out,
                     size_t size, struct cst_err *err);

#endif
