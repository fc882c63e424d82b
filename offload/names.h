/* SPDX-License-Identifier: Apache-2.0 */
/* From names to numbers: an index over entries that somebody else keeps, numbered in order of
 * coming. Private to model.c. */
#ifndef CST_NAMES_H
#define CST_NAMES_H

#include "offload/layout.h"

#define CST_NO_NAME UINT32_MAX

/* Open addressing over the numbers of what is named; at most half full. Zeroed: empty. */
struct cst_names {
    uint32_t *slots;    /* number of the entry, CST_NO_NAME: empty; owned */
    uint32_t n_slots;   /* power of two, 0 before the first name */
    uint32_t n_entries; /* names in it */
};

/* The name of entry @i. */
typedef const char *(*cst_name_fn)(const struct cst_model *model, uint32_t i);

/* Number of the entry called @name, or CST_NO_NAME. */
uint32_t cst_names_find(const struct cst_names *names, const struct cst_model *model,
                        cst_name_fn name_of, const char *name);

/* Room for one more. CST_ENOMEM: nothing is changed. */
int cst_names_reserve(struct cst_names *names, const struct cst_model *model, cst_name_fn name_of);

/* Entry n_entries is called @name, which is new; there is room for it. */
void cst_names_add(struct cst_names *names, const struct cst_model *model, cst_name_fn name_of,
                   const char *name);

void cst_names_close(struct cst_names *names);

#endif
