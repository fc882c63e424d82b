/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/history.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { FEW = 64 }; /* Entries that are allocated first. */

uint64_t cstd_history_bytes(void)
{
    return CSTD_HISTORY_ENTRIES * sizeof(struct cstd_history_entry);
}

void cstd_history_close(struct cstd_history *history)
{
    free(history->entries);
    *history = (struct cstd_history){.entries = NULL};
}

static struct cstd_history_entry entry_of(const struct cstd_history_step *step)
{
    const bool has_loss = isfinite(step->loss) && step->loss != 0;
    const bool has_norm = isfinite(step->grad_norm);

    return (struct cstd_history_entry){.first = step->step,
                                       .n_steps = 1,
                                       .n_skipped = step->n_skipped,
                                       .n_losses = has_loss,
                                       .n_norms = has_norm,
                                       .ended_ns = step->ended_ns,
                                       .ns = step->ns,
                                       .exposed_ns = step->exposed_ns,
                                       .tokens = step->tokens,
                                       .losses = has_loss ? step->loss : 0,
                                       .norms = has_norm ? step->grad_norm : 0};
}

/* Add the steps of @next, which follow those of @entry, to @entry. */
static void merge(struct cstd_history_entry *entry, const struct cstd_history_entry *next)
{
    entry->n_steps += next->n_steps;
    entry->n_skipped += next->n_skipped;
    entry->n_losses += next->n_losses;
    entry->n_norms += next->n_norms;
    entry->ended_ns = next->ended_ns;
    entry->ns += next->ns;
    entry->exposed_ns += next->exposed_ns;
    entry->tokens += next->tokens;
    entry->losses += next->losses;
    entry->norms += next->norms;
}

/* Merge each two neighbours. All entries are complete. */
static void halve(struct cstd_history *history)
{
    for (uint32_t i = 0; i < history->n / 2; i++) {
        struct cstd_history_entry entry = history->entries[2 * i];

        merge(&entry, &history->entries[2 * i + 1]);
        history->entries[i] = entry;
    }
    history->n /= 2;
    history->stride *= 2;
}

static bool grow(struct cstd_history *history)
{
    const uint32_t capacity = history->capacity == 0 ? FEW : 2 * history->capacity;
    struct cstd_history_entry *more = realloc(history->entries, capacity * sizeof *more);

    if (more != NULL) {
        history->entries = more;
        history->capacity = capacity;
    }
    return more != NULL;
}

/* Make room for one more entry. */
static bool reserve(struct cstd_history *history)
{
    if (history->n == CSTD_HISTORY_ENTRIES) {
        halve(history);
    }
    return history->n < history->capacity || grow(history);
}

void cstd_history_add(struct cstd_history *history, const struct cstd_history_step *step)
{
    const struct cstd_history_entry entry = entry_of(step);
    struct cstd_history_entry *last = history->n > 0 ? &history->entries[history->n - 1] : NULL;

    if (last != NULL && step->step != last->first + last->n_steps) {
        cstd_history_close(history);
        last = NULL;
    }
    if (history->stride == 0) {
        history->stride = 1;
    }
    if (last != NULL && last->n_steps < history->stride) {
        merge(last, &entry);
    } else if (reserve(history)) {
        history->entries[history->n++] = entry;
    } else {
        cstd_history_close(history);
    }
}

uint32_t cstd_history_find(const struct cstd_history *history, uint64_t step)
{
    uint32_t low = 0, high = history->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (history->entries[middle].first < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
