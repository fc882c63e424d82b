/* SPDX-License-Identifier: Apache-2.0 */
/* What one engine has of the shared segments (enum cst_mount_state in arena.h): asking for them,
 * letting them go, and what becomes of both when the engine dies. Part of engine.c's engine, in a
 * file of its own. */
#ifndef CST_MOUNTS_H
#define CST_MOUNTS_H

#include "daemon/engine.h"

/* Ask for @segment, which is WANTED or REMOUNT, if the engine is up; else that happens when it is.
 */
void cst_mounts_add(struct cst_engine *engine, struct cst_segment *segment);

/* Have @segment unmapped; the engine's reference to it goes when that is so. */
void cst_mounts_drop(struct cst_engine *engine, struct cst_segment *segment);

/* A new process is up: ask for everything that it must have. n_remounting counts what commands have
 * to wait for. */
void cst_mounts_renew(struct cst_engine *engine);

/* The process has died, before cst_mounts_forget. True: it was populating segments, whose owners
 * the death counts against; what had been populated of them is given back. */
bool cst_mounts_blame(struct cst_engine *engine);

/* After cst_mounts_forget: owners that have had too many engines killed get no memory. They
 * are told @how the last one ended, and what limit of a control group may be the cause. */
void cst_mounts_refuse(struct cst_engine *engine, const char *how);

/* The process has died: what it had is to be mapped by the next one, what it was to unmap is gone.
 */
void cst_mounts_forget(struct cst_engine *engine);

/* There will be no process: who waits for a segment gets engine->why. */
void cst_mounts_fail(struct cst_engine *engine);

/* SEGMENT_DONE and PROGRESS came. */
void cst_mounts_done(struct cst_engine *engine, struct cst_frame *frame);
void cst_mounts_progress(struct cst_engine *engine, const struct cst_frame *frame);

#endif
