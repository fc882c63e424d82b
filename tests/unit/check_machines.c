/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the core of a job on several machines: what is refused, the layout, and the order of
 * what machines tell. tests/sim/check_machines simulates whole jobs. */
#include "offload/core/core.h"
#include "offload/core/revival.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 4, ELEMS = 8192, ENGINE = 9, MOST = 256 };

static struct cst_model model;
static struct cst_layout layout;
static struct cst_core *core;
static struct cst_actions actions;
static struct cst_table_header *table;
static struct cst_core_pool pools[2];
static struct cst_core_machines machines;
static struct cst_core_config config;
static struct cst_layout_config how;
static struct cst_err err;
static uint32_t segments[64];
static uint64_t tag, now; /* now: the time of the next event, ns. */

/* What the last event has made the core do. */
static struct cst_reply replies[8];
static struct cst_machine_message told[16];
static uint64_t tickets[MOST];
static uint32_t n_replies, n_told, n_tickets;
static struct cst_command commands[8]; /* The first ones of the last event. */
static uint32_t n_commands;

static void setup(void)
{
    int64_t shape = ELEMS;
    char name[8];

    cst_model_init(&model);
    memset(&layout, 0, sizeof layout);
    core = NULL;
    table = NULL;
    tag = 0;
    now = 1;
    n_tickets = 0;
    cst_actions_init(&actions);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        struct cst_tensor_words words = {.name = name,
                                         .shape = &shape,
                                         .n_dims = 1,
                                         .lr_scale = 1,
                                         .decay_scale = 1,
                                         .pattern = CST_PATTERN_SHARD};

        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_int_eq(cst_model_tensor(&model, &words, &err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&model, name, &i, 1, NULL, &err), CST_OK);
    }
    for (uint32_t i = 0; i < 64; i++) {
        segments[i] = 100 + i;
    }
    how = (struct cst_layout_config){.chunk_elems = ELEMS,
                                     .n_nodes = 1,
                                     .world = 1,
                                     .machines = {.n = 2, .self = 1, .copies = 1},
                                     .partials = {.n_here = 1, .n_come = 1}};
    machines = (struct cst_core_machines){
        .n = 2, .self = 1, .copies = 1, .n_rank_blocks = 2, .rank_blocks = 2, .engine = ENGINE};
    pools[0] = pools[1] = (struct cst_core_pool){.parts[0] = {.n_blocks = 8, .blocks_per_slab = 8},
                                                 .segments = segments};
    config = (struct cst_core_config){.model = &model,
                                      .layout = &layout,
                                      .world = 1,
                                      .arena_segments = segments,
                                      .pools = pools,
                                      .first_ticket = 1,
                                      .peer_timeout_ns = 1000000,
                                      .policy = {.prefetch_depth = CST_CORE_NO_PREFETCH},
                                      .block_ranks = 1,
                                      .machines = &machines};
}

static void teardown(void)
{
    cst_core_close(core);
    cst_actions_close(&actions);
    cst_layout_close(&layout);
    cst_model_close(&model);
    free(table);
}

static int try_open(void)
{
    struct cst_table_header header;

    cst_layout_close(&layout);
    ck_assert_int_eq(cst_layout_build(&layout, &model, &how, &err), CST_OK);
    cst_layout_size_table(&layout, &header);
    free(table);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    *table = header;
    cst_core_write_table(&config, table);
    config.table = table;
    return cst_core_open(&core, &config, &err);
}

/* -- what is refused -------------------------------------------------------------------------- */

/* What is not possible with several machines is refused with words. */
START_TEST(refused)
{
    static const char *const words[] = {
        "durable",
        "unused",
        "split masters",
        "overlap",
        "grad_over_weight",
        "rank blocks of",
        "a job has 2 to 64 machines",
        "layout was made for machine",
        "rows for",
        "equally many",
    };

    switch (_i) {
    case 0:
        how.states.durable = true;
        break;
    case 1:
        how.states.skips_unused = true;
        break;
    case 2:
        how.states.masters = CST_MASTERS_SPLIT;
        break;
    case 3:
        how.states.two_weights = true;
        config.policy.overlap = CST_OVERLAP_EARLY;
        break;
    case 4:
        how.states.grad_over_weight = true;
        break;
    case 5:
        how.world = config.world = config.block_ranks = 2;
        break;
    case 6:
        machines.n = how.machines.n = 65;
        break;
    case 7:
        how.machines.self = 0;
        break;
    case 8:
        how.partials.n_come = 2;
        break;
    default:
        machines.rank_blocks = 3;
        break;
    }
    ck_assert_int_ne(try_open(), CST_OK);
    ck_assert_msg(strstr(err.text, words[_i]) != NULL, "%s", err.text);
    ck_assert_ptr_null(core);
}
END_TEST

/* -- the layout ------------------------------------------------------------------------------- */

/* A machine has the states of its chunks only, and memory for partials. The rows of a chunk do not
 * move if there is memory for more partials. */
START_TEST(rows)
{
    struct cst_layout more = {0};

    ck_assert_int_eq(cst_layout_build(&layout, &model, &how, &err), CST_OK);
    how.partials = (struct cst_layout_partials){.n_here = 3, .n_come = 2};
    ck_assert_int_eq(cst_layout_build(&more, &model, &how, &err), CST_OK);
    for (uint32_t c = 0; c < CHUNKS; c++) {
        const struct cst_layout_chunk *chunk = &layout.chunks[c];

        ck_assert_uint_eq(chunk->away, c % 2 != 1);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MASTER].segment == CST_LAYOUT_NO_ROW, chunk->away);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MOMENT].segment == CST_LAYOUT_NO_ROW, chunk->away);
        ck_assert_uint_ne(chunk->rows[CST_ROW_WEIGHT].segment, CST_LAYOUT_NO_ROW);
        ck_assert_uint_ne(chunk->rows[CST_ROW_GRAD].segment, CST_LAYOUT_NO_ROW);
        ck_assert_mem_eq(chunk->rows, more.chunks[c].rows, sizeof chunk->rows);
    }
    /* 4 bytes of each weight and gradient, 12 of half of them; a landing of each of two sets. */
    ck_assert_uint_eq(layout.arena_bytes, CHUNKS * ELEMS * (4 + 6) + 2 * 2 * ELEMS);
    ck_assert_uint_eq(more.arena_bytes - layout.arena_bytes,
                      2 * 2 * ELEMS + CHUNKS * 2 * 2 * ELEMS);
    for (uint32_t i = 0; i < CHUNKS * 2; i++) {
        for (uint32_t k = 0; k < i; k++) {
            const struct cst_layout_row *a = &more.partial_rows[i], *b = &more.partial_rows[k];

            ck_assert(a->segment != b->segment || a->offset >= b->offset + 2 * ELEMS);
        }
    }
    cst_layout_close(&more);
}
END_TEST

/* -- what machines tell ----------------------------------------------------------------------- */

static void feed(struct cst_event event)
{
    const char *broken;

    event.now = now;
    n_replies = n_told = n_commands = 0;
    cst_core_step(core, &event, &actions);
    for (size_t i = 0; i < actions.n; i++) {
        const struct cst_action *a = &actions.v[i];

        if (a->kind == CST_ACT_REPLY) {
            replies[n_replies++] = a->reply;
        } else if (a->kind == CST_ACT_TELL) {
            told[n_told++] = a->tell.message;
        } else if (a->kind == CST_ACT_COMMAND && !a->command.promised) {
            ck_assert_uint_lt(n_tickets, MOST);
            if (n_commands < 8) {
                commands[n_commands++] = a->command;
            }
            tickets[n_tickets++] = a->command.ticket;
        }
    }
    broken = cst_core_check(core);
    ck_assert_msg(broken == NULL, "it is not true that %s", broken);
}

/* Complete all commands, and those that follow. */
static void complete(void)
{
    for (uint32_t i = 0; i < n_tickets; i++) {
        feed((struct cst_event){.kind = CST_EV_DONE, .ticket = tickets[i], .value = 1.0});
    }
    n_tickets = 0;
}

static void hear(struct cst_machine_message message)
{
    message.epoch = 1;
    feed((struct cst_event){.kind = CST_EV_TOLD, .machine = 0, .message = &message});
}

static struct cst_reply ask(enum cst_event_kind kind, uint32_t chunk, uint64_t generation)
{
    feed((struct cst_event){.kind = kind,
                            .tag = ++tag,
                            .attempt = 1,
                            .chunk = chunk,
                            .generation = generation,
                            .hyper = {.lr = 0.1, .grad_scale = 1}});
    return replies[0];
}

/* Bring machine 1 of two to an attempt. */
static void begin(void)
{
    ck_assert_msg(try_open() == CST_OK, "%s", err.text);
    feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)ask(CST_EV_SYNC, 0, 0);
    ck_assert_uint_eq(n_replies + n_told, 0);
    feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 1, .members = 3});
    ck_assert_int_eq(told[0].kind, CST_MESSAGE_RECORD);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_RECORD, .rank_blocks = 1});
    ck_assert_int_eq(told[0].kind, CST_MESSAGE_SYNCED);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 1});
    ck_assert_int_eq(replies[0].status, CST_OK);
    ck_assert_uint_eq(replies[0].attempt, 1);
}

/* Let machine 1 do all of step 0 until nothing is missing but the word of the coordinator. */
static void come_to_ready(void)
{
    static const double squares[2] = {1, 2};

    begin();
    (void)ask(CST_EV_STEP, 0, 0);
    complete();
    for (uint32_t c = 0; c < CHUNKS; c++) {
        struct cst_machine_message message = {.attempt = 1, .chunk = c, .empty = true};

        message.kind = c % 2 == 1 ? CST_MESSAGE_PARTIAL : CST_MESSAGE_SUMMED;
        message.squares = squares;
        message.n_squares = 2;
        hear(message);
        complete();
    }
    ck_assert_int_eq(cst_table_tiles(table)[1].sum_squares == 2, 1);
}

static struct cst_decision decision_of_step(void)
{
    return (struct cst_decision){.step = 1,
                                 .adam_step = 1,
                                 .attempt = 1,
                                 .hyper = {.lr = 0.1, .grad_scale = 1},
                                 .sum_squares = 1};
}

static struct cst_core_stats stats_of_core(void)
{
    struct cst_core_stats stats;

    cst_core_stats(core, &stats);
    return stats;
}

/* A machine that is READY outlives the death of its rank: the coordinator decides. COMMIT before:
 * the step is committed, then the attempt ends. ABORT of a machine that was not READY: it ends at
 * once. */
START_TEST(ready_is_bound)
{
    come_to_ready();
    feed((struct cst_event){.kind = CST_EV_DEAD});
    ck_assert_uint_eq(n_told, 0);
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_RUNNING);
    if (_i == 0) {
        hear((struct cst_machine_message){
            .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = decision_of_step()});
        ck_assert_uint_eq(stats_of_core().step, 1);
        ck_assert_int_eq(told[0].kind, CST_MESSAGE_RECORDED);
        ck_assert_int_eq(told[n_told - 1].kind, CST_MESSAGE_ABORT);
        ck_assert_uint_eq(told[n_told - 1].step, 1);
    } else {
        hear((struct cst_machine_message){.kind = CST_MESSAGE_ABORT, .attempt = 1});
        ck_assert_uint_eq(stats_of_core().step, 0);
        ck_assert_uint_eq(n_told, 0);
        hear((struct cst_machine_message){
            .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = decision_of_step()});
        ck_assert_uint_eq(stats_of_core().step, 0);
    }
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_INTERRUPTED);
}
END_TEST

/* An ABORT of the next step that overtakes COMMIT waits for it. */
START_TEST(abort_overtakes_commit)
{
    come_to_ready();
    hear((struct cst_machine_message){.kind = CST_MESSAGE_ABORT, .attempt = 1, .step = 1});
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_RUNNING);
    hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = decision_of_step()});
    ck_assert_uint_eq(stats_of_core().step, 1);
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_INTERRUPTED);
}
END_TEST

/* A machine that is not READY ends the attempt, and tells the others; so it does if it cannot begin
 * an attempt that the coordinator has begun. */
START_TEST(not_ready)
{
    begin();
    (void)ask(CST_EV_STEP, 0, 0);
    feed((struct cst_event){.kind = CST_EV_DEAD});
    ck_assert_int_eq(told[0].kind, CST_MESSAGE_ABORT);
    ck_assert_uint_eq(told[0].attempt, 1);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2});
    ck_assert_int_eq(told[0].kind, CST_MESSAGE_ABORT);
    ck_assert_uint_eq(told[0].attempt, 2);
    ck_assert_msg(strstr(told[0].why.text, "machine 1: rank 0") != NULL, "%s", told[0].why.text);
}
END_TEST

/* What an earlier attempt has told is void, what a later one tells is kept. */
START_TEST(attempts_of_partials)
{
    struct cst_machine_message partial = {
        .kind = CST_MESSAGE_PARTIAL, .attempt = 2, .chunk = 1, .empty = true};

    begin();
    hear(partial);
    feed((struct cst_event){.kind = CST_EV_DEAD});
    feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)ask(CST_EV_SYNC, 0, 0);
    partial.attempt = 1; /* Late. */
    hear(partial);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2});
    feed((struct cst_event){
        .kind = CST_EV_STEP, .tag = ++tag, .attempt = 2, .hyper = {.lr = 0.1, .grad_scale = 1}});
    ck_assert_uint_eq(n_tickets, 1); /* The sum of chunk 1. */
    for (uint32_t i = 0; i < n_told; i++) {
        ck_assert_int_eq(told[i].kind, CST_MESSAGE_PARTIAL);
        ck_assert_uint_eq(told[i].chunk % 2, 0);
        ck_assert(told[i].empty && told[i].block == 1);
    }
    ck_assert_uint_eq(n_told, 2);
}
END_TEST

/* Without a machine with states, SYNC gets the chunks; when it is back, the job goes on. A wait for
 * another machine is answered with its name. */
START_TEST(machine_is_gone)
{
    static const char *const names[] = {"b", "this node"};

    machines.names = _i == 0 ? NULL : names;
    come_to_ready();
    feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 2, .members = 2});
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_INTERRUPTED);
    ck_assert_int_eq(ask(CST_EV_SYNC, 0, 0).status, CST_ELOST);
    ck_assert_msg(strstr(replies[0].err.text, _i == 0 ? "(machine 0): 0, 2;" : "(node b): 0, 2;") !=
                      NULL,
                  "%s", replies[0].err.text);
    feed((struct cst_event){
        .kind = CST_EV_READ, .tag = ++tag, .tensor = 0, .row = CST_ROW_MASTER, .n_elems = 1});
    ck_assert_int_eq(replies[0].status, CST_EUNSUPPORTED);
    feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 3, .members = 3});
    (void)ask(CST_EV_SYNC, 0, 0);
    ck_assert_uint_eq(n_replies, 0);
    feed((struct cst_event){.kind = CST_EV_TICK, .now = 1});
    {
        struct cst_event tick = {.kind = CST_EV_TICK, .now = 2000000};

        cst_core_step(core, &tick, &actions);
        ck_assert_int_eq(actions.v[0].reply.status, CST_ETIMEDOUT);
        ck_assert_msg(strstr(actions.v[0].reply.err.text, _i == 0 ? "machine 0" : "node b") != NULL,
                      "%s", actions.v[0].reply.err.text);
    }
}
END_TEST

/* A decision that another machine has recorded is carried out, though the attempt is over here. */
START_TEST(decision_of_another)
{
    struct cst_core_record record;

    come_to_ready();
    feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 2, .members = 3});
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_RUNNING);
    {
        struct cst_machine_message message = {
            .kind = CST_MESSAGE_RECORD, .epoch = 2, .attempt = 1, .rank_blocks = 1};

        if (_i == 0) {
            message.decision = decision_of_step();
        }
        feed((struct cst_event){.kind = CST_EV_TOLD, .machine = 0, .message = &message});
    }
    ck_assert_uint_eq(stats_of_core().step, _i == 0 ? 1 : 0);
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_INTERRUPTED);
    cst_core_record(core, &record);
    ck_assert_uint_eq(record.decision.step, _i == 0 ? 1 : 0);
}
END_TEST

/* What comes from another machine and cannot be right changes nothing, or fails the job. */
START_TEST(wrong_messages)
{
    struct cst_machine_message message = {.epoch = 1, .attempt = 1, .kind = CST_MESSAGE_PARTIAL};

    begin();
    message.chunk = CHUNKS;
    hear(message);
    message.chunk = 1;
    message.block = 64;
    hear(message);
    message.block = 0;
    message.chunk = 0; /* Its home is not here. */
    hear(message);
    message.kind = CST_MESSAGE_KINDS;
    hear(message);
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_RUNNING);
    (void)ask(CST_EV_STEP, 0, 0);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_SUMMED, .attempt = 1, .n_squares = 3});
    ck_assert_int_eq(stats_of_core().phase, CST_PHASE_FAILED);
    ck_assert(told[0].kind == CST_MESSAGE_ABORT && told[0].failed);
}
END_TEST

/* A buddy copies the sum when the update that reads its grad row is done, also if there is no
 * contribution here. Nothing is added to the row before the copy is over, in another attempt
 * either. */
START_TEST(sum_waits)
{
    static const double squares[2] = {1, 2};
    struct cst_machine_message message = {
        .kind = CST_MESSAGE_SUMMED, .attempt = 1, .squares = squares, .n_squares = 2};
    uint64_t update = 0, copy;

    how.machines.copies = machines.copies = 2;
    come_to_ready();
    hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = decision_of_step()});
    ck_assert_uint_eq(n_commands, CHUNKS);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        ck_assert_int_eq(commands[i].kind, CST_COMMAND_UPDATE);
        update = commands[i].chunk == 0 ? commands[i].ticket : update;
    }
    (void)ask(CST_EV_STEP, 0, 0);
    message.step = 1;
    hear(message);
    ck_assert_uint_eq(n_commands, 1);
    ck_assert_int_eq(commands[0].kind, CST_COMMAND_COPY);
    ck_assert_uint_eq(commands[0].node, ENGINE);
    ck_assert_uint_eq(commands[0].after[0], update);
    copy = commands[0].ticket;
    feed((struct cst_event){.kind = CST_EV_DEAD});
    feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)ask(CST_EV_SYNC, 0, 0);
    hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2, .step = 1});
    feed((struct cst_event){.kind = CST_EV_FETCH_GRAD, .tag = ++tag, .attempt = 2});
    feed((struct cst_event){
        .kind = CST_EV_HAND_IN, .tag = ++tag, .attempt = 2, .generation = replies[0].generation});
    ck_assert_uint_eq(n_commands, 0);
    feed((struct cst_event){.kind = CST_EV_DONE, .ticket = copy});
    ck_assert_uint_eq(n_commands, 1);
    ck_assert_int_eq(commands[0].kind, CST_COMMAND_REDUCE);
    n_tickets = 0;
}
END_TEST

/* -- waits ------------------------------------------------------------------------------------ */

static struct cst_machine_stats waits_for(uint32_t machine)
{
    struct cst_machine_stats stats;

    cst_core_machine_stats(core, machine, &stats);
    return stats;
}

/* The machines for which the core waits since @since; 0: @since is not looked at. */
static uint64_t missing_since(uint64_t since)
{
    uint64_t at = 0, missing = cst_core_waits_for(core, &at);

    ck_assert(missing == 0 || at == since);
    return missing;
}

/* Hear what machine 0 tells of chunk @chunk in step @step at @at. */
static void hear_at(uint64_t at, enum cst_message_kind kind, uint32_t chunk, uint64_t step)
{
    static const double squares[2] = {1, 2};

    now = at;
    hear((struct cst_machine_message){.kind = kind,
                                      .attempt = 1,
                                      .chunk = chunk,
                                      .step = step,
                                      .empty = true,
                                      .squares = squares,
                                      .n_squares = 2});
}

/* Step @step, from @at on: it waits for machine 0 for 60 + 20 + 10 + 30 ns, and lasts 150 ns. */
static void slow_step(uint64_t at, uint64_t step)
{
    struct cst_decision decision = decision_of_step();

    now = at;
    (void)ask(CST_EV_STEP, 0, 0); /* No rank has contributed: there is nothing to add here. */
    ck_assert_uint_eq(missing_since(at), 1);
    hear_at(at + 60, CST_MESSAGE_PARTIAL, 1, step); /* 60 ns. */
    hear_at(at + 65, CST_MESSAGE_SUMMED, 0, step);  /* Nothing: chunk 1 is added here. */
    now = at + 70;
    complete();
    hear_at(at + 90, CST_MESSAGE_PARTIAL, 3, step); /* 20 ns. */
    now = at + 95;
    complete();
    hear_at(at + 105, CST_MESSAGE_SUMMED, 2, step); /* 10 ns. */
    ck_assert_uint_eq(missing_since(0), 0);
    now = at + 120; /* The norm. */
    complete();
    ck_assert_uint_eq(missing_since(at + 120), 1); /* The word of the coordinator. */
    decision.step = decision.adam_step = step + 1;
    now = at + 150; /* 30 ns. */
    hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .step = step, .decision = decision});
    ck_assert_uint_eq(stats_of_core().step, step + 1);
    ck_assert_uint_eq(missing_since(0), 0);
    n_tickets = 0;
}

/* The time from the end of all work here to an arrival is charged to the machine of which it was,
 * and work here to none. So is the time for which a rank waits for weights. The share is that of
 * the last steps. */
START_TEST(waits)
{
    begin();
    slow_step(100, 0);
    ck_assert_uint_eq(waits_for(0).wait_ns, 120);
    ck_assert(waits_for(0).wait_share <= 0); /* One commit bounds no step. */
    now = 300;
    (void)ask(CST_EV_FETCH_WEIGHT, 0, 0);
    ck_assert_uint_eq(n_replies, 0);
    hear_at(330, CST_MESSAGE_WRITTEN, 2, 1);
    now = 340;
    feed((struct cst_event){.kind = CST_EV_DONE, .ticket = commands[0].ticket});
    ck_assert_uint_eq(waits_for(0).wait_ns, 120); /* Nobody waits for chunk 2. */
    hear_at(350, CST_MESSAGE_WRITTEN, 0, 1);
    now = 370;
    feed((struct cst_event){.kind = CST_EV_DONE, .ticket = commands[0].ticket});
    complete(); /* The copy to the pool. */
    ck_assert_uint_eq(waits_for(0).wait_ns, 120 + 70);
    slow_step(400, 1);
    ck_assert_uint_eq(waits_for(0).wait_ns, 120 + 70 + 120);
    ck_assert(waits_for(0).wait_share > 0.63 && waits_for(0).wait_share < 0.64); /* 190 of 300. */
    ck_assert_uint_eq(waits_for(1).wait_ns + waits_for(7).wait_ns, 0);
}
END_TEST

/* A machine for which the sender had to wait itself is the one that is named. */
START_TEST(waits_of_others)
{
    struct cst_machine_message record = {.kind = CST_MESSAGE_RECORD, .epoch = 1, .rank_blocks = 4};

    how.machines.n = machines.n = machines.n_rank_blocks = 3;
    how.partials.n_come = 2;
    ck_assert_msg(try_open() == CST_OK, "%s", err.text);
    feed((struct cst_event){.kind = CST_EV_ATTACH});
    feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 1, .members = 7});
    hear((struct cst_machine_message){.kind = CST_MESSAGE_RECORD, .rank_blocks = 1});
    feed((struct cst_event){.kind = CST_EV_TOLD, .machine = 2, .message = &record});
    now = 10;
    (void)ask(CST_EV_SYNC, 0, 0);
    ck_assert_int_eq(told[0].kind, CST_MESSAGE_SYNCED);
    ck_assert_uint_eq(missing_since(10), 1);
    now = 50;
    hear((struct cst_machine_message){
        .kind = CST_MESSAGE_START, .attempt = 1, .waited_for = (uint32_t[]){0, 1, 2, 99}[_i]});
    ck_assert_int_eq(replies[0].status, CST_OK);
    ck_assert_uint_eq(waits_for(_i == 2 ? 2 : 0).wait_ns, 40);
    ck_assert_uint_eq(waits_for(_i == 2 ? 0 : 2).wait_ns, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machines");
    TCase *tcase = suite_case(suite, "machines", setup, teardown);

    tcase_add_loop_test(tcase, refused, 0, 10);
    tcase_add_test(tcase, rows);
    tcase_add_loop_test(tcase, ready_is_bound, 0, 2);
    tcase_add_test(tcase, abort_overtakes_commit);
    tcase_add_test(tcase, not_ready);
    tcase_add_test(tcase, attempts_of_partials);
    tcase_add_loop_test(tcase, machine_is_gone, 0, 2);
    tcase_add_loop_test(tcase, decision_of_another, 0, 2);
    tcase_add_test(tcase, wrong_messages);
    tcase_add_test(tcase, sum_waits);
    tcase_add_test(tcase, waits);
    tcase_add_loop_test(tcase, waits_of_others, 0, 4);
    return suite_run(suite);
}
