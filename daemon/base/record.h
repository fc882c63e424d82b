/* SPDX-License-Identifier: Apache-2.0 */
/* What a job did lately, for people: a ring of time intervals, always enabled. Each command costs
 * one table entry and one ring entry, and no reading of the clock, because the times of an engine's
 * work come from the engine. The table grows only if more commands are under way than ever before.
 * Does no I/O, and allocates with malloc alone. Loop thread only. */
#ifndef CST_RECORD_H
#define CST_RECORD_H

#include "offload/core/core.h"

/* Number of intervals that are kept, the last ones: at least, and at most. */
enum { CSTD_RECORD_FEWEST = 16384, CSTD_RECORD_MOST = 262144 };

/* The numbers are those of TraceInterval in cistern.proto. */
enum cstd_record_kind {
    CSTD_RECORD_LOAD = 1,
    CSTD_RECORD_STAGE = 2,
    CSTD_RECORD_REDUCE = 3,
    CSTD_RECORD_NORM = 4,
    CSTD_RECORD_UPDATE = 5,
    CSTD_RECORD_FILL = 6,
    CSTD_RECORD_CONVERT = 7,
    CSTD_RECORD_READ = 8,
    CSTD_RECORD_WRITE = 9,
    CSTD_RECORD_WAIT = 10,
    CSTD_RECORD_STEP = 11,
    CSTD_RECORD_STATES_UP = 12,
    CSTD_RECORD_STATES_DOWN = 13,
    CSTD_RECORD_LEASE = 14,
    CSTD_RECORD_COMMIT = 15,
};

#define CSTD_RECORD_NO_RANK 0xffffu

struct cstd_record_interval {
    uint32_t kind;      /* enum cstd_record_kind */
    uint32_t number;    /* Number of the engine; WAIT, LEASE, COMMIT: the rank. */
    uint32_t chunk;     /* UINT32_MAX: the interval is of no chunk. */
    uint32_t ahead : 1; /* WAIT: the worker did not wait for the block. */
    uint32_t grad : 1;  /* WAIT, LEASE: the block was for a gradient. */
    uint32_t rank : 16; /* LOAD: the rank whose pool it is; otherwise CSTD_RECORD_NO_RANK. */
    union {
        uint64_t bytes;      /* Bytes of a copy or FILL, or of the block of a LEASE. */
        uint64_t exposed_ns; /* STEP: exposed update time (offload/books/instant.h). */
    };
    /* Steps committed when the interval ended; STEP: the step's own number, from 1. */
    uint64_t step;
    /* ns, monotonic: when the command was issued or the block was requested. */
    uint64_t asked;
    uint64_t began, ended; /* ns, monotonic */
};

struct cstd_record; /* opaque */

/* What the size of a record depends on. */
struct cstd_record_job {
    uint32_t n_chunks, n_ranks, micro_batches;
    uint64_t bytes; /* Memory of the job. */
};

/* Number of intervals that the record of @job keeps: about those of 64 steps, between the limits
 * above, and no more than a 64th of the job's memory takes. */
uint32_t cstd_record_intervals(const struct cstd_record_job *job);

/* Make a record. NULL: out of memory; the job continues without a record. All functions accept NULL
 * for @record and then do nothing, except cstd_record_get. */
struct cstd_record *cstd_record_open(const struct cstd_record_job *job);
/* Bytes of the heap that the record takes at most. */
uint64_t cstd_record_bytes(const struct cstd_record_job *job);

void cstd_record_close(struct cstd_record *record);

/* @command, which is of @kind, is issued at @now (ns). @rank: whose pool a LOAD fills; for other
 * kinds CSTD_RECORD_NO_RANK. */
void cstd_record_issue(struct cstd_record *record, enum cstd_record_kind kind,
                       const struct cst_command *command, uint32_t rank, uint64_t now);

/* Add an interval: engine @engine worked on @ticket from @began to @ended. A ticket that is not
 * known any more is ignored. */
void cstd_record_done(struct cstd_record *record, uint64_t ticket, uint32_t engine, uint64_t began,
                      uint64_t ended);

/* @ticket is complete at @now. Adds an interval from its issue to @now if cstd_record_done was not
 * called for it. */
void cstd_record_over(struct cstd_record *record, uint64_t ticket, uint64_t now);

/* Add an interval: @rank requested a block for @chunk at @asked, which was granted at @now. */
void cstd_record_wait(struct cstd_record *record, uint32_t rank, uint32_t chunk, bool grad,
                      bool ahead, uint64_t asked, uint64_t now);

/* Add an interval: @rank had a lease on the block of @chunk, of @bytes, which was granted at
 * @granted and is given back at @now. */
void cstd_record_lease(struct cstd_record *record, uint32_t rank, uint32_t chunk, bool grad,
                       uint64_t bytes, uint64_t granted, uint64_t now);

/* Begin: the ranks start a step at @now, when @step steps are committed. Commit: step number @step,
 * whose exposed update time is @exposed_ns, is committed at @now; a step that is already recorded
 * is ignored. *ns (may be NULL) is set to the time that the step took; 0: already recorded, or not
 * known. */
void cstd_record_begin(struct cstd_record *record, uint64_t step, uint64_t now);
void cstd_record_commit(struct cstd_record *record, uint64_t step, uint64_t exposed_ns,
                        uint64_t now, uint64_t *ns);

/* Add an interval: @rank asked for the last commit at @asked, and has waited for it since then. */
void cstd_record_closing(struct cstd_record *record, uint32_t rank, uint64_t asked);

/* Intervals are numbered from 0 in the order in which they were added. Those from *first to *end -
 * 1 are kept. */
void cstd_record_range(const struct cstd_record *record, uint64_t *first, uint64_t *end);

/* Return interval number @i, which must be kept. */
const struct cstd_record_interval *cstd_record_get(const struct cstd_record *record, uint64_t i);

/* Ids of the segments of a job's memory: first those of the arenas, then the job table, slabs and
 * edges, then device reservations. Commands do not copy to or from the job table and edges. */
struct cstd_record_ids {
    const uint32_t *v;
    uint32_t n;              /* Number of segments. */
    uint32_t n_arenas;       /* Number of arenas, which are first. */
    uint32_t n_reservations; /* Number of device reservations, which are last. */
};

/* Return the kind of @command. The kind of a COPY depends on its destination and source. */
enum cstd_record_kind cstd_record_kind_of(const struct cst_command *command,
                                          const struct cstd_record_ids *ids);

#endif
