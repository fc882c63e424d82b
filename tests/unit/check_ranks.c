/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ranks in the core: which ranks take part in an attempt, and what happens to a step when
 * one leaves or dies. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

static bool says(uint64_t tag, const char *words)
{
    return strstr(rig_answer(&rig, tag)->err.text, words) != NULL;
}

/* Sync all ranks again, and use the new attempt. */
static void sync_all(uint32_t world)
{
    uint64_t tag = 0;

    for (uint32_t rank = 0; rank < world; rank++) {
        tag = rig_rank_event(&rig, CST_EV_SYNC, rank);
    }
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    rig.attempt = rig_answer(&rig, tag)->attempt;
}

static uint64_t cancel(uint32_t rank, uint64_t tag)
{
    return rig_event(&rig, (struct cst_event){.kind = CST_EV_CANCEL, .rank = rank, .cancel = tag});
}

/* -- attempts --------------------------------------------------------------------------------- */

/* Before the first sync no request is accepted. A sync waits for all ranks and tells them attempt
 * and step. */
START_TEST(sync_first)
{
    uint64_t early;
    uint64_t first;
    uint64_t second;

    rig_open(&rig, 4, 2, 3, 0);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 0)), CST_EINVAL);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    early = rig_fetch(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, early), CST_EINVAL);
    ck_assert(says(early, "sync first"));
    first = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert(rig_waits(&rig, first));
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_SYNC, 0)), CST_EINVAL);
    ck_assert(!rig_stats(&rig).initialised);
    second = rig_rank_event(&rig, CST_EV_SYNC, 1);
    ck_assert_int_eq(rig_status(&rig, first), CST_OK);
    ck_assert_uint_eq(rig_answer(&rig, first)->attempt, rig_answer(&rig, second)->attempt);
    ck_assert_uint_eq(rig_answer(&rig, second)->step, 0);
    ck_assert(rig_stats(&rig).initialised);
}
END_TEST

/* Invalid ranks, chunks and attempts are refused and have no other effect. */
START_TEST(bad_numbers)
{
    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 2, 0)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 4)), CST_EINVAL);
    rig.attempt += 1;
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_EINVAL);
    rig.attempt -= 2;
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_EPEERDIED);
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, (struct cst_event){.kind = 99})),
                     CST_EUNSUPPORTED);
    ck_assert_uint_eq(rig.n_commands, 0);
}
END_TEST

/* A rank that syncs during a step ends the attempt for all: the other ranks are told, and
 * contributions are dropped. */
START_TEST(sync_gives_the_step_up)
{
    uint64_t step;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_hand_in(&rig, 1, 0, rig_get_grad(&rig, 1, 0));
    step = rig_step(&rig, 1);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, step), CST_EPEERDIED);
    ck_assert(says(step, "rank 0 gave up step 0"));
    ck_assert_uint_eq(rig_books(&rig, 1).free, 3);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 1);
    rig.attempt++;
    (void)rig_hand_in(&rig, 1, 0, rig_get_grad(&rig, 1, 0)); /* once more, in the new attempt */
    ck_assert_uint_eq(rig_books(&rig, 1).pending, 1);
}
END_TEST

/* -- death ------------------------------------------------------------------------------------ */

/* A hang-up refuses all requests of that rank and quarantines its leased blocks; the rank's death
 * frees them. The other ranks get the error at once, and from every later request. */
START_TEST(hangup_then_death)
{
    uint64_t mine;
    uint64_t theirs;
    uint64_t later;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_get(&rig, 1, 0);
    (void)rig_get_grad(&rig, 1, 0);
    mine = rig_fetch(&rig, 1, 2);
    theirs = rig_step(&rig, 0);
    (void)rig_rank_event(&rig, CST_EV_HANGUP, 1);
    ck_assert_int_eq(rig_status(&rig, mine), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, theirs), CST_EPEERDIED);
    ck_assert(says(theirs, "rank 1 disconnected in step 0"));
    later = rig_fetch(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, later), CST_EPEERDIED);
    ck_assert(says(later, "rank 1 disconnected in step 0"));
    ck_assert_uint_eq(rig_books(&rig, 1).quarantined, 2);
    ck_assert_uint_eq(rig_books(&rig, 1).moving, 1);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 1, 0)), CST_EINVAL);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(rig_books(&rig, 1).quarantined, 0);
    ck_assert_uint_eq(rig_books(&rig, 1).moving, 1);
    rig_drain(&rig); /* the copy ends */
    ck_assert_uint_eq(rig_books(&rig, 1).free, 3);
}
END_TEST

/* The blocks of a surviving rank stay leased until it syncs: only then is it known that the rank no
 * longer uses them. */
START_TEST(survivors_keep_leases_until_sync)
{
    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    (void)rig_get(&rig, 0, 0);
    (void)rig_get_grad(&rig, 0, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 2);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 0);
    ck_assert_uint_eq(rig_books(&rig, 0).cached, 1); /* the weights are still valid */
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
}
END_TEST

/* A new process attaches as the dead rank. After a sync of all ranks the step is repeated. */
START_TEST(a_new_worker_takes_over)
{
    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    rig_whole_step(&rig, 4, 2);
    (void)rig_hand_in(&rig, 1, 0, rig_get_grad(&rig, 1, 0));
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 1, 0)), CST_EPEERDIED);
    (void)rig_rank_event(&rig, CST_EV_SYNC, 1);
    rig.attempt++;
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
    ck_assert_uint_eq(rig_stats(&rig).attempt, 2);
}
END_TEST

/* When a rank dies, a sum of its attempt may be under way. The sum of the next attempt waits for it
 * and is not mistaken for it. */
START_TEST(reduction_outlives_its_attempt)
{
    uint64_t old;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_hand_in(&rig, 0, 0, rig_get_grad(&rig, 0, 0));
    (void)rig_hand_in(&rig, 1, 0, rig_get_grad(&rig, 1, 0));
    old = rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket;
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(rig_books(&rig, 1).moving, 1);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    sync_all(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        (void)rig_hand_in(&rig, rank, 0,
                          rig_answer(&rig, rig_fetch_grad(&rig, rank, 0))->generation);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    rig_done(&rig, old, CST_OK, NULL);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 1);
    ck_assert_uint_ne(rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, old);
    ck_assert_uint_eq(rig_books(&rig, 1).moving, 1);
}
END_TEST

/* When a rank dies, a gradient may be on its way to the grad row. Its block becomes free when the
 * copy is done, and the next attempt's gradient is not affected. */
START_TEST(staging_outlives_its_attempt)
{
    uint64_t old;
    uint64_t grad;

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    (void)rig_fetch(&rig, 1, 4);
    old = rig_command(&rig, CST_COMMAND_COPY, 0)->ticket; /* copy of chunk 2 */
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    sync_all(2);
    grad = rig_answer(&rig, rig_fetch_grad(&rig, 1, 2))->generation;
    rig_done(&rig, old, _i == 0 ? CST_OK : CST_EIO, NULL);
    ck_assert_uint_eq(rig_books(&rig, 1).free, 2);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 1, 2, grad)), CST_OK);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->src[1].segment,
                      RIG_POOL_SEGMENT + 1);
}
END_TEST

/* After all ranks have asked for the step, it needs none of them any more: it is committed even if
 * ranks die, and then the attempt is over. */
START_TEST(death_does_not_stop_a_step_that_closes)
{
    uint64_t survivor;
    uint64_t dead;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_hand_in(&rig, 1, 0, rig_get_grad(&rig, 1, 0));
    survivor = rig_step(&rig, 0);
    dead = rig_step(&rig, 1);
    (void)rig_rank_event(&rig, _i == 0 ? CST_EV_DEAD : CST_EV_HANGUP, 1);
    ck_assert_int_eq(rig_status(&rig, dead), CST_ECANCELLED);
    ck_assert(rig_waits(&rig, survivor));
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, survivor), CST_OK);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_EPEERDIED);
    ck_assert_uint_eq(rig_books(&rig, 1).free, 3);
}
END_TEST

/* A committed step is never undone: updates go on when all ranks are gone. */
START_TEST(updates_outlive_everybody)
{
    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_stats(&rig).chunks_clean, 4);
}
END_TEST

/* A rank that leaves gives its leases back, and ranks that are still in the step are told at once.
 * A hang-up after the leave has no effect. */
START_TEST(leave)
{
    uint64_t waiting;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    rig_whole_step(&rig, 4, 2);
    (void)rig_get(&rig, 0, 0);
    waiting = rig_step(&rig, 1);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 0)), CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_EPEERDIED);
    ck_assert(says(waiting, "rank 0 left after step 1"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    (void)rig_rank_event(&rig, CST_EV_HANGUP, 0);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 0);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 1)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 1)), CST_EINVAL);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE); /* nothing of the step remains */
}
END_TEST

/* If ranks leave after a step, the first of them after reading weights again, the job becomes idle:
 * no attempt is interrupted, nothing is logged, and other ranks can go on. */
START_TEST(leave_between_steps)
{
    uint64_t late;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    rig_whole_step(&rig, 4, 2);
    (void)rig_get(&rig, 0, 0);
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 0)), CST_OK);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE);
    late = rig_fetch(&rig, 1, 0);
    ck_assert_int_eq(rig_status(&rig, late), CST_EPEERDIED);
    ck_assert(says(late, "rank 0 left after step 1"));
    ck_assert_int_eq(rig_status(&rig, rig_rank_event(&rig, CST_EV_LEAVE, 1)), CST_OK);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE);
    ck_assert_uint_eq(rig.n_logs, 0);
    rig_start(&rig, 2);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
    rig_whole_step(&rig, 4, 2);
    ck_assert_uint_eq(rig_stats(&rig).step, 2);
}
END_TEST

/* A rank that leaves while another rank is in the step, or while it has opened a gradient itself,
 * interrupts the step, until all have left. _i: which rank has begun. */
START_TEST(leave_in_a_step)
{
    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    if (_i == 0) {
        (void)rig_get_grad(&rig, 0, 0);
    } else {
        (void)rig_get(&rig, 1, 0);
    }
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 0);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    ck_assert_uint_eq(rig.n_logs, 1);
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 1);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE);
}
END_TEST

/* A rank dies and comes back only to leave: the job becomes idle. _i: a gradient of the next step
 * was handed in. */
START_TEST(death_that_is_made_good)
{
    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    rig_whole_step(&rig, 4, 2);
    if (_i == 1) {
        (void)rig_get_grad(&rig, 0, 0);
    }
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 0);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    (void)rig_rank_event(&rig, CST_EV_LEAVE, 1);
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_IDLE);
}
END_TEST

/* -- timeouts --------------------------------------------------------------------------------- */

/* A sync that waits too long gets an error that says for which rank and why, and can be
 * repeated. */
START_TEST(sync_times_out)
{
    uint64_t tag;

    rig_open(&rig, 4, 3, 3, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 2);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 2);
    tag = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_uint_eq(cst_core_deadline(rig.core), rig.now + 1000000000);
    rig.now += 999999999;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert(rig_waits(&rig, tag));
    rig.now += 1;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ETIMEDOUT);
    ck_assert(says(tag, "rank 1 (never attached)") && says(tag, "rank 2 (died in step 0)"));
    ck_assert(!says(tag, "rank 0 ("));
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    ck_assert(rig_waits(&rig, rig_rank_event(&rig, CST_EV_SYNC, 0)));
}
END_TEST

/* A step that waits too long for another rank ends the attempt. A step that waits only for engines
 * does not time out. */
START_TEST(step_times_out)
{
    uint64_t tag;
    uint64_t closing;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    tag = rig_step(&rig, 0);
    rig.now += 1000000000;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ETIMEDOUT);
    ck_assert(says(tag, "rank 1 (has not asked)"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    sync_all(2);
    (void)rig_step(&rig, 0);
    closing = rig_step(&rig, 1);
    ck_assert_uint_eq(cst_core_deadline(rig.core), CST_CORE_NEVER);
    rig.now += 5000000000;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert(rig_waits(&rig, closing));
}
END_TEST

/* A fetch that gets no block in time is told where the blocks are. */
START_TEST(fetch_times_out)
{
    uint64_t tag;

    rig_open(&rig, 4, 1, 3, 0);
    rig_start(&rig, 1);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_get(&rig, 0, c);
    }
    tag = rig_fetch(&rig, 0, 3);
    rig.now += 1000000000;
    (void)rig_event(&rig, (struct cst_event){.kind = CST_EV_TICK});
    ck_assert_int_eq(rig_status(&rig, tag), CST_ETIMEDOUT);
    ck_assert(says(tag, "3 are leased"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_RUNNING);
}
END_TEST

/* -- cancel ----------------------------------------------------------------------------------- */

/* A fetch that waits for a block, one that waits for its copy, and a sync are answered before the
 * cancel is. */
START_TEST(cancel_what_waits)
{
    uint64_t joined;
    uint64_t queued;
    uint64_t tag;

    rig_open(&rig, 4, 1, 3, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    rig_start(&rig, 1);
    joined = rig_fetch(&rig, 0, 0);
    (void)rig_fetch(&rig, 0, 1);
    (void)rig_fetch(&rig, 0, 2);
    queued = rig_fetch(&rig, 0, 3);
    tag = cancel(0, joined);
    ck_assert_int_eq(rig_status(&rig, joined), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_reply(&rig, joined) < rig_reply(&rig, tag));
    (void)cancel(0, queued);
    ck_assert_int_eq(rig_status(&rig, queued), CST_ECANCELLED);
    rig_drain(&rig);
    /* The copy is kept although no fetch waits for it. */
    ck_assert_uint_eq(rig_books(&rig, 0).cached, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 2);
}
END_TEST

/* A rank cannot cancel another rank's request, nor a request that was answered. */
START_TEST(cancel_what_is_not_there)
{
    uint64_t sync;

    rig_open(&rig, 4, 2, 3, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 0);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, cancel(1, sync)), CST_ENOTFOUND);
    ck_assert_int_eq(rig_status(&rig, cancel(0, sync)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, sync), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, cancel(0, sync)), CST_ENOTFOUND);
}
END_TEST

/* A step can be cancelled until the last rank has asked for it. Chunks that were summed meanwhile
 * without the rank's contribution are closed. */
START_TEST(cancel_a_step)
{
    uint64_t tag;
    uint64_t late;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    tag = rig_step(&rig, 0);
    (void)rig_hand_in(&rig, 1, 1, rig_get_grad(&rig, 1, 1)); /* summed without rank 0 */
    ck_assert_int_eq(rig_status(&rig, cancel(0, tag)), CST_OK);
    ck_assert_int_eq(rig_status(&rig, tag), CST_ECANCELLED);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 1)), CST_EINVAL);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    (void)rig_step(&rig, 0);
    late = rig_step(&rig, 1);
    ck_assert_int_eq(rig_status(&rig, cancel(1, late)), CST_EBUSY);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, late), CST_OK);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ranks");
    TCase *attempts = suite_case(s, "attempts", NULL, teardown);
    TCase *death = suite_case(s, "death", NULL, teardown);
    TCase *late = suite_case(s, "lateness", NULL, teardown);
    TCase *cancels = suite_case(s, "cancel", NULL, teardown);

    tcase_add_test(attempts, sync_first);
    tcase_add_test(attempts, bad_numbers);
    tcase_add_test(attempts, sync_gives_the_step_up);
    tcase_add_test(death, hangup_then_death);
    tcase_add_test(death, survivors_keep_leases_until_sync);
    tcase_add_test(death, a_new_worker_takes_over);
    tcase_add_test(death, reduction_outlives_its_attempt);
    tcase_add_loop_test(death, staging_outlives_its_attempt, 0, 2);
    tcase_add_loop_test(death, death_does_not_stop_a_step_that_closes, 0, 2);
    tcase_add_test(death, updates_outlive_everybody);
    tcase_add_test(death, leave);
    tcase_add_test(death, leave_between_steps);
    tcase_add_loop_test(death, leave_in_a_step, 0, 2);
    tcase_add_loop_test(death, death_that_is_made_good, 0, 2);
    tcase_add_test(late, sync_times_out);
    tcase_add_test(late, step_times_out);
    tcase_add_test(late, fetch_times_out);
    tcase_add_test(cancels, cancel_what_waits);
    tcase_add_test(cancels, cancel_what_is_not_there);
    tcase_add_test(cancels, cancel_a_step);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
