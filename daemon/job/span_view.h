/* SPDX-License-Identifier: Apache-2.0 */
/* What people and programs are shown of a job on several nodes (span.h): its parts, and for whom it
 * waits. Changes nothing. Loop thread only. */
#ifndef CSTD_SPAN_VIEW_H
#define CSTD_SPAN_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cstd_job;
struct cstd_machine;

/* The part of a job on one node. */
struct cstd_span_node {
    const char *name; /* Of the node; borrowed. */
    bool is_self;     /* It is the node of this daemon. */
    uint32_t first_rank, world;
    bool is_member;    /* The job's members have this node among them now. */
    bool is_up;        /* There is a link, or it is this node. */
    uint64_t since_ns; /* For how long there is a link, or none. This node: 0. */
    const char *why;   /* Why there is no link; borrowed. NULL: there is one. */
    uint64_t received; /* Bytes that were copied from there. */
    uint64_t sent;     /* Bytes that were copied from here to there. */
    uint64_t wait_ns;  /* Time for which steps here have waited for this node. */
    bool waits;        /* The step here waits for this node now. */
    uint64_t waits_ns; /* waits: for how long nothing has come. */
    double wait_share; /* Part of the time of the last steps here, 0 to 1. */
};

/* Number of parts that are known; 0: the job has all its ranks on this node. */
uint32_t cstd_span_view_count(const struct cstd_job *job);

/* Write part @m to *out. Their numbers are final when all are known. */
void cstd_span_view_node(const struct cstd_job *job, uint32_t m, struct cstd_span_node *out);

/* Write a sentence about the nodes, without a full stop: that all is well, or for whom the job
 * waits, and what a manager can do. Empty: the job has no other nodes. */
void cstd_span_view_explain(const struct cstd_job *job, char *text, size_t size);

/* Write a few words, "waits for node c, away for 12 s" or "31 % of the step waits for node b".
 * Empty: the job waits for no node. */
void cstd_span_view_brief(const struct cstd_job *job, char *text, size_t size);

/* Write the number of the part of @job on the node of @machine to *m. False: there is none. */
bool cstd_span_view_find(const struct cstd_job *job, const struct cstd_machine *machine,
                         uint32_t *m);

#endif
