/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/commands.h"

#include "proto/engine.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* Number of times that the engine may be given up before a command is refused. A command that is
 * always present when the engine dies may be the reason for the deaths. */
enum { MAX_GIVEN_UP = 3 };

struct cstd_commands_item {
    TAILQ_ENTRY(cstd_commands_item) link;
    struct cstd_commands_item *same_bucket; /* Next command with the same hash. */
    uint64_t ticket;
    bool may_fail;
    bool io;             /* As in struct cst_command. */
    uint32_t n_given_up; /* Times that the engine was given up while the command was present. */
    size_t n_bytes;      /* Length of packed. */
    /* The command as field 1 of a Submit message: key, length, Command. A Submit message is a
     * sequence of these items. */
    uint8_t packed[];
};

static unsigned bucket_of(uint64_t ticket)
{
    return (unsigned)(ticket & (CSTD_COMMANDS_BUCKETS - 1));
}

void cstd_commands_init(struct cstd_commands *commands)
{
    *commands = (struct cstd_commands){.n = 0};
    TAILQ_INIT(&commands->items);
}

static void drop(struct cstd_commands *commands, struct cstd_commands_item *item)
{
    struct cstd_commands_item **p = &commands->buckets[bucket_of(item->ticket)];

    while (*p != item) {
        p = &(*p)->same_bucket;
    }
    *p = item->same_bucket;
    /* Unsent commands are dropped when their job ends, or when the engine is given up. */
    if (commands->unsent == item) {
        commands->unsent = TAILQ_NEXT(item, link);
    }
    TAILQ_REMOVE(&commands->items, item, link);
    commands->n--;
    free(item);
}

void cstd_commands_close(struct cstd_commands *commands)
{
    while (!TAILQ_EMPTY(&commands->items)) {
        drop(commands, TAILQ_FIRST(&commands->items));
    }
}

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
    out->grad_scale = hyper->grad_scale;
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
    Engine__Place src[CST_CORE_MAX_WORLD], *src_pointers[CST_CORE_MAX_WORLD];
    Engine__Place dst[4], *dst_pointers[4];
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

/* Fill the fields of a CONVERT. The position and format of moments are only sent if they are not
 * plain fp32 at the command's places. */
static void fill_convert(struct message *m, const struct cst_command *c)
{
    bool rows = c->encode || c->decode || c->row_elems > 0;

    m->command.has_n_elems = 1;
    m->command.n_elems = c->n_elems;
    m->command.has_encode = c->encode;
    m->command.encode = (uint32_t)c->moments;
    m->command.has_decode = c->decode;
    m->command.decode = (uint32_t)c->moments;
    m->command.has_row = c->encode || c->decode;
    m->command.row = (uint32_t)c->row;
    m->command.has_moments = rows && !m->command.has_row;
    m->command.moments = (uint32_t)c->moments;
    m->command.has_first = m->command.has_row_elems = rows;
    m->command.first = c->first;
    m->command.row_elems = c->row_elems;
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
    m->command.has_table = c->kind == CST_COMMAND_REDUCE || c->kind == CST_COMMAND_NORM ||
                           c->kind == CST_COMMAND_UPDATE;
    m->command.table = c->table;
    m->command.has_chunk = m->command.has_mark =
        c->kind == CST_COMMAND_REDUCE || c->kind == CST_COMMAND_UPDATE;
    m->command.chunk = c->chunk;
    m->command.mark = c->mark;
    m->command.has_accumulate = c->kind == CST_COMMAND_REDUCE && c->accumulate;
    m->command.accumulate = c->accumulate;
    if (c->kind == CST_COMMAND_UPDATE) {
        fill_update(m, c);
    } else if (c->kind == CST_COMMAND_CONVERT) {
        fill_convert(m, c);
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

int cstd_commands_add(struct cstd_commands *commands, const struct cst_command *command,
                      struct cst_err *err)
{
    struct message m;
    struct cstd_commands_item *item, **bucket;
    uint8_t head[12] = {1 << 3 | 2}; /* Key of field 1, length-delimited. */
    size_t n_head, n;

    fill_message(&m, command);
    /* Encode now, because a command may be sent to several processes in turn. */
    n = engine__command__get_packed_size(&m.command);
    n_head = 1 + write_varint(head + 1, n);
    item = malloc(sizeof *item + n_head + n);
    if (item == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a command");
    }
    memcpy(item->packed, head, n_head);
    (void)engine__command__pack(&m.command, item->packed + n_head);
    item->n_bytes = n_head + n;
    item->ticket = command->ticket;
    item->may_fail = command->may_fail;
    item->io = command->io;
    item->n_given_up = 0;
    bucket = &commands->buckets[bucket_of(item->ticket)];
    item->same_bucket = *bucket;
    *bucket = item;
    TAILQ_INSERT_TAIL(&commands->items, item, link);
    if (commands->unsent == NULL) {
        commands->unsent = item;
    }
    commands->n++;
    return CST_OK;
}

static struct cstd_commands_item *find(const struct cstd_commands *commands, uint64_t ticket)
{
    struct cstd_commands_item *item = commands->buckets[bucket_of(ticket)];

    while (item != NULL && item->ticket != ticket) {
        item = item->same_bucket;
    }
    return item;
}

bool cstd_commands_has(const struct cstd_commands *commands, uint64_t ticket)
{
    return find(commands, ticket) != NULL;
}

bool cstd_commands_may_fail(const struct cstd_commands *commands, uint64_t ticket)
{
    const struct cstd_commands_item *item = find(commands, ticket);

    return item != NULL && item->may_fail;
}

bool cstd_commands_remove(struct cstd_commands *commands, uint64_t ticket)
{
    struct cstd_commands_item *item = find(commands, ticket);

    if (item == NULL) {
        return false;
    }
    drop(commands, item);
    return true;
}

void cstd_commands_forget(struct cstd_commands *commands, unsigned shift, uint64_t value)
{
    struct cstd_commands_item *next;

    for (struct cstd_commands_item *item = TAILQ_FIRST(&commands->items); item != NULL;
         item = next) {
        next = TAILQ_NEXT(item, link);
        if (item->ticket >> shift == value) {
            drop(commands, item);
        }
    }
}

void cstd_commands_give_up(struct cstd_commands *commands)
{
    struct cstd_commands_item *item;

    TAILQ_FOREACH(item, &commands->items, link)
    {
        item->n_given_up++;
    }
}

bool cstd_commands_first_refused(const struct cstd_commands *commands, uint64_t *ticket)
{
    const struct cstd_commands_item *item;

    TAILQ_FOREACH(item, &commands->items, link)
    {
        /* A command with the flag io uses a staging segment, which is gone after its request was
         * answered. */
        if (item->n_given_up > 0 && (item->io || item->n_given_up >= MAX_GIVEN_UP)) {
            *ticket = item->ticket;
            return true;
        }
    }
    return false;
}

bool cstd_commands_has_any(const struct cstd_commands *commands, unsigned shift, uint64_t value)
{
    const struct cstd_commands_item *item;

    TAILQ_FOREACH(item, &commands->items, link)
    {
        if (item->ticket >> shift == value) {
            return true;
        }
    }
    return false;
}

bool cstd_commands_first(const struct cstd_commands *commands, uint64_t *ticket)
{
    const struct cstd_commands_item *item = TAILQ_FIRST(&commands->items);

    if (item == NULL) {
        return false;
    }
    *ticket = item->ticket;
    return true;
}

size_t cstd_commands_pack(const struct cstd_commands *commands, uint8_t *body, size_t max,
                          struct cstd_commands_item **upto)
{
    size_t n = 0;

    for (struct cstd_commands_item *item = commands->unsent; item != NULL;
         item = TAILQ_NEXT(item, link)) {
        if (item->n_bytes > max - n) {
            break;
        }
        memcpy(body + n, item->packed, item->n_bytes);
        n += item->n_bytes;
        *upto = item;
    }
    return n;
}

void cstd_commands_sent(struct cstd_commands *commands, struct cstd_commands_item *upto)
{
    commands->unsent = TAILQ_NEXT(upto, link);
}

void cstd_commands_rewind(struct cstd_commands *commands)
{
    commands->unsent = TAILQ_FIRST(&commands->items);
}
