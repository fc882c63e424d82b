/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/revive_devices.h"

#include "cistern/cistern.h"
#include "daemon/base/daemon_state.h"
#include "daemon/memory/rank_devices.h"
#include "daemon/engine/drives.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"
#include "daemon/job/job.h"
#include "daemon/ledger/ledger.h"

#include <inttypes.h>

/* True if a rank has its pool on the accelerator @uuid, as @record says. */
static bool has_pool(const struct cstd_ledger_record *record, const char *uuid, uint32_t world)
{
    bool any = false;

    for (uint32_t r = 0; r < world; r++) {
        any = any || record->pools[r] == cstd_ledger_hash_uuid(uuid);
    }
    return any;
}

/* Check that the accelerators in @ledger are there. One that all pools have left is not missed. */
static int check_devices(struct cstd_daemon *daemon, const Ledger__Job *ledger,
                         const struct cstd_ledger_record *record, uint32_t world,
                         struct cst_err *err)
{
    for (uint32_t i = 0; i < ledger->n_devices; i++) {
        const Ledger__Device *device = ledger->devices[i];
        const struct cstd_tier *tier = cstd_tiers_of_uuid(daemon, device->uuid);

        if (tier == NULL &&
            (device->reservation_bytes > 0 || has_pool(record, device->uuid, world))) {
            return cst_err_set(err, CST_ENOTFOUND, "its accelerator %.63s is not there",
                               device->uuid);
        }
        if (cstd_drive_is(device->uuid) && daemon->engines->drives_held) {
            return cst_err_set(
                err, CST_EBUSY,
                "an engine of the earlier daemon has not ended, because a drive does "
                "not answer, and can still write to %.63s: restart the daemon when the "
                "drive answers again",
                device->uuid);
        }
        /* The engine reports it again, but memory may be wanted earlier. */
        if (tier != NULL && daemon->engines->v[tier->number].granularity == 0) {
            daemon->engines->v[tier->number].granularity = device->grain > 0 ? device->grain : 1;
        }
    }
    return CST_OK;
}

/* The tier of the pool of rank @rank, which may have moved since @ledger was written. *out is NULL
 * after an error. */
static int find_pool(struct cstd_daemon *daemon, const Ledger__Job *ledger,
                     const struct cstd_ledger_record *record, uint32_t rank,
                     const struct cstd_tier **out, struct cst_err *err)
{
    *out = record->pools[rank] == 0 ? cstd_tiers_host(daemon) : NULL;
    for (uint32_t i = 0; i < ledger->n_devices; i++) {
        if (record->pools[rank] == cstd_ledger_hash_uuid(ledger->devices[i]->uuid)) {
            *out = cstd_tiers_of_uuid(daemon, ledger->devices[i]->uuid);
        }
    }
    if (*out == NULL) {
        return cst_err_set(err, CST_ELOST,
                           "the pool of rank %" PRIu32
                           " is on an accelerator that its ledger does not have",
                           rank);
    }
    return CST_OK;
}

/* The tier of the accelerator @uuid. Host memory: there is none, or it is not there any more. */
static const struct cstd_tier *update_tier(struct cstd_daemon *daemon, const char *uuid)
{
    const struct cstd_tier *tier = cstd_tiers_of_uuid(daemon, uuid);

    return tier != NULL ? tier : cstd_tiers_host(daemon);
}

int cstd_revive_take_devices(struct cstd_job *job, const Ledger__Job *ledger,
                             const struct cstd_ledger_record *record, struct cst_err *err)
{
    struct cstd_daemon *daemon = job->daemon;
    int rc = check_devices(daemon, ledger, record, job->world, err);

    if (rc == CST_OK && ledger->n_ranks != job->world) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu ranks of %" PRIu32, ledger->n_ranks,
                           job->world);
    }
    for (uint32_t i = 0; i < ledger->n_devices && rc == CST_OK; i++) {
        if (cstd_drive_is(ledger->devices[i]->uuid) && job->files.n < CST_LAYOUT_MAX_DEVICES) {
            cstd_files_adopt(&job->files, job->account,
                             cstd_tiers_of_uuid(daemon, ledger->devices[i]->uuid));
        }
    }
    for (uint32_t r = 0; r < job->world && rc == CST_OK; r++) {
        const Ledger__Rank *rank = ledger->ranks[r];
        struct cstd_worker *worker = &job->workers[r];
        const struct cstd_tier *tier;

        rc = find_pool(daemon, ledger, record, r, &tier, err);
        worker->device_update_asked = rank->reservation_asked;
        worker->lends = rank->reservation_asked == CST_DEVICE_UPDATE_LENT;
        worker->states_asked = rank->states_asked;
        worker->device_update_bytes = rank->reservation_bytes;
        worker->device_states = rank->states_bytes;
        worker->near_node = rank->near_node;
        cstd_rank_devices_use(&worker->tier, tier != NULL ? tier : cstd_tiers_host(daemon));
        cstd_rank_devices_use(&worker->update_tier, update_tier(daemon, rank->accelerator));
    }
    return rc;
}

uint32_t cstd_revive_list_reservations(
    struct cstd_daemon *daemon, const Ledger__Job *ledger,
    struct cstd_device_reservation reservations[CST_CORE_MAX_UPDATE_DEVICES],
    struct cst_layout_config *config)
{
    uint32_t n = 0;

    config->n_devices = 0;
    for (uint32_t i = 0; i < ledger->n_devices && n < CST_CORE_MAX_UPDATE_DEVICES; i++) {
        const Ledger__Device *device = ledger->devices[i];
        const struct cstd_tier *tier = cstd_tiers_of_uuid(daemon, device->uuid);

        if (tier == NULL || device->reservation_bytes == 0) {
            continue;
        }
        reservations[n++] =
            (struct cstd_device_reservation){.tier = tier, .bytes = device->reservation_bytes};
        if (device->states_bytes > 0 && config->n_devices < CST_LAYOUT_MAX_DEVICES) {
            config->devices[config->n_devices++] =
                (struct cst_layout_device){.engine = tier->number,
                                           .bytes = device->states_bytes,
                                           .grain = device->grain,
                                           .reservation_bytes = device->reservation_bytes,
                                           .in_host = !cstd_tier_buffers(tier)->kind->apart};
        }
    }
    return n;
}

uint32_t cstd_revive_count_reservations(const Ledger__Job *ledger)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ledger->n_devices; i++) {
        n += ledger->devices[i]->reservation_bytes > 0;
    }
    return n;
}
