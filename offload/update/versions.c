/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/update/versions.h"

#include "offload/books/actions.h"
#include "offload/books/weight_row.h"
#include "offload/core/core_state.h"
#include "offload/update/overlap.h"

#include <inttypes.h>

/* The row that updates of the step under way write. */
static uint32_t target(const struct cst_core *core)
{
    return core->two_weights ? 1 - core->versions.newest : core->versions.newest;
}

static void revoke(struct cst_core *core, uint32_t row)
{
    struct cst_version *version = &core->versions.rows[row];

    if (version->readable) {
        version->readable = false;
        cst_core_version(core, CST_ACT_REVOKE, row, core->step);
    }
    version->n_kept = 0;
}

void cst_versions_open(struct cst_core *core)
{
    core->versions.due = true;
}

/* -- readers ---------------------------------------------------------------------------------- */

bool cst_versions_may_keep(const struct cst_core *core, uint32_t row)
{
    bool commits = core->attempt.closing && core->commit.normed == core->collection.number + 1;

    return row < CST_MAX_VERSIONS && core->versions.rows[row].readable &&
           !(commits && row == target(core));
}

void cst_versions_keep(struct cst_core *core, const struct cst_event *event)
{
    if (cst_versions_may_keep(core, event->weight_row)) {
        core->versions.rows[event->weight_row].n_kept++;
    }
}

void cst_versions_unkeep(struct cst_core *core, const struct cst_event *event)
{
    struct cst_version *version = &core->versions.rows[event->weight_row];

    if (version->n_kept > 0 && --version->n_kept == 0) {
        cst_fact_kept_no_more(&core->facts);
    }
}

bool cst_versions_may_begin(const struct cst_core *core)
{
    return cst_overlap_has_begun(core) || core->versions.rows[target(core)].n_kept == 0;
}

void cst_versions_begin_wait(struct cst_core *core)
{
    core->versions.held_ns = 0;
}

bool cst_versions_hold(struct cst_core *core)
{
    struct cst_versions *versions = &core->versions;

    if (!cst_versions_may_begin(core)) {
        versions->held_ns = versions->held_ns != 0 ? versions->held_ns : core->now;
        return true;
    }
    versions->wait_ns += versions->held_ns != 0 ? core->now - versions->held_ns : 0;
    versions->held_ns = 0;
    return false;
}

/* -- rows ------------------------------------------------------------------------------------- */

void cst_versions_begin(struct cst_core *core)
{
    revoke(core, target(core));
}

void cst_versions_committed(struct cst_core *core)
{
    struct cst_versions *versions = &core->versions;

    versions->n_incomplete = 0;
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        struct cst_chunk *chunk = &core->chunks[c];

        if (chunk->has_states) {
            /* The rows of all chunks change their roles together. */
            versions->newest = cst_weight_row_newest(core, c) != CST_ROW_WEIGHT;
            chunk->weight.incomplete = chunk->update.ticket != 0;
            versions->n_incomplete += chunk->weight.incomplete;
        }
    }
    versions->due = true;
}

void cst_versions_updated(struct cst_core *core, uint32_t c)
{
    struct cst_chunk *chunk = &core->chunks[c];

    /* The ticket of an early update of the next step can have taken the place of this one's: then
     * the chunk counts as incomplete for longer than it is. */
    if (chunk->weight.incomplete && chunk->update.ticket == 0) {
        chunk->weight.incomplete = false;
        core->versions.n_incomplete--;
    }
}

static void revoke_all(struct cst_core *core)
{
    for (uint32_t row = 0; row < CST_MAX_VERSIONS; row++) {
        revoke(core, row);
    }
}

void cst_versions_written(struct cst_core *core, uint32_t c)
{
    if (core->chunks[c].has_states) {
        revoke(core, core->versions.newest);
    } else {
        revoke_all(core); /* A frozen chunk has one row, which belongs to all versions. */
    }
    core->versions.due = core->versions.due && !core->attempt.initialised;
}

void cst_versions_restored(struct cst_core *core)
{
    revoke_all(core);
    core->versions.due = true;
}

void cst_versions_look(struct cst_core *core)
{
    struct cst_versions *versions = &core->versions;

    if (!versions->due || versions->n_incomplete > 0 || !core->attempt.initialised ||
        core->writes.n > 0 || core->writes.n_left > 0 || core->attempt.phase == CST_PHASE_FAILED ||
        core->layout->states.grad_over_weight) {
        return;
    }
    versions->due = false;
    versions->rows[versions->newest].readable = true;
    cst_core_version(core, CST_ACT_VERSION, versions->newest, core->step);
}

/* -- time ------------------------------------------------------------------------------------- */

uint64_t cst_versions_deadline(const struct cst_core *core)
{
    if (core->peer_timeout_ns == CST_CORE_NEVER || !core->attempt.closing ||
        core->versions.held_ns == 0) {
        return CST_CORE_NEVER;
    }
    return core->versions.held_ns + core->peer_timeout_ns;
}

void cst_versions_expire(struct cst_core *core)
{
    if (cst_versions_deadline(core) > core->now) {
        return;
    }
    cst_core_log(core, CST_OK,
                 "step %" PRIu64 " has waited %.3g s for %" PRIu32
                 " readers that keep an older version of the weights: they lose it",
                 core->step + 1, (double)core->peer_timeout_ns * 1e-9,
                 core->versions.rows[target(core)].n_kept);
    revoke(core, target(core));
    cst_fact_kept_no_more(&core->facts);
}
