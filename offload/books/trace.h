/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a rank asks for weights and gradients, and the prediction of its next
 * requests. The prediction is only a hint: unexpected requests are counted, and prediction
 * continues where they fit.
 *
 * The requests of a rank are divided into phases. A phase ends at a commit, or where a known phase
 * begins again (an evaluation consists of forward passes only). CST_TRACE_PHASES kinds of phases
 * are kept, each with the phase that follows it. So an evaluation, another sequence of operators or
 * a step with recomputation is predicted when it comes again, and does not replace other phases.
 * Before anything was observed, the declared order of operators is the prediction.
 *
 * In a job with units of work, a unit is a phase. When a rank begins to do units of another kind,
 * their declared order is the prediction, whatever the rank did before.
 *
 * An operator with a sparse pattern (an expert) may be left out, which is not a surprise. The
 * chance that it comes is learned from each step; below one half it is not expected.
 *
 * Time is counted in predicted requests and never decreases. */
#ifndef CST_TRACE_H
#define CST_TRACE_H

#include "offload/layout/layout.h"
#include "offload/books/phase.h"

#define CST_TRACE_NEVER UINT64_MAX
/* Maximum number of entries; a longer phase is not recorded. */
#define CST_TRACE_MAX_RECORD (1u << 20)
#define CST_TRACE_PHASES 6 /* Number of kinds of phases that are kept. */

struct cst_trace {
    uint32_t n_chunks;
    const struct cst_layout_chunk *chunks; /* Chunks of the layout, for their patterns; borrowed. */
    struct cst_phase phases[CST_TRACE_PHASES];
    uint32_t current;  /* Number of the phase that predicts. */
    uint32_t position; /* Position in that phase of the next expected entry. */
    uint64_t base;     /* Time of the phase's first entry. */
    uint64_t epoch;    /* Incremented whenever predicted times become wrong. */
    uint32_t last;     /* Number of the phase that was learned last. */
    uint32_t *record;  /* Entries of the running phase; owned. */
    uint32_t n_record;
    uint32_t record_capacity;
    uint32_t max_record; /* Most entries of the record. */
    uint32_t n_wrong;    /* Recorded entries that were not predicted. */
    bool broken;         /* Entries are missing from the record: no memory, or too many. */
    bool guessed;        /* A new phase seems to have begun at record[cut]. */
    /* If `guessed`: start of the new phase in the record. */
    uint32_t cut;
    uint32_t before;    /* If `guessed`: the phase that predicted before the new one. */
    bool sparse;        /* There are chunks with sparse patterns. */
    bool frozen;        /* There are chunks whose weights stay valid after a commit. */
    uint64_t clock;     /* Number of learned phases. */
    uint64_t surprises; /* Number of entries that a known phase did not predict. */
};

/* Start with the declared order of the operators that @rank runs. CST_ENOMEM: nothing is owned. */
int cst_trace_init(struct cst_trace *trace, const struct cst_layout *layout,
                   const struct cst_model *model, uint32_t rank, uint32_t micro_batches);
/* Free the phases and the record. */
void cst_trace_close(struct cst_trace *trace);

/* The work of a rank between two of its requests for work (offload/base/work_unit.h). */
struct cst_trace_unit {
    uint32_t stage;
    bool backward; /* The backward pass, after the forward pass; else the forward pass alone. */
};

/* The rank begins to do units like @unit, one after the other: predict their declared order, and
 * forget everything else. If there is no memory, nothing is predicted. */
void cst_trace_begin_units(struct cst_trace *trace, const struct cst_layout *layout,
                           const struct cst_model *model, uint32_t rank,
                           const struct cst_trace_unit *unit);

/* The rank does another one of these units: learn the record. */
void cst_trace_next_unit(struct cst_trace *trace);

/* Record that the rank asked for the chunk's weights or, with @grad, opened its gradient. False:
 * the request was a surprise. */
bool cst_trace_use(struct cst_trace *trace, uint32_t chunk, bool grad);

/* The step is complete: learn the record. */
void cst_trace_end_step(struct cst_trace *trace);

/* The step begins again: discard the record. */
void cst_trace_restart(struct cst_trace *trace);

/* Current time: that of the next expected entry. */
uint64_t cst_trace_now(const struct cst_trace *trace);

struct cst_trace_entry {
    uint32_t chunk;
    bool grad;   /* The chunk's gradient is opened. */
    bool likely; /* The entry comes with a chance of at least one half. */
    bool later;  /* The entry comes after a commit: only frozen weights can be loaded for it now. */
};

/* The entry that is expected at @time, which is not in the past. False: nothing is known about that
 * time. */
bool cst_trace_at(const struct cst_trace *trace, uint64_t time, struct cst_trace_entry *out);

/* Time of the next use of @chunk's weights; CST_TRACE_NEVER: not before they change. */
uint64_t cst_trace_next_use(const struct cst_trace *trace, uint32_t chunk);

/* Entries of the phase that predicts, and their number in *n_out. Borrowed. */
const uint32_t *cst_trace_expected(const struct cst_trace *trace, uint32_t *n_out);

/* True for a chunk that may be left out of a step. */
bool cst_trace_is_sparse(const struct cst_trace *trace, uint32_t chunk);

/* -- private: trace_learn.c -----------------------------------------------------------------------
 */

/* Make the declared order the first phase: that of @unit, or with NULL of a step. The record is
 * empty afterwards. CST_ENOMEM. */
int cst_trace_declare(struct cst_trace *trace, const struct cst_layout *layout,
                      const struct cst_model *model, uint32_t rank, uint32_t micro_batches,
                      const struct cst_trace_unit *unit);

/* Learn the first @n recorded entries as a phase that was predicted by phase @by and, with
 * @commits, ended with a commit. Sets trace->last to the number of the learned phase. */
void cst_trace_learn(struct cst_trace *trace, uint32_t n, uint32_t by, bool commits);

/* Append an entry to the record. CST_ENOMEM: no memory, or the record is full. */
int cst_trace_append(struct cst_trace *trace, uint32_t entry);

#endif
