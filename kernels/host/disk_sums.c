/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/disk_sums.h"

#include <stdlib.h>
#include <string.h>

/* Returns the number of the first entry that ends behind @at. */
static uint32_t first_behind(const struct cste_disk_sums *sums, uint64_t at)
{
    uint32_t low = 0, high = sums->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (sums->v[middle].at + sums->v[middle].bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void replace(struct cste_disk_sums *sums, uint32_t first, uint32_t n_old, uint32_t n_new)
{
    memmove(sums->v + first + n_new, sums->v + first + n_old,
            (sums->n - first - n_old) * sizeof *sums->v);
    sums->n += n_new - n_old;
}

/* Make room for one more entry. Returns whether there is some. */
static bool grow(struct cste_disk_sums *sums)
{
    uint32_t capacity = sums->capacity == 0 ? 64 : 2 * sums->capacity;
    struct cste_disk_sum *more;

    if (sums->n < sums->capacity) {
        return true;
    }
    more = realloc(sums->v, capacity * sizeof *more);
    if (more == NULL) {
        return false;
    }
    sums->v = more;
    sums->capacity = capacity;
    return true;
}

void cste_disk_sums_forget(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes)
{
    uint32_t first, n = 0;

    (void)pthread_mutex_lock(&sums->lock);
    first = first_behind(sums, at);
    while (first + n < sums->n && sums->v[first + n].at < at + bytes) {
        n++;
    }
    if (n > 0) {
        replace(sums, first, n, 0);
    }
    (void)pthread_mutex_unlock(&sums->lock);
}

void cste_disk_sums_keep(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes, uint64_t sum)
{
    uint32_t i;

    (void)pthread_mutex_lock(&sums->lock);
    if (grow(sums)) {
        i = first_behind(sums, at);
        replace(sums, i, 0, 1);
        sums->v[i] = (struct cste_disk_sum){.at = at, .bytes = bytes, .sum = sum};
    }
    (void)pthread_mutex_unlock(&sums->lock);
}

bool cste_disk_sums_find(struct cste_disk_sums *sums, uint64_t at, uint64_t bytes, uint64_t *sum)
{
    bool found;
    uint32_t i;

    (void)pthread_mutex_lock(&sums->lock);
    i = first_behind(sums, at);
    found = i < sums->n && sums->v[i].at == at && sums->v[i].bytes == bytes;
    if (found) {
        *sum = sums->v[i].sum;
    }
    (void)pthread_mutex_unlock(&sums->lock);
    return found;
}
