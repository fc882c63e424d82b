/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of libcistern with a simulated daemon in a thread: options of a job's states,
 * hyper-parameters with defaults and limits, and prepared steps. */
#include "tests/lib/fake_job.h"
#include "tests/lib/suite.h"

#include <math.h>
#include <stdlib.h>

static struct fake_job f;

static void start(struct cst_job_spec spec)
{
    struct cst_err err = {0};

    spec.name = "run7";
    spec.world = 1;
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    CK_OK(cst_job_open(&f.job, f.client, &spec, &err));
    fake_job_declare(&f, 2);
    CK_OK(cst_commit(f.job, NULL, &err));
    CK_OK(cst_sync(f.job, NULL, &err));
}

/* -- opening ---------------------------------------------------------------------------------- */

static bool see_open(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    if (request->type == CISTERN__MSG_TYPE__MSG_JOB_OPEN) {
        *(Cistern__JobOpen **)arg =
            cistern__job_open__unpack(NULL, request->body_bytes, request->body);
    }
    (void)fake;
    return false;
}

/* The options of the job's spec arrive at the daemon. */
START_TEST(options_are_sent)
{
    Cistern__JobOpen *open = NULL;

    f.fake.hook = see_open;
    f.fake.hook_arg = &open;
    start((struct cst_job_spec){.states.optimizer = CST_OPTIMIZER_LION,
                                .states.moments = CST_MOMENTS_MX8,
                                .states.rounding = CST_ROUNDING_NEAREST,
                                .states.seed = UINT64_MAX,
                                .updates.overlap = CST_OVERLAP_DELAYED,
                                .updates.delay_from = 40,
                                .updates.unused = CST_UNUSED_SKIP,
                                .memory.device_update_bytes = 1 << 20,
                                .memory.device_states = 1 << 21});
    ck_assert_ptr_nonnull(open);
    ck_assert_uint_eq(open->optimizer, CST_OPTIMIZER_LION);
    ck_assert_uint_eq(open->moments, CST_MOMENTS_MX8);
    ck_assert_uint_eq(open->rounding, CST_ROUNDING_NEAREST);
    ck_assert_uint_eq(open->seed, UINT64_MAX);
    ck_assert_uint_eq(open->overlap, CST_OVERLAP_DELAYED);
    ck_assert_uint_eq(open->delay_from, 40);
    ck_assert_uint_eq(open->unused, CST_UNUSED_SKIP);
    ck_assert_uint_eq(open->device_update_bytes, 1 << 20);
    ck_assert_uint_eq(open->device_states, 1 << 21);
    ck_assert(!open->grad_over_weight);
    cistern__job_open__free_unpacked(open, NULL);
    fake_job_stop(&f);
}
END_TEST

/* Numbers that are not in cistern/optimizer.h are refused before anything is sent. */
START_TEST(unknown_numbers)
{
    struct cst_job_spec spec = {.name = "run7", .world = 1};
    struct cst_err err = {0};

    if (_i == 0) {
        spec.states.optimizer = CST_OPTIMIZER_COUNT;
    } else if (_i == 1) {
        spec.states.moments = CST_MOMENTS_COUNT;
    } else if (_i == 2) {
        spec.states.rounding = CST_ROUNDING_COUNT;
    } else {
        spec.updates.overlap = CST_OVERLAP_COUNT;
    }
    fake_daemon_start(&f.fake);
    CK_OK(cst_connect(&f.client, f.fake.path, &err));
    ck_assert_int_eq(cst_job_open(&f.job, f.client, &spec, &err), CST_EINVAL);
    ck_assert_uint_eq(f.fake.n_requests[CISTERN__MSG_TYPE__MSG_JOB_OPEN], 0);
    fake_job_stop(&f);
}
END_TEST

/* -- hyper-parameters ------------------------------------------------------------------------- */

/* A parameter that is 0 gets the optimizer's usual value, except beta1 if beta2 is given. SGD can
 * have no momentum. */
START_TEST(defaults)
{
    static const struct {
        enum cst_optimizer optimizer;
        double given, given2, beta1, beta2;
    } cases[] = {{CST_OPTIMIZER_ADAMW, 0, 0, 0.9, 0.999}, {CST_OPTIMIZER_ADAM, 0.8, 0, 0.8, 0.999},
                 {CST_OPTIMIZER_LION, 0, 0, 0.9, 0.99},   {CST_OPTIMIZER_SGD, 0, 0, 0.9, 0.999},
                 {CST_OPTIMIZER_SGD, -1, 0, 0, 0.999},    {CST_OPTIMIZER_ADAMW, 0, 0.99, 0, 0.99},
                 {CST_OPTIMIZER_LION, 0, 0.95, 0, 0.95}};
    const struct cst_hyper_params params = {
        .lr = 0.5f, .beta1 = cases[_i].given, .beta2 = cases[_i].given2};
    struct cst_err err = {0};

    start((struct cst_job_spec){.states.optimizer = cases[_i].optimizer});
    CK_OK(cst_step(f.job, &params, NULL, &err));
    ck_assert_double_eq(f.fake.hyper.beta1, cases[_i].beta1);
    ck_assert_double_eq(f.fake.hyper.beta2, cases[_i].beta2);
    ck_assert_double_eq(f.fake.hyper.eps, 1e-8);
    ck_assert_double_eq(f.fake.hyper.grad_scale, 1);
    fake_job_stop(&f);
}
END_TEST

/* An invalid parameter is refused by name, and the step can be requested again. */
START_TEST(limits)
{
    const struct {
        struct cst_hyper_params params;
        const char *name;
    } cases[] = {{{.lr = NAN}, "lr"},
                 {{.lr = -1}, "lr = -1 with adamw: 0 <= lr < 3.40282e+38 is required"},
                 {{.lr = 1, .weight_decay = -0.5f}, "weight_decay = -0.5"},
                 {{.lr = 1, .grad_scale = -1}, "grad_scale = -1"},
                 {{.lr = 1, .beta1 = 1}, "beta1"},
                 {{.lr = 1, .beta1 = -1}, "beta1"},
                 {{.lr = 1, .beta2 = 1.5f}, "beta2"},
                 {{.lr = 1, .eps = -1}, "eps"},
                 {{.lr = 1, .weight_decay = INFINITY}, "weight_decay"},
                 {{.lr = 1, .clip_norm = -1}, "clip_norm"},
                 {{.lr = 1, .grad_scale = NAN}, "grad_scale"},
                 /* What is infinite or 0 in fp32. */
                 {{.lr = 1e39}, "lr = 1e+39"},
                 {{.lr = 1, .weight_decay = 1e39}, "weight_decay = 1e+39"},
                 {{.lr = 1, .eps = 1e-46}, "eps = 1e-46"},
                 {{.lr = 1, .eps = 1e39}, "eps = 1e+39"},
                 {{.lr = 1, .grad_scale = 1e-46}, "grad_scale = 1e-46"}};
    const struct cst_hyper_params good = {.lr = 1};
    struct cst_err err = {0};

    start((struct cst_job_spec){.updates.overlap = CST_OVERLAP_EARLY});
    ck_assert_int_eq(cst_step(f.job, &cases[_i].params, NULL, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, cases[_i].name));
    ck_assert_int_eq(cst_prepare_step(f.job, &cases[_i].params, &err), CST_EINVAL);
    fake_job_expect_log(&f, "");
    CK_OK(cst_step(f.job, &good, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

/* -- preparing -------------------------------------------------------------------------------- */

/* A step is prepared once, with the parameters of the step. A second preparation with equal
 * parameters changes nothing, and one with others is refused. The next step, and a step after a
 * sync, is prepared again. */
START_TEST(prepared_once)
{
    const struct cst_hyper_params params = {.lr = 0.5f, .loss = 1}, same = {.lr = 0.5f, .loss = 2};
    const struct cst_hyper_params other = {.lr = 0.25f};
    struct cst_err err = {0};

    start((struct cst_job_spec){.updates.overlap = CST_OVERLAP_EARLY});
    CK_OK(cst_prepare_step(f.job, &params, &err));
    fake_job_expect_log(&f, "P0");
    ck_assert_double_eq(f.fake.hyper.lr, 0.5);
    ck_assert_double_eq(f.fake.hyper.beta1, 0.9);
    CK_OK(cst_prepare_step(f.job, &same, &err));
    ck_assert_int_eq(cst_prepare_step(f.job, &other, &err), CST_EINVAL);
    CK_OK(cst_step(f.job, &params, NULL, &err));
    CK_OK(cst_prepare_step(f.job, &other, &err));
    fake_job_expect_log(&f, "P0 S0 P1");
    CK_OK(cst_sync(f.job, NULL, &err));
    CK_OK(cst_prepare_step(f.job, &params, &err));
    fake_job_expect_log(&f, "P0 S0 P1 P1");
    fake_job_stop(&f);
}
END_TEST

/* A job without early updates has nothing to prepare, and a job that has not synced cannot
 * prepare. */
START_TEST(nothing_to_prepare)
{
    const struct cst_hyper_params params = {.lr = 0.5f};
    struct cst_err err = {0};

    start((struct cst_job_spec){.updates.overlap =
                                    _i == 0 ? CST_OVERLAP_COMMIT : CST_OVERLAP_DELAYED});
    CK_OK(cst_prepare_step(f.job, &params, &err));
    ck_assert_int_eq(cst_prepare_step(f.job, NULL, &err), CST_EINVAL);
    fake_job_expect_log(&f, "");
    fake_job_stop(&f);
}
END_TEST

static bool refuse(struct fake_daemon *fake, const struct cst_frame *request, void *arg)
{
    (void)arg;
    if (request->type != CISTERN__MSG_TYPE__MSG_PREPARE_STEP) {
        return false;
    }
    fake_daemon_error(fake, request, CST_EPEERDIED, "rank 3 died");
    return true;
}

/* If a preparation fails, no call waits for its reply: the next call reports that the step is void,
 * with the daemon's message. */
START_TEST(refused)
{
    const struct cst_hyper_params params = {.lr = 0.5f};
    struct cst_err err = {0};

    f.fake.hook = refuse;
    start((struct cst_job_spec){.updates.overlap = CST_OVERLAP_EARLY});
    CK_OK(cst_prepare_step(f.job, &params, &err));
    CK_OK(cst_ping(f.client, NULL, &err));
    ck_assert_int_eq(cst_step(f.job, &params, NULL, &err), CST_EPEERDIED);
    ck_assert_ptr_nonnull(strstr(err.text, "rank 3 died"));
    CK_OK(cst_sync(f.job, NULL, &err));
    fake_job_stop(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hyper");
    TCase *tcase = suite_case(suite, "hyper", NULL, NULL);

    tcase_add_test(tcase, options_are_sent);
    tcase_add_loop_test(tcase, unknown_numbers, 0, 4);
    tcase_add_loop_test(tcase, defaults, 0, 7);
    tcase_add_loop_test(tcase, limits, 0, 16);
    tcase_add_test(tcase, prepared_once);
    tcase_add_loop_test(tcase, nothing_to_prepare, 0, 2);
    tcase_add_test(tcase, refused);
    return suite_run(suite);
}
