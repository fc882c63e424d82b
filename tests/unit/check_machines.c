/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the core of a job on several machines: what is refused, the layout, and the order of
 * what machines tell. tests/sim/check_machines simulates whole jobs. */
#include "tests/unit/machines_rig.h"

#include "offload/core/revival.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

/* -- what is refused -------------------------------------------------------------------------- */

/* What is not possible with several machines is refused with words. */
START_TEST(refused)
{
    static const char *const words[] = {
        "durable",
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
        rig.how.states.durable = true;
        break;
    case 1:
        rig.how.states.two_weights = true;
        rig.config.policy.overlap = CST_OVERLAP_EARLY;
        break;
    case 2:
        rig.how.states.grad_over_weight = true;
        break;
    case 3:
        rig.how.world = rig.config.world = rig.config.block_ranks = 2;
        break;
    case 4:
        rig.machines.n = rig.how.machines.n = 65;
        break;
    case 5:
        rig.how.machines.self = 0;
        break;
    case 6:
        rig.how.partials.n_come = 2;
        break;
    default:
        rig.machines.rank_blocks = 3;
        break;
    }
    ck_assert_int_ne(machines_rig_try_open(), CST_OK);
    ck_assert_msg(strstr(rig.err.text, words[_i]) != NULL, "%s", rig.err.text);
    ck_assert_ptr_null(rig.core);
}
END_TEST

/* -- the layout ------------------------------------------------------------------------------- */

/* A machine has the states of its chunks only, and memory for partials. The rows of a chunk do not
 * move if there is memory for more partials. */
START_TEST(rows)
{
    struct cst_layout more = {0};

    ck_assert_int_eq(cst_layout_build(&rig.layout, &rig.model, &rig.how, &rig.err), CST_OK);
    rig.how.partials = (struct cst_layout_partials){.n_here = 3, .n_come = 2};
    ck_assert_int_eq(cst_layout_build(&more, &rig.model, &rig.how, &rig.err), CST_OK);
    for (uint32_t c = 0; c < MACHINES_RIG_CHUNKS; c++) {
        const struct cst_layout_chunk *chunk = &rig.layout.chunks[c];

        ck_assert_uint_eq(chunk->away, c % 2 != 1);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MASTER].segment == CST_LAYOUT_NO_ROW, chunk->away);
        ck_assert_uint_eq(chunk->rows[CST_ROW_MOMENT].segment == CST_LAYOUT_NO_ROW, chunk->away);
        ck_assert_uint_ne(chunk->rows[CST_ROW_WEIGHT].segment, CST_LAYOUT_NO_ROW);
        ck_assert_uint_ne(chunk->rows[CST_ROW_GRAD].segment, CST_LAYOUT_NO_ROW);
        ck_assert_mem_eq(chunk->rows, more.chunks[c].rows, sizeof chunk->rows);
    }
    /* 4 bytes of each weight and gradient, 12 of half of them; a landing of each of two sets. */
    ck_assert_uint_eq(rig.layout.arena_bytes, MACHINES_RIG_CHUNKS * MACHINES_RIG_ELEMS * (4 + 6) +
                                                  2 * 2 * MACHINES_RIG_ELEMS);
    ck_assert_uint_eq(more.arena_bytes - rig.layout.arena_bytes,
                      2 * 2 * MACHINES_RIG_ELEMS +
                          MACHINES_RIG_CHUNKS * 2 * 2 * MACHINES_RIG_ELEMS);
    for (uint32_t i = 0; i < MACHINES_RIG_CHUNKS * 2; i++) {
        for (uint32_t k = 0; k < i; k++) {
            const struct cst_layout_row *a = &more.partial_rows[i], *b = &more.partial_rows[k];

            ck_assert(a->segment != b->segment || a->offset >= b->offset + 2 * MACHINES_RIG_ELEMS);
        }
    }
    cst_layout_close(&more);
}
END_TEST

/* -- what machines tell ----------------------------------------------------------------------- */

/* Let machine 1 do all of step 0 until nothing is missing but the word of the coordinator. */
static void come_to_ready(void)
{
    static const double squares[2] = {1, 2};

    machines_rig_begin();
    (void)machines_rig_ask(CST_EV_STEP, 0, 0);
    machines_rig_complete();
    for (uint32_t c = 0; c < MACHINES_RIG_CHUNKS; c++) {
        struct cst_machine_message message = {.attempt = 1, .chunk = c, .empty = true};

        message.kind = c % 2 == 1 ? CST_MESSAGE_PARTIAL : CST_MESSAGE_SUMMED;
        message.squares = squares;
        message.n_squares = 2;
        machines_rig_hear(message);
        machines_rig_complete();
    }
    ck_assert_int_eq(cst_table_tiles(rig.table)[1].sum_squares == 2, 1);
}

/* A machine that is READY outlives the death of its rank: the coordinator decides. COMMIT before:
 * the step is committed, then the attempt ends. ABORT of a machine that was not READY: it ends at
 * once. */
START_TEST(ready_is_bound)
{
    come_to_ready();
    machines_rig_feed((struct cst_event){.kind = CST_EV_DEAD});
    ck_assert_uint_eq(rig.n_told, 0);
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_RUNNING);
    if (_i == 0) {
        machines_rig_hear((struct cst_machine_message){
            .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = machines_rig_decision()});
        ck_assert_uint_eq(machines_rig_stats().step, 1);
        ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_RECORDED);
        ck_assert_int_eq(rig.told[rig.n_told - 1].kind, CST_MESSAGE_ABORT);
        ck_assert_uint_eq(rig.told[rig.n_told - 1].step, 1);
    } else {
        machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_ABORT, .attempt = 1});
        ck_assert_uint_eq(machines_rig_stats().step, 0);
        ck_assert_uint_eq(rig.n_told, 0);
        machines_rig_hear((struct cst_machine_message){
            .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = machines_rig_decision()});
        ck_assert_uint_eq(machines_rig_stats().step, 0);
    }
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_INTERRUPTED);
}
END_TEST

/* An ABORT of the next step that overtakes COMMIT waits for it. */
START_TEST(abort_overtakes_commit)
{
    come_to_ready();
    machines_rig_hear(
        (struct cst_machine_message){.kind = CST_MESSAGE_ABORT, .attempt = 1, .step = 1});
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_RUNNING);
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = machines_rig_decision()});
    ck_assert_uint_eq(machines_rig_stats().step, 1);
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_INTERRUPTED);
}
END_TEST

/* A machine that is not READY ends the attempt, and tells the others; so it does if it cannot begin
 * an attempt that the coordinator has begun. */
START_TEST(not_ready)
{
    machines_rig_begin();
    (void)machines_rig_ask(CST_EV_STEP, 0, 0);
    machines_rig_feed((struct cst_event){.kind = CST_EV_DEAD});
    ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_ABORT);
    ck_assert_uint_eq(rig.told[0].attempt, 1);
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2});
    ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_ABORT);
    ck_assert_uint_eq(rig.told[0].attempt, 2);
    ck_assert_msg(strstr(rig.told[0].why.text, "machine 1: rank 0") != NULL, "%s",
                  rig.told[0].why.text);
}
END_TEST

/* What an earlier attempt has told is void, what a later one tells is kept. */
START_TEST(attempts_of_partials)
{
    struct cst_machine_message partial = {
        .kind = CST_MESSAGE_PARTIAL, .attempt = 2, .chunk = 1, .empty = true};

    machines_rig_begin();
    machines_rig_hear(partial);
    machines_rig_feed((struct cst_event){.kind = CST_EV_DEAD});
    machines_rig_feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    partial.attempt = 1; /* Late. */
    machines_rig_hear(partial);
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2});
    machines_rig_feed((struct cst_event){.kind = CST_EV_STEP,
                                         .tag = ++rig.tag,
                                         .attempt = 2,
                                         .hyper = {.lr = 0.1, .grad_scale = 1}});
    ck_assert_uint_eq(rig.n_tickets, 1); /* The sum of chunk 1. */
    for (uint32_t i = 0; i < rig.n_told; i++) {
        ck_assert_int_eq(rig.told[i].kind, CST_MESSAGE_PARTIAL);
        ck_assert_uint_eq(rig.told[i].chunk % 2, 0);
        ck_assert(rig.told[i].empty && rig.told[i].block == 1);
    }
    ck_assert_uint_eq(rig.n_told, 2);
}
END_TEST

/* Without a machine with states, SYNC gets the chunks; when it is back, the job goes on. A wait for
 * another machine is answered with its name. */
START_TEST(machine_is_gone)
{
    static const char *const names[] = {"b", "this node"};

    rig.machines.names = _i == 0 ? NULL : names;
    come_to_ready();
    machines_rig_feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 2, .members = 2});
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_INTERRUPTED);
    ck_assert_int_eq(machines_rig_ask(CST_EV_SYNC, 0, 0).status, CST_ELOST);
    ck_assert_msg(
        strstr(rig.replies[0].err.text, _i == 0 ? "(machine 0): 0, 2;" : "(node b): 0, 2;") != NULL,
        "%s", rig.replies[0].err.text);
    machines_rig_feed((struct cst_event){
        .kind = CST_EV_READ, .tag = ++rig.tag, .tensor = 0, .row = CST_ROW_MASTER, .n_elems = 1});
    ck_assert_int_eq(rig.replies[0].status, CST_EUNSUPPORTED);
    machines_rig_feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 3, .members = 3});
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    ck_assert_uint_eq(rig.n_replies, 0);
    machines_rig_feed((struct cst_event){.kind = CST_EV_TICK, .now = 1});
    {
        struct cst_event tick = {.kind = CST_EV_TICK, .now = 2000000};

        cst_core_step(rig.core, &tick, &rig.actions);
        ck_assert_int_eq(rig.actions.v[0].reply.status, CST_ETIMEDOUT);
        ck_assert_msg(strstr(rig.actions.v[0].reply.err.text, _i == 0 ? "machine 0" : "node b") !=
                          NULL,
                      "%s", rig.actions.v[0].reply.err.text);
    }
}
END_TEST

/* A decision that another machine has recorded is carried out, though the attempt is over here. */
START_TEST(decision_of_another)
{
    struct cst_core_record record;

    come_to_ready();
    machines_rig_feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 2, .members = 3});
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_RUNNING);
    {
        struct cst_machine_message message = {
            .kind = CST_MESSAGE_RECORD, .epoch = 2, .attempt = 1, .rank_blocks = 1};

        if (_i == 0) {
            message.decision = machines_rig_decision();
        }
        machines_rig_feed(
            (struct cst_event){.kind = CST_EV_TOLD, .machine = 0, .message = &message});
    }
    ck_assert_uint_eq(machines_rig_stats().step, _i == 0 ? 1 : 0);
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_INTERRUPTED);
    cst_core_record(rig.core, &record);
    ck_assert_uint_eq(record.decision.step, _i == 0 ? 1 : 0);
}
END_TEST

/* What comes from another machine and cannot be right changes nothing, or fails the job. */
START_TEST(wrong_messages)
{
    struct cst_machine_message message = {.epoch = 1, .attempt = 1, .kind = CST_MESSAGE_PARTIAL};

    machines_rig_begin();
    message.chunk = MACHINES_RIG_CHUNKS;
    machines_rig_hear(message);
    message.chunk = 1;
    message.block = 64;
    machines_rig_hear(message);
    message.block = 0;
    message.chunk = 0; /* Its home is not here. */
    machines_rig_hear(message);
    message.kind = CST_MESSAGE_KINDS;
    machines_rig_hear(message);
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_RUNNING);
    (void)machines_rig_ask(CST_EV_STEP, 0, 0);
    machines_rig_hear(
        (struct cst_machine_message){.kind = CST_MESSAGE_SUMMED, .attempt = 1, .n_squares = 3});
    ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_FAILED);
    ck_assert(rig.told[0].kind == CST_MESSAGE_ABORT && rig.told[0].failed);
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

    rig.how.machines.copies = rig.machines.copies = 2;
    come_to_ready();
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = machines_rig_decision()});
    ck_assert_uint_eq(rig.n_commands, MACHINES_RIG_CHUNKS);
    for (uint32_t i = 0; i < MACHINES_RIG_CHUNKS; i++) {
        ck_assert_int_eq(rig.commands[i].kind, CST_COMMAND_UPDATE);
        update = rig.commands[i].chunk == 0 ? rig.commands[i].ticket : update;
    }
    (void)machines_rig_ask(CST_EV_STEP, 0, 0);
    message.step = 1;
    machines_rig_hear(message);
    ck_assert_uint_eq(rig.n_commands, 1);
    ck_assert_int_eq(rig.commands[0].kind, CST_COMMAND_COPY);
    ck_assert_uint_eq(rig.commands[0].node, MACHINES_RIG_ENGINE);
    ck_assert_uint_eq(rig.commands[0].after[0], update);
    copy = rig.commands[0].ticket;
    machines_rig_feed((struct cst_event){.kind = CST_EV_DEAD});
    machines_rig_feed((struct cst_event){.kind = CST_EV_ATTACH});
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    machines_rig_hear(
        (struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2, .step = 1});
    machines_rig_feed(
        (struct cst_event){.kind = CST_EV_FETCH_GRAD, .tag = ++rig.tag, .attempt = 2});
    machines_rig_feed((struct cst_event){.kind = CST_EV_HAND_IN,
                                         .tag = ++rig.tag,
                                         .attempt = 2,
                                         .generation = rig.replies[0].generation});
    ck_assert_uint_eq(rig.n_commands, 0);
    machines_rig_feed((struct cst_event){.kind = CST_EV_DONE, .ticket = copy});
    ck_assert_uint_eq(rig.n_commands, 1);
    ck_assert_int_eq(rig.commands[0].kind, CST_COMMAND_REDUCE);
    rig.n_tickets = 0;
}
END_TEST

/* Weights of split masters are rounded as on the machine with the states, whatever is written. */
START_TEST(split_masters)
{
    rig.how.states.masters = _i < 2 ? CST_MASTERS_SPLIT : CST_MASTERS_FP32;
    ck_assert_msg(machines_rig_try_open() == CST_OK, "%s", rig.err.text);
    for (uint32_t t = 0; t < 2; t++) {
        const struct cst_command *command = &rig.commands[0];

        machines_rig_feed((struct cst_event){.kind = CST_EV_WRITE,
                                             .tag = ++rig.tag,
                                             .tensor = t,
                                             .row = CST_ROW_MASTER,
                                             .bf16 = _i % 2 == 1,
                                             .n_elems = MACHINES_RIG_ELEMS});
        ck_assert_uint_eq(rig.n_commands, 1);
        ck_assert_int_eq(command->kind, t == 1    ? CST_COMMAND_SET_MASTER
                                        : _i == 3 ? CST_COMMAND_COPY
                                                  : CST_COMMAND_ROUND);
        ck_assert_uint_eq(command->n_dst > 1, t == 1);
        ck_assert_int_eq(command->split, _i < 2);
        ck_assert_int_eq(command->from_bf16, _i % 2 == 1 && command->kind != CST_COMMAND_COPY);
    }
    machines_rig_complete();
}
END_TEST

/* -- waits ------------------------------------------------------------------------------------ */

static struct cst_machine_stats waits_for(uint32_t machine)
{
    struct cst_machine_stats stats;

    cst_core_machine_stats(rig.core, machine, &stats);
    return stats;
}

/* The machines for which the core waits since @since; 0: @since is not looked at. */
static uint64_t missing_since(uint64_t since)
{
    uint64_t at = 0, missing = cst_core_waits_for(rig.core, &at);

    ck_assert(missing == 0 || at == since);
    return missing;
}

/* Hear what machine 0 tells of chunk @chunk in step @step at @at. */
static void hear_at(uint64_t at, enum cst_message_kind kind, uint32_t chunk, uint64_t step)
{
    static const double squares[2] = {1, 2};

    rig.now = at;
    machines_rig_hear((struct cst_machine_message){.kind = kind,
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
    struct cst_decision decision = machines_rig_decision();

    rig.now = at;
    (void)machines_rig_ask(CST_EV_STEP, 0,
                           0); /* No rank has contributed: there is nothing to add here. */
    ck_assert_uint_eq(missing_since(at), 1);
    hear_at(at + 60, CST_MESSAGE_PARTIAL, 1, step); /* 60 ns. */
    hear_at(at + 65, CST_MESSAGE_SUMMED, 0, step);  /* Nothing: chunk 1 is added here. */
    rig.now = at + 70;
    machines_rig_complete();
    hear_at(at + 90, CST_MESSAGE_PARTIAL, 3, step); /* 20 ns. */
    rig.now = at + 95;
    machines_rig_complete();
    hear_at(at + 105, CST_MESSAGE_SUMMED, 2, step); /* 10 ns. */
    ck_assert_uint_eq(missing_since(0), 0);
    rig.now = at + 120; /* The norm. */
    machines_rig_complete();
    ck_assert_uint_eq(missing_since(at + 120), 1); /* The word of the coordinator. */
    decision.step = decision.adam_step = step + 1;
    rig.now = at + 150; /* 30 ns. */
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .step = step, .decision = decision});
    ck_assert_uint_eq(machines_rig_stats().step, step + 1);
    ck_assert_uint_eq(missing_since(0), 0);
    rig.n_tickets = 0;
}

/* The time from the end of all work here to an arrival is charged to the machine of which it was,
 * and work here to none. So is the time for which a rank waits for weights. The share is that of
 * the last steps. */
START_TEST(waits)
{
    machines_rig_begin();
    slow_step(100, 0);
    ck_assert_uint_eq(waits_for(0).wait_ns, 120);
    ck_assert(waits_for(0).wait_share <= 0); /* One commit bounds no step. */
    rig.now = 300;
    (void)machines_rig_ask(CST_EV_FETCH_WEIGHT, 0, 0);
    ck_assert_uint_eq(rig.n_replies, 0);
    hear_at(330, CST_MESSAGE_WRITTEN, 2, 1);
    rig.now = 340;
    machines_rig_feed((struct cst_event){.kind = CST_EV_DONE, .ticket = rig.commands[0].ticket});
    ck_assert_uint_eq(waits_for(0).wait_ns, 120); /* Nobody waits for chunk 2. */
    hear_at(350, CST_MESSAGE_WRITTEN, 0, 1);
    rig.now = 370;
    machines_rig_feed((struct cst_event){.kind = CST_EV_DONE, .ticket = rig.commands[0].ticket});
    machines_rig_complete(); /* The copy to the pool. */
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

    rig.how.machines.n = rig.machines.n = rig.machines.n_rank_blocks = 3;
    rig.how.partials.n_come = 2;
    ck_assert_msg(machines_rig_try_open() == CST_OK, "%s", rig.err.text);
    machines_rig_feed((struct cst_event){.kind = CST_EV_ATTACH});
    machines_rig_feed((struct cst_event){.kind = CST_EV_MACHINES, .epoch = 1, .members = 7});
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_RECORD, .rank_blocks = 1});
    machines_rig_feed((struct cst_event){.kind = CST_EV_TOLD, .machine = 2, .message = &record});
    rig.now = 10;
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_SYNCED);
    ck_assert_uint_eq(missing_since(10), 1);
    rig.now = 50;
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_START, .attempt = 1, .waited_for = (uint32_t[]){0, 1, 2, 99}[_i]});
    ck_assert_int_eq(rig.replies[0].status, CST_OK);
    ck_assert_uint_eq(waits_for(_i == 2 ? 2 : 0).wait_ns, 40);
    ck_assert_uint_eq(waits_for(_i == 2 ? 0 : 2).wait_ns, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machines");
    TCase *tcase = suite_case(suite, "machines", machines_rig_setup, machines_rig_teardown);

    tcase_add_loop_test(tcase, refused, 0, 8);
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
    tcase_add_loop_test(tcase, split_masters, 0, 4);
    return suite_run(suite);
}
