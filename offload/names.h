/* SPDX-License-Identifier: Apache-2.0 */
/* An index from names to numbers, for entries that the caller keeps, numbered in order of
 * insertion. Private to model.c. */
#ifndef CST_NAMES_H
#define CST_NAMES_H

#include "offload/layout.h"

#define CST_NO_NAME UINT32_MAX

/* Hash table of numbers with open addressing, at most half full. Empty if zeroed. */
struct cst_names {
    uint32_t *slots;    /* Number of the entry, or CST_NO_NAME; owned. */
    uint32_t n_slots;   /* A power of two; 0 before the first name. */
    uint32_t n_entries; /* Number of names in the index. */
};

/* Returns the name of entry @i. */
typedef const char *(*cst_name_fn)(const struct cst_model *model, uint32_t i);

/* Number of the entry with the name @name, or CST_NO_NAME. */
uint32_t cst_names_find(const struct cst_names *names, const struct cst_model *model,
                        cst_name_fn name_of, const char *name);

/* Make room for one more name. CST_ENOMEM: nothing is changed. */
int cst_names_reserve(struct cst_names *names, const struct cst_model *model, cst_name_fn name_of);

/* Add @name, which is new, as the name of entry n_entries. Room must have been reserved. */
void cst_names_add(struct cst_names *names, const struct cst_model *model, cst_name_fn name_of,
                   const char *name);

/* Free the index. */
void cst_names_close(struct cst_names *names);

#endif
