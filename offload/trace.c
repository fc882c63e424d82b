#include "offload/trace.h"

#include <stdlib.h>
#include <string.h>

static int append(struct cst_trace *trace, uint32_t entry)
{
    if (trace->n_record == trace->record_capacity) {
        uint32_t grown = trace->record_capacity == 0 ? 64 : 2 * trace->record_capacity;
        uint32_t *record =
            grown <= CST_TRACE_MAX_RECORD ? realloc(trace->record, grown * sizeof *record) : NULL;

        if (record == NULL) {
            return CST_ENOMEM;
        }
        trace->record = record;
        trace->record_capacity = grown;
    }
    trace->record[trace->n_record++] = entry;
    return CST_OK;
}

/* Counting sort of positions by entry. */
static void sort_places(struct cst_trace *trace)
{
    uint32_t n = 2 * trace->n_chunks;

    memset(trace->first, 0, (n + 1) * sizeof *trace->first);
    for (uint32_t i = 0; i < trace->n_expected; i++) {
        trace->first[trace->expected[i] + 1]++;
    }
    for (uint32_t e = 0; e < n; e++) {
        trace->first[e + 1] += trace->first[e];
    }
    for (uint32_t i = 0; i < trace->n_expected; i++) {
        trace->places[trace->first[trace->expected[i]]++] = i;
    }
    memmove(trace->first + 1, trace->first, n * sizeof *trace->first);
    trace->first[0] = 0;
}

/* The record becomes what is expected. */
static int adopt(struct cst_trace *trace)
{
    if (trace->n_record > trace->capacity) {
        uint32_t *expected = malloc(trace->record_capacity * sizeof *expected);
        uint32_t *places = malloc(trace->record_capacity * sizeof *places);

        if (expected == NULL || places == NULL) {
            free(expected);
            free(places);
            return CST_ENOMEM;
        }
        free(trace->expected);
        free(trace->places);
        trace->expected = expected;
        trace->places = places;
        trace->capacity = trace->record_capacity;
    }
    if (trace->n_record > 0) {
        memcpy(trace->expected, trace->record, trace->n_record * sizeof *trace->record);
    }
    trace->n_expected = trace->n_record;
    sort_places(trace);
    return CST_OK;
}

/* @seen: per chunk, 1 + the last visit that used it. What the visit before used is still there. */
static int declare_visit(struct cst_trace *trace, const struct cst_layout_use *use, uint32_t visit,
                         uint32_t *seen, bool *opened)
{
    int status = CST_OK;

    for (uint32_t k = 0; k < use->n_chunks && status == CST_OK; k++) {
        uint32_t chunk = use->chunks[k];

        if (seen[chunk] == 0 || seen[chunk] + 1 < visit) {
            status = append(trace, CST_TRACE_ENTRY(chunk, false));
        }
        seen[chunk] = visit;
    }
    for (uint32_t k = 0; opened != NULL && k < use->n_chunks && status == CST_OK; k++) {
        uint32_t chunk = use->chunks[k];

        if (!opened[chunk]) {
            opened[chunk] = true;
            status = append(trace, CST_TRACE_ENTRY(chunk, true));
        }
    }
    return status;
}

static int declare(struct cst_trace *trace, const struct cst_layout *layout, uint32_t n_operators)
{
    uint32_t *seen = calloc(layout->n_chunks, sizeof *seen);
    bool *opened = calloc(layout->n_chunks, sizeof *opened);
    uint32_t visit = 0;
    int status = seen == NULL || opened == NULL ? CST_ENOMEM : CST_OK;

    for (uint32_t i = 0; i < n_operators && status == CST_OK; i++) {
        status = declare_visit(trace, &layout->uses[i], ++visit, seen, NULL);
    }
    for (uint32_t i = n_operators; i-- > 0 && status == CST_OK;) {
        status = declare_visit(trace, &layout->uses[i], ++visit, seen, opened);
    }
    if (status == CST_OK) {
        status = adopt(trace);
    }
    free(seen);
    free(opened);
    trace->n_record = 0;
    return status;
}

int cst_trace_init(struct cst_trace *trace, const struct cst_layout *layout, uint32_t n_operators)
{
    int status;

    *trace = (struct cst_trace){
        .n_chunks = layout->n_chunks,
        .first = calloc(2 * (size_t)layout->n_chunks + 1, sizeof *trace->first),
    };
    status = trace->first == NULL ? CST_ENOMEM : declare(trace, layout, n_operators);
    if (status != CST_OK) {
        cst_trace_close(trace);
    }
    return status;
}

void cst_trace_close(struct cst_trace *trace)
{
    free(trace->expected);
    free(trace->places);
    free(trace->first);
    free(trace->record);
    memset(trace, 0, sizeof *trace);
}

/* First place of @entry at @from or behind it, or CST_TRACE_NEVER. */
static uint32_t find_place(const struct cst_trace *trace, uint32_t entry, uint32_t from)
{
    uint32_t low = trace->first[entry];
    uint32_t high = trace->first[entry + 1];
    uint32_t end = high;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (trace->places[middle] < from) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == end ? CST_TRACE_NEVER : trace->places[low];
}

void cst_trace_use(struct cst_trace *trace, uint32_t chunk, bool grad)
{
    uint32_t entry = CST_TRACE_ENTRY(chunk, grad);
    uint32_t place;

    if (append(trace, entry) != CST_OK) {
        trace->broken = true;
    }
    place = find_place(trace, entry, trace->position);
    if (trace->known && place != trace->position) {
        trace->surprises++;
    }
    if (place == CST_TRACE_NEVER) { /* not in what is left of the step: perhaps it went back */
        place = find_place(trace, entry, 0);
    }
    if (place != CST_TRACE_NEVER) {
        trace->position = place + 1;
    }
}

void cst_trace_end_step(struct cst_trace *trace)
{
    if (!trace->broken && adopt(trace) == CST_OK) {
        trace->known = true;
    }
    cst_trace_restart(trace);
}

void cst_trace_restart(struct cst_trace *trace)
{
    trace->n_record = 0;
    trace->position = 0;
    trace->broken = false;
}

uint32_t cst_trace_next_use(const struct cst_trace *trace, uint32_t chunk)
{
    return find_place(trace, CST_TRACE_ENTRY(chunk, false), trace->position);
}
