/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/twin.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>

/* Words of one of the two. */
static size_t words_of(const struct cstd_twin *twin)
{
    return 1 + twin->bytes / sizeof *twin->at + 1;
}

size_t cstd_twin_bytes(const struct cstd_twin *twin)
{
    return 2 * words_of(twin) * sizeof *twin->at;
}

static uint64_t checksum_of(const struct cstd_twin *twin, const uint64_t *entry)
{
    return XXH3_64bits(entry, (words_of(twin) - 1) * sizeof *entry);
}

/* The one that was written last; NULL: there is none. */
static const uint64_t *newest(const struct cstd_twin *twin)
{
    const uint64_t *best = NULL;

    for (size_t i = 0; i < 2; i++) {
        const uint64_t *entry = twin->at + i * words_of(twin);

        if (entry[0] != 0 && entry[words_of(twin) - 1] == checksum_of(twin, entry) &&
            (best == NULL || entry[0] > best[0])) {
            best = entry;
        }
    }
    return best;
}

const void *cstd_twin_newest(const struct cstd_twin *twin)
{
    const uint64_t *entry = newest(twin);

    return entry != NULL ? entry + 1 : NULL;
}

void cstd_twin_write(const struct cstd_twin *twin, const void *record)
{
    const uint64_t *last = newest(twin);
    const uint64_t number = last != NULL ? last[0] + 1 : 1;
    uint64_t *to = twin->at + number % 2 * words_of(twin);

    /* A killed process stops between two instructions, with all earlier stores made. The order of
     * the stores is therefore a matter of the compiler alone. */
    to[words_of(twin) - 1] = 0;
    atomic_signal_fence(memory_order_seq_cst);
    to[0] = number;
    memcpy(to + 1, record, twin->bytes);
    atomic_signal_fence(memory_order_seq_cst);
    to[words_of(twin) - 1] = checksum_of(twin, to);
    atomic_signal_fence(memory_order_seq_cst);
}
