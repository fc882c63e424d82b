/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `cistern report`: one file of HTML that needs nothing else. report.c gets the figures
 * from the daemon; the sections are written by report_head.c (what the job is), report_run.c (its
 * whole run) and report_recent.c (its last steps). */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "client/cli/intervals.h"

#include <stdio.h>

struct cli_report {
    const Cistern__JobInfo *job;
    const Cistern__StatReply *stat;
    Cistern__HistoryEntry *history; /* Owned. */
    size_t n_history;
    struct cli_intervals intervals; /* Owned. */
};

/* Begin the page: its style, the name of the job, its key figures, and what it is. */
void cli_report_head(const struct cli_report *report, FILE *to);

/* Loss, speed, and the plan against what was measured. */
void cli_report_run(const struct cli_report *report, FILE *to);

/* Where the time of steps went, memory, and which chunks were where. False: memory is short. */
bool cli_report_recent(const struct cli_report *report, FILE *to);

/* Compare two doubles for qsort, which come in ascending order. */
int cli_report_compare(const void *a, const void *b);

/* The median time of the recent steps, in seconds; 0: not known. */
double cli_report_step_seconds(const struct cli_report *report);

/* Tokens, or else steps, per second over all steps of the entries [first, end). *tokens: which. */
double cli_report_speed(const struct cli_report *report, size_t first, size_t end, bool *tokens);

#endif
