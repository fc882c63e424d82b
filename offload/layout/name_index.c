/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/name_index.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* The folder links no library. */
#include <xxhash.h>

enum { MIN_SLOTS = 64 };

uint32_t cst_name_hash(const char *name, uint64_t seed)
{
    return (uint32_t)XXH3_64bits_withSeed(name, strlen(name), seed);
}

/* The slot that holds @name, whose hash is @hash, or the empty one where it would go. A name is
 * read only if its hash is equal: names lie far apart in memory. */
static uint32_t find_slot(const struct cst_name_index *names, const struct cst_model *model,
                          cst_name_fn name_of, const char *name, uint32_t hash)
{
    uint32_t mask = names->n_slots - 1;
    uint32_t at = hash & mask;

    while (names->slots[at].entry != CST_NO_NAME &&
           (names->slots[at].hash != hash ||
            strcmp(name_of(model, names->slots[at].entry), name) != 0)) {
        at = (at + 1) & mask;
    }
    return at;
}

uint32_t cst_name_index_find(const struct cst_name_index *names, const struct cst_model *model,
                             cst_name_fn name_of, const char *name)
{
    if (names->n_slots == 0) {
        return CST_NO_NAME;
    }
    return names->slots[find_slot(names, model, name_of, name, cst_name_hash(name, names->seed))]
        .entry;
}

/* Put @slot, whose name is in no slot of @names yet, into an empty one. */
static void place(struct cst_name_index *names, const struct cst_name_slot *slot)
{
    uint32_t mask = names->n_slots - 1;
    uint32_t at = slot->hash & mask;

    while (names->slots[at].entry != CST_NO_NAME) {
        at = (at + 1) & mask;
    }
    names->slots[at] = *slot;
}

/* Move all names to a table of @n_slots. CST_ENOMEM: nothing is changed. */
static int resize(struct cst_name_index *names, uint32_t n_slots)
{
    struct cst_name_index moved = {.n_slots = n_slots,
                                   .n_entries = names->n_entries,
                                   .seed = names->n_slots == 0 ? (uintptr_t)names : names->seed};

    moved.slots = malloc(n_slots * sizeof *moved.slots);
    if (moved.slots == NULL) {
        return CST_ENOMEM;
    }
    memset(moved.slots, 0xff, n_slots * sizeof *moved.slots);
    for (uint32_t i = 0; i < names->n_slots; i++) {
        if (names->slots[i].entry != CST_NO_NAME) {
            place(&moved, &names->slots[i]);
        }
    }
    free(names->slots);
    *names = moved;
    return CST_OK;
}

int cst_name_index_reserve(struct cst_name_index *names, uint32_t n)
{
    uint32_t n_slots = names->n_slots == 0 ? MIN_SLOTS : names->n_slots;

    while (2 * (names->n_entries + n) > n_slots) {
        n_slots *= 2;
    }
    return n_slots == names->n_slots ? CST_OK : resize(names, n_slots);
}

void cst_name_index_add(struct cst_name_index *names, const char *name)
{
    const struct cst_name_slot slot = {.entry = names->n_entries++,
                                       .hash = cst_name_hash(name, names->seed)};

    place(names, &slot);
}

/* Empty slot @at, and move names there that were put behind it because it was taken. */
static void clear(struct cst_name_index *names, uint32_t at)
{
    const uint32_t mask = names->n_slots - 1;

    for (uint32_t next = (at + 1) & mask; names->slots[next].entry != CST_NO_NAME;
         next = (next + 1) & mask) {
        if (((next - names->slots[next].hash) & mask) >= ((next - at) & mask)) {
            names->slots[at] = names->slots[next];
            at = next;
        }
    }
    names->slots[at].entry = CST_NO_NAME;
}

void cst_name_index_remove_last(struct cst_name_index *names, const char *name)
{
    const uint32_t mask = names->n_slots - 1, last = --names->n_entries;
    uint32_t at = cst_name_hash(name, names->seed) & mask;

    while (names->slots[at].entry != last) {
        at = (at + 1) & mask;
    }
    clear(names, at);
    if (names->n_slots > MIN_SLOTS && 8 * names->n_entries < names->n_slots) {
        (void)resize(names, names->n_slots / 2); /* Without memory the slots stay. */
    }
}

void cst_name_index_close(struct cst_name_index *names)
{
    free(names->slots);
    *names = (struct cst_name_index){0};
}
