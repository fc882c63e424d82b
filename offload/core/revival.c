/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/core/revival.h"

#include "offload/books/actions.h"
#include "offload/core/core_state.h"
#include "offload/core/open_writes.h"
#include "offload/update/staged_update.h"
#include "offload/update/update.h"

#include <inttypes.h>
#include <string.h>

/* -- recording -------------------------------------------------------------------------------- */

/* The weight rows of all chunks with states change their roles together, so one stands for all. */
static const struct cst_chunk *find_trained(const struct cst_core *core)
{
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].has_states) {
            return &core->chunks[c];
        }
    }
    return NULL;
}

/* The rank whose pool lends the memory of device reservation @r + 1; 0: no pool does. */
static uint32_t lender_of(const struct cst_core *core, uint32_t r)
{
    const struct cst_lent_memory *lent = &core->device_updates.reservations[r].lent;

    return lent->on ? lent->rank + 1 : 0;
}

static void record_copying(const struct cst_core *core, struct cst_core_record *out)
{
    for (uint32_t i = 0; i < core->device_updates.n_reservations * CST_BUFFERS_MAX; i++) {
        const struct cst_update *what =
            cst_staged_update_copying(core, i / CST_BUFFERS_MAX, i % CST_BUFFERS_MAX);

        if (what != NULL) {
            out->copying[i].chunk = what->chunk + 1;
            out->copying[i].lender = lender_of(core, i / CST_BUFFERS_MAX);
            out->copying[i].mark = what->mark;
        }
    }
}

void cst_core_record(const struct cst_core *core, struct cst_core_record *out)
{
    const struct cst_commit *commit = &core->commit;
    const struct cst_chunk *trained = core->two_weights ? find_trained(core) : NULL;

    memset(out, 0, sizeof *out);
    out->counters = (struct cst_counters){.step = core->step,
                                          .adam_step = commit->adam_step,
                                          .n_skipped = commit->n_skipped,
                                          .n_overflows = commit->n_overflows};
    out->restored_adam_step = commit->restored_adam_step;
    cst_open_writes_record(core, out);
    out->initialised = core->attempt.initialised;
    out->failed = core->attempt.phase == CST_PHASE_FAILED;
    out->has_hyper = commit->has_hyper;
    out->hyper = commit->hyper;
    out->factor = commit->factor;
    out->guard = commit->guard;
    out->last_loss = commit->last_loss;
    out->last_grad_norm = commit->last_grad_norm;
    if (trained != NULL) {
        out->delayed = trained->weight.rows == CST_ROWS_DELAYED;
        out->second = trained->weight.second;
    }
    out->early = core->early.n > 0 || core->early.repeated;
    if (out->early) {
        out->early_hyper = core->early.hyper;
    }
    out->decision = core->agreement.last_decision;
    record_copying(core, out);
}

/* -- going on --------------------------------------------------------------------------------- */

/* The marks of a chunk's updates. */
struct mark {
    uint64_t done; /* Of the last one that is complete. */
    uint64_t last; /* Of the last one that was committed. */
};

static struct mark mark_of(const struct cst_core *core, const struct cst_core_record *record,
                           struct cst_table_header *table, uint32_t c)
{
    return (struct mark){.done = cst_table_chunks(table)[c].update_mark,
                         .last = cst_idle_last_update(core, table, c, record->counters.adam_step)};
}

/* What the marks of a chunk say about its update. */
enum progress {
    DONE,   /* The last committed update is complete. */
    BEGUN,  /* The last committed update is not complete, or was not begun. */
    AHEAD,  /* An early update of the uncommitted step is complete. */
    UNSURE, /* Some other update was made last. */
};

static enum progress progress_of(const struct cst_core *core, const struct cst_core_record *record,
                                 const struct mark *mark)
{
    uint64_t adam = record->counters.adam_step;
    bool is_next;

    if (record->early && mark->done == adam + 1) {
        return AHEAD;
    }
    if (mark->done == mark->last || mark->last <= record->restored_adam_step) {
        return DONE;
    }
    /* The update before had another number if the chunk was idle or there was a restore. */
    is_next = core->idle.on ? mark->done < adam : mark->done + 1 == adam;
    return mark->last == adam && (is_next || adam == record->restored_adam_step + 1) ? BEGUN
                                                                                     : UNSURE;
}

/* True if the results of an update of chunk @c were being copied back. Its rows are then old or
 * new, and its mark may lag behind. */
static bool is_copying(const struct cst_core_record *record, uint32_t c)
{
    bool any = false;

    for (uint32_t i = 0; i < CST_CORE_MAX_COPYING; i++) {
        any = any || record->copying[i].chunk == c + 1;
    }
    return any;
}

/* True if a tile of chunk @c may have been changed in part, and its undo slot is lost. Updates on a
 * device do not change a chunk in place. */
static bool may_be_torn(const struct cst_core *core, const struct cst_core_record *record,
                        uint32_t c, const struct mark *mark)
{
    enum progress progress = progress_of(core, record, mark);

    return record->undo_lost && !cst_tier_is_apart(core->chunks[c].tier) && !core->chunks[c].away &&
           (progress == BEGUN || (record->early && progress != AHEAD));
}

/* Check that the states of chunk @c, with the marks @mark, are those of one step, or can become so.
 */
static int check_chunk(const struct cst_core *core, const struct cst_core_record *record,
                       uint32_t c, struct mark mark, struct cst_err *err)
{
    if (progress_of(core, record, &mark) == UNSURE) {
        return cst_err_set(err, CST_ELOST,
                           "the last update of chunk %" PRIu32 " was number %" PRIu64
                           ", but the last step has number %" PRIu64,
                           c, mark.done, record->counters.adam_step);
    }
    if (may_be_torn(core, record, c, &mark)) {
        return cst_err_set(err, CST_ELOST,
                           "an update of chunk %" PRIu32
                           " was cut off, and a daemon that could not go on with the job has "
                           "used its undo slots",
                           c);
    }
    return CST_OK;
}

/* Check that the buffer of the copy number @i of @record exists, and that its chunk can have been
 * updated there. */
static int check_copying(const struct cst_core *core, const struct cst_core_record *record,
                         uint32_t i, struct cst_err *err)
{
    const struct cst_core_copying *copying = &record->copying[i];
    uint32_t r = i / CST_BUFFERS_MAX;

    if (copying->chunk == 0 ||
        (copying->chunk <= core->n_chunks && core->chunks[copying->chunk - 1].has_states &&
         copying->mark <=
             record->counters.adam_step + (core->policy.overlap == CST_OVERLAP_EARLY) &&
         r < core->device_updates.n_reservations &&
         i % CST_BUFFERS_MAX < core->device_updates.reservations[r].buffers.n &&
         copying->lender == lender_of(core, r))) {
        return CST_OK;
    }
    return cst_err_set(err, CST_ELOST,
                       "its record has an update in buffer %" PRIu32
                       " of device reservation %" PRIu32 ", which does not exist",
                       i % CST_BUFFERS_MAX, r);
}

/* Check that no flag of @record contradicts the layout, the policy or another flag of the job. */
static int check_flags(const struct cst_core *core, const struct cst_core_record *record,
                       struct cst_err *err)
{
    const uint64_t adam = record->counters.adam_step, restored = record->restored_adam_step;
    const uint8_t all = record->initialised | record->failed | record->has_hyper | record->guard |
                        record->second | record->delayed | record->early | record->undo_lost;

    if (all > 1) {
        return cst_err_set(err, CST_ELOST, "its record has a flag that is neither 0 nor 1");
    }
    if ((record->second || record->delayed || record->early) && !core->two_weights) {
        return cst_err_set(err, CST_ELOST,
                           "its record names a second weight row, and its layout has none");
    }
    if ((record->early && core->policy.overlap != CST_OVERLAP_EARLY) ||
        (record->delayed && core->policy.overlap != CST_OVERLAP_DELAYED)) {
        return cst_err_set(err, CST_ELOST, "its record has %s updates, and the job makes none",
                           record->early ? "early" : "delayed");
    }
    if (adam < restored || (adam > restored && !record->has_hyper)) {
        return cst_err_set(err, CST_ELOST,
                           "its record has optimizer step %" PRIu64 " after step %" PRIu64
                           " was restored%s",
                           adam, restored, record->has_hyper ? "" : ", without hyper-parameters");
    }
    return CST_OK;
}

int cst_core_may_revive(const struct cst_core *core, const struct cst_core_record *record,
                        struct cst_table_header *table, struct cst_err *err)
{
    if (!record->initialised) {
        return cst_err_set(err, CST_ELOST, "its ranks had not begun their first step");
    }
    if (record->failed) {
        return cst_err_set(err, CST_ELOST, "it had failed");
    }
    if (cst_open_writes_may_revive(core, record, err) != CST_OK) {
        return err->status;
    }
    if (check_flags(core, record, err) != CST_OK) {
        return err->status;
    }
    for (uint32_t i = 0; i < CST_CORE_MAX_COPYING; i++) {
        if (check_copying(core, record, i, err) != CST_OK) {
            return err->status;
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].has_states && !is_copying(record, c) &&
            check_chunk(core, record, c, mark_of(core, record, table, c), err) != CST_OK) {
            return err->status;
        }
    }
    return CST_OK;
}

static void set_counters(struct cst_core *core, const struct cst_core_record *record)
{
    struct cst_commit *commit = &core->commit;

    core->step = record->counters.step;
    commit->adam_step = record->counters.adam_step;
    commit->n_skipped = record->counters.n_skipped;
    commit->n_overflows = record->counters.n_overflows;
    commit->restored_adam_step = record->restored_adam_step;
    commit->has_hyper = record->has_hyper;
    commit->hyper = record->hyper;
    commit->factor = record->factor;
    commit->guard = record->guard;
    commit->last_loss = record->last_loss;
    commit->last_grad_norm = record->last_grad_norm;
    core->early.hyper = record->early_hyper;
    core->early.repeated = record->early;
    cst_agreement_revived(core, &record->decision);
    cst_ranks_revived(core);
}

/* Issue the last committed update of chunk @c again. */
static void repeat_update(struct cst_core *core, uint32_t c, const struct cst_core_record *record)
{
    struct cst_update what = {
        .chunk = c,
        .mark = record->counters.adam_step,
        .hyper = record->hyper,
        .weight = cst_core_row_place(core, c, cst_weight_row_newest(core, c), 0),
        .guard = record->guard,
    };

    what.hyper.grad_scale = (double)record->factor;
    if (cst_tier_is_apart(core->chunks[c].tier) || core->chunks[c].away) {
        cst_update_issue(core, &what);
    } else {
        /* An engine of a node may have updated some tiles in place. */
        (void)cst_update_by_node(core, &what);
    }
    if (core->chunks[c].weight.rows == CST_ROWS_CURRENT) {
        cst_chunk_update_read(&core->chunks[c]);
    }
}

/* Keep the early update of chunk @c, which is complete or being copied back. */
static void keep_early(struct cst_core *core, uint32_t c)
{
    core->chunks[c].weight.rows = CST_ROWS_CARRIED;
    core->early.n++;
}

/* Issue again the COPYs of the device update record->copying[@i]. */
static void copy_back(struct cst_core *core, uint32_t i, const struct cst_core_record *record)
{
    const struct cst_core_copying *copying = &record->copying[i];
    bool early = copying->mark > record->counters.adam_step;
    uint32_t c = copying->chunk - 1;
    enum cst_row row = early ? cst_weight_row_target(core, c) : cst_weight_row_newest(core, c);
    struct cst_update what = {
        .chunk = c, .mark = copying->mark, .weight = cst_core_row_place(core, c, row, 0)};

    cst_staged_update_copy_back(core, i / CST_BUFFERS_MAX, i % CST_BUFFERS_MAX, &what);
    if (early) {
        keep_early(core, c);
    } else if (core->chunks[c].weight.rows == CST_ROWS_CURRENT) {
        cst_chunk_update_read(&core->chunks[c]);
    }
}

static void set_rows(struct cst_core *core, uint32_t c, const struct cst_core_record *record)
{
    struct cst_weight_row *weight = &core->chunks[c].weight;

    weight->second = record->second;
    weight->rows = record->delayed ? CST_ROWS_DELAYED : CST_ROWS_CURRENT;
    /* The row can hold a gradient. The master weights give the same weights. */
    weight->holds = cst_layout_grad_over_weight(core->layout, &core->layout->chunks[c])
                        ? CST_HOLDS_STALE
                        : CST_HOLDS_WEIGHTS;
}

static void go_on(struct cst_core *core, uint32_t c, const struct cst_core_record *record,
                  struct mark mark)
{
    enum progress progress = progress_of(core, record, &mark);

    if (progress == AHEAD) {
        keep_early(core, c);
    } else if (progress == BEGUN) {
        repeat_update(core, c, record);
    }
}

void cst_revival_go_on(struct cst_core *core, const struct cst_event *event)
{
    struct cst_table_chunk *chunks = cst_table_chunks(event->table);
    struct cst_table_tile *tiles = cst_table_tiles(event->table);

    set_counters(core, event->record);
    cst_open_writes_revive(core, event->record);
    cst_idle_revive(core, event->table, core->commit.adam_step);
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        chunks[c].reduce_mark = CST_MARK_NONE;
        if (core->chunks[c].has_states) {
            set_rows(core, c, event->record);
        }
    }
    /* Their buffers are not free until they are done. */
    for (uint32_t i = 0; i < core->device_updates.n_reservations * CST_BUFFERS_MAX; i++) {
        if (event->record->copying[i].chunk != 0) {
            copy_back(core, i, event->record);
        }
    }
    for (uint32_t c = 0; c < core->n_chunks; c++) {
        if (core->chunks[c].has_states && !is_copying(event->record, c)) {
            go_on(core, c, event->record, mark_of(core, event->record, event->table, c));
        }
    }
    for (uint64_t i = 0; i < event->table->n_tiles; i++) {
        tiles[i].reduce_mark = CST_MARK_NONE;
    }
    cst_versions_committed(core);
    cst_seal_due(core); /* Nobody knows whether the step was sealed. */
}
