/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/name_index.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a. */
static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619u;
    }
    return h;
}

/* The slot that holds @name, or the empty one where it would go. */
static uint32_t find_slot(const struct cst_name_index *names, const struct cst_model *model,
                          cst_name_fn name_of, const char *name)
{
    uint32_t mask = names->n_slots - 1;
    uint32_t at = hash_name(name) & mask;

    while (names->slots[at] != CST_NO_NAME && strcmp(name_of(model, names->slots[at]), name) != 0) {
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
    return names->slots[find_slot(names, model, name_of, name)];
}

int cst_name_index_reserve(struct cst_name_index *names, const struct cst_model *model,
                           cst_name_fn name_of, uint32_t n)
{
    struct cst_name_index grown = {.n_slots = names->n_slots == 0 ? 64 : names->n_slots,
                                   .n_entries = names->n_entries};

    while (2 * (names->n_entries + n) > grown.n_slots) {
        grown.n_slots *= 2;
    }
    if (grown.n_slots == names->n_slots) {
        return CST_OK;
    }
    grown.slots = malloc(grown.n_slots * sizeof *grown.slots);
    if (grown.slots == NULL) {
        return CST_ENOMEM;
    }
    memset(grown.slots, 0xff, grown.n_slots * sizeof *grown.slots);
    for (uint32_t i = 0; i < names->n_entries; i++) {
        grown.slots[find_slot(&grown, model, name_of, name_of(model, i))] = i;
    }
    free(names->slots);
    *names = grown;
    return CST_OK;
}

void cst_name_index_add(struct cst_name_index *names, const struct cst_model *model,
                        cst_name_fn name_of, const char *name)
{
    names->slots[find_slot(names, model, name_of, name)] = names->n_entries;
    names->n_entries++;
}

void cst_name_index_close(struct cst_name_index *names)
{
    free(names->slots);
    *names = (struct cst_name_index){0};
}
