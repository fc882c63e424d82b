/* SPDX-License-Identifier: Apache-2.0 */
/* Counts device memory across processes. With a state folder, each allocation is a file
 * "dev<device>-<bytes>-<pid>-<number>" in the folder, which its maker locks with flock. The lock
 * belongs to the open file: it lasts as long as any process, or a message under way, has a
 * descriptor or a mapping of the file, however the last of these ends. A process that counts
 * removes the files that are not locked. Without a folder allocations are memfds with names of this
 * form, and each process counts its own. The module needs only libc, so that tests can read the
 * ledger with it. */
#ifndef CST_FAKE_LEDGER_H
#define CST_FAKE_LEDGER_H

#include <stddef.h>

/* The device memory that is in use. */
struct cst_fake_use {
    size_t bytes;     /* bytes of device memory */
    size_t n_objects; /* number of allocations */
};

/* Count what is held on device number @device of the machine (-1: on all devices), by the ledger in
 * @dir or, if @dir is NULL, by this process. Returns 0 or -errno. */
int cst_fake_ledger_use(const char *dir, int device, struct cst_fake_use *out);

/* Allocate @bytes of @device, which has @total bytes. *@fd_out receives the memory's file, which
 * the caller owns. Returns 0, -ENOMEM if the device has not enough memory left, or another -errno.
 * Two threads must not call this function at a time. */
int cst_fake_ledger_take(const char *dir, int device, size_t bytes, size_t total, int *fd_out);

/* Without a folder: return @bytes of @device. The caller closes the file. */
void cst_fake_ledger_give(const char *dir, int device, size_t bytes);

/* Find the device and the size of the memory @fd. Returns 0, or -EINVAL if @fd is not device
 * memory. */
int cst_fake_ledger_identify(int fd, int *device, size_t *bytes);

#endif
