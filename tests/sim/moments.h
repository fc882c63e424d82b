/* SPDX-License-Identifier: Apache-2.0 */
/* What will happen in a cluster, in order of time, and at the same time in the order in which it
 * was said. */
#ifndef SIM_MOMENTS_H
#define SIM_MOMENTS_H

#include <stddef.h>
#include <stdint.h>

enum moment_kind { MOMENT_DONE, MOMENT_GO, MOMENT_COMPUTED, MOMENT_DEATH, MOMENT_RETURN };

struct moment {
    uint64_t at;    /* ns */
    uint64_t order; /* of those at the same time; moments_push's */
    enum moment_kind kind;
    uint32_t node, rank;
    uint64_t what; /* DONE: the ticket; GO, COMPUTED: the rank's turn */
};

/* All zero: none. */
struct moments {
    struct moment *v; /* a heap, the first on top; owned */
    size_t n, capacity;
    uint64_t order; /* of the next one */
};

void moments_close(struct moments *moments);

/* Ends the program if there is no memory. */
void moments_push(struct moments *moments, struct moment moment);

/* The first, taken out. There is one. */
struct moment moments_pop(struct moments *moments);

#endif
