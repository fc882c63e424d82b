/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/engine/commands: an engine's commands that are not completed are packed into
 * messages, found by ticket, sent again after the engine's death, and held while they wait for
 * commands of other engines. */
#include "daemon/engine/commands.h"
#include "proto/engine.pb-c.h"
#include "proto/frame.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static struct cst_ticket_graph graph;
static struct cstd_commands commands;
static struct cst_err err;

static void setup(void)
{
    ck_assert_int_eq(cst_ticket_graph_open(&graph, &err), CST_OK);
    cstd_commands_init(&commands, &graph);
}

static void teardown(void)
{
    cstd_commands_close(&commands);
    ck_assert_uint_eq(graph.n, 0);
    cst_ticket_graph_close(&graph);
}

/* Queue a command that waits for nothing. */
static void add(const struct cst_command *command)
{
    ck_assert_int_eq(cstd_commands_add(&commands, command, NULL, 0, &err), CST_OK);
    cstd_commands_queue(cstd_commands_take(&graph));
}

/* The command of @ticket is over and done. False: there was none. */
static bool end(uint64_t ticket)
{
    bool was = cstd_commands_remove(&commands, ticket);

    cstd_commands_done(&graph, ticket, CST_OK, NULL);
    return was;
}

static void add_copy(uint64_t ticket)
{
    struct cst_command c = {.kind = CST_COMMAND_COPY,
                            .ticket = ticket,
                            .n_src = 1,
                            .n_dst = 1,
                            .src = {{.segment = 1, .offset = ticket}},
                            .dst = {{.segment = 2, .offset = 3}},
                            .bytes = 4096};

    add(&c);
}

/* Pack the commands that were not sent into at most @max bytes. The caller frees the message, which
 * may have no commands. */
static Engine__Submit *pack(size_t max, struct cstd_command **upto)
{
    static uint8_t body[CST_FRAME_MAX_BODY];
    size_t n = cstd_commands_pack(&commands, body, max, upto);
    Engine__Submit *submit = engine__submit__unpack(NULL, n, body);

    ck_assert_uint_le(n, max);
    ck_assert_ptr_nonnull(submit);
    return submit;
}

/* Check that the commands that were not sent are exactly the tickets @first to @last, in order, and
 * mark them as sent. */
static void expect_sent(uint64_t first, uint64_t last)
{
    struct cstd_command *upto = NULL;
    Engine__Submit *submit = pack(CST_FRAME_MAX_BODY, &upto);

    ck_assert_uint_eq(submit->n_commands, last - first + 1);
    for (size_t i = 0; i < submit->n_commands; i++) {
        ck_assert_uint_eq(submit->commands[i]->ticket, first + i);
    }
    engine__submit__free_unpacked(submit, NULL);
    cstd_commands_sent(&commands, upto);
}

/* Every field of every kind of command is packed. */
START_TEST(commands_are_packed_whole)
{
    struct cst_command c = {.kind = CST_COMMAND_UPDATE,
                            .priority = CST_PRIORITY_EVICTION,
                            .newest_first = true,
                            .ticket = UINT64_C(7) << 40,
                            .after = {5, 6},
                            .n_after = 2,
                            .table = 8,
                            .chunk = 9,
                            .mark = 10,
                            .hyper = {.lr = 1.5f,
                                      .beta1 = 2.5f,
                                      .beta2 = 3.5f,
                                      .eps = 4.5f,
                                      .weight_decay = 5.5f,
                                      .grad_scale = 6.5f}};
    struct cst_command r = {
        .kind = CST_COMMAND_REDUCE, .ticket = 2, .n_src = CST_COMMAND_MAX_SRC, .mark = 3};
    struct cstd_command *upto;
    Engine__Submit *submit;
    const Engine__Command *got;

    for (uint32_t i = 0; i < r.n_src; i++) {
        r.src[i] = (struct cst_place){.segment = i + 1, .offset = UINT64_C(1) << i};
    }
    add(&c);
    add(&r);
    submit = pack(CST_FRAME_MAX_BODY, &upto);
    ck_assert_uint_eq(submit->n_commands, 2);
    got = submit->commands[0];
    ck_assert_int_eq(got->kind, ENGINE__COMMAND_KIND__UPDATE);
    ck_assert_int_eq(got->priority, ENGINE__PRIORITY__EVICTION);
    ck_assert(got->has_newest_first && got->newest_first);
    ck_assert_uint_eq(got->ticket, c.ticket);
    ck_assert_uint_eq(got->n_after, 2);
    ck_assert_uint_eq(got->after[1], 6);
    ck_assert_uint_eq(got->table, 8);
    ck_assert_uint_eq(got->chunk, 9);
    ck_assert_uint_eq(got->mark, 10);
    ck_assert(got->hyper->lr == 1.5f && got->hyper->beta1 == 2.5f && got->hyper->beta2 == 3.5f);
    ck_assert(got->hyper->eps == 4.5f && got->hyper->weight_decay == 5.5f &&
              got->hyper->grad_scale == 6.5f);
    got = submit->commands[1];
    ck_assert_uint_eq(got->n_src, CST_COMMAND_MAX_SRC);
    ck_assert_uint_eq(got->src[63]->segment, 64);
    ck_assert_uint_eq(got->src[63]->offset, UINT64_C(1) << 63);
    ck_assert_ptr_null(got->hyper);
    ck_assert(!got->has_newest_first);
    engine__submit__free_unpacked(submit, NULL);
}
END_TEST

/* Rows of an update that lie elsewhere are packed with their places, and so are contributions, the
 * guard and eight tickets. */
START_TEST(updates_elsewhere_are_packed_whole)
{
    struct cst_command c = {
        .kind = CST_COMMAND_UPDATE,
        .ticket = 1,
        .after = {1, 2, 3, 4, 5, 6, 7, 8},
        .n_after = CST_COMMAND_MAX_AFTER,
        .mark = 1,
        .src = {{.segment = 5, .offset = 6}},
        .n_src = 1,
        .in = {{CST_ROW_MASTER, {.segment = 3, .offset = 64}}},
        .n_in = 1,
        .out = {{CST_ROW_WEIGHT, {.segment = 4, .offset = 0}},
                {CST_ROW_MOMENT + 1, {.segment = 4, .offset = UINT64_C(1) << 40}}},
        .n_out = 2,
        .guard = true,
    };
    struct cstd_command *upto;
    const Engine__Command *got;
    Engine__Submit *submit;

    add(&c);
    submit = pack(CST_FRAME_MAX_BODY, &upto);
    got = submit->commands[0];
    ck_assert_uint_eq(got->n_after, CST_COMMAND_MAX_AFTER);
    ck_assert_uint_eq(got->after[7], 8);
    ck_assert_uint_eq(got->n_src, 1);
    ck_assert_uint_eq(got->src[0]->segment, 5);
    ck_assert_uint_eq(got->n_in, 1);
    ck_assert_uint_eq(got->in[0]->row, CST_ROW_MASTER);
    ck_assert_uint_eq(got->in[0]->place->segment, 3);
    ck_assert_uint_eq(got->in[0]->place->offset, 64);
    ck_assert_uint_eq(got->n_out, 2);
    ck_assert_uint_eq(got->out[0]->row, CST_ROW_WEIGHT);
    ck_assert_uint_eq(got->out[1]->row, CST_ROW_MOMENT + 1);
    ck_assert_uint_eq(got->out[1]->place->offset, UINT64_C(1) << 40);
    ck_assert(got->guard);
    engine__submit__free_unpacked(submit, NULL);
}
END_TEST

/* A conversion is packed with the rows of the moments that it converts; a conversion of fp32 rows
 * has none. */
START_TEST(conversions_are_packed_whole)
{
    struct cst_command c = {.kind = CST_COMMAND_ENCODE,
                            .ticket = 1,
                            .n_src = 1,
                            .n_dst = 1,
                            .n_elems = 10,
                            .row = CST_ROW_MOMENT + 1,
                            .moments = CST_MOMENTS_MX8,
                            .first = 7,
                            .row_elems = 64};
    struct cstd_command *upto;
    Engine__Submit *submit;
    Engine__Command **got;

    add(&c);
    c.kind = CST_COMMAND_DECODE;
    c.ticket = 2;
    add(&c);
    c.kind = CST_COMMAND_SET_MASTER;
    c.n_dst = 4;
    c.ticket = 3;
    add(&c);
    c.row_elems = c.first = 0;
    c.from_bf16 = true;
    c.ticket = 4;
    add(&c);
    submit = pack(CST_FRAME_MAX_BODY, &upto);
    got = submit->commands;
    ck_assert_uint_eq(submit->n_commands, 4);
    ck_assert_int_eq(got[0]->kind, ENGINE__COMMAND_KIND__ENCODE);
    ck_assert_uint_eq(got[0]->row, CST_ROW_MOMENT + 1);
    ck_assert_int_eq(got[1]->kind, ENGINE__COMMAND_KIND__DECODE);
    ck_assert_int_eq(got[2]->kind, ENGINE__COMMAND_KIND__SET_MASTER);
    ck_assert(got[0]->has_row && got[1]->has_row && !got[2]->has_row);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(got[i]->n_elems, 10);
        ck_assert_uint_eq(got[i]->moments, CST_MOMENTS_MX8);
        ck_assert_uint_eq(got[i]->first, 7);
        ck_assert_uint_eq(got[i]->row_elems, 64);
        ck_assert(!got[i]->has_from_bf16);
    }
    ck_assert(got[3]->from_bf16);
    ck_assert(!got[3]->has_moments && !got[3]->has_first && !got[3]->has_row_elems);
    engine__submit__free_unpacked(submit, NULL);
}
END_TEST

/* Commands are sent once, in the order of submission, and commands that are submitted later are
 * sent next. */
START_TEST(commands_go_out_in_order)
{
    for (uint64_t t = 1; t <= 100; t++) {
        add_copy(t);
    }
    expect_sent(1, 100);
    ck_assert_ptr_null(commands.unsent);
    add_copy(101);
    expect_sent(101, 101);
}
END_TEST

/* A frame takes as many commands as fit, and the next frame takes the rest. Commands that were
 * packed but not sent are packed again. */
START_TEST(frames_are_filled)
{
    struct cstd_command *upto;
    Engine__Submit *submit;
    uint64_t next = 1;

    for (uint64_t t = 1; t <= 100; t++) {
        add_copy(t);
    }
    for (unsigned frames = 0; commands.unsent != NULL; frames++) {
        ck_assert_uint_lt(frames, 100);
        engine__submit__free_unpacked(pack(500, &upto), NULL);
        submit = pack(500, &upto);
        ck_assert_uint_gt(submit->n_commands, 5);
        for (size_t i = 0; i < submit->n_commands; i++) {
            ck_assert_uint_eq(submit->commands[i]->ticket, next++);
        }
        engine__submit__free_unpacked(submit, NULL);
        cstd_commands_sent(&commands, upto);
    }
    ck_assert_uint_eq(next, 101);
}
END_TEST

/* After an engine's death all commands that were not completed are sent again in the same order,
 * and no completed ones. */
START_TEST(what_is_left_goes_out_again)
{
    for (uint64_t t = 1; t <= 10; t++) {
        add_copy(t);
    }
    expect_sent(1, 10);
    for (uint64_t t = 1; t <= 4; t++) {
        ck_assert(end(t));
    }
    ck_assert(!end(4));
    ck_assert(!end(99));
    ck_assert_uint_eq(commands.n, 6);
    cstd_commands_rewind(&commands);
    expect_sent(5, 10);
}
END_TEST

/* A job that ends takes its own commands with it, sent or not, and no other job's. */
START_TEST(a_job_is_forgotten)
{
    const uint64_t one = UINT64_C(1) << 40, two = UINT64_C(2) << 40;

    add_copy(one);
    expect_sent(one, one);
    add_copy(two);
    expect_sent(two, two);
    add_copy(one + 1);
    add_copy(two + 1);
    cstd_commands_forget(&commands, 40, 1);
    ck_assert_uint_eq(commands.n, 2);
    ck_assert(!end(one));
    expect_sent(two + 1, two + 1);
    cstd_commands_rewind(&commands);
    expect_sent(two, two + 1);
}
END_TEST

/* A command counts as may_fail until its completion. Engines are not told that it is. */
START_TEST(some_are_forgiven)
{
    const struct cst_command command = {.kind = CST_COMMAND_COPY,
                                        .ticket = 2,
                                        .n_src = 1,
                                        .n_dst = 1,
                                        .bytes = 8,
                                        .may_fail = true};

    add_copy(1);
    add(&command);
    expect_sent(1, 2);
    ck_assert(!cstd_commands_find(&graph, 1)->may_fail);
    ck_assert(cstd_commands_find(&graph, 2)->may_fail);
    ck_assert(end(2));
    ck_assert_ptr_null(cstd_commands_find(&graph, 2));
}
END_TEST

/* When an engine is given up, commands that read or write staging memory are refused at once, and
 * others when the engine was given up for the third time. Until then they are kept to be sent
 * again. */
START_TEST(given_up_commands_are_kept)
{
    struct cst_command io = {
        .kind = CST_COMMAND_COPY, .ticket = 2, .n_src = 1, .n_dst = 1, .bytes = 4096, .io = true};
    uint64_t ticket = 0;

    add_copy(1);
    add(&io);
    add_copy(3);
    ck_assert(!cstd_commands_first_refused(&commands, &ticket));
    for (unsigned times = 1; times <= 3; times++) {
        cstd_commands_rewind(&commands);
        cstd_commands_give_up(&commands);
        if (times == 1) {
            ck_assert(cstd_commands_first_refused(&commands, &ticket));
            ck_assert_uint_eq(ticket, 2);
            ck_assert(end(2));
            add_copy(4);
        }
        ck_assert(cstd_commands_first_refused(&commands, &ticket) == (times == 3));
    }
    ck_assert_uint_eq(ticket, 1);
    ck_assert(end(1));
    ck_assert(cstd_commands_first_refused(&commands, &ticket));
    ck_assert_uint_eq(ticket, 3);
    ck_assert(end(3));
    /* Command 4 was submitted after the engine was given up for the first time. */
    ck_assert(!cstd_commands_first_refused(&commands, &ticket));
    expect_sent(4, 4);
    ck_assert(cstd_commands_has_any(&commands, 1, 2));
    ck_assert(!cstd_commands_has_any(&commands, 1, 1));
}
END_TEST

/* Hold a copy until the given tickets are done. */
#define HOLD(number, ...)                                                                          \
    hold(number, (uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void hold(uint64_t ticket, const uint64_t *waits, uint32_t n)
{
    struct cst_command c = {
        .kind = CST_COMMAND_COPY, .ticket = ticket, .n_src = 1, .n_dst = 1, .n_after = n};

    memcpy(c.after, waits, n * sizeof *waits);
    ck_assert_int_eq(cstd_commands_add(&commands, &c, waits, n, &err), CST_OK);
}

static void expect_none(void)
{
    ck_assert_ptr_null(cstd_commands_take(&graph));
}

/* The next command that waits no more has this ticket and goes to its engine. */
static void expect_queued(uint64_t ticket)
{
    struct cstd_command *command = cstd_commands_take(&graph);

    ck_assert_uint_eq(command->ticket.number, ticket);
    ck_assert(!command->ticket.doomed);
    cstd_commands_queue(command);
}

/* The next command that waits no more has this ticket and is cancelled, with words that contain
 * @why. */
static void expect_cancelled(uint64_t ticket, const char *why)
{
    struct cstd_command *command = cstd_commands_take(&graph);

    ck_assert_uint_eq(command->ticket.number, ticket);
    ck_assert(command->ticket.doomed);
    cstd_commands_explain(command, &err);
    ck_assert_int_eq(err.status, CST_ECANCELLED);
    ck_assert_ptr_nonnull(strstr(err.text, why));
    ck_assert(cstd_commands_remove(&commands, ticket));
}

/* The command of @ticket ends with @status. */
static void end_with(uint64_t ticket, int status, const char *text)
{
    ck_assert(cstd_commands_remove(&commands, ticket));
    cstd_commands_done(&graph, ticket, status, text);
}

/* A command is held until all its tickets are done. It then goes to its engine after those that are
 * there, without its `after`. Commands that wait for the same ticket go in the order of their
 * submission. */
START_TEST(a_command_is_held)
{
    static const uint64_t order[] = {2, 4, 6, 7, 5};
    struct cstd_command *upto;
    Engine__Submit *submit;

    for (uint64_t t = 1; t <= 3; t++) {
        add_copy(t);
    }
    HOLD(5, 1, 3);
    HOLD(6, 3);
    HOLD(7, 3);
    add_copy(4);
    ck_assert_int_eq(cstd_commands_find(&graph, 5)->state, CSTD_COMMAND_HELD);
    ck_assert_uint_eq(commands.n, 4);
    end_with(3, CST_OK, NULL);
    expect_queued(6);
    expect_queued(7);
    expect_none();
    end_with(1, CST_OK, NULL);
    expect_queued(5);
    submit = pack(CST_FRAME_MAX_BODY, &upto);
    ck_assert_uint_eq(submit->n_commands, 5);
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(submit->commands[i]->ticket, order[i]);
        ck_assert_uint_eq(submit->commands[i]->n_after, 0);
    }
    engine__submit__free_unpacked(submit, NULL);
}
END_TEST

/* A failure cancels the commands that wait for it, with the words of the first failure, when their
 * other tickets have ended, and then the commands that wait for these. */
START_TEST(a_failure_cancels)
{
    for (uint64_t t = 1; t <= 3; t++) {
        add_copy(t);
    }
    HOLD(4, 1, 2, 3);
    HOLD(5, 4);
    end_with(1, CST_EENGINE, "engine 0: 6 deaths");
    expect_none();
    end_with(2, CST_EIO, "another one");
    end_with(3, CST_OK, NULL);
    expect_cancelled(4, "engine 0: 6 deaths");
    expect_none();
    cstd_commands_done(&graph, 4, CST_EIO, NULL);
    expect_cancelled(5, cst_status_words(CST_EIO));
    cstd_commands_done(&graph, 5, CST_OK, NULL);
    expect_none();
}
END_TEST

/* While the owner of a failed command is told, the command is not found any more, but another one
 * can still replace it: the commands that waited for it wait for that one. */
START_TEST(a_command_is_replaced)
{
    add_copy(1);
    HOLD(3, 1);
    ck_assert(cstd_commands_remove(&commands, 1));
    ck_assert(!cstd_commands_remove(&commands, 1));
    ck_assert_ptr_null(cstd_commands_find(&graph, 1));
    add_copy(2);
    cstd_commands_replace(&graph, 1, 2);
    cstd_commands_replace(&graph, 99, 2); /* unknown */
    cstd_commands_done(&graph, 1, CST_EIO, NULL);
    expect_none();
    end_with(2, CST_OK, NULL);
    expect_queued(3);
}
END_TEST

/* A held command that is recalled is cancelled at the end of the turn, and then what waits for it.
 * Recalls of other commands have no effect. */
START_TEST(a_command_is_recalled)
{
    add_copy(1);
    HOLD(2, 1);
    HOLD(3, 2);
    HOLD(4, 1);
    ck_assert(!cstd_commands_recall(&graph, 1));
    ck_assert(!cstd_commands_recall(&graph, 99));
    ck_assert(cstd_commands_recall(&graph, 2));
    expect_none();
    cstd_commands_doom_recalled(&commands);
    expect_cancelled(2, "recalled");
    cstd_commands_done(&graph, 2, CST_ECANCELLED, "recalled");
    expect_cancelled(3, "recalled");
    cstd_commands_done(&graph, 3, CST_ECANCELLED, NULL);
    expect_none();
    end_with(1, CST_OK, NULL);
    expect_queued(4);
}
END_TEST

/* A job that ends takes its held commands with it, whether they still wait or not, and also while
 * the owner of one of its commands is told. */
START_TEST(held_commands_are_forgotten)
{
    add_copy(1 << 8 | 1);
    add_copy(1 << 8 | 2);
    add_copy(2 << 8 | 1);
    HOLD(1 << 8 | 3, 1 << 8 | 1);
    HOLD(1 << 8 | 4, 1 << 8 | 2, 1 << 8 | 3);
    HOLD(2 << 8 | 2, 2 << 8 | 1);
    end_with(1 << 8 | 1, CST_OK, NULL);
    ck_assert(cstd_commands_remove(&commands, 1 << 8 | 2));
    cstd_commands_forget(&commands, 8, 1);
    cstd_commands_done(&graph, 1 << 8 | 2, CST_OK, NULL);
    expect_none();
    end_with(2 << 8 | 1, CST_OK, NULL);
    expect_queued(2 << 8 | 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("commands");
    TCase *tc = suite_case(suite, "commands", setup, teardown);

    tcase_add_test(tc, commands_are_packed_whole);
    tcase_add_test(tc, updates_elsewhere_are_packed_whole);
    tcase_add_test(tc, conversions_are_packed_whole);
    tcase_add_test(tc, commands_go_out_in_order);
    tcase_add_test(tc, frames_are_filled);
    tcase_add_test(tc, what_is_left_goes_out_again);
    tcase_add_test(tc, a_job_is_forgotten);
    tcase_add_test(tc, some_are_forgiven);
    tcase_add_test(tc, given_up_commands_are_kept);
    tcase_add_test(tc, a_command_is_held);
    tcase_add_test(tc, a_failure_cancels);
    tcase_add_test(tc, a_command_is_replaced);
    tcase_add_test(tc, held_commands_are_forgotten);
    tcase_add_test(tc, a_command_is_recalled);
    return suite_run(suite);
}
