/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one file from its beginning to its end. Full buffers are written by io_uring while the
 * next one is filled, past the page cache (O_DIRECT) where the file system allows it. Without
 * io_uring each buffer is written at once. Used by one thread at a time.
 *
 * Every error names the file, the place in it and the cause. After an error of
 * cstc_file_writer_append the writer can only be abandoned. */
#ifndef CSTC_FILE_WRITER_H
#define CSTC_FILE_WRITER_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct cstc_file_writer;

/* XXH3, 128 bits, of all bytes of a file: the canonical (big-endian) form. */
struct cstc_file_hash {
    uint8_t bytes[16];
};

/* Make the file @name, which must not exist, in the directory @dirfd. @dirfd is borrowed until the
 * writer is gone, @name is copied. CST_EIO: the file cannot be made; CST_ENOMEM. */
int cstc_file_writer_open(struct cstc_file_writer **out, int dirfd, const char *name,
                          struct cst_err *err);

/* Append @bytes. May wait until an earlier buffer is written. CST_EIO: a write failed, perhaps that
 * of an earlier buffer. */
int cstc_file_writer_append(struct cstc_file_writer *writer, const void *data, size_t bytes,
                            struct cst_err *err);

/* Write the rest, wait until the file is on the disk (fsync), and close it. *bytes is its length.
 * Frees @writer in any case; on failure the file remains, incomplete. CST_EIO. */
int cstc_file_writer_finish(struct cstc_file_writer *writer, uint64_t *bytes,
                            struct cstc_file_hash *hash, struct cst_err *err);

/* Close an incomplete file and free @writer, which may be NULL. The file remains. */
void cstc_file_writer_abandon(struct cstc_file_writer *writer);

#endif
