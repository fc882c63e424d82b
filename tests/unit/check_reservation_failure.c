/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of commands of device updates that fail: the node makes the update, the job goes on, and a
 * reservation that fails too often is given up. */
#include "tests/lib/suite.h"
#include "tests/unit/reservation_rig.h"

#include <check.h>
#include <string.h>

#define MAX_FAILURES 3 /* failures after which a reservation is given up */

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* Open a job with a reservation, and a rank whose pool is on the accelerator. @n_held: gradients
 * that the reservation can keep. */
static void open_reservation(struct rig_job job, uint32_t n_chunks, uint32_t n_held)
{
    static const uint32_t engines[] = {RESERVATION_ENGINE};
    struct cst_core_device_reservation reservation = {.engine = RESERVATION_ENGINE,
                                                      .segment = RESERVATION_SEGMENT,
                                                      .bytes = 3 * RESERVATION_BUFFER +
                                                               n_held * 2ull * RIG_CHUNK_ELEMS};

    job.n_chunks = n_chunks;
    job.world = 1;
    job.n_blocks = 2 * n_chunks;
    job.reservations = &reservation;
    job.n_reservations = 1;
    job.interleave = 1;
    job.engines = n_held > 0 ? engines : NULL;
    rig_open_job(&rig, &job);
    rig_start(&rig, 1);
}

/* Do what the driver does: commands that wait for @from wait for @to. */
static void rename_after(uint64_t from, uint64_t to)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        for (uint32_t k = 0; k < rig.commands[i].n_after; k++) {
            if (rig.commands[i].after[k] == from) {
                rig.commands[i].after[k] = to;
            }
        }
    }
}

/* The command that has @ticket in `replaces`, or NULL. */
static const struct cst_command *replacement(uint64_t ticket)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        for (uint32_t k = 0; k < rig.commands[i].n_replaces; k++) {
            if (rig.commands[i].replaces[k] == ticket) {
                return &rig.commands[i];
            }
        }
    }
    return NULL;
}

static const struct cst_command *find(uint64_t ticket)
{
    for (unsigned i = 0; i < rig.n_commands; i++) {
        if (rig.commands[i].ticket == ticket) {
            return &rig.commands[i];
        }
    }
    ck_abort_msg("no command with ticket %lu", (unsigned long)ticket);
    return NULL;
}

/* Fail @ticket and the commands that wait for it, as the driver would. */
static void give_back(uint64_t ticket, int status)
{
    bool may_fail = find(ticket)->may_fail;

    rig_done(&rig, ticket, status, "a fault");
    for (unsigned i = 0; i < rig.n_commands; i++) {
        const struct cst_command command = rig.commands[i];

        for (uint32_t k = 0; k < command.n_replaces; k++) {
            rename_after(command.replaces[k], command.ticket);
        }
    }
    for (unsigned i = 0; i < rig.n_commands && !may_fail;) {
        if (reservation_waits_for(&rig.commands[i], ticket)) {
            give_back(rig.commands[i].ticket, CST_ECANCELLED);
            i = 0; /* the list has changed */
        } else {
            i++;
        }
    }
}

/* Complete the first command that may begin, until none is left. */
static void drain_in_order(void)
{
    while (rig.n_commands > 0) {
        unsigned i = 0;

        for (; i < rig.n_commands; i++) {
            bool ready = true;

            for (unsigned k = 0; k < rig.n_commands; k++) {
                ready = ready && !reservation_waits_for(&rig.commands[i], rig.commands[k].ticket);
            }
            if (ready) {
                break;
            }
        }
        ck_assert_msg(i < rig.n_commands, "commands wait for each other");
        rig_done(&rig, rig.commands[i].ticket, CST_OK, NULL);
    }
}

static uint64_t ticket_of(enum cst_command_kind kind, unsigned n)
{
    ck_assert(rig_command(&rig, kind, n) != NULL);
    return rig_command(&rig, kind, n)->ticket;
}

/* The update of @chunk in place by its node's engine. */
static const struct cst_command *home_update(uint32_t chunk)
{
    for (unsigned i = 0; rig_command(&rig, CST_COMMAND_UPDATE, i) != NULL; i++) {
        const struct cst_command *update = rig_command(&rig, CST_COMMAND_UPDATE, i);

        if (update->chunk == chunk && update->node == 0) {
            return update;
        }
    }
    return NULL;
}

/* If a COPY to the reservation (_i of 4) or the UPDATE (_i = 4) fails, the node's engine updates
 * the chunk in place, with the same step, hyper-parameters and target row, and without
 * dependencies. A fetch and a sum wait for that update. */
START_TEST(nothing_came_down)
{
    const struct cst_command *update, *load = NULL;
    struct cst_hyper hyper;
    uint64_t failed, away, mark, fetch, lease, home;

    open_reservation((struct rig_job){0}, 1, 0);
    reservation_commit(&rig, 1);
    away = ticket_of(CST_COMMAND_UPDATE, 0);
    mark = find(away)->mark;
    hyper = find(away)->hyper;
    failed = _i < 4 ? ticket_of(CST_COMMAND_COPY, (unsigned)_i) : away;
    while (rig.commands[0].ticket < failed) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    fetch = rig_fetch(&rig, 0, 0);
    give_back(failed, CST_EIO);
    update = home_update(0);
    ck_assert(update != NULL);
    home = update->ticket;
    ck_assert_uint_eq(update->n_replaces, 4);
    ck_assert_uint_eq(update->n_in + update->n_out + update->n_after + update->n_src, 0);
    ck_assert_uint_eq(update->mark, mark);
    ck_assert_int_eq(memcmp(&update->hyper, &hyper, sizeof hyper), 0);
    for (unsigned i = 0; i < rig.n_commands; i++) {
        load = rig.commands[i].n_dst > 0 && rig.commands[i].dst[0].segment == RIG_POOL_SEGMENT
                   ? &rig.commands[i]
                   : load;
    }
    ck_assert(load != NULL && reservation_waits_for(load, home));
    ck_assert_uint_eq(rig_stats(&rig).chunks_updating, 1);
    lease = rig_answer(&rig, rig_fetch_grad(&rig, 0, 0))->generation;
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_OK);
    ck_assert(reservation_waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0), home));
    drain_in_order();
    ck_assert_int_eq(rig_status(&rig, fetch), CST_OK);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 0);
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 1);
    ck_assert_uint_eq(rig.n_logs, 1);
}
END_TEST

/* The buffer can be used by the next chunk as soon as the node has updated the one that failed.
 * Later chunks need not wait. */
START_TEST(buffer_goes_on)
{
    const struct cst_command *up = NULL;

    open_reservation((struct rig_job){0}, 4, 0);
    reservation_commit(&rig, 4);
    give_back(ticket_of(CST_COMMAND_UPDATE, 0), CST_EIO);
    for (unsigned i = 0; (up = rig_command(&rig, CST_COMMAND_COPY, i)) != NULL; i++) {
        if (up->chunk == 3 && up->dst[0].segment == RESERVATION_SEGMENT) {
            ck_assert(reservation_waits_for(up, home_update(0)->ticket));
        }
    }
    drain_in_order();
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 3);
}
END_TEST

/* If no chunk waits for the buffer yet, the next one there does not depend on the failed
 * commands. */
START_TEST(nobody_behind)
{
    uint64_t first, last;

    open_reservation((struct rig_job){0}, 3, 0);
    reservation_commit(&rig, 3);
    first = ticket_of(CST_COMMAND_UPDATE, 0);
    give_back(first, CST_EIO);
    last = first + 4; /* the copies out of the last chunk */
    drain_in_order();
    reservation_commit(&rig, 3);
    for (unsigned i = 0; i < rig.n_commands; i++) {
        for (uint64_t t = first; t <= last; t++) {
            ck_assert(!reservation_waits_for(&rig.commands[i], t));
        }
    }
    drain_in_order();
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 5);
}
END_TEST

/* A COPY out of the reservation that fails is repeated from the same place. Commands that wait for
 * it go on waiting. */
START_TEST(copied_again)
{
    const struct cst_command *again;
    struct cst_command down;
    uint64_t fetch;

    open_reservation((struct rig_job){0}, 1, 0);
    reservation_commit(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_UPDATE) > 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    fetch = rig_fetch(&rig, 0, 0);
    down = *rig_command(&rig, CST_COMMAND_COPY, (unsigned)_i);
    ck_assert(down.may_fail);
    give_back(down.ticket, CST_EIO);
    again = replacement(down.ticket);
    ck_assert(again != NULL && again->after_ack && again->may_fail);
    ck_assert_uint_eq(again->node, RESERVATION_ENGINE);
    ck_assert_uint_eq(again->bytes, down.bytes);
    ck_assert_int_eq(memcmp(again->src, down.src, sizeof down.src[0]), 0);
    ck_assert_int_eq(memcmp(again->dst, down.dst, sizeof down.dst[0]), 0);
    ck_assert(rig_waits(&rig, fetch));
    drain_in_order();
    ck_assert_int_eq(rig_status(&rig, fetch), CST_OK);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 1);
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 1);
}
END_TEST

/* After the third failure the row is lost, and the job fails. */
START_TEST(never_copied)
{
    open_reservation((struct rig_job){0}, 1, 0);
    reservation_commit(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_UPDATE) > 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (unsigned i = 0; i < 3; i++) {
        uint64_t down = rig.commands[rig.n_commands - 1].ticket;

        ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
        ck_assert(find(down)->may_fail == (i < 2));
        give_back(down, CST_EIO);
    }
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
    rig_drain(&rig);
}
END_TEST

/* After some failures the reservation is given up: no chunk uses it any more, whatever k is, and
 * the core tells so. */
START_TEST(given_up)
{
    static const struct cst_core_device_reservation own = {.engine = RESERVATION_ENGINE},
                                                    other = {.engine = RESERVATION_ENGINE + 1},
                                                    lent = {.engine = RESERVATION_ENGINE,
                                                            .lent = true};

    open_reservation((struct rig_job){0}, 4, 0);
    reservation_commit(&rig, 4);
    for (uint32_t n = 1; n <= MAX_FAILURES; n++) {
        unsigned i = 0;

        while (rig_command(&rig, CST_COMMAND_UPDATE, i)->node != RESERVATION_ENGINE) {
            i++;
        }
        ck_assert_uint_eq(rig_stats(&rig).n_reservations_given_up, 0);
        ck_assert(cst_core_uses_reservation(rig.core, &own));
        ck_assert(!cst_core_uses_reservation(rig.core, &other));
        ck_assert(!cst_core_uses_reservation(rig.core, &lent));
        give_back(ticket_of(CST_COMMAND_UPDATE, i), CST_EIO);
        ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, n);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_reservations_given_up, 1);
    ck_assert(!cst_core_uses_reservation(rig.core, &own));
    ck_assert_uint_eq(rig.n_logs, MAX_FAILURES + 1);
    drain_in_order();
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 1);
    cst_core_set_interleave(rig.core, 2);
    reservation_commit(&rig, 4);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
    ck_assert_uint_eq(rig_stats(&rig).interleave, 0);
    drain_in_order();
}
END_TEST

/* The accelerator is gone, in one of several ways (_i % 2), and a COPY in or the UPDATE is the
 * first command that fails (_i / 2). The node makes the updates, the reservation is not used any
 * more, and the job goes on. */
START_TEST(gone)
{
    int status = _i % 2 == 0 ? CST_ELOST : CST_EENGINE;

    open_reservation((struct rig_job){0}, 4, 0);
    reservation_commit(&rig, 4);
    for (unsigned i = 0; _i / 2 == 1 && i < 4; i++) {
        rig_done(&rig, ticket_of(CST_COMMAND_COPY, 0), CST_OK, NULL);
    }
    for (unsigned i = 0; i < rig.n_commands;) { /* all commands that the engine has and receives */
        if (rig.commands[i].node == RESERVATION_ENGINE) {
            give_back(rig.commands[i].ticket, status);
            ck_assert_uint_eq(rig_stats(&rig).n_reservations_given_up, 1);
            i = 0;
        } else {
            i++;
        }
    }
    ck_assert_uint_eq(rig.n_logs, 1);
    for (uint32_t c = 0; c < 4; c++) {
        ck_assert(home_update(c) != NULL);
    }
    drain_in_order();
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
    ck_assert_uint_eq(rig_stats(&rig).n_updates, 4);
    ck_assert_uint_eq(rig_stats(&rig).n_device_updates, 0);
    reservation_commit(&rig, 4);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
    drain_in_order();
}
END_TEST

/* The accelerator is gone while rows of some chunks are being copied out, after _i rows of the last
 * chunk. The job fails and names these chunks, and no others. */
START_TEST(gone_with_rows)
{
    static const char lost[] = "are lost: 0-1";
    uint64_t sync;

    open_reservation((struct rig_job){0}, 6, 0);
    reservation_commit(&rig, 6);
    while (home_update(0) == NULL && rig_command(&rig, CST_COMMAND_UPDATE, 0)->chunk < 2) {
        unsigned i = 0;

        while (rig.commands[i].src[0].segment == RESERVATION_SEGMENT) {
            i++;
        }
        rig_done(&rig, rig.commands[i].ticket, CST_OK, NULL);
    }
    for (int n = 0; n < _i; n++) {
        unsigned i = 0;

        while (rig.commands[i].chunk != 1) {
            i++;
        }
        rig_done(&rig, rig.commands[i].ticket, CST_OK, NULL);
    }
    for (unsigned i = rig.n_commands; i-- > 0;) {
        if (rig.commands[i].chunk == 1) {
            give_back(rig.commands[i].ticket, CST_EENGINE);
            break;
        }
    }
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_EENGINE);
    ck_assert_str_eq(strstr(rig_answer(&rig, sync)->err.text, "are lost:"), lost);
    rig_drain(&rig);
}
END_TEST

/* The job fails if an accelerator fails or loses states that only it has. */
START_TEST(fatal)
{
    struct cst_layout_device device = {.engine = RESERVATION_ENGINE,
                                       .bytes = 12ull * RIG_CHUNK_ELEMS + 8191,
                                       .grain = 8192,
                                       .reservation_bytes = 3 * RESERVATION_BUFFER};
    static const int status[] = {CST_ELOST, CST_EENGINE, CST_EIO};

    open_reservation((struct rig_job){.device = &device}, 1, 0);
    reservation_commit(&rig, 1);
    give_back(ticket_of(CST_COMMAND_COPY, 0), status[_i]);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
    ck_assert(home_update(0) == NULL);
    rig_drain(&rig);
}
END_TEST

/* With two weight rows the replacing update writes the row that the failed one was to write,
 * although fetches read that row since the commit. */
START_TEST(other_row)
{
    struct cst_place target;

    open_reservation((struct rig_job){.overlap = CST_OVERLAP_EARLY}, 1, 0);
    reservation_commit(&rig, 1);
    for (unsigned i = 0;; i++) {
        const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, i);

        ck_assert(copy != NULL);
        if (copy->src[0].segment == RESERVATION_SEGMENT) { /* the weights are copied out first */
            target = copy->dst[0];
            break;
        }
    }
    give_back(ticket_of(CST_COMMAND_UPDATE, 0), CST_EIO);
    ck_assert_uint_eq(home_update(0)->n_out, 1);
    ck_assert_int_eq(home_update(0)->out[0].row, CST_ROW_WEIGHT);
    ck_assert_int_eq(memcmp(&home_update(0)->out[0].place, &target, sizeof target), 0);
    drain_in_order();
}
END_TEST

/* A worker that copies weights itself is told that they are available when the replacing update is
 * done. */
START_TEST(worker_copies)
{
    uint64_t fetch;

    open_reservation((struct rig_job){.worker_copies = true}, 1, 1);
    reservation_commit(&rig, 1);
    fetch = rig_fetch(&rig, 0, 0);
    give_back(ticket_of(CST_COMMAND_UPDATE, 0), CST_EIO);
    ck_assert(rig_waits(&rig, fetch));
    drain_in_order();
    ck_assert_int_eq(rig_status(&rig, fetch), CST_OK);
}
END_TEST

/* If a gradient cannot be kept in the reservation, its sum is made as usual, and is copied to the
 * reservation with the states. */
START_TEST(not_kept)
{
    uint64_t lease, keep;

    open_reservation((struct rig_job){0}, 1, 1);
    reservation_commit(&rig, 1);
    drain_in_order();
    lease = rig_get_grad(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, lease)), CST_OK);
    keep = ticket_of(CST_COMMAND_COPY, 0);
    ck_assert(find(keep)->dst[0].segment == RESERVATION_SEGMENT && find(keep)->may_fail);
    ck_assert(reservation_waits_for(rig_command(&rig, CST_COMMAND_REDUCE, 0), keep));
    give_back(keep, CST_EIO);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    drain_in_order();
    reservation_commit(&rig, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->n_after, 4);
    ck_assert_uint_eq(rig_stats(&rig).n_reservation_failures, 1);
    drain_in_order();
}
END_TEST

/* One of two reservations is given up: it keeps no gradients any more, and its chunks use the other
 * reservation. */
START_TEST(keeps_nothing)
{
    static const uint32_t engines[] = {RESERVATION_ENGINE};
    struct cst_core_device_reservation reservations[] = {
        {.engine = RESERVATION_ENGINE,
         .segment = RESERVATION_SEGMENT,
         .bytes = 3 * RESERVATION_BUFFER + 2ull * RIG_CHUNK_ELEMS},
        {.engine = RESERVATION_ENGINE + 1,
         .segment = RESERVATION_SEGMENT + 1,
         .bytes = 3 * RESERVATION_BUFFER}};
    unsigned n = 0;

    rig_open_job(&rig, &(struct rig_job){.n_chunks = 2,
                                         .world = 1,
                                         .n_blocks = 4,
                                         .reservations = reservations,
                                         .n_reservations = 2,
                                         .interleave = 1,
                                         .engines = engines});
    rig_start(&rig, 1);
    reservation_commit(&rig, 2);
    while (rig_count(&rig, CST_COMMAND_UPDATE) > 1) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (unsigned i = 0; n < MAX_FAILURES; n++) { /* for chunk 0: each row once */
        while (rig.commands[i].src[0].segment != RESERVATION_SEGMENT) {
            i++;
        }
        give_back(rig.commands[i].ticket, CST_EIO);
    }
    ck_assert_uint_eq(rig_stats(&rig).n_reservations_given_up, 1);
    drain_in_order();
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 0, rig_get_grad(&rig, 0, 0))), CST_OK);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 0);
    drain_in_order();
    reservation_commit(&rig, 2);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_UPDATE, i)->node, RESERVATION_ENGINE + 1);
    }
    drain_in_order();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reservation_failure");
    TCase *tcase = suite_case(suite, "failure", NULL, teardown);

    tcase_add_loop_test(tcase, nothing_came_down, 0, 5);
    tcase_add_test(tcase, buffer_goes_on);
    tcase_add_test(tcase, nobody_behind);
    tcase_add_loop_test(tcase, copied_again, 0, 4);
    tcase_add_test(tcase, never_copied);
    tcase_add_test(tcase, given_up);
    tcase_add_loop_test(tcase, gone, 0, 4);
    tcase_add_loop_test(tcase, gone_with_rows, 0, 4);
    tcase_add_loop_test(tcase, fatal, 0, 3);
    tcase_add_test(tcase, other_row);
    tcase_add_test(tcase, worker_copies);
    tcase_add_test(tcase, not_kept);
    tcase_add_test(tcase, keeps_nothing);
    return suite_run(suite);
}
