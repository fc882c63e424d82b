/* The order in which a rank asks for weights and gradients in a step: recorded in each step, and
 * the last complete step's record predicts the next. A hint, never an assertion: what comes out of
 * order is counted, and prediction goes on behind the asked chunk's next place in the record.
 * Before the first record the declared order of operators predicts. */
#ifndef CST_TRACE_H
#define CST_TRACE_H

#include "offload/layout.h"

#define CST_TRACE_NEVER UINT32_MAX
#define CST_TRACE_MAX_RECORD (1u << 20) /* entries; a step with more is not recorded */

/* An entry: a chunk, and whether its gradient is opened (else its weights are fetched). */
#define CST_TRACE_ENTRY(chunk, grad) ((chunk) << 1 | ((grad) ? 1u : 0u))

struct cst_trace {
    uint32_t n_chunks;
    uint32_t *expected; /* entries that predict; owned */
    uint32_t n_expected;
    uint32_t capacity; /* entries that expected and places have room for */
    uint32_t *places;  /* positions in expected, sorted by entry, then position; owned */
    uint32_t
        *first; /* per entry value: where its positions begin in places; 2 x n_chunks + 1; owned */
    uint32_t *record; /* entries of this step; owned */
    uint32_t n_record;
    uint32_t record_capacity;
    uint32_t position;  /* in expected: what should come next */
    bool known;         /* expected is a record, not the declared order */
    bool broken;        /* this step's record lost entries: no memory, or too many */
    uint64_t surprises; /* entries that a known trace did not expect */
};

/* Start with the declared order. CST_ENOMEM: nothing is owned. */
int cst_trace_init(struct cst_trace *trace, const struct cst_layout *layout, uint32_t n_operators);
void cst_trace_close(struct cst_trace *trace);

/* The rank asked for it. */
void cst_trace_use(struct cst_trace *trace, uint32_t chunk, bool grad);

/* The step is complete: its record predicts from now on (the old one stays if the record lost
 * entries). */
void cst_trace_end_step(struct cst_trace *trace);

/* The step begins anew: forget its record. */
void cst_trace_restart(struct cst_trace *trace);

/* Position at which @chunk's weights are wanted next in this step, CST_TRACE_NEVER: no more. */
uint32_t cst_trace_next_use(const struct cst_trace *trace, uint32_t chunk);

#endif
