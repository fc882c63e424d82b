/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/books/machine_waits.h"

#include "offload/core/core_state.h"

#include <stdlib.h>

/* With each step, the weight of earlier ones falls to this part. */
#define KEPT 0.875

int cst_machine_waits_open(struct cst_core *core)
{
    if (core->machines == NULL) {
        return CST_OK;
    }
    core->machine_waits.v = calloc(core->machines->n, sizeof *core->machine_waits.v);
    return core->machine_waits.v != NULL ? CST_OK : CST_ENOMEM;
}

void cst_machine_waits_close(struct cst_core *core)
{
    free(core->machine_waits.v);
}

void cst_machine_waits_begin(struct cst_core *core)
{
    struct cst_machine_waits *waits = &core->machine_waits;

    waits->since = waits->since == 0 ? core->now : waits->since;
}

void cst_machine_waits_work(struct cst_core *core)
{
    struct cst_machine_waits *waits = &core->machine_waits;

    waits->since = waits->since != 0 ? core->now : 0;
}

void cst_machine_waits_end(struct cst_core *core)
{
    core->machine_waits.since = 0;
}

/* True while contributions or partials are added here: this machine does not wait for others. */
static bool is_busy(const struct cst_core *core)
{
    return core->partials.n_adding > 0 ||
           (core->attempt.closing && core->partials.n_told < core->n_trained);
}

/* Charge the time from @since on to @machine. No time is charged twice. */
static void charge(struct cst_core *core, uint32_t machine, uint64_t since)
{
    struct cst_machine_waits *waits = &core->machine_waits;
    const uint64_t from = since > waits->charged ? since : waits->charged;
    const uint64_t ns = core->now > from ? core->now - from : 0;

    waits->v[machine].ns += ns;
    waits->v[machine].step_ns += ns;
    waits->charged = core->now;
}

void cst_machine_waits_arrived(struct cst_core *core, uint32_t machine, uint32_t waited_for)
{
    struct cst_machine_waits *waits = &core->machine_waits;

    if (waits->v == NULL || waits->since == 0) {
        return;
    }
    if (waited_for < core->machines->n && waited_for != core->machines->self) {
        machine = waited_for;
    }
    if (!is_busy(core) && machine < core->machines->n) {
        charge(core, machine, waits->since);
    }
    waits->since = core->now;
}

void cst_machine_waits_weights(struct cst_core *core, uint32_t chunk, uint32_t machine)
{
    uint64_t since = core->now;

    if (core->machine_waits.since != 0) {
        cst_machine_waits_arrived(core, machine, CST_MACHINE_UNKNOWN);
        return;
    }
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct cst_request *request = &core->requests.v[i];
        const bool waits =
            (request->where == CST_REQUEST_QUEUED || request->where == CST_REQUEST_JOINED) &&
            request->kind == CST_EV_FETCH_WEIGHT && request->chunk == chunk && !request->ahead;

        if (waits && core->ranks[request->rank].thread.at < since) {
            since = core->ranks[request->rank].thread.at;
        }
    }
    if (since < core->now && machine < core->machines->n) {
        charge(core, machine, since);
    }
}

void cst_machine_waits_committed(struct cst_core *core)
{
    struct cst_machine_waits *waits = &core->machine_waits;
    const uint64_t step_ns = core->commit.last_step_ns;

    cst_machine_waits_end(core);
    for (uint32_t m = 0; waits->v != NULL && m < core->machines->n; m++) {
        struct cst_machine_wait *wait = &waits->v[m];

        /* What was waited before the first step is no part of a step. */
        wait->recent_ns = step_ns > 0 ? KEPT * wait->recent_ns + (double)wait->step_ns : 0;
        wait->step_ns = 0;
    }
    waits->recent_steps_ns =
        step_ns > 0 ? KEPT * waits->recent_steps_ns + (double)step_ns : waits->recent_steps_ns;
}
