/* SPDX-License-Identifier: Apache-2.0 */
/* An index from names to numbers, for entries that the caller keeps, numbered in order of
 * insertion. Private to model.c, model_forget.c and external.c. */
#ifndef CST_NAME_INDEX_H
#define CST_NAME_INDEX_H

#include "offload/layout/layout.h"

#define CST_NO_NAME UINT32_MAX

struct cst_name_slot {
    uint32_t entry; /* Number of the entry; CST_NO_NAME: the slot is empty. */
    uint32_t hash;  /* Hash of the entry's name. */
};

/* Hash table of numbers with open addressing, at most half full. Empty if zeroed. */
struct cst_name_index {
    struct cst_name_slot *slots; /* Owned. */
    uint32_t n_slots;            /* A power of two; 0 before the first name. */
    uint32_t n_entries;          /* Number of names in the index. */
    /* Seed of the hashes: an address. Clients choose the names, and could choose names with equal
     * hashes if they knew it. */
    uint64_t seed;
};

/* Hash of @name. Names with equal hashes can differ. */
uint32_t cst_name_hash(const char *name, uint64_t seed);

/* Returns the name of entry @i. */
typedef const char *(*cst_name_fn)(const struct cst_model *model, uint32_t i);

/* Number of the entry with the name @name, or CST_NO_NAME. */
uint32_t cst_name_index_find(const struct cst_name_index *names, const struct cst_model *model,
                             cst_name_fn name_of, const char *name);

/* Make room for @n more names. CST_ENOMEM: nothing is changed. */
int cst_name_index_reserve(struct cst_name_index *names, uint32_t n);

/* Add @name, which is new, as the name of entry n_entries. Room must have been reserved. */
void cst_name_index_add(struct cst_name_index *names, const char *name);

/* Remove @name, which is the name of the last entry. If few names are left, slots are freed. */
void cst_name_index_remove_last(struct cst_name_index *names, const char *name);

/* Free the index. */
void cst_name_index_close(struct cst_name_index *names);

#endif
