/* SPDX-License-Identifier: Apache-2.0 */
/* The job "stages": a model that is cut into stages, with edges between them. */
#ifndef STAGE_JOB_H
#define STAGE_JOB_H

#include "tests/lib/worker.h"

/* Tensor s belongs to stage s. The last one belongs to the first and to the last stage. */
enum { STAGES = 4, TENSORS = STAGES + 1, ELEMS = 5000, MICRO = 5 };
enum { WIDTH = 64 }; /* Floats of an array that stages pass to each other. */
/* Edge s goes from stage s to the next one. Edge STAGES - 1 + s goes back to stage s. */
enum { N_EDGES = 2 * (STAGES - 1) };

/* Open the job as @rank of @world, with the time limit @timeout_ms (0: the daemon's), and declare
 * its model. */
void stage_job_declare(struct worker *w, uint32_t rank, uint32_t world, uint32_t timeout_ms);

/* Like stage_job_declare; also commit. */
void stage_job_open(struct worker *w, uint32_t rank, uint32_t world);

/* Write the initial weights. */
void stage_job_write_initial(struct worker *w);

#endif
