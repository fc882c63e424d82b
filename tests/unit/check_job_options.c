/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/memory/job_options: the options of a JobOpen, and the error that ranks with other
 * options get. */
#include "daemon/memory/job_options.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <string.h>

static struct cst_err err;

static Cistern__JobOpen open_as(uint32_t optimizer, uint32_t moments, uint32_t rounding,
                                uint32_t overlap)
{
    Cistern__JobOpen message = CISTERN__JOB_OPEN__INIT;

    message.name = (char *)(uintptr_t) "a";
    message.world = 1;
    message.has_optimizer = message.has_moments = message.has_rounding = message.has_overlap = 1;
    message.optimizer = optimizer;
    message.moments = moments;
    message.rounding = rounding;
    message.overlap = overlap;
    return message;
}

/* A message of an older client means AdamW, 16 bytes per parameter, and updates at the commit. */
START_TEST(absent_is_adamw)
{
    Cistern__JobOpen message = CISTERN__JOB_OPEN__INIT;
    struct cst_job_spec options;
    struct cst_layout_states states;

    message.name = (char *)(uintptr_t) "a";
    message.world = 1;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    states = cst_layout_job_states(&options);
    ck_assert_int_eq(states.optimizer, CST_OPTIMIZER_ADAMW);
    ck_assert_int_eq(states.moments, CST_MOMENTS_FP32);
    ck_assert(!states.two_weights && !states.grad_over_weight);
}
END_TEST

/* Unknown numbers are refused by name, and the largest number of each option is accepted. */
START_TEST(numbers_are_checked)
{
    const Cistern__JobOpen bad[] = {
        open_as(CST_OPTIMIZER_COUNT, 0, 0, 0), open_as(0, CST_MOMENTS_COUNT, 0, 0),
        open_as(0, 0, CST_ROUNDING_COUNT, 0), open_as(0, 0, 0, UINT32_MAX)};
    static const char *const words[] = {"optimizer 5 is unknown, this version knows 0 to 4",
                                        "moments 3 is unknown, this version knows 0 to 2",
                                        "rounding 2 is unknown, this version knows 0 to 1",
                                        "overlap 4294967295 is unknown, this version knows 0 to 2"};
    const Cistern__JobOpen good = open_as(CST_OPTIMIZER_COUNT - 1, CST_MOMENTS_COUNT - 1,
                                          CST_ROUNDING_COUNT - 1, CST_OVERLAP_COUNT - 1);
    struct cst_job_spec options;

    ck_assert_int_eq(cstd_job_options_read(&bad[_i], &options, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, words[_i]);
    ck_assert_int_eq(cstd_job_options_read(&good, &options, &err), CST_OK);
    ck_assert(cst_layout_job_states(&options).two_weights);
}
END_TEST

/* Versions of the weights: 0 is what the job has anyhow, and not every job can have two. */
START_TEST(versions)
{
    struct cst_job_spec spec = {.name = "a", .world = 1};

    for (int overlap = 0; overlap < CST_OVERLAP_COUNT; overlap++) {
        spec.updates.overlap = (enum cst_overlap)overlap;
        for (uint32_t n = 0; n <= 2; n++) {
            const bool fits = n != 1 || overlap == CST_OVERLAP_COMMIT;

            spec.states.versions = n;
            ck_assert_int_eq(cst_job_options_check(&spec, &err), fits ? CST_OK : CST_EINVAL);
            ck_assert(cst_layout_job_states(&spec).two_weights ==
                      (n == 2 || overlap != CST_OVERLAP_COMMIT));
        }
    }
    spec.updates.overlap = CST_OVERLAP_COMMIT;
    spec.states.grad_over_weight = true;
    ck_assert_int_eq(cst_job_options_check(&spec, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "versions 2 cannot be combined with grad_over_weight"));
    spec.states.grad_over_weight = false;
    spec.states.disk = "/tmp";
    spec.states.durable = true;
    ck_assert_int_eq(cst_job_options_check(&spec, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "versions 2 cannot be combined with durable"));
    spec.states.versions = 3;
    ck_assert_int_eq(cst_job_options_check(&spec, &err), CST_EINVAL);
}
END_TEST

/* Gradients in weight rows exclude fp32 sums and a second weight row. A step from which updates are
 * delayed requires delayed updates. */
START_TEST(what_cannot_go_together)
{
    Cistern__JobOpen message = open_as(0, 0, 0, CST_OVERLAP_COMMIT);
    struct cst_job_spec options;

    message.grad_over_weight = 1;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    ck_assert(cst_layout_job_states(&options).grad_over_weight);
    message.micro_batches = 2;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    message.micro_batches = 1;
    message.overlap = CST_OVERLAP_EARLY;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    message.grad_over_weight = 0;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    message.delay_from = 5;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "delay_from 5 needs overlap delayed, not early");
    message.overlap = CST_OVERLAP_DELAYED;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    ck_assert_uint_eq(options.updates.delay_from, 5);
    message.unused = CST_UNUSED_SKIP;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    ck_assert(cst_layout_job_states(&options).skips_unused);
    message.overlap = CST_OVERLAP_EARLY;
    message.delay_from = 0;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    message.overlap = CST_OVERLAP_COMMIT;
    message.unused = CST_UNUSED_COUNT;
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    ck_assert_str_eq(err.text, "unused 2 is unknown, this version knows 0 to 1");
}
END_TEST

/* Each option that a rank wants differently is named with both values. */
START_TEST(what_differs_is_named)
{
    const struct cst_job_spec first = {.name = "a", .rank = 3, .states.seed = 7};
    struct cst_job_spec request = first;
    static const char *const words[] = {
        "job 'a' was opened with optimizer adamw, not lion as rank 3 wants",
        "job 'a' was opened with moments fp32, not mx8 as rank 3 wants",
        "job 'a' was opened with rounding stochastic, not nearest as rank 3 wants",
        "job 'a' was opened with seed 7, not 8 as rank 3 wants",
        "job 'a' was opened with overlap commit, not delayed as rank 3 wants",
        "job 'a' was opened with delay_from 0, not 4 as rank 3 wants",
        "job 'a' was opened with grad_over_weight no, not yes as rank 3 wants",
        "job 'a' was opened with unused zero, not skip as rank 3 wants",
        "job 'a' was opened with micro_batches 0, not 2 as rank 3 wants",
        "job 'a' was opened with prefetch_depth 0, not 5 as rank 3 wants",
        "job 'a' was opened with copies 0, not 2 as rank 3 wants",
        "job 'a' was opened with block_ranks 0, not 4 as rank 3 wants",
    };

    ck_assert_int_eq(cstd_job_options_same(&first, &request, &err), CST_OK);
    request.states.optimizer = _i == 0 ? CST_OPTIMIZER_LION : request.states.optimizer;
    request.states.moments = _i == 1 ? CST_MOMENTS_MX8 : request.states.moments;
    request.states.rounding = _i == 2 ? CST_ROUNDING_NEAREST : request.states.rounding;
    request.states.seed += _i == 3;
    request.updates.overlap = _i == 4 ? CST_OVERLAP_DELAYED : request.updates.overlap;
    request.updates.delay_from = _i == 5 ? 4 : 0;
    request.states.grad_over_weight = _i == 6;
    request.updates.unused = _i == 7 ? CST_UNUSED_SKIP : CST_UNUSED_ZERO;
    request.updates.micro_batches = _i == 8 ? 2 : 0;
    request.planning.prefetch_depth = _i == 9 ? 5 : 0;
    request.nodes.copies = _i == 10 ? 2 : 0;
    request.updates.block_ranks = _i == 11 ? 4 : 0;
    ck_assert_int_eq(cstd_job_options_same(&first, &request, &err), CST_EMISMATCH);
    ck_assert_int_eq(err.reason, _i == 0 ? CST_REASON_FIXED_OPTION : CST_REASON_OPTION);
    ck_assert_str_eq(err.text, words[_i]);
}
END_TEST

/* What ranks can say in two ways is read in one: a default, or its value. */
START_TEST(defaults_are_their_values)
{
    const struct cst_job_spec plain = {.name = "a", .world = 2};
    const struct cst_job_spec exact = {.name = "a",
                                       .world = 2,
                                       .nodes = {.all_ranks = 2, .copies = 1},
                                       .updates.micro_batches = 1};
    const struct cst_job_spec more = {.name = "a", .world = 2, .nodes.all_ranks = 3};
    const struct cst_job_spec *const sent[] = {&plain, &exact, &more};
    struct cst_job_spec read[3];

    for (int i = 0; i < 3; i++) {
        Cistern__JobOpen message = CISTERN__JOB_OPEN__INIT;
        struct cst_job_texts written;

        cst_job_texts_make(&written, sent[i]);
        cst_job_options_fill(&message.base, sent[i], &written, CST_JOB_ALL);
        ck_assert_int_eq(cstd_job_options_read(&message, &read[i], &err), CST_OK);
    }
    ck_assert_int_eq(cstd_job_options_same(&read[0], &read[1], &err), CST_OK);
    ck_assert_int_eq(cstd_job_options_same(&read[0], &read[2], &err), CST_EMISMATCH);
    ck_assert_str_eq(err.text, "job 'a' was opened with all_ranks 0, not 3 as rank 0 wants");
}
END_TEST

/* An option without a field of its own is read as it was sent. One that this version does not know
 * is refused, and not ignored. */
START_TEST(texts)
{
    static const char *const bad[] = {"prefetch_depth=0", "prefetch_depth", "prefetch=3", "="};
    const struct cst_job_spec sent = {.name = "a", .world = 1, .planning.prefetch_depth = 7};
    struct cst_job_texts written;
    struct cst_job_spec options;
    Cistern__JobOpen message = CISTERN__JOB_OPEN__INIT;

    cst_job_texts_make(&written, &sent);
    cst_job_options_fill(&message.base, &sent, &written, CST_JOB_ALL);
    ck_assert_uint_eq(message.n_options, 1);
    ck_assert_str_eq(message.options[0], "prefetch_depth=7");
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_OK);
    ck_assert_uint_eq(options.planning.prefetch_depth, 7);
    message.options[0] = (char *)(uintptr_t)bad[_i];
    ck_assert_int_eq(cstd_job_options_read(&message, &options, &err), CST_EINVAL);
    ck_assert_str_ne(err.text, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_options");
    TCase *tcase = suite_case(suite, "job_options", NULL, NULL);

    tcase_add_test(tcase, absent_is_adamw);
    tcase_add_loop_test(tcase, numbers_are_checked, 0, 4);
    tcase_add_test(tcase, versions);
    tcase_add_test(tcase, what_cannot_go_together);
    tcase_add_loop_test(tcase, what_differs_is_named, 0, 12);
    tcase_add_test(tcase, defaults_are_their_values);
    tcase_add_loop_test(tcase, texts, 0, 4);
    return suite_run(suite);
}
