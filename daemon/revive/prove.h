/* SPDX-License-Identifier: Apache-2.0 */
/* Proves, before another daemon ends, that this one can go on with its jobs (handover.h). Nothing
 * of them is changed: they go on meanwhile. A part of revive.c in a file of its own. */
#ifndef CSTD_PROVE_H
#define CSTD_PROVE_H

#include <stdint.h>

struct cst_err;
struct cstd_daemon;
struct cstd_kept_job;

/* Build the model and the layout of @kept, whose job exists, and look for its accelerators and its
 * memory. @base: its base job, for which the same was done; NULL: none. Errors: as of
 * revive_job.h. */
int cstd_prove_job(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                   const struct cstd_kept_job *base, struct cst_err *err);

/* Check that the budgets and the users' limits hold what the @n jobs have, and the pools that their
 * workers will want: together those of jobs at work, and each alone those of others, which may have
 * to wait for jobs at work with this daemon, too.
 * CST_EBUDGET, or another status of a limit. */
int cstd_prove_budgets(struct cstd_daemon *daemon, const struct cstd_kept_job *jobs, uint32_t n,
                       struct cst_err *err);

/* Run the engine programs with --version. CST_ENOTFOUND: one is not what it should be. */
int cstd_prove_programs(struct cstd_daemon *daemon, struct cst_err *err);

#endif
