/* SPDX-License-Identifier: Apache-2.0 */
/* What happened when, as a trace file that Perfetto and chrome://tracing open (the Trace Event
 * Format: JSON, complete events). One writer for plans and for real runs. Intervals of a lane that
 * overlap are drawn on lanes of their own beside it. */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include "cistern/status.h"

#include <stdint.h>
#include <stdio.h>

#define CLI_TIMELINE_NAME_BYTES 64
#define CLI_TIMELINE_NONE UINT64_MAX

/* Lanes of whoever moves and computes on bytes: a NUMA node, an accelerator. The same words in
 * plans and in traces. */
#define CLI_LANE_UP "copies up"     /* towards ranks' devices, and to where chunks are updated */
#define CLI_LANE_DOWN "copies down" /* towards the host */
#define CLI_LANE_SUMS "sums of gradients"
#define CLI_LANE_UPDATES "updates"

struct cli_span {
    uint32_t lane;                      /* of cli_timeline_lane */
    char name[CLI_TIMELINE_NAME_BYTES]; /* what is drawn */
    const char *kind;                   /* static, to filter by; NULL: the lane's name */
    uint64_t begin, end;                /* ns */
    uint64_t step;                      /* so these are: shown with it; CLI_TIMELINE_NONE: not */
    uint64_t chunk;
    uint64_t bytes;
    uint64_t queued_ns; /* it waited before its begin */
};

struct cli_timeline {
    struct cli_timeline_lane *lanes; /* owned */
    uint32_t n_lanes, lanes_capacity;
    struct cli_span *spans; /* owned */
    size_t n_spans, spans_capacity;
    int status; /* CST_ENOMEM: something is missing */
};

void cli_timeline_init(struct cli_timeline *timeline);
void cli_timeline_close(struct cli_timeline *timeline);

/* The lane @name of @process ("rank 0", "compute"), made if it is not there; processes and lanes
 * are drawn in the order in which they were made. */
uint32_t cli_timeline_lane(struct cli_timeline *timeline, const char *process, const char *name);

/* Copied. Out of memory is remembered, for write to tell. */
void cli_timeline_add(struct cli_timeline *timeline, const struct cli_span *span);

/* Write all of it; times count from the first begin. Sorts the spans. CST_ENOMEM; CST_EIO. */
int cli_timeline_write(struct cli_timeline *timeline, FILE *to, struct cst_err *err);

/* The same into the file @path, which is replaced when all is written; "-" or NULL: standard
 * output.
 */
int cli_timeline_save(struct cli_timeline *timeline, const char *path, struct cst_err *err);

#endif
