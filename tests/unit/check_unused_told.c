/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tensors without a gradient in a job on several machines (offload/books/idle_union): what
 * each machine tells, and what becomes of it. tests/sim/check_machines simulates whole jobs. */
#include "offload/core/revival.h"
#include "tests/lib/suite.h"
#include "tests/unit/machines_rig.h"

#include <check.h>
#include <string.h>

/* The number of commands of @kind that the last event has made. */
static uint32_t count(enum cst_command_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < rig.n_commands; i++) {
        n += rig.commands[i].kind == kind;
    }
    return n;
}

/* The UNUSED that the last event has made the core tell; there is one. */
static const struct cst_machine_message *find_unused(void)
{
    const struct cst_machine_message *found = NULL;

    for (uint32_t i = 0; i < rig.n_told; i++) {
        if (rig.told[i].kind == CST_MESSAGE_UNUSED) {
            ck_assert_ptr_null(found);
            found = &rig.told[i];
        }
    }
    ck_assert_ptr_nonnull(found);
    return found;
}

/* Ask for step 0 of attempt @attempt, in which the tensors with the bits @without have no gradient,
 * and those of the tensors with the bits @discarded are discarded. */
static void ask_without(uint64_t attempt, uint8_t without, uint8_t discarded)
{
    machines_rig_feed((struct cst_event){.kind = CST_EV_STEP,
                                         .tag = ++rig.tag,
                                         .attempt = attempt,
                                         .without = &without,
                                         .n_without = 1,
                                         .discarded = &discarded,
                                         .n_discarded = 1,
                                         .hyper = {.lr = 0.1, .grad_scale = 1}});
}

/* Machine 0 tells all that is needed for the sums of step 0. */
static void hear_sums(uint64_t attempt)
{
    static const double squares[2] = {1, 2};

    machines_rig_complete();
    for (uint32_t c = 0; c < MACHINES_RIG_CHUNKS; c++) {
        machines_rig_hear((struct cst_machine_message){.kind = c % 2 == 1 ? CST_MESSAGE_PARTIAL
                                                                          : CST_MESSAGE_SUMMED,
                                                       .attempt = attempt,
                                                       .chunk = c,
                                                       .empty = true,
                                                       .squares = squares,
                                                       .n_squares = 2});
        ck_assert_uint_eq(count(CST_COMMAND_NORM), 0);
        machines_rig_complete();
    }
}

/* A tensor is idle if it is so on all machines: the norm waits for what the others tell, and only
 * what is used is updated. */
START_TEST(unused_is_told)
{
    const uint8_t theirs = 0xb;
    uint64_t missed[MACHINES_RIG_CHUNKS];
    static const uint64_t want[MACHINES_RIG_CHUNKS] = {1, 1, 0, 0};

    rig.how.states.skips_unused = true;
    machines_rig_begin();
    ask_without(1, 0x7, 0);
    ck_assert_uint_eq(find_unused()->n_unused, 1);
    ck_assert_uint_eq(find_unused()->unused[0], 0x7);
    hear_sums(1);
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_UNUSED, .attempt = 1, .unused = &theirs, .n_unused = 1});
    ck_assert_uint_eq(count(CST_COMMAND_NORM), 1);
    machines_rig_complete();
    machines_rig_hear((struct cst_machine_message){
        .kind = CST_MESSAGE_COMMIT, .attempt = 1, .decision = machines_rig_decision()});
    ck_assert_uint_eq(count(CST_COMMAND_UPDATE), 1);
    ck_assert_uint_eq(rig.commands[0].chunk, 3);
    for (uint32_t c = 0; c < MACHINES_RIG_CHUNKS; c++) {
        ck_assert_uint_eq(cst_table_steps(rig.table, c, 1)->missed, want[c]);
        ck_assert_uint_eq(cst_table_steps(rig.table, c, 1)->last, 1 - want[c]);
    }
    cst_core_missed_steps(rig.core, missed);
    ck_assert_mem_eq(missed, want, sizeof want);
}
END_TEST

/* A gradient that a rank here discards and a rank there has ends the attempt; more bits than there
 * are tensors fail the job; a job that skips nothing does not look at them. */
START_TEST(unused_is_wrong)
{
    static const uint8_t bits[2] = {0x7, 0}, discarded = 0x8;
    const struct cst_machine_message message = {
        .kind = CST_MESSAGE_UNUSED, .attempt = 1, .unused = bits, .n_unused = 1 + (_i == 1)};

    rig.how.states.skips_unused = _i < 2;
    machines_rig_begin();
    ask_without(1, 0x7, discarded);
    machines_rig_hear(message);
    if (_i == 0) {
        ck_assert_int_eq(rig.told[0].kind, CST_MESSAGE_ABORT);
        ck_assert_int_eq(rig.told[0].why.status, CST_EMISMATCH);
        ck_assert_msg(strstr(rig.told[0].why.text, "rank 0 discards its gradient of tensor 't3'") !=
                          NULL,
                      "%s", rig.told[0].why.text);
        ck_assert_int_eq(rig.replies[0].status, CST_EMISMATCH);
        ck_assert_int_eq(machines_rig_stats().phase, CST_PHASE_INTERRUPTED);
        hear_sums(1);
    } else {
        ck_assert_int_eq(machines_rig_stats().phase,
                         _i == 1 ? CST_PHASE_FAILED : CST_PHASE_RUNNING);
    }
}
END_TEST

/* An attempt of a later epoch can have the number of one that nobody who is left knows of: what was
 * told in that one is void. */
START_TEST(epochs_of_attempts)
{
    struct cst_machine_message partial = {
        .kind = CST_MESSAGE_PARTIAL, .attempt = 2, .chunk = 1, .empty = true};
    const struct cst_machine_message unused = {.kind = CST_MESSAGE_UNUSED, .attempt = 2};

    rig.how.states.skips_unused = true;
    machines_rig_begin();
    machines_rig_hear(partial);
    machines_rig_hear(unused);
    machines_rig_feed(
        (struct cst_event){.kind = CST_EV_MACHINES, .epoch = ++rig.epoch, .members = 3});
    machines_rig_hear(
        (struct cst_machine_message){.kind = CST_MESSAGE_RECORD, .attempt = 1, .rank_blocks = 1});
    (void)machines_rig_ask(CST_EV_SYNC, 0, 0);
    machines_rig_hear((struct cst_machine_message){.kind = CST_MESSAGE_START, .attempt = 2});
    ask_without(2, 0, 0);
    ck_assert_uint_eq(rig.n_tickets, 0); /* No sum of chunk 1. */
    hear_sums(2);
    machines_rig_hear(unused);
    ck_assert_uint_eq(count(CST_COMMAND_NORM), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("unused_told");
    TCase *tcase = suite_case(suite, "machines", machines_rig_setup, machines_rig_teardown);

    tcase_add_test(tcase, unused_is_told);
    tcase_add_loop_test(tcase, unused_is_wrong, 0, 3);
    tcase_add_test(tcase, epochs_of_attempts);
    return suite_run(suite);
}
