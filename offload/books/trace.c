/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a rank in its phases: the phase that predicts, and the next entry in it. */
#include "offload/books/trace.h"

#include "proto/patterns.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT 4 /* Number of preceding entries that are compared to find an entry's position. */
/* Number of entries after which a phase that seemed to begin is certain to have begun. */
#define CERTAIN 4
/* An entry at most this far ahead is taken for an early one, not for the begin of a phase. */
#define NEAR 8
#define MAX_PLACES 8 /* Maximum number of positions of an entry in a phase that are compared. */
#define BEGIN_OF_TIME                                                                              \
    (1ull << 32) /* Initial time: `base` can be earlier than the begin of its phase. */

static const struct cst_phase *current(const struct cst_trace *trace)
{
    return &trace->phases[trace->current];
}

static const struct cst_pattern *pattern_of(const struct cst_trace *trace, uint32_t chunk)
{
    return cst_pattern(trace->chunks[chunk].pattern);
}

bool cst_trace_is_sparse(const struct cst_trace *trace, uint32_t chunk)
{
    return trace->sparse && pattern_of(trace, chunk)->sparse;
}

int cst_trace_init(struct cst_trace *trace, const struct cst_layout *layout,
                   const struct cst_model *model, uint32_t rank, uint32_t micro_batches)
{
    int status;

    *trace = (struct cst_trace){.max_record = CST_TRACE_MAX_RECORD,
                                .n_chunks = layout->n_chunks,
                                .chunks = layout->chunks,
                                .base = BEGIN_OF_TIME};
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        trace->sparse = trace->sparse || cst_pattern(layout->chunks[c].pattern)->sparse;
        trace->frozen = trace->frozen || !cst_layout_has_states(&layout->chunks[c]);
    }
    status = cst_trace_declare(trace, layout, model, rank, micro_batches, NULL);
    if (status != CST_OK) {
        cst_trace_close(trace);
    }
    return status;
}

void cst_trace_close(struct cst_trace *trace)
{
    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        cst_phase_close(&trace->phases[i]);
    }
    free(trace->record);
    memset(trace, 0, sizeof *trace);
}

/* -- prediction ------------------------------------------------------------------------------- */

uint64_t cst_trace_now(const struct cst_trace *trace)
{
    return trace->base + trace->position;
}

/* Continue the prediction at @position of phase @number, without a change of time. */
static void jump(struct cst_trace *trace, uint32_t number, uint32_t position)
{
    uint64_t now = cst_trace_now(trace);

    trace->current = number;
    trace->position = position;
    trace->base = now - position;
    trace->epoch++;
}

bool cst_trace_at(const struct cst_trace *trace, uint64_t time, struct cst_trace_entry *out)
{
    const struct cst_phase *phase = current(trace);
    uint64_t place = time - trace->base;
    bool later = place >= phase->n;

    if (later) {
        place -= phase->n;
        later = phase->commits;
        phase = &trace->phases[phase->follows];
        if (later && !trace->frozen) {
            return false;
        }
    }
    if (place >= phase->n) {
        return false;
    }
    *out = (struct cst_trace_entry){.chunk = phase->entries[place] >> 1,
                                    .grad = (phase->entries[place] & 1) != 0,
                                    .likely = phase->chances[place] >= CST_PHASE_LIKELY,
                                    .later = later};
    return true;
}

uint64_t cst_trace_next_use(const struct cst_trace *trace, uint32_t chunk)
{
    const struct cst_phase *phase = current(trace);
    uint32_t entry = CST_TRACE_ENTRY(chunk, false);
    uint32_t place = cst_phase_find_likely(phase, entry, trace->position);

    if (place != CST_PHASE_NOWHERE) {
        return trace->base + place;
    }
    if (phase->commits && (!trace->frozen || pattern_of(trace, chunk)->has_states)) {
        return CST_TRACE_NEVER;
    }
    place = cst_phase_find_likely(&trace->phases[phase->follows], entry, 0);
    return place == CST_PHASE_NOWHERE ? CST_TRACE_NEVER : trace->base + phase->n + place;
}

const uint32_t *cst_trace_expected(const struct cst_trace *trace, uint32_t *n_out)
{
    *n_out = current(trace)->n;
    return current(trace)->entries;
}

/* -- begin of phases -------------------------------------------------------------------------- */

/* Learn the record's first @n entries as a phase of their own, and remove them. */
static void cut_record(struct cst_trace *trace, uint32_t n, uint32_t by)
{
    cst_trace_learn(trace, n, by, false);
    memmove(trace->record, trace->record + n, (trace->n_record - n) * sizeof *trace->record);
    trace->n_record -= n;
    trace->n_wrong = 0;
}

/* A phase that begins with @entry: @first if it does, else the one that matched last;
 * CST_TRACE_PHASES: none. */
static uint32_t find_beginning(const struct cst_trace *trace, uint32_t entry, uint32_t first)
{
    uint32_t best = CST_TRACE_PHASES;

    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        const struct cst_phase *phase = &trace->phases[i];

        if (phase->n == 0 || phase->entries[0] != entry) {
            continue;
        }
        if (i == first) {
            return i;
        }
        if (best == CST_TRACE_PHASES || phase->used > trace->phases[best].used) {
            best = i;
        }
    }
    return best;
}

/* The phase that equals the record without its last entry; CST_TRACE_PHASES: none. */
static uint32_t find_whole(const struct cst_trace *trace)
{
    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        if (cst_phase_equals(&trace->phases[i], trace->record, trace->n_record - 1)) {
            return i;
        }
    }
    return CST_TRACE_PHASES;
}

/* The phase has ended as predicted, and the one that follows begins with @entry. False: not so. */
static bool goes_over(struct cst_trace *trace, uint32_t entry)
{
    uint32_t by = trace->current;
    uint32_t next = current(trace)->follows;
    const struct cst_phase *phase = &trace->phases[next];

    if (trace->position < current(trace)->n || current(trace)->commits || trace->guessed ||
        phase->n == 0 || phase->entries[0] != entry || trace->n_record < 2) {
        return false;
    }
    trace->base += current(trace)->n;
    trace->current = next;
    trace->position = 1;
    cut_record(trace, trace->n_record - 1, by);
    return true;
}

/* The record is a complete known phase that was not predicted, and @entry begins another one.
 * False: not so. */
static bool ends_early(struct cst_trace *trace, uint32_t entry)
{
    uint32_t whole = trace->n_record > 1 && !trace->guessed ? find_whole(trace) : CST_TRACE_PHASES;
    uint32_t next;

    if (whole == CST_TRACE_PHASES) {
        return false;
    }
    next = find_beginning(trace, entry, trace->phases[whole].follows);
    if (next == CST_TRACE_PHASES) {
        return false;
    }
    jump(trace, next, 1);
    cut_record(trace, trace->n_record - 1, whole);
    return true;
}

/* @entry, which is not near, begins a known phase: predict with that phase from now on, until later
 * entries confirm it. False: not so. */
static bool seems_to_begin(struct cst_trace *trace, uint32_t entry, uint32_t ahead)
{
    uint32_t next;

    if (trace->guessed || trace->n_record < 2 ||
        (ahead != CST_PHASE_NOWHERE && ahead - trace->position <= NEAR)) {
        return false;
    }
    next = find_beginning(trace, entry, current(trace)->follows);
    if (next == CST_TRACE_PHASES || !trace->phases[next].known) {
        return false;
    }
    trace->guessed = true;
    trace->cut = trace->n_record - 1;
    trace->before = trace->current;
    jump(trace, next, 1);
    return true;
}

/* Confirm that the phase which seemed to begin has begun. */
static void confirm(struct cst_trace *trace)
{
    if (trace->guessed && trace->n_record - trace->cut >= CERTAIN) {
        trace->guessed = false;
        cut_record(trace, trace->cut, trace->before);
    }
}

/* -- positions of entries -------------------------------------------------------------------- */

/* Number of entries before @place that equal those before the record's last one. */
static uint32_t count_context(const struct cst_trace *trace, const struct cst_phase *phase,
                              uint32_t place)
{
    uint32_t n = 0;

    while (n < CONTEXT && n < place && n + 1 < trace->n_record &&
           phase->entries[place - 1 - n] == trace->record[trace->n_record - 2 - n]) {
        n++;
    }
    return n;
}

struct found {
    uint32_t phase; /* CST_TRACE_PHASES: nothing was found. */
    uint32_t place;
    uint32_t score;
};

/* Compare the first positions of @entry from @from on. Of equally good positions the first one
 * counts. */
static void compare_places(const struct cst_trace *trace, uint32_t number, uint32_t entry,
                           uint32_t from, struct found *best)
{
    const struct cst_phase *phase = &trace->phases[number];
    uint32_t place = cst_phase_find(phase, entry, from);

    for (int i = 0; i < MAX_PLACES && place != CST_PHASE_NOWHERE; i++) {
        uint32_t score = count_context(trace, phase, place);

        if (best->phase == CST_TRACE_PHASES || score > best->score) {
            *best = (struct found){.phase = number, .place = place, .score = score};
        }
        place = cst_phase_find(phase, entry, place + 1);
    }
}

/* Find the position of @entry, the record's last entry, by the entries before it. Of equally good
 * positions, prefer those ahead in this phase, then those behind, then those in other phases. */
static void find_place(struct cst_trace *trace, uint32_t entry)
{
    struct found best = {.phase = CST_TRACE_PHASES};

    compare_places(trace, trace->current, entry, trace->position, &best);
    compare_places(trace, trace->current, entry, 0, &best);
    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        if (i != trace->current) {
            compare_places(trace, i, entry, 0, &best);
        }
    }
    if (best.phase == trace->current && best.place >= trace->position &&
        best.place - trace->position <= NEAR) {
        trace->position = best.place + 1;
    } else if (best.phase != CST_TRACE_PHASES) {
        jump(trace, best.phase, best.place + 1);
    }
}

/* True if only sparse entries lie between the current position and @place. */
static bool skips_sparse(const struct cst_trace *trace, uint32_t place)
{
    if (!trace->sparse || place == CST_PHASE_NOWHERE) {
        return false;
    }
    for (uint32_t i = trace->position; i < place; i++) {
        if (!cst_trace_is_sparse(trace, current(trace)->entries[i] >> 1)) {
            return false;
        }
    }
    return true;
}

/* @entry is not the expected one. True if the expected ones may be left out, or the phase ended. */
static bool follow(struct cst_trace *trace, uint32_t entry)
{
    uint32_t ahead = cst_phase_find(current(trace), entry, trace->position);
    bool known = current(trace)->known;

    if (skips_sparse(trace, ahead)) {
        trace->position = ahead + 1;
        return true;
    }
    if (goes_over(trace, entry)) {
        return true;
    }
    if (cst_trace_is_sparse(trace, entry >> 1)) {
        return true; /* A sparse entry came out of order, or for the first time. */
    }
    trace->n_wrong++;
    trace->surprises += known;
    if (!ends_early(trace, entry) && !seems_to_begin(trace, entry, ahead)) {
        trace->guessed = false;
        find_place(trace, entry);
    }
    return false;
}

/* -- events ---------------------------------------------------------------------------------- */

bool cst_trace_use(struct cst_trace *trace, uint32_t chunk, bool grad)
{
    uint32_t entry = CST_TRACE_ENTRY(chunk, grad);
    const struct cst_phase *phase = current(trace);

    if (cst_trace_append(trace, entry) != CST_OK) {
        trace->broken = true;
    }
    if (trace->position < phase->n && phase->entries[trace->position] == entry) {
        trace->position++;
        confirm(trace);
        return true;
    }
    return !trace->broken && follow(trace, entry);
}

/* A phase is complete: learn the record, and predict the next phase. */
static void end_phase(struct cst_trace *trace, bool commits)
{
    uint32_t n = current(trace)->n;

    if (!trace->broken && trace->n_record > 0) {
        cst_trace_learn(trace, trace->n_record, trace->guessed ? trace->before : trace->current,
                        commits);
    }
    /* Skip the entries that did not come: the next phase begins after them. */
    if (trace->position < n) {
        trace->base += n - trace->position;
    }
    jump(trace, trace->phases[trace->last].follows, 0);
    cst_trace_restart(trace);
}

void cst_trace_end_step(struct cst_trace *trace)
{
    end_phase(trace, true);
}

void cst_trace_next_unit(struct cst_trace *trace)
{
    end_phase(trace, false);
}

void cst_trace_begin_units(struct cst_trace *trace, const struct cst_layout *layout,
                           const struct cst_model *model, uint32_t rank,
                           const struct cst_trace_unit *unit)
{
    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        cst_phase_close(&trace->phases[i]);
    }
    jump(trace, 0, 0);
    trace->last = 0;
    (void)cst_trace_declare(trace, layout, model, rank, 1, unit);
    cst_trace_restart(trace);
}

void cst_trace_restart(struct cst_trace *trace)
{
    jump(trace, trace->current, 0);
    trace->n_record = 0;
    trace->n_wrong = 0;
    trace->guessed = false;
    trace->broken = false;
}
