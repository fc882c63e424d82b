/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of an engine's commands share, on the processor and on a GPU: a tiny job, an engine
 * that works on it, one command at a time. */
#ifndef ENGINE_RIG_H
#define ENGINE_RIG_H

#include "tests/lib/engine_proc.h"
#include "tests/lib/tiny_job.h"

#define N_CHUNKS 3
#define BIG 1 /* the chunk that has several pieces per thread */
#define BIG_ELEMS 600000
#define N_SLOTS 3 /* for undoing */

extern struct tiny_job job;
extern struct engine_proc proc;
extern uint64_t ticket; /* the last one submitted */

/* Open the job and start the engine; @on_gpu: its pool is memory of the engine's GPU. */
void engine_rig_setup(bool on_gpu);

/* The same with fp32 grad rows. */
void engine_rig_setup_wide(bool on_gpu);

/* The engine must end well. */
void engine_rig_teardown(void);

/* Submit @command alone and wait for it. */
struct engine_completion engine_rig_run(struct engine_command command);

/* The same; it must succeed. */
void engine_rig_must(struct engine_command command);

/* A place of the arena or of the pool, here. */
void *engine_rig_at(struct cst_place place);

bool engine_rig_all_zero(const void *bytes, uint64_t n);

#endif
