/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunks were in which pools when, from the intervals of a job. */
#ifndef CLI_RESIDENCY_MAP_H
#define CLI_RESIDENCY_MAP_H

#include "client/cli/intervals.h"

enum cli_residency_kind {
    CLI_RESIDENCY_LOADING, /* Its weights are being copied into the pool. */
    /* Its weights stay in the pool between two uses, or between their load and a use. */
    CLI_RESIDENCY_KEPT,
    CLI_RESIDENCY_USED,     /* A worker uses its weights. */
    CLI_RESIDENCY_GRADIENT, /* A worker writes its gradient. */
    CLI_RESIDENCY_KINDS,
};

extern const char *const cli_residency_names[CLI_RESIDENCY_KINDS + 1]; /* The last one is NULL. */

struct cli_residency_span {
    enum cli_residency_kind kind;
    uint32_t rank, chunk;
    uint64_t begin, end; /* ns */
};

/* Zeroed: nothing. */
struct cli_residency_map {
    struct cli_residency_span *v; /* By rank, then by chunk, then by begin. Owned. */
    size_t n;
    uint64_t begin, end; /* ns: from the begin of the first step to the end of the last one. */
    uint64_t first_step, last_step;
};

/* Make the map of the last whole steps, at most @most_steps and so many that there are at most
 * @most_spans spans, but at least one step, for the ranks below @n_ranks. @kept: loads are
 * recorded, so that it is known what is kept. There may be no whole step: the map is then empty.
 * False: memory is short. */
bool cli_residency_map_make(struct cli_residency_map *map, const struct cli_intervals *intervals,
                            uint32_t n_ranks, size_t most_steps, size_t most_spans, bool kept);

void cli_residency_map_close(struct cli_residency_map *map);

#endif
