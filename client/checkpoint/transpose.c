/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint/transpose.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The name for the moment between making and unlinking the file. It is one of a checkpoint's, so
 * that it is removed with the directory if the process dies in that moment. */
#define FILE_NAME "model-transposed.safetensors"

enum { BLOCK = 32 }; /* Columns that are stored together, for the cache. */

int cstc_transpose_open(struct cstc_transpose *transpose, int dirfd, uint64_t rows,
                        uint64_t columns, unsigned elem_bytes, struct cst_err *err)
{
    const size_t bytes = rows * columns * elem_bytes;
    int fd = openat(dirfd, FILE_NAME, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), error = 0;
    void *data = MAP_FAILED;

    if (fd < 0) {
        return cst_err_errno(err, CST_EIO, errno, "%s cannot be made", FILE_NAME);
    }
    (void)unlinkat(dirfd, FILE_NAME, 0);
    /* Without the blocks on the disk, a store to the mapping would kill the process. */
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    if (error == 0) {
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = data == MAP_FAILED ? errno : 0;
    }
    (void)close(fd);
    if (error != 0) {
        return cst_err_errno(err, CST_EIO, error, "%s: %zu bytes for transposed weights", FILE_NAME,
                             bytes);
    }
    *transpose = (struct cstc_transpose){
        .data = data, .bytes = bytes, .rows = rows, .columns = columns, .elem_bytes = elem_bytes};
    return CST_OK;
}

/* Store the elements of columns [c, end) of row @row, of which @elems is the first. */
static void put_row(struct cstc_transpose *t, uint64_t row, uint64_t c, uint64_t end,
                    const char *elems)
{
    if (t->elem_bytes == 2) {
        for (; c < end; c++, elems += 2) {
            memcpy((uint16_t *)t->data + c * t->rows + row, elems, 2);
        }
    } else {
        for (; c < end; c++, elems += 4) {
            memcpy((uint32_t *)t->data + c * t->rows + row, elems, 4);
        }
    }
}

void cstc_transpose_put(struct cstc_transpose *t, uint64_t first, uint64_t n, const void *elems)
{
    const uint64_t last = first + n;

    for (uint64_t c = 0; c < t->columns; c += BLOCK) {
        const uint64_t block_end = c + BLOCK < t->columns ? c + BLOCK : t->columns;

        for (uint64_t row = first / t->columns; row * t->columns < last; row++) {
            const uint64_t start = row * t->columns;
            uint64_t from = start + c > first ? start + c : first,
                     to = start + block_end < last ? start + block_end : last;

            if (from < to) {
                put_row(t, row, from - start, to - start,
                        (const char *)elems + (from - first) * t->elem_bytes);
            }
        }
    }
}

void cstc_transpose_close(struct cstc_transpose *transpose)
{
    if (transpose->data != NULL) {
        (void)munmap(transpose->data, transpose->bytes);
    }
    *transpose = (struct cstc_transpose){0};
}
