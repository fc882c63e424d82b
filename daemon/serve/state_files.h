/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of the files in which states of a job lie on drives, for JobInfo and Explain. Loop
 * thread only. */
#ifndef CSTD_STATE_FILES_H
#define CSTD_STATE_FILES_H

#include "offload/layout/layout.h"
#include "proto/cistern.pb-c.h"
#include "proto/durable.h"

struct cstd_job;
struct cstd_tier;

/* StateFile messages and the storage of their texts. Not to be copied. */
struct cstd_state_files {
    Cistern__StateFile files[CST_LAYOUT_MAX_DEVICES], *pointers[CST_LAYOUT_MAX_DEVICES];
    char paths[CST_LAYOUT_MAX_DEVICES][512];               /* Longer ones are cut. */
    const struct cstd_tier *tiers[CST_LAYOUT_MAX_DEVICES]; /* The drive of each file. */
    uint32_t n;
};

/* Describe the files of @job. *out is valid as long as the job does not change. */
void cstd_state_files_describe(const struct cstd_job *job, struct cstd_state_files *out);

/* StatePlace messages of one chunk. Not to be copied. */
struct cstd_state_places {
    Cistern__StatePlace places[CST_DURABLE_ROWS], *pointers[CST_DURABLE_ROWS];
    uint32_t n;
};

/* Describe where rows of @chunk lie in @files, which are those of @job. The job has memory. */
void cstd_state_files_places(const struct cstd_job *job, const struct cstd_state_files *files,
                             uint32_t chunk, struct cstd_state_places *out);

/* True if states of @job that lie in the tier with this number lie in a file of it. */
bool cstd_state_files_on(const struct cstd_job *job, uint32_t tier);

/* Bytes of the files of @job for its states; 0: it has no layout yet. */
uint64_t cstd_state_files_bytes(const struct cstd_job *job);

/* True if @job is durable and this daemon has recorded a step on its drives: *step is the last
 * one. */
bool cstd_state_files_recorded(const struct cstd_job *job, uint64_t *step);

#endif
