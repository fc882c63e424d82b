/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of training that every kind of accelerator passes, and the devices of their ranks. Before
 * they run, train_cases_use sets the kind, and a fixture starts the daemon with two accelerators.
 */
#ifndef TRAIN_CASES_H
#define TRAIN_CASES_H

#include "tests/lib/train_rig.h"

#include <check.h>

/* Numbers in train_placements. */
enum train_place { TRAIN_ONE, TRAIN_SAME, TRAIN_PEERS, TRAIN_MIXED, TRAIN_FOUR, TRAIN_N_PLACES };

extern struct train_placement train_placements[TRAIN_N_PLACES];

/* Let the placements have accelerators of @kind ("cuda" or "paced"). */
void train_cases_use(const char *kind);

/* The results have the expected bits for every placement, with the largest and the smallest
 * pools. */
void train_cases_bits(TCase *tcase);

/* The same with steps of three micro-batches: the end of a micro-batch waits for the stream, and
 * hand-ins of the next one wait for that end. */
void train_cases_micro_batch_bits(TCase *tcase);

/* Engines number @begin to @end - 1 (0: the node's, 1 and 2: accelerators') are killed at every
 * point of a worker's run. Another one takes over with the memory that the daemon kept, and no step
 * is interrupted. */
void train_cases_engine_killed(TCase *tcase, int begin, int end);

/* One rank of a job on the host and an accelerator is killed at every point. Another process takes
 * its place, and finds the pool as it was allocated. */
void train_cases_worker_killed(TCase *tcase);

#endif
