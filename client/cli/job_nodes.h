/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a job, for people: part of `cistern job` and of the page of `cistern report`. */
#ifndef CLI_JOB_NODES_H
#define CLI_JOB_NODES_H

#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stdio.h>

/* Print for whom the job waits, before the tables. A job with all its ranks on one node: nothing.
 */
void cli_job_nodes_print_state(const Cistern__JobInfo *job, FILE *out);

/* Print a table of the nodes, and an empty line before it. False: out of memory; the error was
 * printed. */
bool cli_job_nodes_print(const Cistern__JobInfo *job, FILE *out);

/* Write the nodes to the page of a report. */
void cli_job_nodes_report(const Cistern__JobInfo *job, FILE *to);

#endif
