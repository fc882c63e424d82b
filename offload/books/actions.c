/* SPDX-License-Identifier: Apache-2.0 */
/* The core's output: commands, replies and log lines. Memory is reserved before an event is
 * processed, so that nothing here can fail. */
#include "offload/books/actions.h"

#include "offload/core/core_state.h"
#include "offload/books/instant.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cst_actions_init(struct cst_actions *actions)
{
    memset(actions, 0, sizeof *actions);
}

void cst_actions_close(struct cst_actions *actions)
{
    free(actions->v);
    cst_actions_init(actions);
}

static struct cst_action *add(struct cst_core *core, enum cst_action_kind kind)
{
    struct cst_actions *actions = core->out.actions;
    struct cst_action *a;

    assert(actions->n < actions->capacity);
    a = &actions->v[actions->n++];
    a->kind = kind;
    return a;
}

struct cst_command *cst_core_command(struct cst_core *core, enum cst_command_kind kind,
                                     uint32_t node, struct cst_flight *flight)
{
    struct cst_command *command = &add(core, CST_ACT_COMMAND)->command;

    memset(command, 0, sizeof *command);
    command->kind = kind;
    command->node = node;
    /* A ticket can also serve as a mark in the job table: skip tickets that are no valid marks. */
    core->out.last_ticket += cst_table_is_mark(core->out.last_ticket + 1) ? 1 : 2;
    command->ticket = core->out.last_ticket;
    command->chunk = flight->chunk;
    flight->ticket = command->ticket;
    flight->engine = node;
    cst_instant_issued(core, flight);
    cst_flights_add(&core->flights, flight);
    return command;
}

void cst_core_replace(struct cst_core *core, struct cst_command *command, uint64_t ticket)
{
    struct cst_flight flight;

    if (cst_flights_take(&core->flights, ticket, &flight)) {
        /* Its completion must not count as the end of an update. */
        flight.kind = CST_FLIGHT_DEVICE_UPDATE;
        flight.block = CST_NONE;
        cst_flights_add(&core->flights, &flight);
        command->replaces[command->n_replaces++] = ticket;
    }
}

void cst_core_seal(struct cst_core *core)
{
    (void)add(core, CST_ACT_SEAL);
}

void cst_core_version(struct cst_core *core, enum cst_action_kind kind, uint32_t row, uint64_t step)
{
    struct cst_action *a = add(core, kind);

    a->version.row = row;
    a->version.step = step;
}

struct cst_machine_message *cst_core_tell(struct cst_core *core, uint32_t to)
{
    struct cst_action *a = add(core, CST_ACT_TELL);

    memset(&a->tell.message, 0, offsetof(struct cst_machine_message, why.text) + 1);
    a->tell.to = to;
    return &a->tell.message;
}

struct cst_command *cst_core_keep_promise(struct cst_core *core, enum cst_command_kind kind,
                                          uint64_t ticket)
{
    const struct cst_flight *flight = cst_flights_find(&core->flights, ticket);
    struct cst_command *command = &add(core, CST_ACT_COMMAND)->command;

    assert(flight != NULL);
    memset(command, 0, sizeof *command);
    command->kind = kind;
    command->ticket = ticket;
    command->node = flight->engine;
    command->chunk = flight->chunk;
    return command;
}

void cst_core_recall(struct cst_core *core, uint64_t ticket)
{
    add(core, CST_ACT_RECALL)->recall = ticket;
}

struct cst_reply *cst_core_reply(struct cst_core *core, uint64_t tag)
{
    struct cst_reply *reply;

    if (tag == 0) {
        return NULL;
    }
    reply = &add(core, CST_ACT_REPLY)->reply;
    /* Clear the message only up to its first byte: the rest is long and is not read. */
    memset(reply, 0, offsetof(struct cst_reply, err.text) + 1);
    reply->tag = tag;
    return reply;
}

void cst_core_refuse(struct cst_core *core, uint64_t tag, int status, const char *fmt, ...)
{
    struct cst_reply *reply = cst_core_reply(core, tag);
    va_list ap;

    if (reply != NULL) {
        reply->status = status;
        reply->err.status = status;
        reply->err.reason = CST_REASON_NONE;
        va_start(ap, fmt);
        (void)vsnprintf(reply->err.text, sizeof reply->err.text, fmt, ap);
        va_end(ap);
        cst_text_clean(reply->err.text, sizeof reply->err.text);
    }
}

void cst_core_refuse_err(struct cst_core *core, uint64_t tag, const struct cst_err *err)
{
    struct cst_reply *reply = cst_core_reply(core, tag);

    if (reply != NULL) {
        reply->status = err->status;
        reply->err = *err;
    }
}

void cst_core_log(struct cst_core *core, int status, const char *fmt, ...)
{
    struct cst_err *line = &add(core, CST_ACT_LOG)->log;
    va_list ap;

    line->status = status;
    line->reason = CST_REASON_NONE;
    va_start(ap, fmt);
    (void)vsnprintf(line->text, sizeof line->text, fmt, ap);
    va_end(ap);
    cst_text_clean(line->text, sizeof line->text);
}

const char *cst_event_words(const struct cst_event *event)
{
    return event->text != NULL ? event->text : cst_status_words(event->status);
}

bool cst_event_engine_lost(const struct cst_event *event)
{
    return event->status == CST_ELOST || event->status == CST_EENGINE;
}

/* How far behind the first place of rows in segment @segment of the layout the one is that has the
 * states after the update with the mark @mark. */
static uint64_t twin_of(const struct cst_core *core, uint32_t segment, uint64_t mark)
{
    return core->seal.on
               ? (mark - core->commit.restored_adam_step) % 2 * core->layout->segments[segment].twin
               : 0;
}

struct cst_place cst_core_state_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                      uint64_t mark)
{
    const struct cst_layout_row *r = cst_layout_row(&core->layout->chunks[chunk], (int)row);

    return (struct cst_place){.segment = core->arena_segments[r->segment],
                              .offset = r->offset + twin_of(core, r->segment, mark)};
}

struct cst_place cst_core_row_place(const struct cst_core *core, uint32_t chunk, enum cst_row row,
                                    uint64_t elem)
{
    const struct cst_layout *layout = core->layout;
    const struct cst_layout_chunk *c = &layout->chunks[chunk];
    const struct cst_layout_row *r = cst_layout_row(c, (int)row);
    /* The gradient may have no row of its own. */
    const struct cst_table_header header = {.grad_bytes = layout->grad_bytes};
    uint64_t before = row == CST_ROW_GRAD ? elem * cst_table_grad_bytes(&header, c->dtype)
                                          : cst_layout_chunk_row_bytes(layout, c, (int)row, elem);

    return (struct cst_place){.segment = core->arena_segments[r->segment],
                              .offset = r->offset + before +
                                        twin_of(core, r->segment, core->commit.adam_step)};
}

uint32_t cst_core_keeper(const struct cst_core *core, uint32_t chunk, enum cst_row row)
{
    const struct cst_layout_chunk *c = &core->layout->chunks[chunk];
    /* The master weights of fp32 tensors are their weights, which are in host memory. */
    bool apart = cst_table_is_state((int)row) && c->rows[row].segment != CST_LAYOUT_NO_ROW &&
                 cst_tier_is_apart(core->chunks[chunk].tier);

    return apart ? core->chunks[chunk].tier : c->node;
}

uint32_t cst_core_copier(const struct cst_core *core, uint32_t rank, uint32_t chunk)
{
    uint32_t tier = core->ranks[rank].pool.tier;

    return cst_tier_is_apart(tier) ? tier : core->layout->chunks[chunk].node;
}
