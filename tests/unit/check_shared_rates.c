/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/simulate/shared_rates: how fast efforts are that share a node. */
#include "offload/simulate/shared_rates.h"
#include "tests/lib/suite.h"

#include <check.h>

/* A node with 16 cores and 50 GB/s. */
static const struct cst_rates rates = {.n_nodes = 1, .nodes[0] = {.cores = 16, .pass = 50e9}};
static struct cst_shared_rates machine;

static void setup(void)
{
    ck_assert_int_eq(cst_shared_rates_init(&machine, &rates, NULL, 0), CST_OK);
}

static void teardown(void)
{
    cst_shared_rates_close(&machine);
}

static void start(struct cst_effort *effort)
{
    ck_assert_int_eq(cst_shared_rates_start(&machine, effort), CST_OK);
}

/* An effort that gets a part of its cores has that part of its memory traffic: a copy that fits
 * beside it is not slowed down. */
START_TEST(a_lack_of_cores_is_no_lack_of_bandwidth)
{
    struct cst_effort work = {.left = 1000, .cores = 64, .bytes = 64};
    struct cst_effort copy = {.left = 1000, .bytes = 20};

    start(&work);
    start(&copy);
    ck_assert_double_eq_tol(work.speed, 0.25, 1e-12);
    ck_assert_double_eq_tol(copy.speed, 1, 1e-12);
}
END_TEST

/* Efforts that use all bandwidth use no more than there is, and are slowed down in the same
 * proportion; one that uses no memory is not. */
START_TEST(all_bandwidth_is_used_and_no_more)
{
    struct cst_effort work = {.left = 1000, .cores = 32, .bytes = 160};
    struct cst_effort copy = {.left = 1000, .bytes = 20}, idle = {.left = 1000};

    start(&work);
    start(&copy);
    start(&idle);
    ck_assert_double_eq_tol(work.speed * work.bytes + copy.speed * copy.bytes, 50, 1e-9);
    ck_assert_double_eq_tol(work.speed, copy.speed / 2, 1e-12);
    ck_assert_double_eq_tol(idle.speed, 1, 1e-12);
    cst_shared_rates_stop(&machine, &work);
    ck_assert_double_eq_tol(copy.speed, 1, 1e-12);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shared_rates");
    TCase *tcase = suite_case(suite, "shared_rates", setup, teardown);

    tcase_add_test(tcase, a_lack_of_cores_is_no_lack_of_bandwidth);
    tcase_add_test(tcase, all_bandwidth_is_used_and_no_more);
    return suite_run(suite);
}
