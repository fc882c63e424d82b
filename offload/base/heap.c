/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/base/heap.h"

#include "cistern/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int cst_heap_init(struct cst_heap *heap, uint32_t capacity, uint32_t *at)
{
    *heap = (struct cst_heap){
        .v = calloc(capacity + 1ul, sizeof *heap->v), .capacity = capacity, .at = at};
    return heap->v == NULL ? CST_ENOMEM : CST_OK;
}

void cst_heap_close(struct cst_heap *heap)
{
    free(heap->v);
    memset(heap, 0, sizeof *heap);
}

int cst_heap_grow(struct cst_heap *heap, uint32_t capacity, uint32_t *at)
{
    struct cst_heap_item *v = realloc(heap->v, (capacity + 1ul) * sizeof *v);

    if (v == NULL) {
        return CST_ENOMEM;
    }
    heap->v = v;
    heap->capacity = capacity;
    heap->at = at;
    return CST_OK;
}

static bool is_above(const struct cst_heap_key *a, const struct cst_heap_key *b)
{
    return a->major != b->major ? a->major > b->major : a->minor > b->minor;
}

static void set(struct cst_heap *heap, uint32_t i, const struct cst_heap_item *item)
{
    heap->v[i] = *item;
    heap->at[item->id] = i;
}

static void rise(struct cst_heap *heap, uint32_t i, struct cst_heap_item item)
{
    while (i > 0 && is_above(&item.key, &heap->v[(i - 1) / 2].key)) {
        set(heap, i, &heap->v[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    set(heap, i, &item);
}

static void sink(struct cst_heap *heap, uint32_t i, struct cst_heap_item item)
{
    uint32_t child;

    while ((child = 2 * i + 1) < heap->n) {
        child += child + 1 < heap->n && is_above(&heap->v[child + 1].key, &heap->v[child].key);
        if (!is_above(&heap->v[child].key, &item.key)) {
            break;
        }
        set(heap, i, &heap->v[child]);
        i = child;
    }
    set(heap, i, &item);
}

/* Put @item at index @i and move it up or down to its place. */
static void settle(struct cst_heap *heap, uint32_t i, struct cst_heap_item item)
{
    if (i > 0 && is_above(&item.key, &heap->v[(i - 1) / 2].key)) {
        rise(heap, i, item);
    } else {
        sink(heap, i, item);
    }
}

void cst_heap_put(struct cst_heap *heap, uint32_t id, struct cst_heap_key key)
{
    struct cst_heap_item item = {.key = key, .id = id};

    if (heap->at[id] == CST_HEAP_OUT) {
        assert(heap->n < heap->capacity);
        rise(heap, heap->n++, item);
    } else {
        settle(heap, heap->at[id], item);
    }
}

void cst_heap_remove(struct cst_heap *heap, uint32_t id)
{
    uint32_t i = heap->at[id];

    assert(i < heap->n && heap->v[i].id == id);
    heap->at[id] = CST_HEAP_OUT;
    if (i != --heap->n) {
        settle(heap, i, heap->v[heap->n]);
    }
}

const struct cst_heap_item *cst_heap_top(const struct cst_heap *heap)
{
    return heap->n == 0 ? NULL : &heap->v[0];
}

bool cst_heap_check(const struct cst_heap *heap)
{
    for (uint32_t i = 0; i < heap->n; i++) {
        if (heap->at[heap->v[i].id] != i ||
            (i > 0 && is_above(&heap->v[i].key, &heap->v[(i - 1) / 2].key))) {
            return false;
        }
    }
    return true;
}
