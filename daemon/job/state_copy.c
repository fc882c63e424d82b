/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/state_copy.h"

#include "daemon/base/daemon_state.h"
#include "daemon/job/core_driver.h"
#include "daemon/job/migrate.h"
#include "daemon/job/state_pieces.h"
#include "offload/core/revival.h"
#include "offload/layout/reshard.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/job/job.h"
#include "daemon/job/span.h"

#include <stdlib.h>

enum {
    N_SLOTS = CSTD_STATE_COPY_SLOTS,
    SLOT_BYTES = CSTD_STATE_COPY_SLOT_BYTES,
    SLOT_RUNS = 256, /* Most READs of a piece; a multiple of CST_MX8_BLOCK. */
    /* Items of tags; the others are READs, SLOT_RUNS for each slot. */
    SAVE_ITEM = 1,
    RESTORE_ITEM = 2,
    MISSED_ITEM = 3,
    WRITE_ITEM = 16,
    READ_ITEM = 1024,
};

enum slot_state { SLOT_FREE, SLOT_READING, SLOT_WRITING };

struct slot {
    enum slot_state state;
    struct cstd_state_piece piece;
    uint32_t n_reads; /* READING: READs without a reply. 0: the slot is full. */
};

struct cstd_state_copy {
    struct cstd_job *from, *to;
    cstd_state_copy_cb done;
    struct cst_reshard reshard;
    struct cstd_segment *staging; /* NULL: nothing is copied. */
    struct cstd_population population;
    enum { MOUNTING, CUTTING, COPYING, RESTORING, ENDED } state;
    bool asked;    /* The current state's request was made. */
    bool answered; /* It has its reply. */
    bool saving;   /* The source's core was asked for a save and has not refused it. */
    struct cstd_state_pieces pieces; /* Those that are not copied yet. */
    /* Pages for the current portion of a move. */
    enum { PAGES_UNKNOWN, PAGES_AWAITED, PAGES_READY } pages;
    uint64_t bytes; /* Bytes that were written. */
    struct slot slots[N_SLOTS];
    uint32_t n_filled, n_written; /* Slots whose READs and whose WRITE were issued, in all. */
    uint32_t n_done;              /* WRITEs that were answered. */
    struct cst_err err;           /* The first error; status 0: none. */
    struct cstd_deferred look;
};

/* -- tags ------------------------------------------------------------------------------------- */

/* The number of the destination tells a late reply to an earlier copying of the same source. */
static uint64_t tag_of(const struct cstd_state_copy *copy, uint32_t item)
{
    return (copy->to->serial & 0xfffff) << 12 | item;
}

static struct cstd_state_copy *copy_of(const struct cstd_job *job)
{
    return job->successor != NULL ? job->successor->state_copy : job->state_copy;
}

static void look_later(struct cstd_state_copy *copy)
{
    cstd_deferred_add(&copy->to->daemon->later, &copy->look);
}

void cstd_state_copy_reply(struct cstd_job *job, const struct cst_reply *reply)
{
    struct cstd_state_copy *copy = copy_of(job);
    uint32_t item = (uint32_t)reply->tag & 0xfff;
    struct slot *slot;

    if (copy == NULL || reply->tag != tag_of(copy, item)) {
        return;
    }
    if (reply->status != CST_OK && copy->err.status == CST_OK) {
        copy->err = reply->err;
    }
    if (item >= READ_ITEM) {
        copy->slots[(item - READ_ITEM) / SLOT_RUNS].n_reads--;
    } else if (item >= WRITE_ITEM) {
        slot = &copy->slots[item - WRITE_ITEM];
        slot->state = SLOT_FREE;
        copy->n_done++;
        if (copy->from == NULL) {
            copy->to->daemon->span_ops->progress(copy->to);
        }
    } else if (item != MISSED_ITEM) { /* The RESTORE follows at once. */
        copy->answered = true;
        copy->saving = copy->saving && (item != SAVE_ITEM || reply->status == CST_OK);
    }
    look_later(copy); /* Actions of the core are being carried out now. */
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* The event is about @piece. */
static void fill(struct cst_event *event, const struct cstd_state_piece *piece)
{
    event->row = piece->row;
    event->raw = piece->raw;
    event->exponents = piece->exponents;
}

/* Issue the READ @event of slot @i: of the source's core, or of another node. */
static void read_from(struct cstd_state_copy *copy, uint32_t i, struct cst_event *event)
{
    const struct cstd_state_piece *piece = &copy->slots[i].piece;
    struct cst_err err;

    fill(event, piece);
    if (copy->from != NULL) {
        cstd_job_feed(copy->from, event);
    } else if (cstd_span_read(copy->to, event,
                              cstd_state_piece_bytes(&copy->pieces, piece, event->n_elems),
                              &err) != CST_OK) {
        copy->slots[i].n_reads--;
        copy->err = copy->err.status == CST_OK ? err : copy->err;
    }
}

/* Issue the READs of the piece of slot @i. */
static void read_piece(struct cstd_state_copy *copy, uint32_t i)
{
    struct slot *slot = &copy->slots[i];
    const struct cstd_state_piece *piece = &slot->piece;
    uint64_t n = 0;

    slot->state = SLOT_READING;
    slot->n_reads = 1; /* This function's own, so that replies from within do not fill the slot. */
    for (uint32_t r = 0; n < piece->n_elems && copy->to->state != CSTD_JOB_CLOSING; r++) {
        struct cst_reshard_run run =
            cst_reshard_run(&copy->reshard, piece->tensor, piece->first + n, piece->n_elems - n);
        struct cst_event event = {
            .kind = CST_EV_READ,
            .tag = tag_of(copy, READ_ITEM + i * SLOT_RUNS + r),
            .tensor = run.tensor,
            .first = run.first,
            .n_elems = run.n_elems,
            .place = {.segment = copy->staging->id,
                      .offset = (uint64_t)i * SLOT_BYTES +
                                cstd_state_piece_bytes(&copy->pieces, piece, n)}};

        slot->n_reads++;
        n += run.n_elems;
        read_from(copy, i, &event);
    }
    slot->n_reads--;
}

static void write_piece(struct cstd_state_copy *copy, uint32_t i)
{
    struct slot *slot = &copy->slots[i];
    const struct cstd_state_piece *piece = &slot->piece;
    struct cst_event event = {
        .kind = CST_EV_WRITE,
        .tag = tag_of(copy, WRITE_ITEM + i),
        .tensor = piece->tensor,
        .first = piece->first,
        .n_elems = piece->n_elems,
        .place = {.segment = copy->staging->id, .offset = (uint64_t)i * SLOT_BYTES}};

    slot->state = SLOT_WRITING;
    copy->bytes += cstd_state_piece_bytes(&copy->pieces, piece, piece->n_elems);
    fill(&event, piece);
    cstd_job_feed(copy->to, &event);
}

/* -- states ----------------------------------------------------------------------------------- */

static bool is_stopped(const struct cstd_state_copy *copy)
{
    return copy->err.status != CST_OK || copy->to->state == CSTD_JOB_CLOSING;
}

/* Issue what can be issued now. Returns true when all up to `end` is copied. */
static bool copy_more(struct cstd_state_copy *copy)
{
    while (!is_stopped(copy) && copy->n_filled < copy->n_done + N_SLOTS &&
           cstd_state_pieces_left(&copy->pieces)) {
        uint32_t i = copy->n_filled % N_SLOTS;

        if (copy->slots[i].state != SLOT_FREE) {
            break; /* A later slot is free, but they are filled in turn. */
        }
        cstd_state_pieces_take(&copy->pieces, SLOT_BYTES, SLOT_RUNS, &copy->slots[i].piece);
        copy->n_filled++;
        read_piece(copy, i);
    }
    while (!is_stopped(copy) && copy->n_written < copy->n_filled &&
           copy->slots[copy->n_written % N_SLOTS].n_reads == 0) {
        write_piece(copy, copy->n_written++ % N_SLOTS);
    }
    return !is_stopped(copy) && copy->n_done == copy->n_filled &&
           !cstd_state_pieces_left(&copy->pieces);
}

static void on_pages(void *arg, const struct cst_err *err)
{
    struct cstd_state_copy *copy = arg;

    copy->pages = PAGES_READY;
    if (err->status != CST_OK && copy->err.status == CST_OK) {
        copy->err = *err;
    }
    look_later(copy);
}

/* Begin portion n_moved of the move, if it is not begun. Returns true when its pages exist. */
static bool begin_portion(struct cstd_state_copy *copy)
{
    const struct cstd_migrate *migrate = copy->to->migrate;
    int rc;

    if (copy->pages == PAGES_UNKNOWN) {
        rc = cstd_migrate_prepare(copy->to, on_pages, copy, &copy->err);
        copy->pages = rc == CST_EAGAIN ? PAGES_AWAITED : PAGES_READY;
    }
    if (copy->pages == PAGES_READY && migrate->n_moved < migrate->plan.n_portions) {
        copy->pieces.end = migrate->plan.portions[migrate->n_moved].tensors_end;
    }
    return copy->pages == PAGES_READY && !is_stopped(copy);
}

/* Move what can be moved now. Returns true when all portions have moved. */
static bool move_more(struct cstd_state_copy *copy)
{
    const struct cstd_migrate *migrate = copy->to->migrate;

    while (begin_portion(copy)) {
        if (migrate->n_moved == migrate->plan.n_portions) {
            return true;
        }
        if (!copy_more(copy) || cstd_migrate_advance(copy->to, &copy->err) != CST_OK) {
            return false;
        }
        copy->pages = PAGES_UNKNOWN;
    }
    return false;
}

static void begin_save(struct cstd_state_copy *copy)
{
    struct cst_event event = {.kind = CST_EV_SAVE, .tag = tag_of(copy, SAVE_ITEM)};

    copy->saving = true;
    cstd_job_feed(copy->from, &event);
}

/* Tell the new core which steps its tensors have missed, a number for each. */
static void feed_missed(struct cstd_state_copy *copy, const uint64_t *missed)
{
    cstd_job_feed(copy->to, &(struct cst_event){.kind = CST_EV_MISSED,
                                                .tag = tag_of(copy, MISSED_ITEM),
                                                .n_elems = copy->to->model.n_tensors,
                                                .missed = missed});
}

/* As many as the tensor of the old job with the first element. CST_ENOMEM: copy->err. */
static int tell_missed(struct cstd_state_copy *copy)
{
    const uint32_t n = copy->to->model.n_tensors;
    uint64_t *from = calloc(copy->from->model.n_tensors + 1, sizeof *from);
    uint64_t *missed = calloc(n + 1, sizeof *missed);
    int rc = CST_OK;

    if (from == NULL || missed == NULL) {
        rc = cst_err_set(&copy->err, CST_ENOMEM, "no memory for the steps of %u tensors", n);
    } else {
        cst_core_missed_steps(copy->from->core, from);
        for (uint32_t i = 0; i < n; i++) {
            missed[i] = from[cst_reshard_run(&copy->reshard, i, 0, 1).tensor];
        }
        feed_missed(copy, missed);
    }
    free(from);
    free(missed);
    return rc;
}

static void feed_restore(struct cstd_state_copy *copy, const struct cst_core_record *record)
{
    cstd_job_feed(copy->to, &(struct cst_event){.kind = CST_EV_RESTORE,
                                                .tag = tag_of(copy, RESTORE_ITEM),
                                                .counters = record->counters,
                                                .record = record});
}

static void restore(struct cstd_state_copy *copy)
{
    const struct cstd_span_progress *progress;
    struct cst_core_record record;

    if (copy->from != NULL && tell_missed(copy) == CST_OK) {
        cst_core_record(copy->from->core, &record);
        feed_restore(copy, &record);
    } else if (copy->from == NULL) {
        progress = cstd_span_progress(copy->to);
        if (progress->missed != NULL) {
            feed_missed(copy, progress->missed);
        }
        feed_restore(copy, &progress->record);
    }
}

/* Ask other nodes how far the job is, once. Returns true when they have told. */
static bool ask_there(struct cstd_state_copy *copy, bool asked)
{
    if (copy->to->span->gone.status != CST_OK) {
        copy->err = copy->to->span->gone;
    } else if (!asked) {
        (void)cstd_span_ask_progress(copy->to, &copy->err);
    }
    return copy->err.status == CST_OK && cstd_span_progress(copy->to) != NULL;
}

/* True if all updates of @job are done. */
static bool is_quiet(const struct cstd_job *job)
{
    struct cst_core_stats stats;

    cst_core_stats(job->core, &stats);
    return stats.commands_in_flight == 0;
}

/* True if the current state is over. Its request is made first. */
static bool is_over(struct cstd_state_copy *copy)
{
    bool asked = copy->asked;

    copy->asked = true;
    switch (copy->state) {
    case MOUNTING:
        return copy->staging == NULL || copy->staging->n_waiting == 0;
    case CUTTING:
        if (copy->from == NULL) {
            return ask_there(copy, asked);
        }
        if (!asked) {
            begin_save(copy);
        }
        return copy->answered;
    case COPYING:
        if (copy->to->migrate != NULL) {
            return move_more(copy);
        }
        return copy->to->inherits ? is_quiet(copy->from) : copy_more(copy);
    case RESTORING:
        if (!asked) {
            restore(copy);
        }
        return copy->answered;
    case ENDED:
        break;
    }
    return false;
}

/* True if a command that this module has asked for, or work on pages, is under way. */
static bool is_busy(const struct cstd_state_copy *copy)
{
    bool busy = copy->pages == PAGES_AWAITED;

    for (uint32_t i = 0; i < N_SLOTS; i++) {
        const struct slot *slot = &copy->slots[i];

        busy = busy || slot->state == SLOT_WRITING ||
               (slot->state == SLOT_READING && slot->n_reads > 0);
    }
    return busy;
}

static void on_look(struct cstd_deferred *later)
{
    struct cstd_state_copy *copy = cstd_owner_of(later, struct cstd_state_copy, look);

    while (!is_stopped(copy) && copy->state != ENDED && is_over(copy)) {
        copy->state++;
        copy->asked = copy->answered = false;
    }
    /* A move that stalls begins its portion again, when nothing of the first attempt can interfere.
     */
    if (copy->to->state != CSTD_JOB_CLOSING &&
        ((copy->err.status != CST_OK && !(cstd_migrate_is_torn(copy->to) && is_busy(copy))) ||
         copy->state == ENDED)) {
        const struct cst_err err = copy->err;

        copy->done(copy->to, &err);
    }
}

/* -- open and close --------------------------------------------------------------------------- */

static void on_mounted(struct cstd_segment *segment)
{
    struct cstd_state_copy *copy = segment->arg;

    if (segment->err.status != CST_OK) {
        copy->err = segment->err;
    }
    look_later(copy);
}

/* Engines that hold states of @job. */
static struct cst_set engines_of(const struct cstd_job *job)
{
    struct cst_set engines = {{0}};

    for (uint32_t i = 0; i < job->layout.n_segments; i++) {
        cst_set_add(&engines, cst_layout_segment_engine(&job->layout.segments[i]));
    }
    return engines;
}

static int make_staging(struct cstd_state_copy *copy, struct cst_err *err)
{
    struct cstd_daemon *daemon = copy->to->daemon;
    int rc = cstd_segment_open(
        &copy->staging, cstd_engines_segment_id(daemon->engines), CSTD_STATE_COPY_STAGING,
        copy->to->migrate != NULL ? NULL : daemon->host, copy->to->account, copy->to->name, err);

    if (rc == CST_OK) {
        copy->staging->populate = 0;
        copy->staging->population = &copy->population;
        copy->staging->engines = cst_set_union(
            cst_set_range(0, daemon->engines->n_nodes),
            cst_set_union(copy->from != NULL ? engines_of(copy->from) : cstd_span_serves(copy->to),
                          engines_of(copy->to)));
        copy->staging->arg = copy;
        copy->staging->on_mounted = on_mounted;
        cstd_engines_mount(daemon->engines, copy->staging);
    }
    return rc;
}

/* Choose the order of the pieces, and where to begin. */
static void set_order(struct cstd_state_copy *copy)
{
    const struct cstd_migrate *migrate = copy->to->migrate;

    copy->pieces = (struct cstd_state_pieces){
        .to = copy->to,
        .reshard = &copy->reshard,
        .moments = (copy->from != NULL ? copy->from : copy->to)->spec.states.moments,
        .order = copy->to->layout.order,
        .end = copy->to->model.n_tensors};
    if (migrate != NULL) {
        copy->pieces.order = migrate->plan.tensors;
        copy->pieces.place = copy->pieces.end =
            cst_migration_begin(&migrate->plan, migrate->n_moved).tensors_end;
    }
}

int cstd_state_copy_open(struct cstd_job *to, struct cstd_job *from, cstd_state_copy_cb done,
                         struct cst_err *err)
{
    struct cstd_state_copy *copy = calloc(1, sizeof *copy);
    int rc;

    if (copy == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory to copy states");
    }
    copy->from = from;
    copy->to = to;
    copy->done = done;
    copy->look.fn = on_look;
    set_order(copy);
    rc =
        cst_reshard_open(&copy->reshard, from != NULL ? &from->model : &to->model, &to->model, err);
    if (rc == CST_OK && !to->inherits) {
        rc = make_staging(copy, err);
    }
    if (rc != CST_OK) {
        cst_reshard_close(&copy->reshard);
        free(copy);
        return rc;
    }
    to->state_copy = copy;
    look_later(copy);
    return CST_OK;
}

static void drop_staging(struct cstd_state_copy *copy)
{
    if (copy->staging != NULL) {
        copy->staging->on_mounted = NULL;
        copy->staging->population = NULL;
        cstd_engines_unmount(copy->to->daemon->engines, copy->staging);
        cstd_segment_unref(copy->staging);
    }
}

void cstd_state_copy_look(struct cstd_job *to)
{
    if (to->state_copy != NULL) {
        look_later(to->state_copy);
    }
}

void cstd_state_copy_close(struct cstd_job *to)
{
    struct cstd_state_copy *copy = to->state_copy;
    struct cst_event event = {.kind = CST_EV_SAVE_END};

    if (copy == NULL) {
        return;
    }
    to->state_copy = NULL;
    if (to->migrate != NULL) {
        cstd_migrate_stop(to);
    }
    cstd_deferred_remove(&to->daemon->later, &copy->look);
    drop_staging(copy);
    if (copy->saving && copy->from->core != NULL && copy->from->state == CSTD_JOB_READY) {
        cstd_job_feed(copy->from, &event);
    }
    cst_reshard_close(&copy->reshard);
    free(copy);
}

uint64_t cstd_state_copy_bytes(const struct cstd_job *to)
{
    return to->state_copy != NULL ? to->state_copy->bytes : 0;
}
