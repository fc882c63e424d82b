/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a job's description that is about its nodes (daemon/job/span_view.h). */
#ifndef CSTD_JOB_NODES_H
#define CSTD_JOB_NODES_H

#include "offload/base/machines.h"
#include "proto/cistern.pb-c.h"

struct cstd_job;

/* The storage of what is about nodes in a JobInfo of a list. */
struct cstd_job_nodes_brief {
    char wait[160];
};

/* The storage of what is about nodes in the JobInfo of one job. */
struct cstd_job_nodes {
    struct cstd_job_nodes_brief brief;
    char state[768];
    Cistern__JobNode nodes[CST_MACHINES_MAX], *pointers[CST_MACHINES_MAX];
    char reasons[CST_MACHINES_MAX][160];
};

/* Set the fields of *out that a list has, too. *out borrows from *brief. */
void cstd_job_nodes_fill_brief(const struct cstd_job *job, struct cstd_job_nodes_brief *brief,
                               Cistern__JobInfo *out);

/* Set all fields about nodes. *out borrows from *nodes and @job. */
void cstd_job_nodes_fill(const struct cstd_job *job, struct cstd_job_nodes *nodes,
                         Cistern__JobInfo *out);

/* Write lines about the nodes of @job, at most @max, and return their number. */
unsigned cstd_job_nodes_explain(const struct cstd_job *job, char lines[][192], unsigned max);

#endif
