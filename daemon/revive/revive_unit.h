/* SPDX-License-Identifier: Apache-2.0 */
/* A unit of revival: a job, and the one that was to replace it, if there is one. Both were there
 * when the earlier daemon died in the middle of a reshape. They go on together where one needs the
 * other; otherwise a part that cannot go on is dropped. A part of revive.c in a file of its own. */
#ifndef CSTD_REVIVE_UNIT_H
#define CSTD_REVIVE_UNIT_H

struct cst_err;
struct cstd_kept_job;
struct cstd_revival;

/* Log that job @name cannot go on because of @why. */
void cstd_revive_unit_tell(const char *name, const struct cst_err *why);

/* Check what the records of @kept and its heir say. CST_ELOST: one lacks what the other had. */
int cstd_revive_unit_check(const struct cstd_kept_job *kept, struct cst_err *err);

/* The unit of @kept is lost to this daemon because of @why. Its memory stays in the store. */
void cstd_revive_unit_lose(struct cstd_revival *revival, struct cstd_kept_job *kept,
                           const struct cst_err *why);

/* Drop the parts of the unit of @kept that have an error. Returns the first job of what is left;
 * NULL: nothing. */
struct cstd_kept_job *cstd_revive_unit_sift(struct cstd_revival *revival,
                                            struct cstd_kept_job *kept);

/* The models and layouts of the unit are built: open its memory. It goes on, or is lost, when the
 * engines have answered; revival->go_ahead is called then. */
void cstd_revive_unit_open(struct cstd_revival *revival, struct cstd_kept_job *kept);

/* Look whether the memory of the unit of @kept is all there, or will not be, because a job of the
 * unit was removed: then the unit goes on or is lost, and revival->go_ahead is called. @kept is not
 * an heir. */
void cstd_revive_unit_look(struct cstd_revival *revival, struct cstd_kept_job *kept);

#endif
