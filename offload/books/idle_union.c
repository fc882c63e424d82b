/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/idle_union.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int cst_idle_union_open(struct cst_idle_union *out, uint32_t n_tensors)
{
    out->n_bytes = (n_tensors + 7) / 8;
    out->idle = calloc(1, out->n_bytes + 1);
    out->own = calloc(1, out->n_bytes + 1);
    return out->idle != NULL && out->own != NULL ? CST_OK : CST_ENOMEM;
}

void cst_idle_union_close(struct cst_idle_union *all)
{
    free(all->idle);
    free(all->own);
}

int cst_idle_union_take(struct cst_idle_union *all, uint32_t machine,
                        const struct cst_machine_message *what, struct cst_err *err)
{
    const struct cst_when when = cst_membership_when(what);
    int age = cst_when_compare(&when, &all->when);

    if (what->n_unused > all->n_bytes) {
        return cst_err_set(err, CST_EPROTO,
                           "machine %" PRIu32 " tells %" PRIu32
                           " bytes of tensors without a gradient, the tensors of this job take %zu",
                           machine, what->n_unused, all->n_bytes);
    }
    if (age < 0) {
        return CST_OK;
    }
    if (age > 0) {
        all->when = when;
        all->told = 0;
        memset(all->idle, 0xff, all->n_bytes);
    }
    all->told |= cst_machine_bit(machine);
    for (size_t i = 0; i < all->n_bytes; i++) {
        all->idle[i] &= i < what->n_unused ? what->unused[i] : 0;
    }
    return CST_OK;
}

void cst_idle_union_fill(const struct cst_idle_union *all, struct cst_machine_message *out)
{
    size_t n = all->n_bytes;

    while (n > 0 && all->own[n - 1] == 0) {
        n--;
    }
    out->unused = all->own;
    out->n_unused = (uint32_t)n;
}

bool cst_idle_union_has(const struct cst_idle_union *all, uint64_t machines,
                        const struct cst_when *when)
{
    return cst_when_compare(&all->when, when) == 0 && (machines & ~all->told) == 0;
}
