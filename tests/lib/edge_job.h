/* SPDX-License-Identifier: Apache-2.0 */
/* The job "edges": one edge from its first rank to its last one, one back, and one from the first
 * rank to itself. */
#ifndef EDGE_JOB_H
#define EDGE_JOB_H

#include "tests/lib/worker.h"

#include <stdbool.h>

enum { THERE, BACK, STASH, N_EDGES }; /* The edges. */
enum { SLOT = 3000 };                 /* Bytes of a slot. */
enum { N_SLOTS = 3, STASHED = 5 };    /* Slots of edge THERE, and of STASH. BACK has one. */

/* Open the job as @rank of @world, and declare its edges and one operator. The slots of edge THERE
 * have @slot_bytes each, and are in device memory if @on_device. */
void edge_job_declare(struct worker *w, uint32_t rank, uint32_t world, uint64_t slot_bytes,
                      bool on_device);

/* Declare slots of SLOT bytes in host memory, and commit. */
void edge_job_open(struct worker *w, uint32_t rank, uint32_t world);

/* Like edge_job_open; also sync. */
void edge_job_begin(struct worker *w, uint32_t rank, uint32_t world);

#endif
