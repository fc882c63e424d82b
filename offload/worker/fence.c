/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/worker/fence.h"

#include <stdlib.h>
#include <string.h>

/* The capacity assumes that at most these items wait for each chunk:
 *   - one RELEASE of its weights, because it is taken back before the weights are fetched again,
 *   - one EVICT after that RELEASE, because an EVICT of any other chunk is sent at once,
 *   - one REDUCE_SCATTER, because a gradient is handed in once per micro-batch, and no gradient is
 *     fetched while an ACCUMULATE waits. */
int cst_fence_init(struct cst_fences *fences, uint32_t n_chunks, uint32_t micro_batches,
                   struct cst_err *err)
{
    uint32_t capacity = 3 * n_chunks + micro_batches;

    *fences = (struct cst_fences){.capacity = capacity};
    fences->waiting = calloc(capacity + 1ul, sizeof *fences->waiting);
    fences->passed = calloc(capacity + 1ul, sizeof *fences->passed);
    if (fences->waiting == NULL || fences->passed == NULL) {
        cst_fence_close(fences);
        return cst_err_set(err, CST_ENOMEM, "no memory for the fences of %u chunks", n_chunks);
    }
    return CST_OK;
}

void cst_fence_close(struct cst_fences *fences)
{
    free(fences->waiting);
    free(fences->passed);
    *fences = (struct cst_fences){0};
}

static bool is_given_back(const struct cst_lease_item *item)
{
    return item->kind == CST_LEASE_RELEASE || item->kind == CST_LEASE_REDUCE_SCATTER ||
           item->kind == CST_LEASE_ACCUMULATE;
}

bool cst_fence_is_needed(const struct cst_leases *leases)
{
    for (uint32_t i = 0; i < leases->n_items; i++) {
        if (is_given_back(&leases->items[i])) {
            return true;
        }
    }
    return false;
}

/* Remove @n items from index @at on. */
static void cut(struct cst_fences *fences, uint32_t at, uint32_t n)
{
    fences->n -= n;
    memmove(fences->waiting + at, fences->waiting + at + n,
            (fences->n - at) * sizeof *fences->waiting);
}

/* Return the index of the waiting item of @kind on @chunk; fences->n if there is none. */
static uint32_t find(const struct cst_fences *fences, enum cst_lease_kind kind, uint32_t chunk)
{
    uint32_t i = 0;

    while (i < fences->n &&
           (fences->waiting[i].item.kind != kind || fences->waiting[i].item.chunk != chunk)) {
        i++;
    }
    return i;
}

static bool take_back(struct cst_fences *fences, struct cst_leases *leases,
                      const struct cst_lease_item *fetch)
{
    uint32_t release = find(fences, CST_LEASE_RELEASE, fetch->chunk), evict;

    if (fetch->kind != CST_LEASE_FETCH_WEIGHT || release == fences->n) {
        return false;
    }
    /* The weights are still in the block of the old lease. */
    cst_lease_grant(leases, fetch, &fences->waiting[release].item.lease, true);
    cut(fences, release, 1);
    evict = find(fences, CST_LEASE_EVICT, fetch->chunk);
    if (evict < fences->n) {
        cut(fences, evict, 1);
    }
    return true;
}

void cst_fence_take_back(struct cst_fences *fences, struct cst_leases *leases)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < leases->n_items; i++) {
        if (!take_back(fences, leases, &leases->items[i])) {
            leases->items[n++] = leases->items[i];
        }
    }
    leases->n_items = n;
}

/* An EVICT waits only after the RELEASE of its chunk, and once. */
static bool must_wait(const struct cst_fences *fences, const struct cst_lease_item *item)
{
    return is_given_back(item) || (item->kind == CST_LEASE_EVICT &&
                                   find(fences, CST_LEASE_RELEASE, item->chunk) < fences->n);
}

void cst_fence_hold(struct cst_fences *fences, struct cst_leases *leases, uint64_t fence)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < leases->n_items; i++) {
        const struct cst_lease_item *item = &leases->items[i];

        if (!must_wait(fences, item)) {
            leases->items[n++] = *item;
        } else if (item->kind != CST_LEASE_EVICT ||
                   find(fences, CST_LEASE_EVICT, item->chunk) == fences->n) {
            fences->waiting[fences->n++] = (struct cst_fence_item){.fence = fence, .item = *item};
            fences->n_turns += item->kind == CST_LEASE_ACCUMULATE;
        }
    }
    leases->n_items = n;
}

const struct cst_lease_item *cst_fence_pass(struct cst_fences *fences, uint64_t passed,
                                            uint32_t *n_out)
{
    uint32_t n = 0;

    while (n < fences->n && fences->waiting[n].fence <= passed) {
        fences->passed[n] = fences->waiting[n].item;
        fences->n_turns -= fences->passed[n].kind == CST_LEASE_ACCUMULATE;
        n++;
    }
    cut(fences, 0, n);
    *n_out = n;
    return fences->passed;
}

void cst_fence_drop(struct cst_fences *fences)
{
    fences->n = fences->n_turns = 0;
}
