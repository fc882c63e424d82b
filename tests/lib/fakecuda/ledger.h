/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds how much device memory, across processes. With a state folder each allocation is a file
 * in it, "dev<device>-<bytes>-<pid>-<number>", that its maker locks (flock); the lock belongs to
 * the open file, so it lasts as long as a descriptor or a mapping of it lasts in any process, a
 * message under way included, and ends with the last of them, however that ended. Whoever counts
 * takes away the files that nobody locks any more. Without a folder allocations are memfds of the
 * same names and each process counts its own.
 *
 * Needs nothing but libc: tests read the ledger with it. */
#ifndef CST_FAKE_LEDGER_H
#define CST_FAKE_LEDGER_H

#include <stddef.h>

struct cst_fake_use {
    size_t bytes;     /* of device memory */
    size_t n_objects; /* allocations */
};

/* What is held on device number @device of the machine (-1: on all) by the ledger in @dir, or, if
 * @dir is NULL, by this process. 0, or -errno. */
int cst_fake_ledger_use(const char *dir, int device, struct cst_fake_use *out);

/* Take @bytes of @device, that has @total. *fd_out becomes the memory's file, of @bytes, the
 * caller's. 0; -ENOMEM: they are not there; another -errno. Not for two threads at a time. */
int cst_fake_ledger_take(const char *dir, int device, size_t bytes, size_t total, int *fd_out);

/* Without a folder: this process gives @bytes of @device back. The caller closes the file. */
void cst_fake_ledger_give(const char *dir, int device, size_t bytes);

/* Which device and how many bytes is @fd? 0; -EINVAL: it is not device memory. */
int cst_fake_ledger_identify(int fd, int *device, size_t *bytes);

#endif
