/* SPDX-License-Identifier: Apache-2.0 */
/* Device reservations: memory of accelerators, in addition to the ranks' pools, in which chunks can
 * be updated (offload/core/core.h). This module decides which of them a job wants. They are part of
 * the job's memory: made with it (daemon/memory/memory.h), charged to the accelerator's budget for
 * pools, and freed with the job. Loop thread only. */
#ifndef CSTD_DEVICE_RESERVATION_H
#define CSTD_DEVICE_RESERVATION_H

#include "offload/core/core.h"
#include "offload/layout/buffers.h"

struct cstd_daemon;
struct cstd_job;
struct cstd_job_request;
struct cstd_tier;
struct cstd_worker;

/* A device reservation that is to be made. */
struct cstd_device_reservation {
    const struct cstd_tier *tier; /* Whose states are updated there. */
    uint64_t bytes;               /* Size, a multiple of the accelerator's granularity. */
};

/* Decide what @job's ranks reserve on their accelerators: what they ask for or, if they leave it to
 * the plan, what the plan says; nothing if there is no plan. */
void cstd_device_reservation_settle(struct cstd_job *job);

/* Return whether @worker leaves its device reservation or its states on the accelerator to the
 * plan. */
bool cstd_device_reservation_is_open(const struct cstd_worker *worker);

/* Return whether @worker has a device reservation, or states on the accelerator, that the plan
 * chose. */
bool cstd_device_reservation_is_chosen(const struct cstd_worker *worker);

/* CST_EINVAL: @request leaves something to the plan that the plan cannot choose. */
int cstd_device_reservation_check_request(const struct cstd_job_request *request,
                                          struct cst_err *err);

/* Return the bytes of simulated accelerators that are left for each rank of @job, whose ranks have
 * their pools on the host. The plan gives each rank as much, hence the fullest accelerator
 * decides. */
uint64_t cstd_device_reservation_left(const struct cstd_job *job);

/* Fill in the device reservations that @job's ranks ask for: one per accelerator, the sum of the
 * ranks' wishes, rounded down to the accelerator's granularity if it is known. Accelerators beyond
 * CST_CORE_MAX_UPDATE_DEVICES get none. Returns the number of reservations. */
uint32_t cstd_device_reservation_list(
    const struct cstd_job *job,
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES]);

/* Choose the buffers for the states of @job on drives. Called once for each layout, as soon as it
 * is built, because that takes milliseconds for large models. Any thread that alone has the layout.
 */
void cstd_device_reservation_choose_drives(struct cstd_job *job);

/* Return the chosen buffers for the states of @job on drives, and the states that stay in host
 * memory because of them; all 0: there are no drives, or no layout yet. */
struct cst_buffers_drives cstd_device_reservation_drives(const struct cstd_job *job);

/* Return whether the pool of @worker lends memory for device updates, instead of a reservation: the
 * worker asks for that, or the plan chose it. */
bool cstd_device_reservation_is_lent(const struct cstd_worker *worker);

/* Device reservations in the form that a core needs. */
struct cstd_device_reservations {
    struct cst_core_device_reservation v[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n;
};

/* Return the device reservations that the memory of @job has, which must exist, and the pools that
 * lend memory, as many as fit. */
struct cstd_device_reservations cstd_device_reservation_describe(const struct cstd_job *job);

/* Fill in config->devices: where states of @job's chunks stay on accelerators, as its ranks want
 * it. CST_EINVAL: a device reservation smaller than the accelerator's granularity, or states on an
 * accelerator without a reservation, in which they would be updated. CST_EUNSUPPORTED: states on
 * too many accelerators. */
int cstd_device_reservation_devices(const struct cstd_job *job, struct cst_layout_config *config,
                                    struct cst_err *err);

/* Return the most bytes that device reservations and states of @job take of the budget of @tier's
 * pools. */
uint64_t cstd_device_reservation_bytes(const struct cstd_job *job, const struct cstd_tier *tier);

#endif
