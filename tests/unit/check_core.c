/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the core, one rule at a time: gradients and commits. tests/sim tests what happens in
 * combination. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* -- gradients -------------------------------------------------------------------------------- */

/* A gradient keeps its block during a step, and the second fetch reports that the block has
 * contents. A gradient that was handed in cannot be fetched again. */
START_TEST(gradient_is_opened_once)
{
    uint64_t first;
    uint64_t again;
    uint64_t late;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    first = rig_fetch_grad(&rig, 0, 1);
    ck_assert(!rig_answer(&rig, first)->hit);
    again = rig_fetch_grad(&rig, 0, 1);
    ck_assert(rig_answer(&rig, again)->hit);
    ck_assert_uint_eq(rig_answer(&rig, again)->generation, rig_answer(&rig, first)->generation);
    ck_assert_uint_eq(rig_answer(&rig, again)->offset, rig_answer(&rig, first)->offset);
    ck_assert_int_eq(rig_status(&rig, rig_hand_in(&rig, 0, 1, rig_answer(&rig, first)->generation)),
                     CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).pending, 1);
    late = rig_fetch_grad(&rig, 0, 1);
    ck_assert_int_eq(rig_status(&rig, late), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, late)->err.text, "handed in already"));
    ck_assert_int_eq(rig_answer(&rig, late)->err.reason, CST_REASON_HANDED_IN);
}
END_TEST

/* When the last rank has handed in, the contributions are summed in the order of ranks, whichever
 * rank was first. Their blocks are then free. */
START_TEST(reduced_in_rank_order)
{
    static const uint32_t order[] = {2, 0, 1};
    struct cst_command reduce;

    rig_open(&rig, 4, 3, 4, 0);
    rig_start(&rig, 3);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t grad = rig_get_grad(&rig, order[i], 1);

        ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 0);
        (void)rig_hand_in(&rig, order[i], 1, grad);
    }
    reduce = rig_only(&rig, CST_COMMAND_REDUCE);
    ck_assert_uint_eq(reduce.chunk, 1);
    ck_assert_uint_eq(reduce.table, RIG_TABLE_SEGMENT);
    ck_assert_uint_eq(reduce.n_src, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_uint_eq(reduce.src[rank].segment, RIG_POOL_SEGMENT + rank);
    }
    ck_assert_uint_eq(rig_books(&rig, 0).moving, 1);
    rig_done(&rig, reduce.ticket, CST_OK, NULL);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 4);
    ck_assert_uint_eq(rig_books(&rig, 2).free, 4);
}
END_TEST

/* If a fetch can only get a block from gradients that wait for other ranks, one gradient is copied
 * to its chunk's grad row. The sum reads that rank's contribution from there, in place. */
START_TEST(gradient_makes_room)
{
    struct cst_command copy;
    struct cst_command reduce;
    uint64_t waiting;

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    waiting = rig_fetch(&rig, 1, 4);
    copy = rig_only(&rig, CST_COMMAND_COPY);
    ck_assert_uint_eq(copy.src[0].segment, RIG_POOL_SEGMENT + 1);
    ck_assert_uint_eq(copy.dst[0].offset, rig.layout.chunks[2].rows[CST_ROW_GRAD].offset);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, waiting), CST_OK);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    reduce = rig_only(&rig, CST_COMMAND_REDUCE);
    ck_assert_uint_eq(reduce.n_src, 2);
    ck_assert_uint_eq(reduce.src[0].segment, RIG_POOL_SEGMENT);
    ck_assert_uint_eq(reduce.src[1].segment, copy.dst[0].segment);
    ck_assert_uint_eq(reduce.src[1].offset, copy.dst[0].offset);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 1).pending, 2);
}
END_TEST

/* Commands that write to a grad row (a spilled contribution or a sum) wait for the update that
 * still reads the row. */
START_TEST(grad_row_belongs_to_the_update)
{
    uint64_t update[2];

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (uint32_t c = 0; c < 2; c++) {
        update[c] = rig_command(&rig, CST_COMMAND_UPDATE, c)->ticket;
    }
    (void)rig_hand_in(&rig, 0, 0, rig_answer(&rig, rig_fetch_grad(&rig, 0, 0))->generation);
    (void)rig_hand_in(&rig, 1, 0, rig_answer(&rig, rig_fetch_grad(&rig, 1, 0))->generation);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).n_after, 1);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).after[0], update[0]);
    (void)rig_hand_in(&rig, 0, 1, rig_answer(&rig, rig_fetch_grad(&rig, 0, 1))->generation);
    (void)rig_fetch_grad(&rig, 0, 2);
    (void)rig_fetch_grad(&rig, 0, 3); /* the third block becomes free with the sum */
    (void)rig_fetch_grad(&rig, 0, 4);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).after[0], update[1]);
}
END_TEST

/* A contribution that cannot be copied stays in its block, and the fetch that wanted the block gets
 * the error. */
START_TEST(staging_fails)
{
    uint64_t waiting;

    rig_open(&rig, 6, 2, 3, 0);
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 3; c++) {
        (void)rig_hand_in(&rig, 1, c, rig_get_grad(&rig, 1, c));
    }
    waiting = rig_fetch(&rig, 1, 4);
    rig_done(&rig, rig_only(&rig, CST_COMMAND_COPY).ticket, CST_EIO, "no luck");
    ck_assert_int_eq(rig_status(&rig, waiting), CST_EIO);
    ck_assert_uint_eq(rig_books(&rig, 1).pending, 3);
    (void)rig_hand_in(&rig, 0, 2, rig_get_grad(&rig, 0, 2));
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).src[1].segment, RIG_POOL_SEGMENT + 1);
}
END_TEST

/* -- step and commit -------------------------------------------------------------------------- */

/* Two ranks do a step three times. Nothing is left under way, and the loss is the mean of the
 * ranks' losses. */
START_TEST(whole_step)
{
    rig_open(&rig, 4, 2, 3, 1);
    rig_start(&rig, 2);
    for (int i = 0; i < 3; i++) {
        rig.now += 1000;
        rig_whole_step(&rig, 4, 2);
    }
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).last_step_ns, 1000);
    ck_assert_uint_eq(rig_stats(&rig).step, 3);
    ck_assert_uint_eq(rig_stats(&rig).adam_step, 3);
    ck_assert_uint_eq(rig_stats(&rig).commands_in_flight, 0);
    ck_assert_double_eq(rig_stats(&rig).last_loss, 1.5);
}
END_TEST

/* The commit is answered to all ranks before the updates are done. A fetch waits only for the
 * update of its own chunk. */
START_TEST(commit_does_not_wait_for_updates)
{
    uint64_t tags[2];
    uint64_t fetch;
    struct cst_command update;

    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    rig.norm = 16.0; /* sum of squares; the norm is 4 */
    for (uint32_t rank = 0; rank < 2; rank++) {
        tags[rank] = rig_step(&rig, rank);
    }
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct cst_reply *reply = rig_answer(&rig, tags[rank]);

        ck_assert_int_eq(reply->status, CST_OK);
        ck_assert_uint_eq(reply->step, 1);
        ck_assert(!reply->skipped);
        ck_assert_double_eq(reply->grad_norm, 4.0);
        ck_assert_double_eq(reply->loss, 1.5);
    }
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_UPDATE), 4);
    update = *rig_command(&rig, CST_COMMAND_UPDATE, 2);
    ck_assert_uint_eq(update.mark, 1);
    ck_assert_double_eq(update.hyper.lr, (double)0.1f);
    fetch = rig_fetch(&rig, 0, update.chunk);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).n_after, 1);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).after[0], update.ticket);
    ck_assert(rig_waits(&rig, fetch));
    ck_assert_uint_eq(rig_stats(&rig).chunks_updating, 4);
}
END_TEST

/* A rank without a loss, such as a stage of a pipeline that is not the last one, does not count. */
START_TEST(loss_is_the_mean_of_those_that_were_given)
{
    rig_open(&rig, 4, 2, 4, 0);
    rig_start(&rig, 2);
    rig_event(
        &rig,
        (struct cst_event){
            .kind = CST_EV_STEP,
            .rank = 0,
            .attempt = rig.attempt,
            .hyper = {
                .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .grad_scale = 1.0f}});
    rig_step(&rig, 1);
    rig_drain(&rig);
    ck_assert_double_eq(rig_stats(&rig).last_loss, 2.0);
}
END_TEST

/* The update multiplies gradients with grad_scale x clip factor. The norm is the scaled norm of all
 * gradients. */
START_TEST(clip_goes_into_the_update)
{
    struct cst_event step = {.kind = CST_EV_STEP,
                             .hyper = {.lr = 1, .beta1 = 0, .clip_norm = 1.0f, .grad_scale = 0.5f}};
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    rig.norm = 64.0; /* the norm is 8, and 4 when scaled */
    step.attempt = rig.attempt;
    tag = rig_event(&rig, step);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    ck_assert_double_eq(rig_answer(&rig, tag)->grad_norm, 4.0);
    ck_assert_float_eq_tol(rig_answer(&rig, tag)->clip, 0.25f, 1e-6f);
    ck_assert_double_eq(rig_command(&rig, CST_COMMAND_UPDATE, 0)->hyper.grad_scale,
                        0.5 * (double)rig_answer(&rig, tag)->clip);
}
END_TEST

/* A gradient that no rank handed in is zero: it is summed from no sources. An open gradient that
 * was not handed in does not count. */
START_TEST(missing_gradients_are_zero)
{
    rig_open(&rig, 2, 2, 3, 0);
    rig_start(&rig, 2);
    (void)rig_get_grad(&rig, 0, 0); /* opened, but not handed in */
    (void)rig_hand_in(&rig, 1, 1, rig_get_grad(&rig, 1, 1));
    (void)rig_step(&rig, 0);
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).chunk,
                      1); /* both ranks have taken their last decision about the chunk */
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_REDUCE).n_src, 1);
    (void)rig_step(&rig, 1);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_REDUCE), 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->chunk, 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->n_src, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
}
END_TEST

/* A step whose norm is NaN or infinite counts, but is skipped. States and cached weights do not
 * change. */
START_TEST(not_finite_is_skipped)
{
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    (void)rig_release(&rig, 0, 1, rig_get(&rig, 0, 1));
    rig.norm = _i == 0 ? NAN : INFINITY;
    tag = rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    ck_assert(rig_answer(&rig, tag)->skipped);
    ck_assert_uint_eq(rig_answer(&rig, tag)->n_skipped, 1);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
    ck_assert_uint_eq(rig_stats(&rig).adam_step, 0);
    ck_assert(!rig_waits(&rig, rig_fetch(&rig, 0, 1)));
    ck_assert_uint_gt(rig.n_logs, 0);
}
END_TEST

/* A commit invalidates cached weights. Leased weights can still be read and are freed on release,
 * and a new fetch gets new weights. */
START_TEST(commit_makes_weights_stale)
{
    uint64_t old;
    uint64_t fresh;

    rig_open(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    old = rig_get(&rig, 0, 0);
    (void)rig_release(&rig, 0, 1, rig_get(&rig, 0, 1));
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
    fresh = rig_fetch(&rig, 0, 0);
    ck_assert(rig_waits(&rig, fresh));
    rig_drain(&rig);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 2);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, old)), CST_OK);
    ck_assert_uint_eq(rig_books(&rig, 0).leased, 1);
    ck_assert_uint_eq(rig_books(&rig, 0).free, 3);
}
END_TEST

/* A copy that is overtaken by a commit delivers old or torn weights. It is repeated after the
 * update for the fetches that wait. */
START_TEST(overtaken_copy_is_repeated)
{
    struct cst_command load;
    struct cst_event hint = {.kind = CST_EV_PREFETCH, .chunk = 0};
    uint64_t tag;

    rig_open(&rig, 2, 1, 4, 0);
    rig_start(&rig, 1);
    hint.attempt = rig.attempt;
    (void)rig_event(&rig, hint);
    load = rig_only(&rig, CST_COMMAND_COPY);
    (void)rig_step(&rig, 0);
    while (rig_count(&rig, CST_COMMAND_UPDATE) == 0) {
        rig_done(&rig, rig.commands[1].ticket, CST_OK, NULL); /* every command but the copy */
    }
    tag = rig_fetch(&rig, 0, 0);
    rig_done(&rig, load.ticket, CST_OK, NULL);
    ck_assert(rig_waits(&rig, tag));
    ck_assert_uint_eq(rig_only(&rig, CST_COMMAND_COPY).n_after, 1);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Ranks that disagree about a step's parameters are told the value and the ranks, and the attempt
 * ends. */
START_TEST(hyper_must_agree)
{
    struct cst_event other = {
        .kind = CST_EV_STEP, .rank = 1, .hyper = {.lr = 0.2f, .grad_scale = 1}};
    uint64_t a;
    uint64_t b;

    rig_open(&rig, 2, 2, 3, 0);
    rig_start(&rig, 2);
    other.attempt = rig.attempt;
    a = rig_step(&rig, 0);
    b = rig_event(&rig, other);
    ck_assert_int_eq(rig_status(&rig, a), CST_EMISMATCH);
    ck_assert_int_eq(rig_status(&rig, b), CST_EMISMATCH);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "lr is 0.1"));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "0.2"));
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, a)->err.text, "rank 1"));
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 0)), CST_EPEERDIED);
}
END_TEST

/* Parameters that would damage the states are refused by name, and the step can be requested
 * again. */
START_TEST(bad_hyper_is_refused)
{
    struct cst_event step = {.kind = CST_EV_STEP, .hyper = {.lr = NAN, .grad_scale = 1}};
    uint64_t tag;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    step.attempt = rig.attempt;
    tag = rig_event(&rig, step);
    ck_assert_int_eq(rig_status(&rig, tag), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, tag)->err.text, "lr"));
    step.hyper.lr = 1.0f;
    step.hyper.beta2 = 1.0f;
    ck_assert_int_eq(rig_status(&rig, rig_event(&rig, step)), CST_EINVAL);
    (void)rig_step(&rig, 0);
    rig_drain(&rig);
    ck_assert_uint_eq(rig_stats(&rig).step, 1);
}
END_TEST

/* After a rank has asked for the step, it can neither fetch nor ask for a second step. */
START_TEST(nothing_after_step)
{
    uint64_t held;

    rig_open(&rig, 4, 2, 3, 0);
    rig_start(&rig, 2);
    held = rig_get(&rig, 0, 0);
    (void)rig_step(&rig, 0);
    ck_assert_int_eq(rig_status(&rig, rig_fetch(&rig, 0, 1)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, rig_fetch_grad(&rig, 0, 1)), CST_EBUSY);
    ck_assert_int_eq(rig_status(&rig, rig_step(&rig, 0)), CST_EINVAL);
    ck_assert_int_eq(rig_status(&rig, rig_release(&rig, 0, 0, held)), CST_OK);
}
END_TEST

/* If an engine fails a sum, a norm or an update, the job fails. Pending and later requests get the
 * error. */
START_TEST(engine_gives_up)
{
    static const enum cst_command_kind kinds[] = {CST_COMMAND_REDUCE, CST_COMMAND_NORM,
                                                  CST_COMMAND_UPDATE};
    uint64_t step;
    uint64_t sync;

    rig_open(&rig, 2, 1, 3, 0);
    rig_start(&rig, 1);
    step = rig_step(&rig, 0);
    while (rig_count(&rig, kinds[_i]) == 0) {
        rig_done(&rig, rig.commands[0].ticket, CST_OK, NULL);
    }
    rig_done(&rig, rig_command(&rig, kinds[_i], 0)->ticket, CST_EIO, "smoke");
    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_FAILED);
    if (kinds[_i] == CST_COMMAND_UPDATE) {
        step = rig_fetch(&rig, 0, 0);
    }
    ck_assert_int_eq(rig_status(&rig, step), CST_EENGINE);
    ck_assert_ptr_nonnull(strstr(rig_answer(&rig, step)->err.text, "smoke"));
    sync = rig_rank_event(&rig, CST_EV_SYNC, 0);
    ck_assert_int_eq(rig_status(&rig, sync), CST_EENGINE);
    rig_drain(&rig);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("core");
    TCase *gradients = suite_case(s, "gradients", NULL, teardown);
    TCase *step = suite_case(s, "step", NULL, teardown);

    tcase_add_test(gradients, gradient_is_opened_once);
    tcase_add_test(gradients, reduced_in_rank_order);
    tcase_add_test(gradients, gradient_makes_room);
    tcase_add_test(gradients, grad_row_belongs_to_the_update);
    tcase_add_test(gradients, staging_fails);
    tcase_add_test(step, whole_step);
    tcase_add_test(step, commit_does_not_wait_for_updates);
    tcase_add_test(step, loss_is_the_mean_of_those_that_were_given);
    tcase_add_test(step, clip_goes_into_the_update);
    tcase_add_test(step, missing_gradients_are_zero);
    tcase_add_loop_test(step, not_finite_is_skipped, 0, 2);
    tcase_add_test(step, commit_makes_weights_stale);
    tcase_add_test(step, overtaken_copy_is_repeated);
    tcase_add_test(step, hyper_must_agree);
    tcase_add_test(step, bad_hyper_is_refused);
    tcase_add_test(step, nothing_after_step);
    tcase_add_loop_test(step, engine_gives_up, 0, 3);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
