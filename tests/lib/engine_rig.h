/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of an engine's commands, on the processor and on a GPU: a tiny job and an
 * engine that executes one command at a time. */
#ifndef ENGINE_RIG_H
#define ENGINE_RIG_H

#include "tests/lib/engine_proc.h"
#include "tests/lib/tiny_job.h"

#define N_CHUNKS 3
#define BIG 1 /* number of the chunk that has several pieces per thread */
#define BIG_ELEMS 600000
#define N_SLOTS 3 /* number of undo slots */

extern struct tiny_job job;
extern struct engine_proc proc;
extern uint64_t ticket; /* the ticket of the last command that was submitted */

/* Open the job and start the engine. @on_gpu: the pool is memory of the engine's GPU. */
void engine_rig_setup(bool on_gpu);

/* Like engine_rig_setup, with fp32 grad rows. */
void engine_rig_setup_wide(bool on_gpu);

/* Stop the engine and close the job. Fails the test unless the engine exits with status 0. */
void engine_rig_teardown(void);

/* Submit @command alone and wait for its completion. */
struct engine_completion engine_rig_run(struct engine_command command);

/* Like engine_rig_run; the command must succeed. */
void engine_rig_must(struct engine_command command);

/* Address in this process of a place in the arena or the pool. */
void *engine_rig_at(struct cst_place place);

/* True if all @n @bytes are zero. */
bool engine_rig_all_zero(const void *bytes, uint64_t n);

#endif
