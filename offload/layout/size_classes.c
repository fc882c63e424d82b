/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/size_classes.h"

#include "proto/round_up.h"

#include <stdlib.h>
#include <string.h>

/* The first class serves at least this part of the elements: one in COMMON_SHARE. */
#define COMMON_SHARE 10

#define MAX_FURTHER (CST_LAYOUT_MAX_CLASSES - 1)

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x < y) - (x > y);
}

int cst_size_classes_least(const struct cst_packing *packing, uint64_t *out)
{
    uint32_t n = packing->n_items, last = 0, n_sizes = 1;
    uint64_t *sizes = malloc(n * sizeof *sizes), left = 0;

    if (sizes == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        sizes[i] = cst_round_up(packing->items[i].n_places, CST_LAYOUT_CAPACITY_STEP);
        left += sizes[i];
    }
    qsort(sizes, n, sizeof *sizes, descending);
    for (uint32_t i = 1; i < n && n_sizes <= CST_SIZE_CLASSES_MAX; i++) {
        left -= sizes[i - 1];
        if (left < packing->n_places / COMMON_SHARE) {
            break;
        }
        if (sizes[i] != sizes[i - 1]) { /* The i items before this one are larger. */
            last = i;
            n_sizes++;
        }
    }
    *out = sizes[last];
    free(sizes);
    return CST_OK;
}

/* Count @size. False: there are too many different sizes, and *out is incomplete. */
static bool add_size(struct cst_size_classes *out, uint64_t size)
{
    uint32_t low = 0, high = out->n;

    while (low < high) { /* Binary search for the first size that is not larger. */
        uint32_t middle = (low + high) / 2;

        if (out->size[middle] > size) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < out->n && out->size[low] == size) {
        out->count[low]++;
        return true;
    }
    if (out->n == CST_SIZE_CLASSES_MAX) {
        return false;
    }
    memmove(out->size + low + 1, out->size + low, (out->n - low) * sizeof *out->size);
    memmove(out->count + low + 1, out->count + low, (out->n - low) * sizeof *out->count);
    out->size[low] = size;
    out->count[low] = 1;
    out->n++;
    return true;
}

static bool find_rounded(struct cst_size_classes *out, const struct cst_packing *packing,
                         uint64_t above, uint64_t step)
{
    bool few = true;

    out->n = 0;
    for (uint32_t i = 0; i < packing->n_items && few; i++) {
        uint64_t size = cst_round_up(packing->items[i].n_places, step);

        if (packing->items[i].n_places > above) {
            few = add_size(out,
                           size < CST_LAYOUT_MAX_CHUNK_ELEMS ? size : CST_LAYOUT_MAX_CHUNK_ELEMS);
        }
    }
    return few;
}

void cst_size_classes_find(struct cst_size_classes *out, const struct cst_packing *packing,
                           uint64_t above)
{
    uint64_t step = CST_LAYOUT_CAPACITY_STEP;

    /* Round up to larger and larger steps until there are few enough sizes. */
    while (!find_rounded(out, packing, above, step)) {
        step *= 2;
    }
}

/* Dynamic programming. best[k][j]: the least waste of k + 1 classes for the j largest sizes;
 * from[k][j]: the largest size of the last of these classes, as an index. */
struct fits {
    uint64_t best[MAX_FURTHER][CST_SIZE_CLASSES_MAX + 1];
    uint32_t from[MAX_FURTHER][CST_SIZE_CLASSES_MAX + 1];
};

static void fit_first(const struct cst_size_classes *o, uint32_t m, struct fits *fits)
{
    uint64_t waste = 0;

    for (uint32_t j = 1; j <= m; j++) {
        waste += o->count[j - 1] * (o->size[0] - o->size[j - 1]);
        fits->best[0][j] = waste;
        fits->from[0][j] = 0;
    }
}

/* Compute best[k] and from[k] for k + 1 classes: the last class has the sizes from i on. */
static void fit_further(const struct cst_size_classes *o, uint32_t m, uint32_t k, struct fits *fits)
{
    for (uint32_t j = 1; j <= m; j++) {
        fits->best[k][j] = fits->best[k - 1][j];
        fits->from[k][j] = UINT32_MAX; /* As good as one class less. */
    }
    for (uint32_t i = 1; i < m; i++) {
        uint64_t waste = fits->best[k - 1][i];

        for (uint32_t j = i + 1; j <= m; j++) {
            waste += o->count[j - 1] * (o->size[i] - o->size[j - 1]);
            if (waste < fits->best[k][j]) {
                fits->best[k][j] = waste;
                fits->from[k][j] = i;
            }
        }
    }
}

void cst_size_classes_fit(const struct cst_size_classes *outliers, uint64_t first,
                          uint32_t max_classes, uint64_t price, struct cst_sizes *sizes_out)
{
    uint32_t m = 0, n = 0, k = 0;
    struct fits fits;

    *sizes_out = (struct cst_sizes){.v = {first}, .n = 1};
    while (m < outliers->n && outliers->size[m] > first) {
        m++;
    }
    if (m == 0) {
        return;
    }
    fit_first(outliers, m, &fits);
    for (uint32_t i = 1; i + 1 < max_classes && i < m; i++) {
        fit_further(outliers, m, i, &fits);
        if (fits.best[i][m] + i * price < fits.best[k][m] + k * price) {
            k = i;
        }
    }
    /* Go back from the last class, which is the smallest and comes first in *sizes_out. */
    for (uint32_t j = m;; k--) {
        uint32_t i = fits.from[k][j];

        if (i != UINT32_MAX) {
            sizes_out->v[++n] = outliers->size[i];
            j = i;
        }
        if (k == 0) {
            break;
        }
    }
    sizes_out->n = n + 1;
}
