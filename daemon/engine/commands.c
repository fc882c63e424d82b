/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/commands.h"

#include "daemon/base/deferred.h"
#include "proto/engine.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* A command is refused when the engine is given up for this many times while the command is in the
 * queue, because the command may be the reason for the engine's deaths. */
enum { MAX_GIVEN_UP = 3 };

static struct cstd_command *command_of(struct cst_ticket *ticket)
{
    return cstd_owner_of(ticket, struct cstd_command, ticket);
}

void cstd_commands_init(struct cstd_commands *commands, struct cst_ticket_graph *graph)
{
    *commands = (struct cstd_commands){.graph = graph};
    TAILQ_INIT(&commands->held);
    TAILQ_INIT(&commands->queue);
}

static void leave_list(struct cstd_command *command)
{
    struct cstd_commands *commands = command->commands;

    if (command->state == CSTD_COMMAND_HELD) {
        TAILQ_REMOVE(&commands->held, command, link);
        return;
    }
    /* An unsent command leaves the queue if its job ends or the engine is given up. */
    if (commands->unsent == command) {
        commands->unsent = TAILQ_NEXT(command, link);
    }
    TAILQ_REMOVE(&commands->queue, command, link);
    commands->n--;
}

static void free_command(struct cstd_command *command)
{
    if (command->bytes != command->packed) {
        free(command->bytes);
    }
    free(command->why);
    free(command);
}

static void drop(struct cstd_command *command)
{
    leave_list(command);
    cst_ticket_graph_drop(command->commands->graph, &command->ticket);
    free_command(command);
}

void cstd_commands_close(struct cstd_commands *commands)
{
    while (!TAILQ_EMPTY(&commands->held)) {
        drop(TAILQ_FIRST(&commands->held));
    }
    while (!TAILQ_EMPTY(&commands->queue)) {
        drop(TAILQ_FIRST(&commands->queue));
    }
}

/* -- encoding --------------------------------------------------------------------------------- */

static void fill_places(Engine__Place *places, Engine__Place **pointers,
                        const struct cst_place *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        engine__place__init(&places[i]);
        places[i].segment = from[i].segment;
        places[i].offset = from[i].offset;
        pointers[i] = &places[i];
    }
}

static void fill_hyper(Engine__Hyper *out, const struct cst_hyper *hyper)
{
    engine__hyper__init(out);
    out->lr = hyper->lr;
    out->beta1 = hyper->beta1;
    out->beta2 = hyper->beta2;
    out->eps = hyper->eps;
    out->weight_decay = hyper->weight_decay;
    out->grad_scale = (float)hyper->grad_scale;
}

/* Places of rows of an UPDATE that are not where the job table says. */
struct rows {
    Engine__RowPlace v[CST_COMMAND_MAX_ROWS], *pointers[CST_COMMAND_MAX_ROWS];
    Engine__Place places[CST_COMMAND_MAX_ROWS];
};

/* A Command message and the storage of its parts. */
struct message {
    Engine__Command command;
    Engine__Hyper hyper;
    Engine__Place src[CST_COMMAND_MAX_SRC], *src_pointers[CST_COMMAND_MAX_SRC];
    Engine__Place dst[CST_COMMAND_MAX_DST], *dst_pointers[CST_COMMAND_MAX_DST];
    struct rows in, out;
    uint64_t after[CST_COMMAND_MAX_AFTER];
};

static void fill_rows(struct rows *rows, const struct cst_command_row *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        engine__place__init(&rows->places[i]);
        rows->places[i].segment = from[i].place.segment;
        rows->places[i].offset = from[i].place.offset;
        engine__row_place__init(&rows->v[i]);
        rows->v[i].row = (uint32_t)from[i].row;
        rows->v[i].place = &rows->places[i];
        rows->pointers[i] = &rows->v[i];
    }
}

static void fill_update(struct message *m, const struct cst_command *c)
{
    fill_hyper(&m->hyper, &c->hyper);
    m->command.hyper = &m->hyper;
    fill_rows(&m->in, c->in, c->n_in);
    m->command.n_in = c->n_in;
    m->command.in = m->in.pointers;
    fill_rows(&m->out, c->out, c->n_out);
    m->command.n_out = c->n_out;
    m->command.out = m->out.pointers;
    m->command.has_guard = c->guard;
    m->command.guard = c->guard;
}

/* Fill the fields of a conversion. The position and format of moments are only sent if they are not
 * plain fp32 at the command's places. */
static void fill_conversion(struct message *m, const struct cst_command *c)
{
    bool rows = c->row_elems > 0;

    m->command.has_n_elems = 1;
    m->command.n_elems = c->n_elems;
    m->command.has_row = c->kind == CST_COMMAND_ENCODE || c->kind == CST_COMMAND_DECODE;
    m->command.row = (uint32_t)c->row;
    m->command.has_moments = m->command.has_first = m->command.has_row_elems = rows;
    m->command.moments = (uint32_t)c->moments;
    m->command.first = c->first;
    m->command.row_elems = c->row_elems;
    m->command.has_from_bf16 = c->from_bf16;
    m->command.from_bf16 = c->from_bf16;
    m->command.has_split = c->split;
    m->command.split = c->split;
    m->command.has_fp32 = c->fp32;
    m->command.fp32 = c->fp32;
}

static void fill_message(struct message *m, const struct cst_command *c)
{
    engine__command__init(&m->command);
    m->command.ticket = c->ticket;
    m->command.kind = (Engine__CommandKind)c->kind;
    m->command.has_priority = 1;
    m->command.priority = (Engine__Priority)c->priority;
    m->command.has_newest_first = c->newest_first;
    m->command.newest_first = c->newest_first;
    memcpy(m->after, c->after, sizeof m->after);
    m->command.n_after = c->n_after;
    m->command.after = m->after;
    fill_places(m->src, m->src_pointers, c->src, c->n_src);
    m->command.n_src = c->n_src;
    m->command.src = m->src_pointers;
    fill_places(m->dst, m->dst_pointers, c->dst, c->n_dst);
    m->command.n_dst = c->n_dst;
    m->command.dst = m->dst_pointers;
    m->command.has_bytes = c->kind == CST_COMMAND_COPY || c->kind == CST_COMMAND_FILL;
    m->command.bytes = c->bytes;
    m->command.has_sums = c->sums;
    m->command.sums = c->sums;
    m->command.has_table = c->kind == CST_COMMAND_REDUCE || c->kind == CST_COMMAND_NORM ||
                           c->kind == CST_COMMAND_UPDATE;
    m->command.table = c->table;
    m->command.has_chunk = c->kind == CST_COMMAND_REDUCE || c->kind == CST_COMMAND_UPDATE;
    m->command.has_mark = m->command.has_table;
    m->command.chunk = c->chunk;
    m->command.mark = c->mark;
    m->command.has_accumulate = c->kind == CST_COMMAND_REDUCE && c->accumulate;
    m->command.accumulate = c->accumulate;
    m->command.has_partials = c->kind == CST_COMMAND_REDUCE && c->partials;
    m->command.partials = c->partials;
    if (c->kind == CST_COMMAND_UPDATE) {
        fill_update(m, c);
    } else if (cst_command_converts(c->kind)) {
        fill_conversion(m, c);
    }
}

static size_t write_varint(uint8_t *out, size_t v)
{
    size_t n = 0;

    while (v >= 0x80) {
        out[n++] = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    out[n++] = (uint8_t)v;
    return n;
}

/* Return a copy of @command in its encoded form. The encoding is done once, because a command may
 * be sent to several engine processes in turn. NULL: no memory. */
static struct cstd_command *encode(const struct cst_command *command, bool with_after)
{
    struct message m;
    struct cstd_command *made;
    uint8_t head[12] = {1 << 3 | 2}; /* Key of field 1, length-delimited. */
    size_t n_head, n;

    fill_message(&m, command);
    m.command.n_after = with_after ? command->n_after : 0;
    n = engine__command__get_packed_size(&m.command);
    n_head = 1 + write_varint(head + 1, n);
    made = malloc(sizeof *made + n_head + n);
    if (made != NULL) {
        *made = (struct cstd_command){.n_bytes = n_head + n};
        made->bytes = made->packed;
        memcpy(made->packed, head, n_head);
        (void)engine__command__pack(&m.command, made->packed + n_head);
    }
    return made;
}

/* -- life of a command ------------------------------------------------------------------------ */

int cstd_commands_add(struct cstd_commands *commands, const struct cst_command *command,
                      const uint64_t *waits, uint32_t n, struct cst_err *err)
{
    struct cstd_command *made = encode(command, n == 0);
    int rc;

    if (made == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    made->commands = commands;
    made->may_fail = command->may_fail;
    made->io = command->io;
    made->promised = command->promised;
    made->ticket = (struct cst_ticket){
        .number = command->ticket, .edges = made->edges, .n_waits = command->promised};
    rc = cst_ticket_graph_add(commands->graph, &made->ticket, waits, n, err);
    if (rc != CST_OK) {
        free_command(made);
        return rc;
    }
    made->state = CSTD_COMMAND_HELD;
    TAILQ_INSERT_TAIL(&commands->held, made, link);
    return CST_OK;
}

int cstd_commands_keep_promise(struct cst_ticket_graph *graph, const struct cst_command *command,
                               struct cst_err *err)
{
    struct cst_ticket *found = cst_ticket_graph_find(graph, command->ticket);
    struct cstd_command *promised = found != NULL ? command_of(found) : NULL;
    struct cstd_command *made;

    if (promised == NULL || !promised->promised) {
        return CST_ENOTFOUND;
    }
    made = encode(command, false);
    if (made == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    promised->bytes = malloc(made->n_bytes);
    if (promised->bytes == NULL) {
        promised->bytes = promised->packed;
        free_command(made);
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    memcpy(promised->bytes, made->packed, made->n_bytes);
    promised->n_bytes = made->n_bytes;
    promised->promised = false;
    free_command(made);
    cst_ticket_graph_release(graph, found);
    return CST_OK;
}

const struct cstd_command *cstd_commands_find(const struct cst_ticket_graph *graph, uint64_t ticket)
{
    struct cst_ticket *found = cst_ticket_graph_find(graph, ticket);

    return found != NULL && command_of(found)->state != CSTD_COMMAND_OVER ? command_of(found)
                                                                          : NULL;
}

struct cstd_command *cstd_commands_take(struct cst_ticket_graph *graph)
{
    struct cst_ticket *ticket = cst_ticket_graph_take(graph);

    return ticket != NULL ? command_of(ticket) : NULL;
}

bool cstd_commands_recall(struct cst_ticket_graph *graph, uint64_t ticket)
{
    struct cst_ticket *found = cst_ticket_graph_find(graph, ticket);

    if (found == NULL || command_of(found)->state != CSTD_COMMAND_HELD) {
        return false;
    }
    command_of(found)->recalled = true;
    return true;
}

void cstd_commands_doom_recalled(struct cstd_commands *commands)
{
    struct cstd_command *command;

    TAILQ_FOREACH(command, &commands->held, link)
    {
        if (command->recalled) {
            cst_ticket_graph_recall(commands->graph, &command->ticket);
        }
    }
}

void cstd_commands_queue(struct cstd_command *command)
{
    struct cstd_commands *commands = command->commands;

    leave_list(command);
    command->state = CSTD_COMMAND_QUEUED;
    TAILQ_INSERT_TAIL(&commands->queue, command, link);
    if (commands->unsent == NULL) {
        commands->unsent = command;
    }
    commands->n++;
}

void cstd_commands_explain(const struct cstd_command *command, struct cst_err *err)
{
    if (command->recalled) {
        (void)cst_err_set(err, CST_ECANCELLED, "the command was recalled");
        return;
    }
    (void)cst_err_set(err, CST_ECANCELLED, "a command that it waits for failed: %s",
                      command->why != NULL ? command->why : "");
}

bool cstd_commands_remove(struct cstd_commands *commands, uint64_t ticket)
{
    struct cst_ticket *found = cst_ticket_graph_find(commands->graph, ticket);
    struct cstd_command *command = found != NULL ? command_of(found) : NULL;

    if (command == NULL || command->commands != commands || command->state == CSTD_COMMAND_OVER) {
        return false;
    }
    leave_list(command);
    command->state = CSTD_COMMAND_OVER;
    return true;
}

void cstd_commands_done(struct cst_ticket_graph *graph, uint64_t ticket, int status,
                        const char *text)
{
    struct cst_ticket *over = cst_ticket_graph_find(graph, ticket);

    if (over == NULL) {
        return;
    }
    /* If the command has failed, those that wait for it keep the cause of their first failure. */
    for (struct cst_ticket_edge *edge = over->waiters; status != CST_OK && edge != NULL;
         edge = edge->next) {
        struct cstd_command *waiter = command_of(edge->waiter);

        if (waiter->why == NULL) {
            waiter->why = strdup(text != NULL ? text : cst_status_words(status));
        }
    }
    cst_ticket_graph_done(graph, over, status);
    free_command(command_of(over));
}

void cstd_commands_replace(struct cst_ticket_graph *graph, uint64_t from, uint64_t to)
{
    struct cst_ticket *failed = cst_ticket_graph_find(graph, from);

    if (failed != NULL) {
        cst_ticket_graph_replace(failed, cst_ticket_graph_find(graph, to));
    }
}

void cstd_commands_forget(struct cstd_commands *commands, unsigned shift, uint64_t value)
{
    /* The commands of the queue first, then the held ones. */
    for (int held = 0; held < 2; held++) {
        struct cstd_command *next;

        for (struct cstd_command *command = held ? TAILQ_FIRST(&commands->held)
                                                 : TAILQ_FIRST(&commands->queue);
             command != NULL; command = next) {
            next = TAILQ_NEXT(command, link);
            if (command->ticket.number >> shift == value) {
                drop(command);
            }
        }
    }
}

/* -- the queue -------------------------------------------------------------------------------- */

void cstd_commands_give_up(struct cstd_commands *commands)
{
    struct cstd_command *command;

    TAILQ_FOREACH(command, &commands->queue, link)
    {
        command->n_given_up++;
    }
}

bool cstd_commands_first_refused(const struct cstd_commands *commands, uint64_t *ticket)
{
    const struct cstd_command *command;

    TAILQ_FOREACH(command, &commands->queue, link)
    {
        /* A command with the flag io uses a staging segment, which is gone after its request was
         * answered. */
        if (command->n_given_up > 0 && (command->io || command->n_given_up >= MAX_GIVEN_UP)) {
            *ticket = command->ticket.number;
            return true;
        }
    }
    return false;
}

bool cstd_commands_has_any(const struct cstd_commands *commands, unsigned shift, uint64_t value)
{
    const struct cstd_command *command;

    TAILQ_FOREACH(command, &commands->queue, link)
    {
        if (command->ticket.number >> shift == value) {
            return true;
        }
    }
    return false;
}

bool cstd_commands_first(const struct cstd_commands *commands, uint64_t *ticket)
{
    const struct cstd_command *command = TAILQ_FIRST(&commands->queue);

    if (command == NULL) {
        return false;
    }
    *ticket = command->ticket.number;
    return true;
}

size_t cstd_commands_pack(const struct cstd_commands *commands, uint8_t *body, size_t max,
                          struct cstd_command **upto)
{
    size_t n = 0;

    for (struct cstd_command *command = commands->unsent; command != NULL;
         command = TAILQ_NEXT(command, link)) {
        if (command->n_bytes > max - n) {
            break;
        }
        memcpy(body + n, command->bytes, command->n_bytes);
        n += command->n_bytes;
        *upto = command;
    }
    return n;
}

void cstd_commands_sent(struct cstd_commands *commands, struct cstd_command *upto)
{
    commands->unsent = TAILQ_NEXT(upto, link);
}

void cstd_commands_rewind(struct cstd_commands *commands)
{
    commands->unsent = TAILQ_FIRST(&commands->queue);
}
