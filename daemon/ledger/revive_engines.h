/* SPDX-License-Identifier: Apache-2.0 */
/* What all jobs that are kept need of the nodes' engines: their undo slots, which finish updates
 * that are under way, and the table of traffic, by whose lock the next daemon knows that all
 * engines have ended. Loop thread only. */
#ifndef CSTD_REVIVE_ENGINES_H
#define CSTD_REVIVE_ENGINES_H

#include "cistern/status.h"

struct cstd_daemon;

/* Take over the table of traffic and the undo slots of the nodes' engines, when the engines of the
 * earlier daemon have ended. If only engines of drives have not, engines->drives_held says so.
 * CST_EBUSY: another one still runs, and nothing was taken. CST_EIO: the table
 * cannot be locked, and nothing was taken. CST_ENOMEM. */
int cstd_revive_adopt_engines(struct cstd_daemon *daemon, struct cst_err *err);

/* Store those that were not adopted, once: the earlier daemon may have had fewer nodes. The engines
 * have started. CST_ENOMEM. */
int cstd_ledger_store_engines(struct cstd_daemon *daemon, struct cst_err *err);

#endif
