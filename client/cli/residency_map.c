/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli/residency_map.h"

#include "client/cli/step_times.h"

#include <stdlib.h>

const char *const cli_residency_names[CLI_RESIDENCY_KINDS + 1] = {"being loaded", "kept", "in use",
                                                                  "gradient", NULL};

/* Fill in a span of what @i says. False: it says nothing about residency. */
static bool span_of(const Cistern__TraceInterval *i, struct cli_residency_span *out)
{
    const bool lease = i->kind == CISTERN__TRACE_INTERVAL__KIND__LEASE;
    const bool load = i->kind == CISTERN__TRACE_INTERVAL__KIND__LOAD && i->has_rank;

    *out = (struct cli_residency_span){.kind = load      ? CLI_RESIDENCY_LOADING
                                               : i->grad ? CLI_RESIDENCY_GRADIENT
                                                         : CLI_RESIDENCY_USED,
                                       .rank = load ? i->rank : i->number,
                                       .chunk = i->chunk,
                                       .begin = i->began_ns,
                                       .end = i->began_ns + i->ns};
    return lease || load;
}

/* True if a part of the span is in the time of the map, to which it is cut. */
static bool cut(const struct cli_residency_map *map, struct cli_residency_span *span)
{
    if (span->end <= map->begin || span->begin >= map->end) {
        return false;
    }
    span->begin = span->begin > map->begin ? span->begin : map->begin;
    span->end = span->end < map->end ? span->end : map->end;
    return true;
}

/* Choose the steps: the last ones. Each span of a lease can make one more of what is kept. */
static void choose(struct cli_residency_map *map, const struct cli_intervals *intervals,
                   uint32_t n_ranks, size_t most_steps, size_t most_spans)
{
    size_t n_steps = 0, n_spans = 0;

    for (size_t i = intervals->n; i-- > 0;) {
        const Cistern__TraceInterval *interval = &intervals->v[i];
        struct cli_residency_span span;

        if (cli_step_is_whole(intervals, interval)) {
            if (n_steps == most_steps || (n_steps > 0 && n_spans > most_spans)) {
                return;
            }
            n_steps++;
            map->end = n_steps == 1 ? interval->began_ns + interval->ns : map->end;
            map->last_step = n_steps == 1 ? interval->step : map->last_step;
            map->begin = interval->began_ns;
            map->first_step = interval->step;
        }
        n_spans += span_of(interval, &span) && span.rank < n_ranks ? 2 : 0;
    }
}

static int compare(const void *a, const void *b)
{
    const struct cli_residency_span *x = a, *y = b;

    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    if (x->chunk != y->chunk) {
        return x->chunk < y->chunk ? -1 : 1;
    }
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Add what is kept: the time between a load or a use of the weights and the next use, if they were
 * not loaded again in between. The spans are sorted, and there is room for one more of each. */
static void add_kept(struct cli_residency_map *map)
{
    const struct cli_residency_span *last = NULL;
    const size_t n = map->n;

    for (size_t i = 0; i < n; i++) {
        const struct cli_residency_span *span = &map->v[i];

        if (span->kind == CLI_RESIDENCY_GRADIENT) {
            continue;
        }
        if (last != NULL && last->rank == span->rank && last->chunk == span->chunk &&
            span->kind == CLI_RESIDENCY_USED && span->begin > last->end) {
            map->v[map->n++] = (struct cli_residency_span){.kind = CLI_RESIDENCY_KEPT,
                                                           .rank = span->rank,
                                                           .chunk = span->chunk,
                                                           .begin = last->end,
                                                           .end = span->begin};
        }
        last = span;
    }
}

bool cli_residency_map_make(struct cli_residency_map *map, const struct cli_intervals *intervals,
                            uint32_t n_ranks, size_t most_steps, size_t most_spans, bool kept)
{
    *map = (struct cli_residency_map){.v = calloc(2 * intervals->n + 1, sizeof *map->v)};
    if (map->v == NULL) {
        return false;
    }
    choose(map, intervals, n_ranks, most_steps, most_spans);
    for (size_t i = 0; i < intervals->n; i++) {
        struct cli_residency_span span;

        if (span_of(&intervals->v[i], &span) && span.rank < n_ranks && cut(map, &span)) {
            map->v[map->n++] = span;
        }
    }
    qsort(map->v, map->n, sizeof *map->v, compare);
    if (kept) {
        add_kept(map);
        qsort(map->v, map->n, sizeof *map->v, compare);
    }
    return true;
}

void cli_residency_map_close(struct cli_residency_map *map)
{
    free(map->v);
    *map = (struct cli_residency_map){.v = NULL};
}
