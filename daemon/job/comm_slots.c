/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/comm_slots.h"

#include "daemon/base/daemon_state.h"
#include "daemon/memory/memory.h"
#include "proto/round_up.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/tiers/tier.h"

static void on_ready_later(struct cstd_deferred *later)
{
    struct cstd_comm_slots *slots = cstd_owner_of(later, struct cstd_comm_slots, ready);
    const struct cst_err err = slots->err;

    slots->on_ready(slots->arg, &err);
}

static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_comm_slots *slots = segment->arg;

    if (slots->err.status == CST_OK) {
        slots->err = segment->err;
    }
    if (--slots->n_waiting == 0) {
        cstd_deferred_add(&slots->daemon->later, &slots->ready);
    }
}

/* Add the segment of the next rank, which is in @tier. */
static int add(struct cstd_comm_slots *slots, const struct cstd_tier *tier,
               const struct cstd_comm_slots_request *request, struct cst_err *err)
{
    struct cstd_segment *segment;
    int rc;

    rc = cstd_segment_open_device(&segment, cstd_engines_segment_id(slots->daemon->engines),
                                  slots->bytes, cstd_tier_budget(tier), request->account,
                                  tier->number, request->what, err);
    if (rc == CST_OK) {
        segment->arg = slots;
        segment->on_mounted = on_mounted;
        slots->v[slots->n++] = segment;
    }
    return rc;
}

/* The size of a segment that all GPUs can allocate: their granularities are powers of two. */
static uint64_t segment_bytes(const struct cstd_comm_slots_request *request)
{
    uint64_t most = 1;

    for (uint32_t i = 0; i < request->n; i++) {
        const uint64_t grain = cstd_tier_grain(request->tiers[i]);

        most = grain > most ? grain : most;
    }
    return cst_round_up(request->bytes, most);
}

int cstd_comm_slots_open(struct cstd_comm_slots *slots, struct cstd_daemon *daemon,
                         const struct cstd_comm_slots_request *request, cstd_comm_slots_cb on_ready,
                         void *arg, struct cst_err *err)
{
    int rc = CST_OK;

    *slots = (struct cstd_comm_slots){.daemon = daemon,
                                      .bytes = segment_bytes(request),
                                      .ready = {.fn = on_ready_later},
                                      .on_ready = on_ready,
                                      .arg = arg};
    for (uint32_t i = 0; i < request->n && rc == CST_OK; i++) {
        rc = add(slots, request->tiers[i], request, err);
    }
    if (rc != CST_OK) {
        while (slots->n > 0) {
            cstd_segment_unref(slots->v[--slots->n]);
        }
        return rc;
    }
    slots->n_waiting = slots->n;
    for (uint32_t i = 0; i < slots->n; i++) {
        cstd_engines_mount(daemon->engines, slots->v[i]);
    }
    return CST_OK;
}

void cstd_comm_slots_close(struct cstd_comm_slots *slots)
{
    if (slots->n > 0) {
        cstd_deferred_remove(&slots->daemon->later, &slots->ready);
    }
    while (slots->n > 0) {
        struct cstd_segment *segment = slots->v[--slots->n];

        segment->on_mounted = NULL; /* The answers of engines do not matter any more. */
        cstd_engines_unmount(slots->daemon->engines, segment);
        cstd_segment_unref(segment);
    }
}
