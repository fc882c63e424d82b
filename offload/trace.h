/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a rank asks for weights and gradients, and what it will ask for next. A hint,
 * never an assertion: what comes out of order is counted, and prediction goes on from where it
 * fits.
 *
 * What a rank does is cut into phases: at each commit, and where it begins anew what it did before
 * (an evaluation goes forward only, and then forward again). Each phase is kept (the last
 * CST_TRACE_PHASES kinds), and which one came after it; so an evaluation, another sequence of
 * operators or a step with recomputation predicts itself when it comes again, and destroys nothing.
 * Before anything was seen the declared order of operators predicts.
 *
 * An operator whose pattern is sparse (an expert) may be left out: that is no surprise, and each
 * step in which it comes, or does not, is learned: below a chance of one half it is not counted
 * upon.
 *
 * Time here is counted in requests as they are predicted: it never goes back. */
#ifndef CST_TRACE_H
#define CST_TRACE_H

#include "offload/layout.h"
#include "offload/phase.h"

#define CST_TRACE_NEVER UINT64_MAX
#define CST_TRACE_MAX_RECORD (1u << 20) /* entries; a phase with more is not recorded */
#define CST_TRACE_PHASES 6              /* kinds that are kept */

struct cst_trace {
    uint32_t n_chunks;
    const struct cst_layout_chunk *chunks; /* of the layout: their patterns; borrowed */
    struct cst_phase phases[CST_TRACE_PHASES];
    uint32_t current;  /* phase that predicts */
    uint32_t position; /* in it: what should come next */
    uint64_t base;     /* time of its first entry */
    uint64_t epoch;    /* counts how often predicted times stopped being true */
    uint32_t last;     /* phase that was learned last */
    uint32_t *record;  /* entries of this phase; owned */
    uint32_t n_record;
    uint32_t record_capacity;
    uint32_t n_wrong; /* of them, that were not predicted */
    bool broken;      /* the record lost entries: no memory, or too many */
    bool guessed;     /* a new phase seems to have begun at record[cut] ... */
    uint32_t cut;
    uint32_t before;    /* ... after this one */
    bool sparse;        /* there are chunks whose pattern is */
    bool frozen;        /* there are chunks whose weights outlive a commit */
    uint64_t clock;     /* counts phases */
    uint64_t surprises; /* entries that a known phase did not expect */
};

/* Start with the declared order of the operators that @rank runs. CST_ENOMEM: nothing is owned. */
int cst_trace_init(struct cst_trace *trace, const struct cst_layout *layout,
                   const struct cst_model *model, uint32_t rank);
void cst_trace_close(struct cst_trace *trace);

/* The rank asked for it. False: that was a surprise. */
bool cst_trace_use(struct cst_trace *trace, uint32_t chunk, bool grad);

/* The step is complete: what was recorded predicts. */
void cst_trace_end_step(struct cst_trace *trace);

/* The step begins anew: forget its record. */
void cst_trace_restart(struct cst_trace *trace);

/* The time: of what should come next. */
uint64_t cst_trace_now(const struct cst_trace *trace);

struct cst_trace_entry {
    uint32_t chunk;
    bool grad;   /* its gradient is opened */
    bool likely; /* it will come, more likely than not */
    bool later;  /* behind a commit: no weights but frozen ones are of use now */
};

/* What is expected at @time, now or later; false: nothing is known that far ahead. */
bool cst_trace_at(const struct cst_trace *trace, uint64_t time, struct cst_trace_entry *out);

/* When @chunk's weights are wanted next, CST_TRACE_NEVER: not before they change. */
uint64_t cst_trace_next_use(const struct cst_trace *trace, uint32_t chunk);

/* Entries of the phase that predicts, *n_out of them. Borrowed. */
const uint32_t *cst_trace_expected(const struct cst_trace *trace, uint32_t *n_out);

/* True for a chunk that may be left out of a step. */
bool cst_trace_is_sparse(const struct cst_trace *trace, uint32_t chunk);

/* -- inside: learn.c ------------------------------------------------------------------------ */

/* The declared order becomes the first phase. CST_ENOMEM. */
int cst_trace_declare(struct cst_trace *trace, const struct cst_layout *layout,
                      const struct cst_model *model, uint32_t rank);

/* The first @n entries recorded were a phase that was predicted by phase @by and, with @commits,
 * ended in a commit. They are learned; last says as which phase. */
void cst_trace_learn(struct cst_trace *trace, uint32_t n, uint32_t by, bool commits);

/* One entry more in the record. CST_ENOMEM. */
int cst_trace_append(struct cst_trace *trace, uint32_t entry);

#endif
