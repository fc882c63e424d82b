/* SPDX-License-Identifier: Apache-2.0 */
/* A range of a file that was opened with O_DIRECT: memory of a drive's engine. The range and the
 * transfers consist of whole blocks; bytes that begin or end within a block are the caller's part
 * (kernels/host/disk.c). The file is never mapped, so a file that its owner truncates is an error
 * of a transfer and no signal. */
#ifndef CST_DISK_RANGE_H
#define CST_DISK_RANGE_H

#include "cistern/status.h"
#include "kernels/host/disk_calls.h"
#include "kernels/host/disk_sums.h"

#include <pthread.h>

/* Transfers begin and end at multiples of this many bytes, in the file and in memory. */
#define CSTE_DISK_BLOCK 4096

struct cste_disk_range {
    struct cste_disk_calls *calls; /* System calls of the drive; borrowed. */
    int fd;                        /* The file; owned. */
    uint64_t offset, bytes;        /* The range; both are multiples of CSTE_DISK_BLOCK. */
    /* Bytes that the file had before it was extended for the range. UINT64_MAX: it was not. */
    uint64_t old_bytes;
    char name[160]; /* The file's path and drive, for messages. */
    /* Held while a block of which only a part changes is read and written. */
    pthread_mutex_t partial;
    struct cste_disk_sums sums; /* Of what was written to the range. */
};

/* Open the range [@offset, @offset + @bytes) of the file @fd, which stays the caller's. CST_EINVAL:
 * it is no regular file on a drive, it was not opened with O_RDWR and O_DIRECT, @offset or @bytes
 * is no multiple of CSTE_DISK_BLOCK, the file system wants a larger alignment, or the file is
 * shorter and @allocate is false. CST_ENOMEM: with @allocate space is taken for the range; the file
 * system had too little, and has got back what was taken. CST_EIO. Any thread. */
int cste_disk_range_open(struct cste_disk_range **out, struct cste_disk_calls *calls, int fd,
                         uint64_t offset, uint64_t bytes, bool allocate, struct cst_err *err);

/* Give back the space by which cste_disk_range_open has extended the file. No transfer is under
 * way. The result is 0 or an error number. */
int cste_disk_range_give_back(const struct cste_disk_range *range);

/* Close the range. No transfer is under way. */
void cste_disk_range_close(struct cste_disk_range *range);

/* The @bytes at @at, which were just read, have not the checksum @want, which they had when they
 * were written, but @got. Fills in @err and returns CST_EIO. */
int cste_disk_range_differs(const struct cste_disk_range *range, uint64_t at, uint64_t bytes,
                            uint64_t want, uint64_t got, struct cst_err *err);

/* Read or write @bytes at @at of the range, as thread @thread of the device. @at, @bytes and the
 * address are multiples of CSTE_DISK_BLOCK, and the bytes are within the range. Calls that are
 * interrupted or do a part are continued. CST_EIO: a call failed or the file was truncated.
 * CST_ENOMEM: the file system has no space. Any thread, several at a time. */
int cste_disk_range_read(const struct cste_disk_range *range, unsigned thread, uint64_t at,
                         void *to, uint64_t bytes, struct cst_err *err);
int cste_disk_range_write(const struct cste_disk_range *range, unsigned thread, uint64_t at,
                          const void *from, uint64_t bytes, struct cst_err *err);

/* Flush the file, as thread @thread of the device: its bytes are on the drive, and no longer only
 * in the drive's cache. CST_EIO: that failed, and bytes may be lost. Any thread. */
int cste_disk_range_flush(const struct cste_disk_range *range, unsigned thread,
                          struct cst_err *err);

#endif
