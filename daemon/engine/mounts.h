/* SPDX-License-Identifier: Apache-2.0 */
/* The segments of one engine (enum cstd_mount_state in arena.h): requests to map and unmap them,
 * and their handling when the engine process dies. A part of engine.c in a file of its own. */
#ifndef CST_MOUNTS_H
#define CST_MOUNTS_H

#include "daemon/engine/engine.h"

/* Ask the engine to map @segment, whose state is WANTED or REMOUNT, if that is possible now.
 * Otherwise the request is made later, when the engine is up or the segment may be mapped. */
void cstd_mounts_add(struct cstd_engine *engine, struct cstd_segment *segment);

/* Have @segment unmapped. The engine's reference is released when that is done. */
void cstd_mounts_drop(struct cstd_engine *engine, struct cstd_segment *segment);

/* After the start of a new process: ask it to map all segments that it must have, and set
 * n_remounting to the number that its commands must wait for. */
void cstd_mounts_renew(struct cstd_engine *engine);

/* After the death of a process and before cstd_mounts_forget: if the process was populating
 * segments, count the death against their owners, give back the memory that had been populated, and
 * return true. */
bool cstd_mounts_blame(struct cstd_engine *engine);

/* After cstd_mounts_forget: fail the segments of owners that have had too many engines killed while
 * they were populated. The error says @how the last process ended and which limit of a control
 * group may be the reason. */
void cstd_mounts_refuse(struct cstd_engine *engine, const char *how);

/* After the death of a process: segments that it had mapped are to be mapped by the next process,
 * and segments that it was to unmap are gone. */
void cstd_mounts_forget(struct cstd_engine *engine);

/* The engine was given up: fail all requests to map segments with engine->why. */
void cstd_mounts_fail(struct cstd_engine *engine);

/* Process the engine's messages SEGMENT_DONE and PROGRESS. */
void cstd_mounts_done(struct cstd_engine *engine, struct cst_frame *frame);
void cstd_mounts_progress(struct cstd_engine *engine, const struct cst_frame *frame);

#endif
