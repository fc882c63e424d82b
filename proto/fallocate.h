/* SPDX-License-Identifier: Apache-2.0 */
/* fallocate(2) that does not end because a signal has arrived. No state; any thread. */
#ifndef CST_FALLOCATE_H
#define CST_FALLOCATE_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

/* As fallocate(2), which is called again while a signal interrupts it. Returns 0, or -1 with
 * errno. */
static inline int cst_fallocate(int fd, int mode, uint64_t offset, uint64_t bytes)
{
    int rc;

    do {
        rc = fallocate(fd, mode, (off_t)offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

#endif
