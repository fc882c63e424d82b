/* SPDX-License-Identifier: Apache-2.0 */
/* Seals of a durable job. Each row of states that lies in a file has two places there, which take
 * turns (cst_core_state_place): the update t reads the states of update t - 1 at one place, and
 * writes those of update t at the other, where those of update t - 2 were. When all of them are
 * written the driver flushes the drives, writes a record of step t, and flushes again. Only then
 * may step t + 1 be committed. Weights that are (a part of) the master weights are written to the
 * files like states. The driver writes frozen weights, before the first record.
 *
 *   commit t       UPDATE, COPYs down to places t mod 2    flush, record t, flush
 *   SEALED -----> SEAL_DUE ------------------------------> SEALING ------------> SEALED --> commit
 *
 * So there is always a record on the drives whose states nobody overwrites: that of step t - 1
 * until the one of step t is there. */
#include "offload/update/seal.h"

#include "offload/core/core_state.h"

#include <stdlib.h>

_Static_assert(CST_UPDATE_APART == CST_DURABLE_ROWS, "each row in a file has a checksum");

int cst_seal_open(struct cst_core *core)
{
    core->seal.on = core->layout->states.durable;
    if (!core->seal.on) {
        return CST_OK;
    }
    core->seal.sums = calloc((size_t)core->n_chunks + 1, sizeof *core->seal.sums);
    return core->seal.sums != NULL ? CST_OK : CST_ENOMEM;
}

void cst_seal_close(struct cst_core *core)
{
    free(core->seal.sums);
}

void cst_seal_due(struct cst_core *core)
{
    if (core->seal.on) {
        core->seal.state = CST_SEAL_DUE;
        core->seal.n_over = 0;
    }
}

int cst_seal_check_write(const struct cst_core *core, struct cst_err *err)
{
    return core->seal.on && core->attempt.initialised
               ? cst_err_set(err, CST_EUNSUPPORTED,
                             "the job is durable: after its first sync its states change by steps "
                             "alone; save it, and load the checkpoint into a new job")
               : CST_OK;
}

bool cst_seal_holds_commit(const struct cst_core *core)
{
    return core->seal.state != CST_SEALED;
}

void cst_seal_row_written(struct cst_core *core, const struct cst_flight *flight,
                          const struct cst_event *event)
{
    const struct cst_chunk_update *update = &core->chunks[flight->chunk].update;

    for (uint32_t i = 0; i < CST_UPDATE_APART && core->seal.on; i++) {
        if (update->states_tickets[i] == flight->ticket) {
            core->seal.sums[flight->chunk][i] = (uint64_t)event->value;
        }
    }
}

void cst_seal_look(struct cst_core *core)
{
    if (core->seal.state != CST_SEAL_DUE || core->attempt.phase == CST_PHASE_FAILED) {
        return;
    }
    while (core->seal.n_over < core->n_chunks &&
           cst_chunk_update_is_over(&core->chunks[core->seal.n_over].update)) {
        core->seal.n_over++;
    }
    if (core->seal.n_over == core->n_chunks) {
        core->seal.state = CST_SEALING;
        cst_core_seal(core);
    }
}
