/* SPDX-License-Identifier: Apache-2.0 */
/* Files that tests open with O_DIRECT, on a file system that stores them on a drive. */
#ifndef DISK_FILE_H
#define DISK_FILE_H

#include <stdbool.h>
#include <stdint.h>

/* The directory for such files: $TMPDIR, the current directory or /var/tmp. NULL: none of these
 * lies on a file system that takes O_DIRECT and is not in memory. */
const char *disk_file_dir(void);

/* The status of a test program that is skipped. */
#define DISK_FILE_SKIP 77

/* True, after a line that says so, if there is no such directory: the program is to exit with
 * DISK_FILE_SKIP. */
bool disk_file_is_missing(const char *program);

/* Make a file of @bytes there, which has no name any more, and open it with O_RDWR | O_DIRECT and
 * @flags. The bytes are a hole. The caller owns the descriptor. A failure ends the program. */
int disk_file_make(uint64_t bytes, int flags);

/* Read @bytes at @offset of the file into @to, in whatever way it was opened; its pages are not
 * cached. All three are multiples of 4096. A failure ends the program. */
void disk_file_read(int fd, void *to, uint64_t bytes, uint64_t offset);

/* The sizes of the file: of its bytes, and of the space that it takes. */
uint64_t disk_file_bytes(int fd);
uint64_t disk_file_space(int fd);

#endif
