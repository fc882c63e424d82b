/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/base/clip: the factor of an update from the gradient's norm, and the steps that
 * are skipped. */
#include "offload/base/clip.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <float.h>

/* As in torch.nn.utils.clip_grad_norm_, a norm below the limit changes nothing, and a norm above it
 * is scaled to the limit. */
START_TEST(clips_to_the_limit)
{
    struct cst_clip c = cst_clip_factor(16.0, 0.5f, 0.0f);

    ck_assert(c.finite);
    ck_assert_double_eq(c.grad_norm, 2.0);
    ck_assert_float_eq(c.factor, 0.5f);
    c = cst_clip_factor(16.0, 0.5f, 4.0f);
    ck_assert_float_eq(c.clip, 1.0f);
    c = cst_clip_factor(16.0, 0.5f, 1.0f);
    ck_assert_float_eq(c.clip, (float)(1.0 / (2.0 + 1e-6)));
    ck_assert_float_eq(c.factor, 0.5f * c.clip);
}
END_TEST

/* A step is skipped if a gradient is NaN or infinite. */
START_TEST(what_is_not_finite_is_skipped)
{
    ck_assert(!cst_clip_factor((double)NAN, 1.0f, 1.0f).finite);
    ck_assert(!cst_clip_factor((double)INFINITY, 1.0f, 1.0f).finite);
    ck_assert(!cst_clip_factor((double)INFINITY, 1.0f, 0.0f).finite);
}
END_TEST

/* A step is skipped if a finite gradient, or its square, would not be finite in fp32 after scaling,
 * unless clipping makes it finite. */
START_TEST(what_scaling_makes_infinite_is_skipped)
{
    double huge = 1e38 * 1e38, large = 0x1p62 * 0x1p62;

    ck_assert(!cst_clip_factor(huge, 16.0f, 0.0f).finite);
    ck_assert(!cst_clip_factor(huge, -16.0f, 0.0f).finite);
    /* 2.5e38 is finite, but its square is not. */
    ck_assert(!cst_clip_factor(6.25e76, 1.0f, 0.0f).finite);
    ck_assert(cst_clip_factor(huge, 16.0f, 1.0f).finite);
    ck_assert(cst_clip_factor(large, 2.0f, 0.0f).finite);
    ck_assert(cst_clip_factor(large, -2.0f, 0.0f).finite);
    ck_assert(!cst_clip_factor(large, nextafterf(2.0f, 3.0f), 0.0f).finite);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clip");
    TCase *tc = suite_case(suite, "clip", NULL, NULL);

    tcase_add_test(tc, clips_to_the_limit);
    tcase_add_test(tc, what_is_not_finite_is_skipped);
    tcase_add_test(tc, what_scaling_makes_infinite_is_skipped);
    return suite_run(suite);
}
