/* SPDX-License-Identifier: Apache-2.0 */
/* Which drive a file lies on: in a file of its own, because tests that have one drive pretend that
 * each file has its own (tests/lib/drives_daemon.c). */
#include "daemon/engine/drives.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

int cstd_drive_of_file(int fd, char *uuid, size_t size, struct cst_err *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "fstat of a file for states");
    }
    (void)snprintf(uuid, size, CSTD_DRIVE "%u:%u", major(st.st_dev), minor(st.st_dev));
    return CST_OK;
}
