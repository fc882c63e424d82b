/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/idle_union.h"

#include "offload/books/block.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int cst_idle_union_open(struct cst_idle_union *out, uint32_t n_tensors)
{
    out->n_bytes = (n_tensors + 7) / 8;
    out->idle = calloc(1, out->n_bytes + 1);
    out->discarded = calloc(1, out->n_bytes + 1);
    out->own_idle = calloc(1, out->n_bytes + 1);
    out->own_discarded = calloc(1, out->n_bytes + 1);
    return out->idle != NULL && out->discarded != NULL && out->own_idle != NULL &&
                   out->own_discarded != NULL
               ? CST_OK
               : CST_ENOMEM;
}

void cst_idle_union_close(struct cst_idle_union *all)
{
    free(all->idle);
    free(all->discarded);
    free(all->own_idle);
    free(all->own_discarded);
}

int cst_idle_union_take(struct cst_idle_union *all, uint32_t machine,
                        const struct cst_machine_message *what, struct cst_err *err)
{
    const struct cst_when when = cst_membership_when(what);
    int age = cst_when_compare(&when, &all->when);

    if (what->n_unused > all->n_bytes || what->n_discarded > all->n_bytes) {
        return cst_err_set(err, CST_EPROTO,
                           "machine %" PRIu32 " tells %" PRIu32 " and %" PRIu32
                           " bytes of tensors without a gradient, the tensors of this job take %zu",
                           machine, what->n_unused, what->n_discarded, all->n_bytes);
    }
    if (age < 0) {
        return CST_OK;
    }
    if (age > 0) {
        all->when = when;
        all->told = 0;
        memset(all->idle, 0xff, all->n_bytes);
        memset(all->discarded, 0, all->n_bytes);
    }
    all->told |= cst_machine_bit(machine);
    for (size_t i = 0; i < all->n_bytes; i++) {
        all->idle[i] &= i < what->n_unused ? what->unused[i] : 0;
        all->discarded[i] |= i < what->n_discarded ? what->discarded[i] : 0;
    }
    return CST_OK;
}

/* The number of bytes of @bits up to the last one that is not 0. */
static uint32_t count_bytes(const struct cst_idle_union *all, const uint8_t *bits)
{
    size_t n = all->n_bytes;

    while (n > 0 && bits[n - 1] == 0) {
        n--;
    }
    return (uint32_t)n;
}

void cst_idle_union_fill(const struct cst_idle_union *all, struct cst_machine_message *out)
{
    out->unused = all->own_idle;
    out->n_unused = count_bytes(all, all->own_idle);
    out->discarded = all->own_discarded;
    out->n_discarded = count_bytes(all, all->own_discarded);
}

bool cst_idle_union_has(const struct cst_idle_union *all, uint64_t machines,
                        const struct cst_when *when)
{
    return cst_when_compare(&all->when, when) == 0 && (machines & ~all->told) == 0;
}

uint32_t cst_idle_union_find_mixed(const struct cst_idle_union *all)
{
    for (size_t i = 0; i < all->n_bytes; i++) {
        unsigned mixed = all->discarded[i] & ~all->idle[i] & 0xffu;

        if (mixed != 0) {
            return (uint32_t)(8 * i) + (uint32_t)__builtin_ctz(mixed);
        }
    }
    return CST_NONE;
}
