/* SPDX-License-Identifier: Apache-2.0 */
/* A heap of numbered things, the greatest key on top, in which a thing's key can change: O(log n)
 * each. Room is made at the beginning, so nothing fails later. */
#ifndef CST_HEAP_H
#define CST_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define CST_HEAP_OUT UINT32_MAX /* in no heap */

struct cst_heap_key {
    uint64_t major, minor; /* compared in this order */
};

struct cst_heap_item {
    struct cst_heap_key key;
    uint32_t id; /* of the thing */
};

struct cst_heap {
    struct cst_heap_item *v; /* owned */
    uint32_t n, capacity;    /* items */
    uint32_t *at; /* per id: its place in v, CST_HEAP_OUT: none; borrowed. Heaps may share it, each
                     thing being in one of them at most */
};

/* Room for @capacity things. CST_ENOMEM: nothing is owned. */
int cst_heap_init(struct cst_heap *heap, uint32_t capacity, uint32_t *at);
void cst_heap_close(struct cst_heap *heap);

/* Room for more: @capacity things, whose places are in @at from now on, which has the old ones'.
 * CST_ENOMEM: it is as it was. */
int cst_heap_grow(struct cst_heap *heap, uint32_t capacity, uint32_t *at);

/* Put @id in with @key, or change its key if it is in. */
void cst_heap_put(struct cst_heap *heap, uint32_t id, struct cst_heap_key key);

/* Take @id, which is in it, out. */
void cst_heap_remove(struct cst_heap *heap, uint32_t id);

/* The item with the greatest key, NULL: it is empty. Borrowed until the next change. */
const struct cst_heap_item *cst_heap_top(const struct cst_heap *heap);

/* True if every item is where at says and none is above a greater one. For tests. */
bool cst_heap_check(const struct cst_heap *heap);

#endif
