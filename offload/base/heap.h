/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of numbered items, the greatest key on top, in which an item's key can change.
 * O(log n) per operation. Memory is allocated in advance, so that put and remove cannot fail. */
#ifndef CST_HEAP_H
#define CST_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define CST_HEAP_OUT UINT32_MAX /* Place of an item that is in no heap. */

struct cst_heap_key {
    uint64_t major, minor; /* Compared in this order. */
};

struct cst_heap_item {
    struct cst_heap_key key;
    uint32_t id; /* Number of the item. */
};

struct cst_heap {
    struct cst_heap_item *v; /* Owned. */
    uint32_t n, capacity;    /* Items in the heap, and room for items. */
    /* Per id: its place in v, or CST_HEAP_OUT; borrowed. Heaps can share this array if each item is
     * in at most one of them. */
    uint32_t *at;
};

/* Allocate room for @capacity items. CST_ENOMEM: nothing is owned. */
int cst_heap_init(struct cst_heap *heap, uint32_t capacity, uint32_t *at);
/* Free the heap's items; the array of places is the caller's. */
void cst_heap_close(struct cst_heap *heap);

/* Grow to @capacity items, with @at as the new array of places, to which the caller has copied the
 * old one. CST_ENOMEM: the heap is unchanged. */
int cst_heap_grow(struct cst_heap *heap, uint32_t capacity, uint32_t *at);

/* Insert @id with @key, or change its key. */
void cst_heap_put(struct cst_heap *heap, uint32_t id, struct cst_heap_key key);

/* Remove @id, which must be in the heap. */
void cst_heap_remove(struct cst_heap *heap, uint32_t id);

/* The item with the greatest key; NULL: the heap is empty. Borrowed until the next change. */
const struct cst_heap_item *cst_heap_top(const struct cst_heap *heap);

/* True if all places are right and no item is above one with a greater key. For tests. */
bool cst_heap_check(const struct cst_heap *heap);

#endif
