/* SPDX-License-Identifier: Apache-2.0 */
/* Names of jobs. Pure; any thread. */
#ifndef CST_JOB_NAME_H
#define CST_JOB_NAME_H

#include <stdbool.h>

enum { CST_JOB_NAME_BYTES = 64 }; /* Including the NUL. */

/* What cst_job_name_is_valid asks for, for messages. */
#define CST_JOB_NAME_RULE                                                                          \
    "1 to 63 characters of A-Z a-z 0-9 . _ -, of which the first is neither . nor -"

/* Returns whether a job can have the name @name. A name that begins with "-" would be an option of
 * programs, and one that begins with "." a directory or a hidden file. */
bool cst_job_name_is_valid(const char *name);

#endif
