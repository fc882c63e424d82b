/* SPDX-License-Identifier: Apache-2.0 */
/* What a job did lately, for people: a ring of intervals, always on. A command costs it one entry
 * of a table, which grows when more are under way than ever before, one of the ring, and no look at
 * the clock; the times of an engine's work are the engine's own. Pure but for malloc; loop thread.
 */
#ifndef CST_RECORD_H
#define CST_RECORD_H

#include "offload/core.h"

#define CST_RECORD_INTERVALS 16384 /* that are kept: the last ones */

/* Numbers as in cistern.proto's TraceInterval. */
enum cst_record_kind {
    CST_RECORD_LOAD = 1,
    CST_RECORD_STAGE = 2,
    CST_RECORD_REDUCE = 3,
    CST_RECORD_NORM = 4,
    CST_RECORD_UPDATE = 5,
    CST_RECORD_FILL = 6,
    CST_RECORD_CONVERT = 7,
    CST_RECORD_READ = 8,
    CST_RECORD_WRITE = 9,
    CST_RECORD_WAIT = 10,
    CST_RECORD_STEP = 11,
    CST_RECORD_STATES_UP = 12,
    CST_RECORD_STATES_DOWN = 13,
};

struct cst_record_interval {
    uint32_t kind;         /* enum cst_record_kind */
    uint32_t number;       /* engine; WAIT: rank */
    uint32_t chunk;        /* UINT32_MAX: none */
    uint32_t ahead : 1;    /* WAIT: nobody stood still for it */
    uint32_t grad : 1;     /* WAIT: for a block for gradients */
    uint64_t bytes;        /* of copies and FILL */
    uint64_t step;         /* that was under way when it ended; STEP: its own number, from 1 */
    uint64_t asked;        /* ns, monotonic: when it was issued or asked for */
    uint64_t began, ended; /* ns, monotonic */
};

struct cst_record; /* opaque */

/* NULL: out of memory; a job goes on without. All functions take NULL for @record and do nothing.
 */
struct cst_record *cst_record_open(void);
void cst_record_close(struct cst_record *record);

/* @command of @kind is issued at @now (ns). */
void cst_record_issue(struct cst_record *record, enum cst_record_kind kind,
                      const struct cst_command *command, uint64_t now);

/* Engine @engine worked on @ticket from @began to @ended. A ticket that is not known any more is
 * passed over. */
void cst_record_done(struct cst_record *record, uint64_t ticket, uint32_t engine, uint64_t began,
                     uint64_t ended);

/* @ticket is over; where cst_record_done did not tell of it, it took until @now. */
void cst_record_over(struct cst_record *record, uint64_t ticket, uint64_t now);

/* @rank's fetch of @chunk, asked for at @asked, was granted at @now. */
void cst_record_wait(struct cst_record *record, uint32_t rank, uint32_t chunk, bool grad,
                     bool ahead, uint64_t asked, uint64_t now);

/* The ranks begin at @now; and step number @step is committed. Told more than once: the first
 * counts. *ns (may be NULL) of the commit: what the step took; 0: told already, or not known. */
void cst_record_begin(struct cst_record *record, uint64_t step, uint64_t now);
void cst_record_commit(struct cst_record *record, uint64_t step, uint64_t now, uint64_t *ns);

/* Intervals are numbered from 0 in the order in which they ended here. *first and *end: those that
 * are kept, [*first, *end). */
void cst_record_range(const struct cst_record *record, uint64_t *first, uint64_t *end);

/* Interval @i, which is kept. */
const struct cst_record_interval *cst_record_get(const struct cst_record *record, uint64_t i);

/* Segments of a job's memory: arenas, then the table, then slabs, which ascend, then rooms. */
struct cst_record_ids {
    const uint32_t *v;
    uint32_t n;        /* of all */
    uint32_t n_arenas; /* the first */
    uint32_t n_rooms;  /* the last */
};

/* What @command is: a COPY by its destination and source. */
enum cst_record_kind cst_record_kind_of(const struct cst_command *command,
                                        const struct cst_record_ids *ids);

#endif
