/* SPDX-License-Identifier: Apache-2.0 */
/* A phase: a sequence in which a rank asks for weights and gradients, such as a training step or an
 * evaluation. Answers what comes next. Knows nothing about time (trace.h does). */
#ifndef CST_PHASE_H
#define CST_PHASE_H

#include <stdbool.h>
#include <stdint.h>

#define CST_PHASE_NOWHERE UINT32_MAX

/* An entry of a phase: a chunk, and whether its gradient is opened (else its weights are
 * fetched). */
#define CST_TRACE_ENTRY(chunk, grad) ((chunk) << 1 | ((grad) ? 1u : 0u))

#define CST_PHASE_SURE 255   /* Chance of an entry that always comes. */
#define CST_PHASE_LIKELY 128 /* Smallest chance of an entry that is expected. */

struct cst_phase {
    uint32_t n_chunks;
    uint32_t *entries; /* The n entries; owned. */
    uint8_t *chances;  /* Per entry: the chance that it comes, CST_PHASE_SURE: always; owned. */
    uint32_t n;
    uint32_t *places; /* Positions in `entries`, sorted by entry, then by position; owned. */
    /* Per value of an entry: start of its positions in `places`; 2 x n_chunks + 1 numbers;
     * owned. */
    uint32_t *first;
    uint32_t follows; /* Number of the phase that mostly follows this one. */
    /* Times that `follows` came next minus times that it did not; limited to a small number. */
    uint32_t n_followed;
    /* Value of the trace's clock when the phase last matched; 0: the phase is empty. */
    uint64_t used;
    bool known;   /* The phase was observed, not only declared. */
    bool proved;  /* The phase was observed again. */
    bool commits; /* The phase ended with a commit: only frozen weights remain valid after it. */
};

/* Set the phase to copies of @n entries and their chances (NULL: all are sure). CST_ENOMEM: the
 * phase is unchanged. */
int cst_phase_set(struct cst_phase *phase, uint32_t n_chunks, const uint32_t *entries,
                  const uint8_t *chances, uint32_t n);
/* Free the phase and reset it to an empty one. */
void cst_phase_close(struct cst_phase *phase);

/* First position of @entry at or after @from, or CST_PHASE_NOWHERE. O(log n). */
uint32_t cst_phase_find(const struct cst_phase *phase, uint32_t entry, uint32_t from);

/* First position of @entry at or after @from where it is likely to come, or CST_PHASE_NOWHERE. */
uint32_t cst_phase_find_likely(const struct cst_phase *phase, uint32_t entry, uint32_t from);

/* True if the phase consists of exactly these entries; false if @n is 0. */
bool cst_phase_equals(const struct cst_phase *phase, const uint32_t *entries, uint32_t n);

#endif
