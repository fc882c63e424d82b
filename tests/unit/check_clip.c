/* SPDX-License-Identifier: Apache-2.0 */
/* From the norm to the factor of the update: what is clipped, and which steps are skipped. */
#include "offload/clip.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <float.h>

/* As torch.nn.utils.clip_grad_norm_: below the limit nothing changes, above it the norm becomes the
 * limit. */
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

/* A step is skipped where a gradient is NaN or infinite ... */
START_TEST(what_is_not_finite_is_skipped)
{
    ck_assert(!cst_clip_factor((double)NAN, 1.0f, 1.0f).finite);
    ck_assert(!cst_clip_factor((double)INFINITY, 1.0f, 1.0f).finite);
    ck_assert(!cst_clip_factor((double)INFINITY, 1.0f, 0.0f).finite);
}
END_TEST

/* ... and where a finite one, once it is scaled, or its square would not be so in fp32, unless
 * clipping brings it back. */
START_TEST(what_scaling_makes_infinite_is_skipped)
{
    double huge = 1e38 * 1e38, large = 0x1p62 * 0x1p62;

    ck_assert(!cst_clip_factor(huge, 16.0f, 0.0f).finite);
    ck_assert(!cst_clip_factor(huge, -16.0f, 0.0f).finite);
    ck_assert(!cst_clip_factor(6.25e76, 1.0f, 0.0f).finite); /* 2.5e38 is finite, its square not */
    ck_assert(cst_clip_factor(huge, 16.0f, 1.0f).finite);
    ck_assert(cst_clip_factor(large, 2.0f, 0.0f).finite);
    ck_assert(cst_clip_factor(large, -2.0f, 0.0f).finite);
    ck_assert(!cst_clip_factor(large, nextafterf(2.0f, 3.0f), 0.0f).finite);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clip");
    TCase *tc = tcase_create("clip");

    tcase_add_test(tc, clips_to_the_limit);
    tcase_add_test(tc, what_is_not_finite_is_skipped);
    tcase_add_test(tc, what_scaling_makes_infinite_is_skipped);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
