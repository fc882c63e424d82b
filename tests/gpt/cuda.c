/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the worker on a GPU that run without a GPU: its kernels run on the processor, and its
 * driver calls go to tests/lib/fakecuda. */
#include "client/gpt/compute_device.h"
#include "tests/gpt/cuda_cases.h"
#include "tests/gpt/cuda_model.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <string.h>

/* Relative to the build tree, in which tests run. */
#define FAKECUDA "tests/lib/fakecuda/.libs/libcuda.so.1"

/* Load the fake driver first. Otherwise the worker would load the machine's driver by its name. */
static void take_fake(void)
{
    ck_assert_msg(dlopen(FAKECUDA, RTLD_NOW | RTLD_LOCAL) != NULL, "%s", dlerror());
}

/* Each kernel gives nearly the results of the host's layers. cuda_cases.c has the limits. */
START_TEST(kernels_are_near_the_host)
{
    unsigned n;
    const struct cuda_case_row *row = &cuda_cases_all(&n)[_i];
    struct cst_err err = {0};
    struct gpt_gpu gpu;
    struct cuda_case c = {.gpu = &gpu, .ok = true};

    take_fake();
    ck_assert_msg(gpt_gpu_open(&gpu, "cuda:0", false, &err) == 0, "%s", err.text);
    row->run(&c);
    ck_assert_msg(c.ok, "%s: %s", row->name, c.why);
    ck_assert_uint_gt(c.n_compared, 0);
    gpt_gpu_close(&gpu);
}
END_TEST

/* Training steps of a small model behave as cuda_model.c says. */
START_TEST(models_are_as_they_should)
{
    unsigned n;
    const struct cuda_model_row *row = &cuda_models_all(&n)[_i];
    char why[640] = "";

    take_fake();
    ck_assert_msg(row->run(true, why, sizeof why), "%s: %s", row->name, why);
}
END_TEST

/* The error text says which GPU does not exist, or which option a GPU does not support. */
START_TEST(refusals_have_words)
{
    static const struct {
        const char *device;
        enum gpt_matmul_choice matmul;
        uint32_t world, width, experts;
        int status;
        const char *words;
    } rows[] = {
        {"cuda:7", GPT_MATMUL_PLAIN, 1, 64, 0, CST_ENOTFOUND, "numbers 0 to 0"},
        {"cuda", GPT_MATMUL_FP32, 1, 64, 0, CST_EUNSUPPORTED, "bf16"},
        {"cuda", GPT_MATMUL_PLAIN, 2, 64, 0, CST_EUNSUPPORTED, "--world 2"},
        {"cuda", GPT_MATMUL_PLAIN, 1, 64, 4, CST_EUNSUPPORTED,
         "--experts 4 cannot be combined with --recompute"},
    };
    const struct gpt_options o = {.job = {.device = rows[_i].device,
                                          .world = rows[_i].world,
                                          .updates.micro_batches = 1,
                                          .planning.recompute = rows[_i].experts > 0},
                                  .matmul = rows[_i].matmul,
                                  .width = rows[_i].width,
                                  .experts = rows[_i].experts,
                                  .store = GPT_STORE_LOCAL};
    struct gpt_device *device;
    struct cst_err err = {0};

    take_fake();
    ck_assert_int_eq(gpt_device_open(&device, &o, &err), rows[_i].status);
    ck_assert_msg(strstr(err.text, rows[_i].words) != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda");
    TCase *kernels = suite_case(suite, "kernels", NULL, NULL);
    TCase *models = suite_case(suite, "models", NULL, NULL);
    TCase *refusals = suite_case(suite, "refusals", NULL, NULL);
    unsigned n;

    (void)cuda_cases_all(&n);
    suite_add_loop(kernels, kernels_are_near_the_host, 0, (int)n);
    tcase_set_timeout(kernels, 120);
    (void)cuda_models_all(&n);
    suite_add_loop(models, models_are_as_they_should, 0, (int)n);
    tcase_set_timeout(models, 120);
    suite_add_loop(refusals, refusals_have_words, 0, 4);
    return suite_run(suite);
}
