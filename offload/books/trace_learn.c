/* SPDX-License-Identifier: Apache-2.0 */
/* Learning of phases: the declared order, and recorded phases. */
#include "proto/patterns.h"
#include "offload/books/trace.h"

#include <stdlib.h>
#include <string.h>

#define NEW_CHANCE 128 /* Chance of a sparse entry that was observed once. */
#define LEAST_CHANCE 2 /* Sparse entries with a smaller chance are removed. */
/* Maximum of n_followed. */
#define MOST_FOLLOWED 2
/* Further micro-batches are declared while the entries are fewer than this. */
#define MOST_DECLARED (1u << 16)
#define SLOWLY 4 /* A chance moves by this part of the distance to its new value. */

int cst_trace_append(struct cst_trace *trace, uint32_t entry)
{
    if (trace->n_record >= trace->max_record) {
        return CST_ENOMEM;
    }
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

/* -- declared order --------------------------------------------------------------------------- */

/* The passes of a micro-batch have places: operator i of this rank, of n, is at place i in the
 * forward pass and at 2 n - 1 - i in the backward pass, as in offload/worker/lease_way.h. */
struct declaring {
    struct cst_trace *trace;
    const struct cst_layout *layout;
    const struct cst_model *model;
    uint32_t *ops; /* Operators of the rank; owned. */
    uint32_t n_ops;
    bool apart;      /* Nothing is fetched ahead in the forward pass for the backward pass. */
    uint32_t *next;  /* Per place: the place whose weights are fetched ahead; 2 n: none. Owned. */
    uint32_t visit;  /* Number of visited places. */
    uint32_t *seen;  /* Per chunk: 1 + the last visit that had its weights; owned. */
    bool *opened;    /* Per chunk: its gradient was opened in this micro-batch; owned. */
    uint8_t *chance; /* Per chunk; owned. */
};

static uint32_t op_at(const struct declaring *d, uint32_t place)
{
    return d->ops[place < d->n_ops ? place : 2 * d->n_ops - 1 - place];
}

/* True if the operator at @at uses chunks that are not marked with @mark. */
static bool uses_others(const struct declaring *d, uint32_t at, uint32_t mark)
{
    const struct cst_layout_use *use = &d->layout->uses[op_at(d, at)];
    uint32_t k = 0;

    while (k < use->n_chunks && d->seen[use->chunks[k]] == mark) {
        k++;
    }
    return k < use->n_chunks;
}

/* Fill `next`, from the last place to the first: what uses no other chunks than a later place need
 * not be searched again. */
static void find_next(struct declaring *d)
{
    for (uint32_t place = 2 * d->n_ops; place-- > 0;) {
        const struct cst_layout_use *use = &d->layout->uses[op_at(d, place)];
        uint32_t end = d->apart && place < d->n_ops ? d->n_ops : 2 * d->n_ops;
        uint32_t at = place + 1;

        for (uint32_t k = 0; k < use->n_chunks; k++) {
            d->seen[use->chunks[k]] = place + 1;
        }
        while (at < end && !uses_others(d, at, place + 1)) {
            at = d->next[at];
        }
        d->next[place] = at < end ? at : 2 * d->n_ops;
    }
    memset(d->seen, 0, d->layout->n_chunks * sizeof *d->seen);
}

/* Append the weights of @op, unless the visit before has had them. */
static int want_weights(struct declaring *d, uint32_t op)
{
    const struct cst_layout_use *use = &d->layout->uses[op];
    int status = CST_OK;

    for (uint32_t k = 0; k < use->n_chunks && status == CST_OK; k++) {
        uint32_t chunk = use->chunks[k];

        if (d->seen[chunk] == 0 || d->seen[chunk] + 1 < d->visit) {
            status = cst_trace_append(d->trace, CST_TRACE_ENTRY(chunk, false));
        }
        d->seen[chunk] = d->visit;
    }
    return status;
}

/* Append the entries of the operator at @place: what a worker asks for before it, and what it then
 * fetches ahead (offload/worker/lease.h). */
static int visit(struct declaring *d, uint32_t place)
{
    const struct cst_layout_use *use = &d->layout->uses[op_at(d, place)];
    uint32_t next = d->next[place];
    int status;

    d->visit++;
    status = want_weights(d, op_at(d, place));
    for (uint32_t k = 0; place >= d->n_ops && k < use->n_chunks && status == CST_OK; k++) {
        uint32_t chunk = use->chunks[k];

        if (!d->opened[chunk] && cst_layout_has_states(&d->layout->chunks[chunk])) {
            d->opened[chunk] = true;
            status = cst_trace_append(d->trace, CST_TRACE_ENTRY(chunk, true));
        }
    }
    if (status == CST_OK && next < 2 * d->n_ops) {
        status = want_weights(d, op_at(d, next));
    }
    return status;
}

/* An operator that is expected less than once per micro-batch sets the chance of its chunks. */
static void expect(struct declaring *d, const struct cst_layout_operator *op, uint32_t i)
{
    float uses = op->expected_uses > 0 && op->expected_uses < 1 ? op->expected_uses : 1;
    uint8_t chance = (uint8_t)(uses * CST_PHASE_SURE);

    for (uint32_t k = 0; k < d->layout->uses[i].n_chunks; k++) {
        uint8_t *of = &d->chance[d->layout->uses[i].chunks[k]];

        *of = chance > *of ? chance : *of;
    }
}

static int set_chances(struct declaring *d)
{
    struct cst_trace *trace = d->trace;
    uint8_t *chances = malloc(trace->n_record + 1ul);
    int status;

    if (chances == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < trace->n_record; i++) {
        uint32_t chunk = trace->record[i] >> 1;

        chances[i] = cst_trace_is_sparse(trace, chunk) ? d->chance[chunk] : CST_PHASE_SURE;
    }
    status =
        cst_phase_set(&trace->phases[0], trace->n_chunks, trace->record, chances, trace->n_record);
    free(chances);
    return status;
}

/* Find the operators of @rank, in @unit if it is not NULL, and what is fetched ahead of each.
 * CST_ENOMEM. */
static int find_places(struct declaring *d, uint32_t rank, const struct cst_trace_unit *unit)
{
    d->ops = malloc((d->model->n_operators + 1ul) * sizeof *d->ops);
    d->next = malloc((2ul * d->model->n_operators + 1) * sizeof *d->next);
    if (d->ops == NULL || d->next == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < d->model->n_operators; i++) {
        if (cst_model_runs(d->model, &d->model->operators[i], rank) &&
            (unit == NULL || d->model->operators[i].stage == unit->stage)) {
            d->ops[d->n_ops++] = i;
            expect(d, &d->model->operators[i], i);
        }
    }
    find_next(d);
    return CST_OK;
}

/* Append the entries of one micro-batch. */
static int declare_micro(struct declaring *d, bool backward)
{
    uint32_t end = backward ? 2 * d->n_ops : d->n_ops;
    int status = CST_OK;

    memset(d->opened, 0, d->layout->n_chunks * sizeof *d->opened);
    for (uint32_t place = 0; place < end && status == CST_OK; place++) {
        status = visit(d, place);
    }
    return status;
}

int cst_trace_declare(struct cst_trace *trace, const struct cst_layout *layout,
                      const struct cst_model *model, uint32_t rank, uint32_t micro_batches,
                      const struct cst_trace_unit *unit)
{
    /* Other stages come between the two passes of a stage, unless it is the last one. */
    struct declaring d = {.trace = trace,
                          .layout = layout,
                          .model = model,
                          .apart = unit != NULL && unit->stage + 1 < model->n_stages,
                          .seen = calloc(layout->n_chunks + 1ul, sizeof *d.seen),
                          .opened = calloc(layout->n_chunks + 1ul, sizeof *d.opened),
                          .chance = calloc(layout->n_chunks + 1ul, sizeof *d.chance)};
    int status = d.seen == NULL || d.opened == NULL || d.chance == NULL
                     ? CST_ENOMEM
                     : find_places(&d, rank, unit);

    trace->n_record = 0;
    for (uint32_t micro = 0; micro < micro_batches && status == CST_OK; micro++) {
        status = declare_micro(&d, unit == NULL || unit->backward);
        if (trace->n_record + trace->n_record / (micro + 1) > MOST_DECLARED) {
            break;
        }
    }
    if (status == CST_OK) {
        status = set_chances(&d);
    }
    free(d.ops);
    free(d.next);
    free(d.seen);
    free(d.opened);
    free(d.chance);
    trace->phases[0].used = 1;
    trace->phases[0].commits = unit == NULL;
    trace->clock = 1;
    trace->n_record = 0;
    return status;
}

/* -- sparse entries --------------------------------------------------------------------------- */

struct merging {
    const struct cst_trace *trace;
    const struct cst_phase *old; /* The phase as it was predicted. */
    uint32_t n;                  /* Number of recorded entries. */
    uint32_t *entries;           /* Entries of the result; owned. */
    uint8_t *chances;            /* Chances of the result; owned. */
    uint32_t *places;            /* Per entry of `old`: its position in the record; owned. */
    uint32_t n_out;
};

static void emit(struct merging *m, uint32_t entry, uint8_t chance)
{
    m->entries[m->n_out] = entry;
    m->chances[m->n_out++] = chance;
}

static uint32_t end_of_run(const struct cst_trace *trace, const uint32_t *v, uint32_t from,
                           uint32_t n)
{
    while (from < n && cst_trace_is_sparse(trace, v[from] >> 1)) {
        from++;
    }
    return from;
}

/* Keep the entries of the old run from @i to @end that did not come, with a smaller chance. */
static void emit_missing(struct merging *m, uint32_t i, uint32_t end)
{
    for (; i < end; i++) {
        uint8_t chance = m->old->chances[i];

        chance = (uint8_t)(chance - chance / SLOWLY - (chance > 0));
        if (m->places[i] == CST_PHASE_NOWHERE && chance >= LEAST_CHANCE) {
            emit(m, m->old->entries[i], chance);
        }
    }
}

/* Merge two runs of sparse entries between the same other entries. Entries that came are in the
 * order of the record; the others keep their position. */
static void merge_runs(struct merging *m, uint32_t i, uint32_t i_end, uint32_t j, uint32_t j_end)
{
    const uint32_t *record = m->trace->record;

    for (uint32_t k = j; k < j_end; k++) {
        uint32_t place = cst_phase_find(m->old, record[k], i);

        if (place != CST_PHASE_NOWHERE && place < i_end) {
            m->places[place] = k;
        }
    }
    for (; j < j_end; j++) {
        uint32_t place = cst_phase_find(m->old, record[j], i);
        uint8_t chance = NEW_CHANCE;

        if (place != CST_PHASE_NOWHERE && place < i_end && m->places[place] == j) {
            emit_missing(m, i, place);
            chance = m->old->chances[place];
            chance = (uint8_t)(chance + (CST_PHASE_SURE - chance) / SLOWLY);
            i = place + 1;
        }
        emit(m, record[j], chance);
    }
    emit_missing(m, i, i_end);
}

/* Merge the record with the old phase. Where they differ in an entry that is not sparse, the rest
 * follows the record only. */
static void merge(struct merging *m)
{
    const uint32_t *record = m->trace->record;
    uint32_t i = 0;
    uint32_t j = 0;

    while (j < m->n || i < m->old->n) {
        uint32_t i_end = end_of_run(m->trace, m->old->entries, i, m->old->n);
        uint32_t j_end = end_of_run(m->trace, record, j, m->n);

        merge_runs(m, i, i_end, j, j_end);
        if (j_end == m->n) {
            break;
        }
        emit(m, record[j_end], CST_PHASE_SURE);
        i = i_end < m->old->n && m->old->entries[i_end] == record[j_end] ? i_end + 1 : m->old->n;
        j = j_end + 1;
    }
}

/* Set phase @number to the record's first @n entries. With @keep it also keeps sparse entries that
 * did not come. CST_ENOMEM. */
static int set_merged(struct cst_trace *trace, uint32_t number, uint32_t n, bool keep)
{
    static const struct cst_phase nothing;
    const struct cst_phase *old = keep ? &trace->phases[number] : &nothing;
    struct merging m = {.trace = trace,
                        .old = old,
                        .n = n,
                        .entries = malloc((n + old->n + 1ul) * sizeof *m.entries),
                        .chances = malloc(n + old->n + 1ul),
                        .places = malloc((old->n + 1ul) * sizeof *m.places)};
    int status = CST_ENOMEM;

    if (m.entries != NULL && m.chances != NULL && m.places != NULL) {
        memset(m.places, 0xff, (old->n + 1ul) * sizeof *m.places); /* CST_PHASE_NOWHERE. */
        merge(&m);
        status =
            cst_phase_set(&trace->phases[number], trace->n_chunks, m.entries, m.chances, m.n_out);
    }
    free(m.entries);
    free(m.chances);
    free(m.places);
    return status;
}

/* True if the record's first @n entries equal phase @number, apart from sparse entries. */
static bool is_same(const struct cst_trace *trace, uint32_t number, uint32_t n)
{
    const struct cst_phase *phase = &trace->phases[number];
    uint32_t i = 0;
    uint32_t j = 0;

    if (!trace->sparse || phase->n == 0 || n == 0) {
        return cst_phase_equals(phase, trace->record, n);
    }
    for (;;) {
        i = end_of_run(trace, phase->entries, i, phase->n);
        j = end_of_run(trace, trace->record, j, n);
        if (i == phase->n || j == n) {
            return i == phase->n && j == n;
        }
        if (phase->entries[i++] != trace->record[j++]) {
            return false;
        }
    }
}

/* -- slots ----------------------------------------------------------------------------------- */

/* The phase that a new one replaces: an empty one, else one that was not observed again, else any.
 * Of equal candidates the one that was not used for longest. */
static uint32_t find_slot(const struct cst_trace *trace)
{
    uint32_t best = CST_TRACE_PHASES;

    for (uint32_t i = 0; i < CST_TRACE_PHASES; i++) {
        const struct cst_phase *phase = &trace->phases[i];

        if (i == trace->current || i == trace->last) {
            continue;
        }
        if (best == CST_TRACE_PHASES || phase->n == 0 ||
            (trace->phases[best].n > 0 && (phase->proved != trace->phases[best].proved
                                               ? !phase->proved
                                               : phase->used < trace->phases[best].used))) {
            best = i;
        }
    }
    return best;
}

/* True if the record is so similar to phase @by, which predicted it, that it replaces that phase: a
 * step varies a little if requests race. */
static bool takes_place(const struct cst_trace *trace, uint32_t n, uint32_t by, bool commits)
{
    const struct cst_phase *phase = &trace->phases[by];
    uint32_t more = n > phase->n ? n - phase->n : phase->n - n;

    return !phase->known || (!phase->proved && phase->commits == commits &&
                             trace->n_wrong <= n / 8 + 1 && more <= n / 8 + 1);
}

/* Learn which phase follows @phase. A single exception does not change the expectation. */
static void learn_order(struct cst_phase *phase, uint32_t next)
{
    if (phase->follows == next) {
        phase->n_followed += phase->n_followed < MOST_FOLLOWED;
    } else if (phase->n_followed > 0) {
        phase->n_followed--;
    } else {
        phase->follows = next;
    }
}

void cst_trace_learn(struct cst_trace *trace, uint32_t n, uint32_t by, bool commits)
{
    uint32_t number = 0;
    bool same;
    bool new = false;

    while (number < CST_TRACE_PHASES && !is_same(trace, number, n)) {
        number++;
    }
    same = number < CST_TRACE_PHASES;
    if (!same) {
        new = !takes_place(trace, n, by, commits);
        number = new ? find_slot(trace) : by;
    }
    if ((!same || trace->sparse) && set_merged(trace, number, n, same) != CST_OK) {
        return;
    }
    /* Until something else follows it, a new phase is expected to repeat. */
    if (new) {
        trace->phases[number].follows = number;
        trace->phases[number].n_followed = 0;
    }
    trace->phases[number].proved = same && trace->phases[number].known;
    /* The entries, and so the predicted times, may have changed. */
    trace->epoch++;
    trace->phases[number].known = true;
    trace->phases[number].commits = commits;
    trace->phases[number].used = ++trace->clock;
    learn_order(&trace->phases[trace->last], number);
    trace->last = number;
}
