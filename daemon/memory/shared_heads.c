/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/shared_heads.h"

#include "proto/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int cstd_shared_heads_add(struct cstd_shared_heads *heads, int fd, struct cst_err *err)
{
    struct cst_shared_head **v =
        realloc(heads->v, (heads->n + 1) * sizeof(struct cst_shared_head *));
    void *head;

    if (v == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of %u shared memories",
                           heads->n + 1);
    }
    heads->v = v;
    head = mmap(NULL, CST_SHARED_HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED) {
        return cst_err_errno(err, CST_ENOMEM, errno, "mmap of the head of a shared memory");
    }
    heads->v[heads->n++] = head;
    return CST_OK;
}

void cstd_shared_heads_end(struct cstd_shared_heads *heads, uint64_t attempt)
{
    if (attempt <= heads->over) {
        return;
    }
    heads->over = attempt;
    for (uint32_t i = 0; i < heads->n; i++) {
        cst_shared_end(heads->v[i], attempt);
    }
}

void cstd_shared_heads_close(struct cstd_shared_heads *heads)
{
    cstd_shared_heads_end(heads, UINT64_MAX);
    for (uint32_t i = 0; i < heads->n; i++) {
        (void)munmap(heads->v[i], CST_SHARED_HEAD_BYTES);
    }
    free(heads->v);
    memset(heads, 0, sizeof *heads);
}
