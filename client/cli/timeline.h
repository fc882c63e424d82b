/* SPDX-License-Identifier: Apache-2.0 */
/* Writes intervals and counters as a trace file for Perfetto and chrome://tracing (Trace Event
 * Format: JSON, complete events and counter events). Used for plans and for real runs. A lane whose
 * intervals overlap is drawn as several lanes. */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include "cistern/status.h"

#include <stdint.h>
#include <stdio.h>

#define CLI_TIMELINE_NAME_BYTES 64
#define CLI_TIMELINE_NONE UINT64_MAX

/* Names of the lanes of a NUMA node or an accelerator. Plans and real runs use the same names.
 * CLI_LANE_UP: copies to the ranks' devices, or to the place where chunks are updated.
 * CLI_LANE_DOWN: copies to the host. */
#define CLI_LANE_UP "copies up"
#define CLI_LANE_DOWN "copies down"
#define CLI_LANE_SUMS "sums of gradients"
#define CLI_LANE_UPDATES "updates"

/* An interval. The last four fields are shown with it; CLI_TIMELINE_NONE: not shown. */
struct cli_span {
    uint32_t lane;                      /* Number from cli_timeline_lane. */
    char name[CLI_TIMELINE_NAME_BYTES]; /* Text that is drawn. */
    const char *kind;                   /* Category, for filters; NULL: the lane's name. Static. */
    uint64_t begin, end;                /* In ns. */
    uint64_t step;                      /* Number of the step. */
    uint64_t chunk;                     /* Number of the chunk. */
    uint64_t bytes;                     /* Bytes moved. */
    uint64_t queued_ns;                 /* Time for which it waited before its begin, in ns. */
};

struct cli_timeline {
    struct cli_timeline_lane *lanes; /* Owned. */
    uint32_t n_lanes, lanes_capacity;
    struct cli_span *spans; /* Owned. */
    size_t n_spans, spans_capacity;
    struct cli_change *changes; /* Of counters. Owned. */
    size_t n_changes, changes_capacity;
    int status; /* CST_ENOMEM: lanes, intervals or changes are missing. */
};

void cli_timeline_init(struct cli_timeline *timeline);
void cli_timeline_close(struct cli_timeline *timeline);

/* Return the number of the lane @name of @process ("rank 0", "compute"). A lane that does not exist
 * is created. Processes and lanes are drawn in the order of their creation. */
uint32_t cli_timeline_lane(struct cli_timeline *timeline, const char *process, const char *name);

/* Add an interval, which is copied. A lack of memory is reported by cli_timeline_write. */
void cli_timeline_add(struct cli_timeline *timeline, const struct cli_span *span);

/* Add @change to the counter @name of @process at @at, in ns. A counter begins with 0. Processes
 * are those of the lanes. A lack of memory is reported by cli_timeline_write. */
void cli_timeline_count(struct cli_timeline *timeline, const char *process, const char *name,
                        uint64_t at, int64_t change);

/* Write everything to @to; times are relative to the earliest. Sorts intervals and changes.
 * CST_ENOMEM: something is missing; CST_EIO. */
int cli_timeline_write(struct cli_timeline *timeline, FILE *to, struct cst_err *err);

/* Write everything to the file @path, which is replaced when everything is written. "-" and
 * NULL: standard output. Statuses of cli_timeline_write, and of opening the file. */
int cli_timeline_save(struct cli_timeline *timeline, const char *path, struct cst_err *err);

#endif
