/* SPDX-License-Identifier: Apache-2.0 */
/* At the start of the daemon: goes on with the jobs whose memory and ledgers an earlier process of
 * the service has left in the service manager's store. A job is as it was after its last committed
 * step, without workers; they open it again. Loop thread only. */
#ifndef CSTD_REVIVE_H
#define CSTD_REVIVE_H

#include "cistern/status.h"

struct cstd_daemon;
struct cstd_keeper;

/* Go on with all jobs in daemon->keeper, before the engines are started. A job with which the
 * daemon cannot go on is named in the log with the reason. Its memory stays in the store, for a
 * daemon that can, until the service is stopped. */
void cstd_revive_jobs(struct cstd_daemon *daemon);

/* CST_OK: all ledgers in @keeper can be read. CST_EBUSY: one cannot, for the reason in @err.
 * Nothing is taken. */
int cstd_revive_check(const struct cstd_keeper *keeper, struct cst_err *err);

#endif
