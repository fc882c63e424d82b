/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence in which a rank asked for weights and gradients: a training step, an evaluation, or
 * whatever came again. Looked up by what comes next. Knows nothing of time: trace.h does. */
#ifndef CST_PHASE_H
#define CST_PHASE_H

#include <stdbool.h>
#include <stdint.h>

#define CST_PHASE_NOWHERE UINT32_MAX

/* An entry: a chunk, and whether its gradient is opened (else its weights are fetched). */
#define CST_TRACE_ENTRY(chunk, grad) ((chunk) << 1 | ((grad) ? 1u : 0u))

#define CST_PHASE_SURE 255   /* chance of what comes each time */
#define CST_PHASE_LIKELY 128 /* chance from which on something is counted upon */

struct cst_phase {
    uint32_t n_chunks;
    uint32_t *entries; /* n; owned */
    uint8_t *chances;  /* per entry: that it comes, CST_PHASE_SURE: always; owned */
    uint32_t n;
    uint32_t *places; /* positions in entries, sorted by entry, then position; owned */
    uint32_t *first;  /* per value of an entry: where its positions begin in places; 2 x n_chunks +
                         1; owned */
    uint32_t follows; /* number of the phase that mostly comes after it */
    uint32_t n_followed; /* times that it came, less those that it did not; a few at most */
    uint64_t used;       /* when it was last found right; 0: the phase is empty */
    bool known;          /* it was seen, not declared */
    bool proved;         /* it was seen again */
    bool commits;        /* a commit ended it: no weights but frozen ones outlive it */
};

/* It becomes @n entries with their chances (NULL: all are sure), which are copied. CST_ENOMEM: it
 * is what it was. */
int cst_phase_set(struct cst_phase *phase, uint32_t n_chunks, const uint32_t *entries,
                  const uint8_t *chances, uint32_t n);
void cst_phase_close(struct cst_phase *phase);

/* First place of @entry at @from or behind it, or CST_PHASE_NOWHERE. O(log of its places). */
uint32_t cst_phase_find(const struct cst_phase *phase, uint32_t entry, uint32_t from);

/* The same among the places where it is likely to come. */
uint32_t cst_phase_find_likely(const struct cst_phase *phase, uint32_t entry, uint32_t from);

/* True if it is made of these entries. */
bool cst_phase_equals(const struct cst_phase *phase, const uint32_t *entries, uint32_t n);

#endif
