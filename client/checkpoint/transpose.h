/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix that comes row by row and is written column by column. It is kept in a file without a
 * name, so that the kernel can write it out when memory is short. */
#ifndef CSTC_TRANSPOSE_H
#define CSTC_TRANSPOSE_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct cstc_transpose {
    void *data; /* The transposed matrix, of @bytes; NULL: not open. */
    size_t bytes;
    uint64_t rows, columns; /* Of the matrix that comes. */
    unsigned elem_bytes;    /* 2 or 4 */
};

/* Make room for a matrix, in a file in the directory @dirfd. CST_EIO: there is no space. */
int cstc_transpose_open(struct cstc_transpose *transpose, int dirfd, uint64_t rows,
                        uint64_t columns, unsigned elem_bytes, struct cst_err *err);

/* Take over the elements [first, first + n), counted row by row. */
void cstc_transpose_put(struct cstc_transpose *transpose, uint64_t first, uint64_t n,
                        const void *elems);

/* Free the matrix, if @transpose is open. */
void cstc_transpose_close(struct cstc_transpose *transpose);

#endif
