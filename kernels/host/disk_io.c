/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/disk_io.h"

#include "proto/fallocate.h"

#include <unistd.h>

static ssize_t direct_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    return pread(fd, to, bytes, (off_t)offset);
}

static ssize_t direct_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
    return pwrite(fd, from, bytes, (off_t)offset);
}

const struct cste_disk_io cste_disk_direct = {
    .read = direct_read, .write = direct_write, .allocate = cst_fallocate, .flush = fdatasync};
