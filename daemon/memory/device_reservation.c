/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device_reservation.h"

#include "cistern/cistern.h"
#include "daemon/base/daemon_state.h"
#include "daemon/job/worker.h"
#include "proto/size.h"
#include "daemon/budget/arena.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/memory/memory.h"

#include <inttypes.h>
#include <string.h>

static bool is_reservation_open(const struct cstd_worker *worker)
{
    const struct cst_plan_config asked = {.device_update_bytes = worker->device_update_asked,
                                          .device_states = worker->states_asked};

    return cst_plan_chooses_reservation(&asked);
}

bool cstd_device_reservation_is_open(const struct cstd_worker *worker)
{
    return is_reservation_open(worker) || worker->states_asked == CST_PLAN_DEVICE_UPDATE_AUTO;
}

bool cstd_device_reservation_is_chosen(const struct cstd_worker *worker)
{
    return (worker->device_update_bytes > 0 &&
            worker->device_update_bytes != worker->device_update_asked) ||
           (worker->device_states > 0 && worker->device_states != worker->states_asked);
}

bool cstd_device_reservation_is_lent(const struct cstd_worker *worker)
{
    return worker->lends;
}

struct cstd_device_reservations cstd_device_reservation_describe(const struct cstd_job *job)
{
    const struct cstd_memory *memory = &job->memory;
    struct cstd_device_reservations out = {.n = memory->n_reservations};

    memcpy(out.v, memory->reservations, sizeof memory->reservations);
    for (uint32_t r = 0; r < job->world && out.n < CST_CORE_MAX_UPDATE_DEVICES; r++) {
        if (cstd_device_reservation_is_lent(&job->workers[r]) &&
            cst_tier_is_apart(memory->pools[r].tier)) {
            out.v[out.n++] = (struct cst_core_device_reservation){
                .engine = memory->pools[r].tier, .lent = true, .rank = r};
        }
    }
    return out;
}

void cstd_device_reservation_settle(struct cstd_job *job)
{
    const struct cst_plan_choice *choice = job->plan.valid ? &job->plan.choice : NULL;

    for (uint32_t r = 0; r < job->world; r++) {
        struct cstd_worker *worker = &job->workers[r];

        worker->lends = worker->device_update_asked == CST_DEVICE_UPDATE_LENT;
        worker->device_update_bytes = worker->lends ? 0 : worker->device_update_asked;
        worker->device_states = worker->states_asked;
        if (is_reservation_open(worker)) {
            worker->lends = choice != NULL && choice->lends;
            worker->device_update_bytes = choice != NULL ? choice->device_update_bytes : 0;
        }
        if (worker->states_asked == CST_PLAN_DEVICE_UPDATE_AUTO) {
            worker->device_states = choice != NULL ? choice->device_states : 0;
        }
    }
}

static int check_lent(const struct cstd_job_request *request, struct cst_err *err)
{
    if (!request->tier->kind->apart) {
        return cst_err_set(
            err, CST_EINVAL,
            "device_update_bytes cannot be lent memory for a pool in host memory: only a pool on "
            "an accelerator can lend memory");
    }
    if (request->spec.memory.device_states != 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "device_states cannot be combined with device_update_bytes of lent "
            "memory: states that stay on the device need memory in which they are always updated");
    }
    return CST_OK;
}

int cstd_device_reservation_check_request(const struct cstd_job_request *request,
                                          struct cst_err *err)
{
    const struct cst_plan_config asked = {.device_update_bytes =
                                              request->spec.memory.device_update_bytes,
                                          .device_states = request->spec.memory.device_states,
                                          .states = cst_layout_job_states(&request->spec)};
    bool open = request->spec.memory.device_update_bytes == CST_PLAN_DEVICE_UPDATE_AUTO ||
                request->spec.memory.device_states == CST_PLAN_DEVICE_UPDATE_AUTO;
    int rc = open ? cst_plan_check_reservation(&asked, err) : CST_OK;
    char pool[CST_SIZE_EXACT];

    if (request->spec.memory.device_update_bytes == CST_DEVICE_UPDATE_LENT) {
        return check_lent(request, err);
    }
    if (rc == CST_OK && open && request->tier->kind->apart && request->spec.memory.pool_bytes > 0) {
        return cst_err_set(
            err, CST_EINVAL,
            "a pool of %s cannot be combined with device_update_bytes or device_states that "
            "the plan chooses: leave the pool to the plan too",
            cst_size_exact(request->spec.memory.pool_bytes, pool));
    }
    return rc;
}

/* The ranks take turns, hence some accelerators may have one more rank than others. */
uint64_t cstd_device_reservation_left(const struct cstd_job *job)
{
    const struct cstd_tier *tier = job->workers[0].tier;
    const unsigned n_all = tier->kind->n_updaters(tier);
    uint32_t n = job->world < n_all ? job->world : n_all;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t left = cstd_budget_left(tier->kind->updater(tier, i)->budget, job->account);

        least = left < least ? left : least;
    }
    return n == 0 ? 0 : least / ((job->world + n - 1) / n);
}

/* Find the entry of @tier, or add one of 0 bytes. NULL: there are CST_CORE_MAX_UPDATE_DEVICES
 * entries already. */
static struct cstd_device_reservation *find(struct cstd_device_reservation *reservations,
                                            uint32_t *n, const struct cstd_tier *tier)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (reservations[i].tier == tier) {
            return &reservations[i];
        }
    }
    if (*n == CST_CORE_MAX_UPDATE_DEVICES) {
        return NULL;
    }
    reservations[*n] = (struct cstd_device_reservation){.tier = tier};
    return &reservations[(*n)++];
}

/* Bytes of states that each drive of @job has at most. */
static uint64_t drive_bytes(const struct cstd_job *job)
{
    return cst_layout_drive_bytes(job->spec.states.disk_bytes, job->files.n);
}

void cstd_device_reservation_choose_drives(struct cstd_job *job)
{
    job->drives = (struct cst_buffers_drives){.bytes = 0};
    if (job->files.n > 0) {
        cst_buffers_drives(&job->drives, &job->layout, job->files.n, drive_bytes(job));
    }
}

struct cst_buffers_drives cstd_device_reservation_drives(const struct cstd_job *job)
{
    return cstd_job_has_layout(job) ? job->drives : (struct cst_buffers_drives){.bytes = 0};
}

uint32_t cstd_device_reservation_list(
    const struct cstd_job *job,
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES])
{
    uint32_t n = 0, kept = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_worker *worker = &job->workers[r];
        struct cstd_device_reservation *reservation =
            worker->update_tier->kind->apart ? find(reservations, &n, worker->update_tier) : NULL;

        if (reservation != NULL) {
            reservation->bytes += worker->device_update_bytes;
        }
    }
    for (uint32_t i = 0; i < job->files.n && cstd_job_has_layout(job); i++) {
        struct cstd_device_reservation *reservation = find(reservations, &n, job->files.v[i].tier);

        if (reservation != NULL) {
            reservation->bytes = cstd_device_reservation_drives(job).bytes;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct cstd_tier *tier = reservations[i].tier;
        uint64_t grain = cstd_tier_grain(cstd_tier_buffers(tier));

        /* An engine that is being started has not reported the granularity yet. */
        reservations[i].bytes -= grain > 0 ? reservations[i].bytes % grain : 0;
        if (reservations[i].bytes > 0) {
            reservations[kept++] = reservations[i];
        }
    }
    return kept;
}

/* Return the bytes for states that stay in @tier. */
static uint64_t states_on(const struct cstd_job *job, const struct cstd_tier *tier)
{
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < job->world; r++) {
        bytes += job->workers[r].update_tier == tier ? job->workers[r].device_states : 0;
    }
    return bytes;
}

/* Refuse a device reservation that rounding down to the accelerator's granularity would make
 * empty. */
static int check_grain(const struct cstd_job *job, struct cst_err *err)
{
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_worker *worker = &job->workers[r];
        uint64_t grain = cstd_tier_grain(worker->update_tier), bytes = 0;
        char request[CST_SIZE_EXACT], least[CST_SIZE_EXACT];

        for (uint32_t other = 0; other < job->world; other++) {
            bytes += job->workers[other].update_tier == worker->update_tier
                         ? job->workers[other].device_update_bytes
                         : 0;
        }
        if (worker->update_tier->kind->apart && worker->device_update_bytes > 0 && bytes < grain) {
            return cst_err_set(err, CST_EINVAL,
                               "rank %" PRIu32
                               ": device_update_bytes of %s is too small: its accelerator "
                               "allocates memory in multiples of %s",
                               r, cst_size_exact(worker->device_update_bytes, request),
                               cst_size_exact(grain, least));
        }
    }
    return CST_OK;
}

/* Refuse states on an accelerator without a device reservation. */
static int check_devices(const struct cstd_job *job,
                         const struct cstd_device_reservation *reservations, uint32_t n,
                         struct cst_err *err)
{
    for (uint32_t r = 0; r < job->world; r++) {
        const struct cstd_worker *worker = &job->workers[r];
        bool found = worker->device_states == 0;
        char states[CST_SIZE_EXACT];

        for (uint32_t i = 0; i < n; i++) {
            found = found || reservations[i].tier == worker->update_tier;
        }
        if (!found) {
            return cst_err_set(err, CST_EINVAL,
                               "rank %" PRIu32 ": device_states of %s need memory there in which "
                               "they are updated: set device_update_bytes too",
                               r, cst_size_exact(worker->device_states, states));
        }
    }
    return CST_OK;
}

/* Add @bytes of @tier for states, which are updated in a reservation of @reservation_bytes. */
static int add_states(struct cst_layout_config *config, const struct cstd_tier *tier,
                      uint64_t bytes, uint64_t reservation_bytes, struct cst_err *err)
{
    if (bytes > 0 && config->n_devices == CST_LAYOUT_MAX_DEVICES) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "states on more than %d accelerators and drives: give fewer "
                           "directories (disk), or fewer ranks device_states",
                           CST_LAYOUT_MAX_DEVICES);
    }
    if (bytes > 0) {
        config->devices[config->n_devices++] =
            (struct cst_layout_device){.engine = tier->number,
                                       .bytes = bytes,
                                       .grain = cstd_tier_grain(tier),
                                       .reservation_bytes = reservation_bytes,
                                       .in_host = !cstd_tier_buffers(tier)->kind->apart};
    }
    return CST_OK;
}

int cstd_device_reservation_devices(const struct cstd_job *job, struct cst_layout_config *config,
                                    struct cst_err *err)
{
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n = cstd_device_reservation_list(job, reservations);
    int rc = check_grain(job, err);

    rc = rc == CST_OK ? check_devices(job, reservations, n, err) : rc;
    config->n_devices = 0;
    for (uint32_t i = 0; i < n && rc == CST_OK; i++) {
        rc = add_states(config, reservations[i].tier, states_on(job, reservations[i].tier),
                        reservations[i].bytes, err);
    }
    for (uint32_t i = 0; i < job->files.n && rc == CST_OK; i++) {
        rc = add_states(config, job->files.v[i].tier, drive_bytes(job), CST_LAYOUT_BUFFERS, err);
    }
    return rc;
}

uint64_t cstd_device_reservation_bytes(const struct cstd_job *job, const struct cstd_tier *tier)
{
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES];
    uint32_t n = cstd_device_reservation_list(job, reservations);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        bytes += cstd_tier_buffers(reservations[i].tier) == tier ? reservations[i].bytes : 0;
    }
    return bytes + (tier->kind->one_budget ? states_on(job, tier) : 0);
}
