/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ledger/kept_job.h"

#include "daemon/daemon.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/revive_devices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cstd_kept_job_read(struct cstd_kept_job *kept, int fd, struct cst_err *err)
{
    int rc = cstd_ledger_file_open(&kept->file, fd, &kept->ledger, err);

    if (rc == CST_OK) {
        kept->description = cistern__job_description__unpack(NULL, kept->ledger->description.len,
                                                             kept->ledger->description.data);
    }
    if (rc == CST_OK && kept->description == NULL) {
        rc = cst_err_set(err, CST_ELOST, "its description cannot be read");
    }
    return rc;
}

void cstd_kept_job_close(struct cstd_kept_job *kept)
{
    for (uint32_t i = 0; kept->segments != NULL && i < kept->ledger->n_segments; i++) {
        if (kept->segments[i].fd >= 0) {
            (void)close(kept->segments[i].fd);
        }
    }
    free(kept->segments);
    if (kept->ledger != NULL) {
        ledger__job__free_unpacked(kept->ledger, NULL);
    }
    if (kept->description != NULL) {
        cistern__job_description__free_unpacked(kept->description, NULL);
    }
    cstd_ledger_file_close(&kept->file);
}

bool cstd_kept_job_is_moving(const struct cstd_kept_job *kept)
{
    const struct cstd_ledger_record *record = &kept->file.last;

    return record->n_moved > 0 && !record->core.initialised;
}

/* Take segment @i of the job from the store. @layout: its layout. */
static int take_segment(struct cstd_daemon *daemon, const struct cstd_kept_job *kept, uint32_t i,
                        const struct cst_layout *layout)
{
    struct cstd_kept_name name = {.kind = CSTD_KEPT_HOST, .serial = kept->ledger->serial};
    bool is_arena = i < layout->n_segments;

    if (i > layout->n_segments ||
        (is_arena && layout->segments[i].node >= daemon->engines.n_nodes)) {
        name.kind = CSTD_KEPT_DEVICE;
        name.i = i;
    }
    return cstd_keeper_take(&daemon->keeper, &name, kept->ledger->segments[i]->inode);
}

int cstd_kept_job_find_segments(struct cstd_daemon *daemon, struct cstd_kept_job *kept,
                                const struct cst_layout *layout, struct cst_err *err)
{
    const Ledger__Job *ledger = kept->ledger;
    uint32_t n = layout->n_segments + 1 + cstd_revive_count_reservations(ledger);

    if (ledger->n_segments != n) {
        return cst_err_set(err, CST_ELOST, "its ledger has %zu segments, but its layout %" PRIu32,
                           ledger->n_segments, n);
    }
    kept->segments = calloc(n, sizeof *kept->segments);
    if (kept->segments == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a list of segments");
    }
    for (uint32_t i = 0; i < n; i++) {
        kept->segments[i] = (struct cstd_memory_kept){.id = ledger->segments[i]->id, .fd = -1};
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i < layout->n_segments && layout->segments[i].is_base) {
            continue;
        }
        kept->segments[i].fd = take_segment(daemon, kept, i, layout);
        if (kept->segments[i].fd < 0) {
            return cst_err_set(
                err, CST_ELOST,
                "segment %" PRIu32 " of %" PRIu32 " is not in the service manager's store", i, n);
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
