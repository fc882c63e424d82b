/* SPDX-License-Identifier: Apache-2.0 */
/* Where a chunk's update writes its weights, and when it is issued.
 *
 * A job with early or delayed updates, or for readers, has two weight rows. Fetches read one of
 * them, the chunk's weight side; an update always writes the other one. A switch makes that row the
 * weight side.
 *
 *   COMMIT, or EARLY if not allowed early     commit i: UPDATE i, switch
 *   EARLY      gradient complete: UPDATE i;   commit i: switch
 *   DELAYED                                   commit i: switch to the row of UPDATE i - 1; UPDATE i
 *
 * With one row there is no switch: the update writes the row that is read, and fetches wait for it.
 *
 * EARLY. An update may be issued before the commit if all ranks have announced the hyper-parameters
 * of their STEP by PREPARE, and nothing is clipped. Its chunk is then AHEAD: master weights and
 * moments belong to the uncommitted step, and the weight side is unchanged. Such a step can only be
 * completed, not undone. If the attempt ends before the commit, the next one computes the same step
 * with the same weight side and the same hyper-parameters. A gradient that is handed in for such a
 * chunk (CARRIED) is dropped: the whole group had handed in before, and the first sum and its
 * squares are used. So a step has the same bits however often it was interrupted, if the gradients
 * have.
 *
 * A gradient beyond proto/grad_limit.h cannot make the whole step be skipped any more. Therefore,
 * in a step that all ranks prepared, every update is guarded, whether early or not: tiles beyond
 * the limit keep their states, and the step is not skipped.
 *
 * One command can make sum and update in the same pass: of at most two contributions in host
 * memory, if the previous update is done and the engines have no other updates to make. The grad
 * row is then not written. Updates by Muon read the gradient twice, and their sums are made before.
 * If engines are behind, the gradient that was completed last is updated first, because the next
 * forward pass begins with it. */
#include "offload/update/overlap.h"

#include "offload/gradient/collection.h"
#include "offload/core/core_state.h"
#include "offload/base/hyper.h"
#include "offload/gradient/device_choice.h"
#include "offload/weights/residency.h"
#include "offload/gradient/sum.h"
#include "offload/update/update.h"
#include "offload/update/versions.h"

#include <inttypes.h>

#define FUSE_MAX 2 /* Maximum number of contributions that an update can sum. */

/* -- rows ------------------------------------------------------------------------------------- */

int cst_overlap_check_read(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                           struct cst_err *err)
{
    if (core->chunks[chunk].gradient.row == CST_GRAD_ROW_NOT_STORED && row == CST_ROW_GRAD) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the gradient of chunk %" PRIu32
                           " was summed in its update: early updates do not store it",
                           chunk);
    }
    if ((cst_weight_row_is_early(&core->chunks[chunk].weight) || core->early.repeated) &&
        row != CST_ROW_WEIGHT && row != CST_ROW_GRAD) {
        return cst_err_set(err, CST_EBUSY,
                           "states of chunk %" PRIu32 " are of step %" PRIu64
                           " already, which is not committed yet",
                           chunk, core->step);
    }
    return CST_OK;
}

int cst_overlap_check_write(const struct cst_core *core, struct cst_err *err)
{
    if (!cst_overlap_has_begun(core)) {
        return CST_OK;
    }
    return cst_err_set(err, CST_EBUSY,
                       "%" PRIu32 " chunks already have the update of step %" PRIu64
                       ": commit it before you write states",
                       core->early.n, core->step);
}

/* -- updates ---------------------------------------------------------------------------------- */

/* Let fetches read the row of the last update, which may still be in flight. */
static void switch_rows(struct cst_core *core, uint32_t c)
{
    cst_weight_row_go(core, c, CST_ROWS_CURRENT);
    cst_chunk_update_read(&core->chunks[c]);
    cst_residency_expire(core, c);
}

/* True if the update of the step that is being committed is delayed. */
static bool is_delayed(const struct cst_core *core)
{
    /* The commit has already incremented core->step. */
    return core->policy.overlap == CST_OVERLAP_DELAYED && core->step > core->policy.delay_from;
}

/* True if the committed step leaves chunk @c as it is. With two weight rows, an update copies the
 * weights of an idle chunk to the other row. */
static bool is_left(const struct cst_core *core, uint32_t c)
{
    return core->chunks[c].idle && !core->two_weights;
}

void cst_overlap_expire(struct cst_core *core)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        const struct cst_chunk *chunk = &core->chunks[c];

        if (chunk->has_states && !is_left(core, c) &&
            (chunk->weight.rows == CST_ROWS_DELAYED || !is_delayed(core))) {
            cst_residency_expire(core, c);
        }
    }
}

void cst_overlap_committed(struct cst_core *core, uint32_t c, const struct cst_update *update)
{
    const struct cst_chunk *chunk = &core->chunks[c];

    if (chunk->weight.rows == CST_ROWS_DELAYED) {
        switch_rows(core, c);
    }
    if (update == NULL || is_left(core, c)) {
        return;
    }
    if (!cst_weight_row_is_early(&chunk->weight)) {
        struct cst_update what = *update;

        what.chunk = c;
        what.weight = cst_update_weight(core, c);
        cst_update_issue(core, &what);
    }
    core->early.n -= cst_weight_row_is_early(&chunk->weight);
    if (is_delayed(core)) {
        cst_weight_row_go(core, c, CST_ROWS_DELAYED);
    } else {
        switch_rows(core, c);
    }
}

bool cst_overlap_has_begun(const struct cst_core *core)
{
    return core->early.n > 0 || core->early.repeated;
}

void cst_overlap_end_step(struct cst_core *core)
{
    core->early.repeated = false;
}

void cst_overlap_flush(struct cst_core *core)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].weight.rows == CST_ROWS_DELAYED) {
            switch_rows(core, c);
        }
    }
}

/* -- early updates ---------------------------------------------------------------------------- */

/* True if all ranks have announced hyper-parameters and do not clip. (They are equal: PREPARE
 * checks that.) */
static bool is_prepared(const struct cst_core *core)
{
    for (uint32_t rank = 0; rank < core->world; rank++) {
        if (!core->ranks[rank].prepared) {
            return false;
        }
    }
    return core->ranks[0].promised.clip_norm == 0.0f;
}

bool cst_overlap_guards(const struct cst_core *core)
{
    return cst_overlap_has_begun(core) || is_prepared(core);
}

/* True if the chunk may be updated before the commit. With a WRITE in flight it may not: if the
 * WRITE failed, the update would fail too. While a save reads the states, or waits for those of a
 * committed step, or readers keep the row that would be written, it may not either. */
static bool may_be_early(const struct cst_core *core, const struct cst_chunk *chunk)
{
    return core->attempt.phase == CST_PHASE_RUNNING && !cst_weight_row_is_early(&chunk->weight) &&
           chunk->writes.n == 0 && core->save.state == CST_SAVE_NONE &&
           cst_versions_may_begin(core) && is_prepared(core);
}

static struct cst_update begin_early(struct cst_core *core, uint32_t c)
{
    const struct cst_hyper *hyper = &core->ranks[0].promised;

    core->early.hyper = *hyper;
    if (core->early.n == 0) {
        cst_hyper_write_factors(core, core->commit.adam_step + 1);
        cst_versions_begin(core);
    }
    cst_weight_row_go(core, c, CST_ROWS_AHEAD);
    core->early.n++;
    return (struct cst_update){.chunk = c,
                               .mark = core->commit.adam_step + 1,
                               .hyper = *hyper,
                               .weight = cst_update_weight(core, c),
                               .guard = true};
}

void cst_overlap_complete(struct cst_core *core, uint32_t c)
{
    if (may_be_early(core, &core->chunks[c])) {
        struct cst_update update = begin_early(core, c);

        cst_update_issue(core, &update);
    }
}

/* True if an update can sum @sources: there are some, but few, and none is on a GPU. */
static bool has_few(const struct cst_core *core, const struct cst_sources *sources)
{
    uint32_t n = 0;

    CST_SET_EACH (rank, &sources->blocks) {
        n += !cst_tier_is_apart(core->ranks[rank].pool.tier) ? 1 : CST_CORE_MAX_WORLD;
    }
    return n > 0 && n <= FUSE_MAX && !sources->spilled;
}

/* True if engines have no backlog of updates. Otherwise the sum is better made alone: the commit
 * waits for the sum, but not for the update. */
static bool engines_keep_up(const struct cst_core *core)
{
    return core->exposure.n_updates < core->n_nodes;
}

bool cst_overlap_fuse(struct cst_core *core, uint32_t c, const struct cst_sources *sources)
{
    const struct cst_chunk *chunk = &core->chunks[c];
    struct cst_update what;

    const struct cst_layout_chunk *layout = &core->layout->chunks[c];

    /* An update sums bf16 contributions only. Muon needs the sum before. */
    if (core->grad_fp32 || core->micro_batches > 1 || layout->dtype == CST_FP32 || layout->muon ||
        !may_be_early(core, chunk) || !has_few(core, sources) ||
        !cst_chunk_update_is_over(&chunk->update) || !engines_keep_up(core) ||
        !cst_device_choice_pass(core, c)) {
        return false;
    }
    what = begin_early(core, c);
    cst_sum_fuse(core, c, sources, cst_update_by_node(core, &what));
    return true;
}
