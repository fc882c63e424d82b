/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job_name.h"

#include <string.h>

bool cst_job_name_is_valid(const char *name)
{
    size_t n = strlen(name);

    return n >= 1 && n < CST_JOB_NAME_BYTES && *name != '.' && *name != '-' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}
