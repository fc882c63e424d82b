/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/phase.h"

#include "cistern/status.h"

#include <stdlib.h>
#include <string.h>

/* Counting sort of positions by entry. */
static void sort_places(struct cst_phase *phase)
{
    uint32_t n = 2 * phase->n_chunks;

    for (uint32_t i = 0; i < phase->n; i++) {
        phase->first[phase->entries[i] + 1]++;
    }
    for (uint32_t e = 0; e < n; e++) {
        phase->first[e + 1] += phase->first[e];
    }
    for (uint32_t i = 0; i < phase->n; i++) {
        phase->places[phase->first[phase->entries[i]]++] = i;
    }
    /* Each start was advanced to the next one, so shift them back. */
    memmove(phase->first + 1, phase->first, n * sizeof *phase->first);
    phase->first[0] = 0;
}

int cst_phase_set(struct cst_phase *phase, uint32_t n_chunks, const uint32_t *entries,
                  const uint8_t *chances, uint32_t n)
{
    struct cst_phase made = *phase;

    made.n = n;
    made.n_chunks = n_chunks;
    made.entries = malloc((n + 1ul) * sizeof *made.entries);
    made.chances = malloc(n + 1ul);
    made.places = malloc((n + 1ul) * sizeof *made.places);
    made.first = calloc(2ul * n_chunks + 1, sizeof *made.first);
    if (made.entries == NULL || made.chances == NULL || made.places == NULL || made.first == NULL) {
        cst_phase_close(&made);
        return CST_ENOMEM;
    }
    if (n > 0) {
        memcpy(made.entries, entries, n * sizeof *entries);
    }
    if (n > 0 && chances != NULL) {
        memcpy(made.chances, chances, n);
    } else {
        memset(made.chances, CST_PHASE_SURE, n);
    }
    sort_places(&made);
    cst_phase_close(phase);
    *phase = made;
    return CST_OK;
}

void cst_phase_close(struct cst_phase *phase)
{
    free(phase->entries);
    free(phase->chances);
    free(phase->places);
    free(phase->first);
    *phase = (struct cst_phase){0};
}

/* Index in `places` of the first position of @entry at or after @from; or where it would be. */
static uint32_t search(const struct cst_phase *phase, uint32_t entry, uint32_t from)
{
    uint32_t low = phase->first[entry];
    uint32_t high = phase->first[entry + 1];

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (phase->places[middle] < from) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t cst_phase_find(const struct cst_phase *phase, uint32_t entry, uint32_t from)
{
    uint32_t i = phase->n == 0 ? 0 : search(phase, entry, from);

    return phase->n == 0 || i == phase->first[entry + 1] ? CST_PHASE_NOWHERE : phase->places[i];
}

uint32_t cst_phase_find_likely(const struct cst_phase *phase, uint32_t entry, uint32_t from)
{
    uint32_t i = phase->n == 0 ? 0 : search(phase, entry, from);

    while (phase->n > 0 && i < phase->first[entry + 1]) {
        if (phase->chances[phase->places[i]] >= CST_PHASE_LIKELY) {
            return phase->places[i];
        }
        i++;
    }
    return CST_PHASE_NOWHERE;
}

bool cst_phase_equals(const struct cst_phase *phase, const uint32_t *entries, uint32_t n)
{
    return n > 0 && phase->n == n && memcmp(phase->entries, entries, n * sizeof *entries) == 0;
}
