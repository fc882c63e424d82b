/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/span_message.h"

#include "daemon/job/job.h"
#include "daemon/job/span_parts.h"

#include <stdlib.h>
#include <string.h>

/* Squares of tiles in one frame; the rest of a message takes a few hundred bytes. */
enum { FRAME_SQUARES = 7000 };

/* -- to other nodes --------------------------------------------------------------------------- */

void cstd_span_put_hyper(Span__Hyper *out, const struct cst_hyper *hyper)
{
    span__hyper__init(out);
    out->lr = hyper->lr;
    out->beta1 = hyper->beta1;
    out->beta2 = hyper->beta2;
    out->eps = hyper->eps;
    out->weight_decay = hyper->weight_decay;
    out->clip_norm = hyper->clip_norm;
    out->grad_scale = hyper->grad_scale;
    out->factors = hyper->factors;
}

static void put_decision(Span__Decision *out, Span__Hyper *hyper, const struct cst_decision *from)
{
    span__decision__init(out);
    cstd_span_put_hyper(hyper, &from->hyper);
    out->hyper = hyper;
    out->step = from->step;
    out->adam_step = from->adam_step;
    out->attempt = from->attempt;
    out->n_skipped = from->n_skipped;
    out->n_overflows = from->n_overflows;
    out->sum_squares = from->sum_squares;
    out->loss = from->loss;
    out->skipped = from->skipped != 0;
    out->guard = from->guard != 0;
}

/* Send the squares in frames of their own, but for those that fit into the last one, which @core
 * is.
 */
static int send_squares(struct cstd_span_machine *to, Span__Core *core,
                        const struct cst_machine_message *message, struct cst_err *err)
{
    int rc = CST_OK;

    core->has_all_squares = core->has_first_square = message->n_squares > 0;
    core->all_squares = message->n_squares;
    for (uint32_t first = 0; rc == CST_OK && first < message->n_squares; first += FRAME_SQUARES) {
        const uint32_t left = message->n_squares - first;

        core->squares = (double *)(uintptr_t)(message->squares + first);
        core->n_squares = left < FRAME_SQUARES ? left : FRAME_SQUARES;
        core->first_square = first;
        if (left > FRAME_SQUARES) {
            rc = cstd_machine_send(to->peer, SPAN__MSG_TYPE__SPAN_CORE, &core->base, err);
        }
    }
    return rc;
}

int cstd_span_send_core(struct cstd_job *job, struct cstd_span_machine *to,
                        const struct cst_machine_message *message, struct cst_err *err)
{
    Span__Core core = SPAN__CORE__INIT;
    Span__Key key = cstd_span_key(job);
    Span__Place place = SPAN__PLACE__INIT;
    Span__Decision decision;
    Span__Hyper hyper;
    int rc;

    put_decision(&decision, &hyper, &message->decision);
    place.segment = message->place.segment;
    place.offset = message->place.offset;
    core.from = &key;
    core.kind = (uint32_t)message->kind;
    core.epoch = message->epoch;
    core.attempt = message->attempt;
    core.step = message->step;
    core.has_chunk = core.has_block = core.has_empty = core.has_rank_blocks = 1;
    core.chunk = message->chunk;
    core.block = message->block;
    core.empty = message->empty;
    core.place = message->place.segment != CST_PLACE_NONE ? &place : NULL;
    core.rank_blocks = message->rank_blocks;
    core.n_losses = message->n_losses;
    core.losses = (double *)(uintptr_t)message->losses;
    core.decision = message->decision.step > 0 ? &decision : NULL;
    core.has_waited_for = message->waited_for != CST_MACHINE_UNKNOWN;
    core.waited_for = message->waited_for;
    core.has_unused = message->n_unused > 0;
    core.unused.data = (uint8_t *)(uintptr_t)message->unused;
    core.unused.len = message->n_unused;
    core.has_idle = core.has_failed = core.has_status = 1;
    core.idle = message->idle;
    core.failed = message->failed;
    core.status = message->why.status;
    core.why = message->why.status != CST_OK ? (char *)(uintptr_t)message->why.text : NULL;
    rc = send_squares(to, &core, message, err);
    return rc == CST_OK ? cstd_machine_send(to->peer, SPAN__MSG_TYPE__SPAN_CORE, &core.base, err)
                        : rc;
}

int cstd_span_send_members(struct cstd_job *job, struct cstd_span_machine *to,
                           const struct cst_members_message *message, struct cst_err *err)
{
    Span__Members members = SPAN__MEMBERS__INIT;
    Span__Epoch epoch = SPAN__EPOCH__INIT;
    Span__Key key = cstd_span_key(job);
    uint64_t lives[CST_MACHINES_MAX];

    memcpy(lives, message->epoch.lives, sizeof lives);
    epoch.number = message->epoch.number;
    epoch.lives = lives;
    epoch.n_lives = job->span->n;
    members.from = &key;
    members.kind = (uint32_t)message->kind;
    members.life = message->life;
    members.number = message->number;
    members.round = message->round;
    members.committed = message->committed;
    members.ballot = message->ballot;
    members.accepted = message->accepted;
    members.epoch = &epoch;
    return cstd_machine_send(to->peer, SPAN__MSG_TYPE__SPAN_MEMBERS, &members.base, err);
}

/* -- from other nodes ------------------------------------------------------------------------- */

void cstd_span_take_hyper(struct cst_hyper *out, const Span__Hyper *in)
{
    *out = (struct cst_hyper){.lr = in->lr,
                              .beta1 = in->beta1,
                              .beta2 = in->beta2,
                              .eps = in->eps,
                              .weight_decay = in->weight_decay,
                              .clip_norm = in->clip_norm,
                              .grad_scale = in->grad_scale,
                              .factors = in->factors};
}

static void take_decision(struct cst_decision *out, const Span__Decision *in)
{
    *out = (struct cst_decision){.step = in->step,
                                 .adam_step = in->adam_step,
                                 .attempt = in->attempt,
                                 .n_skipped = in->n_skipped,
                                 .n_overflows = in->n_overflows,
                                 .sum_squares = in->sum_squares,
                                 .loss = in->loss,
                                 .skipped = in->skipped != 0,
                                 .guard = in->guard != 0};
    cstd_span_take_hyper(&out->hyper, in->hyper);
}

/* Keep the squares of a message in several frames. CST_EAGAIN: more of them follow. */
static int take_squares(const Span__Core *in, struct cstd_span_machine *from,
                        struct cst_machine_message *out, struct cst_err *err)
{
    const uint32_t all = in->has_all_squares ? in->all_squares : 0;
    const uint32_t first = in->has_first_square ? in->first_square : 0;

    if (first == 0 && in->n_squares == all) {
        out->squares = in->squares;
        out->n_squares = all;
        return CST_OK;
    }
    if (first == 0) {
        free(from->squares);
        from->squares = all <= CST_LAYOUT_MAX_CHUNK_ELEMS / CST_TILE_ELEMS
                            ? malloc(all * sizeof *from->squares)
                            : NULL;
        from->n_squares = 0;
        from->all_squares = all;
        if (from->squares == NULL) {
            return cst_err_set(err, CST_ENOMEM, "no memory for the squares of %u tiles", all);
        }
    }
    if (from->squares == NULL || all != from->all_squares || first != from->n_squares ||
        first > all || in->n_squares > all - first) {
        return cst_err_set(err, CST_EPROTO, "squares %u to %zu of %u do not follow %u", first,
                           first + in->n_squares, all, from->n_squares);
    }
    if (in->n_squares > 0) {
        memcpy(from->squares + first, in->squares, in->n_squares * sizeof *from->squares);
    }
    from->n_squares += (uint32_t)in->n_squares;
    out->squares = from->squares;
    out->n_squares = from->n_squares;
    return from->n_squares == all ? CST_OK : CST_EAGAIN;
}

/* The place that the other machine has named, as the net engine here calls it. */
static int take_place(const Span__Core *in, const struct cstd_span_machine *from,
                      struct cst_machine_message *out, struct cst_err *err)
{
    if (in->place == NULL) {
        return CST_OK;
    }
    for (uint32_t i = 0; i < from->n_segments; i++) {
        if (from->segments[i].id == in->place->segment && from->segments[i].segment != NULL) {
            out->place.segment = from->segments[i].segment->id;
            out->place.offset = in->place->offset;
            return CST_OK;
        }
    }
    return cst_err_set(err, CST_EPROTO, "a place in segment %u, of which it has not told",
                       in->place->segment);
}

int cstd_span_read_core(const Span__Core *in, struct cstd_span_machine *from,
                        struct cst_machine_message *out, struct cst_err *err)
{
    int rc;

    if (in->kind >= CST_MESSAGE_KINDS || in->n_losses > UINT32_MAX) {
        return cst_err_set(err, CST_EPROTO, "a message of kind %u", in->kind);
    }
    *out = (struct cst_machine_message){.kind = (enum cst_message_kind)in->kind,
                                        .epoch = in->epoch,
                                        .attempt = in->attempt,
                                        .step = in->step,
                                        .chunk = in->chunk,
                                        .block = in->block,
                                        .empty = in->empty,
                                        .losses = in->losses,
                                        .n_losses = (uint32_t)in->n_losses,
                                        .rank_blocks = in->rank_blocks,
                                        .waited_for = in->has_waited_for ? in->waited_for
                                                                         : CST_MACHINE_UNKNOWN,
                                        .unused = in->unused.data,
                                        .n_unused = (uint32_t)in->unused.len,
                                        .idle = in->idle,
                                        .failed = in->failed};
    if (in->decision != NULL) {
        take_decision(&out->decision, in->decision);
    }
    if (in->has_status && in->status != CST_OK) {
        (void)cst_err_set(&out->why, in->status, "%s", in->why != NULL ? in->why : "");
    }
    rc = take_place(in, from, out, err);
    return rc == CST_OK ? take_squares(in, from, out, err) : rc;
}

int cstd_span_read_members(const Span__Members *in, uint32_t n, struct cst_members_message *out,
                           struct cst_err *err)
{
    *out = (struct cst_members_message){.kind = (enum cst_members_kind)in->kind,
                                        .life = in->life,
                                        .number = in->number,
                                        .round = in->round,
                                        .committed = in->committed,
                                        .ballot = in->ballot,
                                        .accepted = in->accepted,
                                        .epoch.number = in->epoch->number};
    if (in->epoch->n_lives > n) {
        return cst_err_set(err, CST_EPROTO, "an epoch of %zu machines, of a job on %u",
                           in->epoch->n_lives, n);
    }
    for (uint32_t m = 0; m < in->epoch->n_lives; m++) {
        out->epoch.lives[m] = in->epoch->lives[m];
        if (in->epoch->lives[m] != 0) {
            cst_set_add(&out->epoch.members, m);
        }
    }
    return cst_members_check(out, err);
}
