/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the ledger of a job (ledger_file.h): at once, or in a thread while the loop serves others.
 * Does not keep the job (ledger.h). Loop thread only. */
#ifndef CSTD_LEDGER_MAKE_H
#define CSTD_LEDGER_MAKE_H

#include "daemon/ledger/ledger_file.h"
#include "offload/layout/layout.h"

struct cstd_daemon;
struct cstd_job;
struct cstd_ledger_work;
struct cstd_segment;

/* Called on the loop thread. @err: CST_OK, and the callee owns @file; or why there is none. */
typedef void (*cstd_ledger_make_cb)(struct cstd_job *job, struct cstd_ledger_file *file,
                                    struct cst_err *err);

/* Make the ledger of @job, which has a core, without a record. CST_ENOMEM; the statuses of
 * cstd_device_reservation_devices. */
int cstd_ledger_make(struct cstd_job *job, struct cstd_ledger_file *out, struct cst_err *err);

/* The same in a thread. @done follows, never within this call; until then *out is valid, and @job
 * must not be freed or change its model, its layout and its plan. */
int cstd_ledger_make_start(struct cstd_job *job, cstd_ledger_make_cb done,
                           struct cstd_ledger_work **out, struct cst_err *err);

/* Number of the segments that are kept of @job: its arenas, the job table and its device
 * reservations, in this order. */
uint32_t cstd_ledger_n_segments(const struct cstd_job *job);

/* Segment @i of them. */
const struct cstd_segment *cstd_ledger_segment(const struct cstd_job *job, uint32_t i);

/* The number of the segment of a job with @layout whose descriptor serves segment @i, too: of those
 * in one file on a drive the first one; otherwise @i. */
uint32_t cstd_ledger_holder(const struct cstd_daemon *daemon, const struct cst_layout *layout,
                            uint32_t i);

#endif
