/* SPDX-License-Identifier: Apache-2.0 */
/* Rooms: memory of accelerators, beside the pools of ranks, in which chunks can be updated
 * (offload/core.h), and which of them a job wants. They are part of the job's memory: made with it
 * (daemon/memory.h, where they are then found as the core takes them), charged to what their
 * accelerator has for pools, given back with the job. */
#ifndef CST_ROOM_H
#define CST_ROOM_H

#include "offload/core.h"

struct cst_daemon;
struct cst_gpu;
struct cst_job;
struct cst_job_wish;
struct cst_worker;

/* A room that is to be made. */
struct cst_room {
    struct cst_gpu *gpu; /* the accelerator: a GPU or a paced one */
    uint64_t bytes;      /* of it, a multiple of the accelerator's granularity */
};

/* Where the updates of @rank may be done: on @gpu, its own device; where that is the host (NULL),
 * on paced accelerator number @rank modulo their number. NULL: there is none. */
struct cst_gpu *cst_room_accelerator(struct cst_daemon *daemon, struct cst_gpu *gpu, uint32_t rank);

/* Decide what @job's ranks have of their accelerators: what they ask for or, where they leave it to
 * the plan, what that says; nothing, if there is none. */
void cst_room_settle(struct cst_job *job);

/* Is some of it left to the plan? */
bool cst_room_is_open(const struct cst_worker *worker);

/* Does it have some that the plan chose? */
bool cst_room_is_chosen(const struct cst_worker *worker);

/* CST_EINVAL: @wish leaves to the plan what it cannot choose. */
int cst_room_check_wish(const struct cst_job_wish *wish, struct cst_err *err);

/* Bytes of its accelerator that are left for each rank of @job beside the host, as the plan counts
 * them: the ranks have the same of each. */
uint64_t cst_room_left(const struct cst_job *job);

/* The rooms that @job's ranks ask for: one on each accelerator, as large as they want it together,
 * rounded down to its granularity. Those of accelerators beyond CST_CORE_MAX_ROOMS are not made.
 * Returns how many there are. */
uint32_t cst_room_list(const struct cst_job *job, struct cst_room rooms[CST_CORE_MAX_ROOMS]);

/* Where states of @job's chunks stay on accelerators, as its ranks want it, for the layout.
 * CST_EINVAL: a room of less than the accelerator's granularity, or states on one without a room,
 * in which they would be updated; CST_EUNSUPPORTED: too many. */
int cst_room_devices(const struct cst_job *job, struct cst_layout_config *config,
                     struct cst_err *err);

/* What rooms and states that stay there take of @gpu (NULL: the host, 0), bytes at most. */
uint64_t cst_room_bytes(const struct cst_job *job, const struct cst_gpu *gpu);

#endif
