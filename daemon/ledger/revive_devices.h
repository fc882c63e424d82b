/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerators of a job that is revived: a part of revive.c in a file of its own. Memory on an
 * accelerator outlives the daemon and the accelerator's engine, because the service manager has a
 * descriptor of it. It is used by the next engine of the same accelerator, whose number may differ.
 * Loop thread only. */
#ifndef CSTD_REVIVE_DEVICES_H
#define CSTD_REVIVE_DEVICES_H

#include "daemon/ledger/ledger_file.h"
#include "daemon/memory/device_reservation.h"
#include "offload/layout/layout.h"
#include "proto/ledger.pb-c.h"

/* Give the ranks of @job the accelerators that they had when @record was written. CST_ENOTFOUND:
 * one that is still in use is not there; CST_ELOST: @ledger has other ranks, or not all
 * accelerators of @record. */
int cstd_revive_take_devices(struct cstd_job *job, const Ledger__Job *ledger,
                             const struct cstd_ledger_record *record, struct cst_err *err);

/* Number of device reservations in @ledger. */
uint32_t cstd_revive_count_reservations(const Ledger__Job *ledger);

/* List the device reservations of @ledger, whose accelerators are there, in @reservations, and fill
 * in config->devices: where states stay on accelerators. Returns the number of device reservations.
 */
uint32_t cstd_revive_list_reservations(
    struct cstd_daemon *daemon, const Ledger__Job *ledger,
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES],
    struct cst_layout_config *config);

#endif
