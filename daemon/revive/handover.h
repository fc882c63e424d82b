/* SPDX-License-Identifier: Apache-2.0 */
/* Handing all jobs over to another daemon, such as a newer version, without a service manager. The
 * new daemon asks the old one on its manager socket for the descriptors of all jobs, and goes on
 * with them as after a death (revive.h) when the old one has ended. Workers wait for it in
 * cst_sync.
 *
 *   new --HandoverGet, several times--> old: ledgers begin, jobs go on as before
 *   new: builds each job's model and layout, and looks for all that the jobs need
 *   new --HandoverEnd-----------------> old: tells the workers, and ends */
#ifndef CSTD_HANDOVER_H
#define CSTD_HANDOVER_H

#include "cistern/status.h"

struct cstd_daemon;

/* In the new daemon, before it listens: take over from the daemon whose manager socket is at @path.
 * daemon->keeper gets the descriptors, and daemon->revival the jobs. After a failure the old daemon
 * goes on, and this process must end. CST_ECONN: nobody listens;
 * CST_EDENIED: it is another user's; CST_EBUSY: a job cannot be handed over, or cannot go on here;
 * CST_EVERSION, CST_EPROTO, CST_ENOMEM. */
int cstd_handover_take(const char *path, struct cstd_daemon *daemon, struct cst_err *err);

#endif
