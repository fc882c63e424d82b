/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/kept_job.h"

#include "daemon/base/daemon_state.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/ledger_make.h"
#include "daemon/session/packed.h"
#include "daemon/ledger/revive_devices.h"
#include "daemon/budget/arena.h"
#include "daemon/budget/quota.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fields of JobDescription before those of the declarations. */
enum { NAME = 2, WORLD = 3, BASE_JOB = 12 };

static bool read_name(const struct cstd_packed_field *field, char out[CST_JOB_NAME_BYTES])
{
    if (field->n_value >= CST_JOB_NAME_BYTES) {
        return false;
    }
    memcpy(out, field->value, field->n_value);
    out[field->n_value] = '\0';
    return cst_job_name_is_valid(out);
}

/* Read the first fields of the description. */
static int read_head(struct cstd_kept_job *kept, struct cst_err *err)
{
    struct cstd_packed rest = {.at = kept->text.bytes, .end = kept->text.bytes + kept->text.n};
    struct cstd_packed_field field;
    bool ok = true;

    while (ok && cstd_packed_next(&rest, &field) && field.number <= BASE_JOB) {
        if (field.number == NAME) {
            ok = read_name(&field, kept->name);
        } else if (field.number == WORLD) {
            ok = field.varint >= 1 && field.varint <= CST_CORE_MAX_WORLD;
            kept->world = (uint32_t)field.varint;
        } else if (field.number == BASE_JOB) {
            ok = read_name(&field, kept->base);
        }
    }
    return ok && kept->name[0] != '\0' && kept->world > 0 && kept->ledger->serial > 0
               ? CST_OK
               : cst_err_set(err, CST_ELOST, "its description cannot be read");
}

int cstd_kept_job_open(struct cstd_kept_job *kept, int fd, struct cst_err *err)
{
    int rc = cstd_ledger_file_open(&kept->file, fd, &kept->ledger, &kept->text, err);

    return rc == CST_OK ? read_head(kept, err) : rc;
}

void cstd_kept_job_close(struct cstd_kept_job *kept)
{
    for (uint32_t i = 0; kept->segments != NULL && i < kept->ledger->n_segments; i++) {
        if (kept->segments[i].fd >= 0) {
            (void)close(kept->segments[i].fd);
        }
    }
    free(kept->segments);
    kept->segments = NULL;
    if (kept->ledger != NULL) {
        ledger__job__free_unpacked(kept->ledger, NULL);
        kept->ledger = NULL;
    }
    if (kept->description != NULL) {
        cistern__job_description__free_unpacked(kept->description, NULL);
        kept->description = NULL;
    }
    cstd_ledger_file_close(&kept->file);
}

bool cstd_kept_job_is_moving(const struct cstd_kept_job *kept)
{
    const struct cstd_ledger_record *record = &kept->file.last;

    return record->n_moved > 0 && !record->core.initialised;
}

/* -- charges ---------------------------------------------------------------------------------- */

void cstd_kept_job_charge(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                          struct cstd_quota_account *account)
{
    const struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = kept->ledger->serial};

    kept->account = cstd_quota_ref(account);
    kept->host_bytes = kept->file.bytes;
    for (size_t i = 0; i < kept->ledger->n_segments; i++) {
        const Ledger__Segment *segment = kept->ledger->segments[i];

        /* Others are the base job's, or memory of accelerators. A move has not paid for its sparse
         * segments yet. */
        if (cstd_keeper_holds(&daemon->keeper, &name, segment->inode) &&
            !cstd_kept_job_is_moving(kept)) {
            kept->host_bytes += segment->bytes;
        }
    }
    cstd_budget_force(daemon->host, account, kept->host_bytes);
}

void cstd_kept_job_charge_devices(struct cstd_daemon *daemon, struct cstd_kept_job *kept)
{
    const Ledger__Job *ledger = kept->ledger;

    for (size_t i = 0; i < ledger->n_devices && kept->account != NULL; i++) {
        const Ledger__Device *device = ledger->devices[i];
        const struct cstd_tier *tier = cstd_tiers_of_uuid(daemon, device->uuid);
        struct cstd_kept_charge charge = {.bytes = device->states_bytes};

        /* Buffers in host memory are among its segments. */
        if (tier != NULL && cstd_tier_computes(tier)) {
            charge.bytes += device->reservation_bytes;
        }
        if (tier != NULL && charge.bytes > 0 && kept->n_charges < CST_CORE_MAX_UPDATE_DEVICES) {
            charge.pool = tier->budget;
            cstd_budget_force(charge.pool, kept->account, charge.bytes);
            kept->charges[kept->n_charges++] = charge;
        }
    }
}

void cstd_kept_job_discharge(struct cstd_daemon *daemon, struct cstd_kept_job *kept)
{
    if (kept->account == NULL) {
        return;
    }
    cstd_budget_give(daemon->host, kept->account, kept->host_bytes);
    while (kept->n_charges > 0) {
        const struct cstd_kept_charge *charge = &kept->charges[--kept->n_charges];

        cstd_budget_give(charge->pool, kept->account, charge->bytes);
    }
    cstd_quota_unref(kept->account);
    kept->account = NULL;
    kept->host_bytes = 0;
}

/* -- memory ----------------------------------------------------------------------------------- */

/* True if reservation @r of the job is in the memory of an accelerator. */
static bool is_apart(const struct cstd_daemon *daemon, const struct cstd_kept_job *kept, uint32_t r)
{
    const Ledger__Job *ledger = kept->ledger;
    const struct cstd_tier *tier = NULL;

    for (size_t i = 0; i < ledger->n_devices; i++) {
        if (ledger->devices[i]->reservation_bytes > 0 && r-- == 0) {
            tier = cstd_tiers_of_uuid(daemon, ledger->devices[i]->uuid);
        }
    }
    return tier == NULL || cstd_tier_buffers(tier)->kind->apart;
}

/* The name under which segment @i of the job is in the store. @layout: its layout. */
static struct cstd_kept_name name_of(const struct cstd_daemon *daemon,
                                     const struct cstd_kept_job *kept, uint32_t i,
                                     const struct cst_layout *layout)
{
    struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = kept->ledger->serial};
    bool is_arena = i < layout->n_segments;

    if ((i > layout->n_segments && is_apart(daemon, kept, i - layout->n_segments - 1)) ||
        (is_arena && cst_tier_is_apart(layout->segments[i].tier))) {
        name.kind = CSTD_KEPT_DEVICE;
        name.i = cstd_ledger_holder(daemon, layout, i);
    }
    return name;
}

static bool is_base(uint32_t i, const struct cst_layout *layout)
{
    return i < layout->n_segments && layout->segments[i].is_base;
}

static int missing(uint32_t i, uint32_t n, struct cst_err *err)
{
    return cst_err_set(err, CST_ELOST,
                       "segment %" PRIu32 " of %" PRIu32 " is not in the service manager's store",
                       i, n);
}

int cstd_kept_job_check_segments(struct cstd_daemon *daemon, const struct cstd_kept_job *kept,
                                 const struct cst_layout *layout, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    uint32_t n = layout->n_segments + 1 + cstd_revive_count_reservations(ledger);

    if (ledger->n_segments != n) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu segments, but its layout %" PRIu32,
                           ledger->n_segments, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct cstd_kept_name name = name_of(daemon, kept, i, layout);

        if (!is_base(i, layout) &&
            !cstd_keeper_holds(&daemon->keeper, &name, ledger->segments[i]->inode)) {
            return missing(i, n, err);
        }
    }
    return CST_OK;
}

int cstd_kept_job_take_segments(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                                const struct cst_layout *layout, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    uint32_t n = (uint32_t)ledger->n_segments;

    if (cstd_kept_job_check_segments(daemon, kept, layout, err) != CST_OK) {
        return err->status;
    }
    kept->segments = calloc(n, sizeof *kept->segments);
    if (kept->segments == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of segments");
    }
    for (uint32_t i = 0; i < n; i++) {
        kept->segments[i] = (struct cstd_memory_kept){.id = ledger->segments[i]->id, .fd = -1};
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct cstd_kept_name name = name_of(daemon, kept, i, layout);
        const uint32_t holder = cstd_ledger_holder(daemon, layout, i);

        if (is_base(i, layout)) {
            continue;
        }
        kept->segments[i].fd =
            holder != i ? fcntl(kept->segments[holder].fd, F_DUPFD_CLOEXEC, 0)
                        : cstd_keeper_take(&daemon->keeper, &name, ledger->segments[i]->inode);
        if (kept->segments[i].fd < 0) { /* Two segments have one file. */
            return missing(i, n, err);
        }
    }
    return CST_OK;
}

void cstd_kept_job_undo_lost(struct cstd_kept_job *kept)
{
    struct cstd_ledger_record record = kept->file.last;

    if (kept->file.head != NULL) {
        record.core.undo_lost = 1;
        cstd_ledger_file_write(&kept->file, &record);
    }
}
