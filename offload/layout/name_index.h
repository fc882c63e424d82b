/* SPDX-License-Identifier: Apache-2.0 */
/* An index from names to numbers, for entries that the caller keeps, numbered in order of
 * insertion. Private to model.c and external.c. */
#ifndef CST_NAME_INDEX_H
#define CST_NAME_INDEX_H

#include "offload/layout/layout.h"

#define CST_NO_NAME UINT32_MAX

/* Hash table of numbers with open addressing, at most half full. Empty if zeroed. */
struct cst_name_index {
    uint32_t *slots;    /* Number of the entry, or CST_NO_NAME; owned. */
    uint32_t n_slots;   /* A power of two; 0 before the first name. */
    uint32_t n_entries; /* Number of names in the index. */
};

/* Returns the name of entry @i. */
typedef const char *(*cst_name_fn)(const struct cst_model *model, uint32_t i);

/* Number of the entry with the name @name, or CST_NO_NAME. */
uint32_t cst_name_index_find(const struct cst_name_index *names, const struct cst_model *model,
                             cst_name_fn name_of, const char *name);

/* Make room for @n more names. CST_ENOMEM: nothing is changed. */
int cst_name_index_reserve(struct cst_name_index *names, const struct cst_model *model,
                           cst_name_fn name_of, uint32_t n);

/* Add @name, which is new, as the name of entry n_entries. Room must have been reserved. */
void cst_name_index_add(struct cst_name_index *names, const struct cst_model *model,
                        cst_name_fn name_of, const char *name);

/* Free the index. */
void cst_name_index_close(struct cst_name_index *names);

#endif
