/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of limits of the planner's search: memory that is missing, to the byte; searches that are
 * stopped or that would take too long; and invalid input. */
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* -- missing memory ------------------------------------------------------------------------- */

START_TEST(device_is_short)
{
    declare("gpt2-124m", 1, 1, false);
    f.budget.device_bytes = _i == 0 ? 1000000 : 400000000;
    refuse(CST_EPOOL, "device memory of");
    one_byte(&f.budget.device_bytes, CST_EPOOL);
}
END_TEST

START_TEST(host_is_short)
{
    declare("gpt2-124m", 1, 1, false);
    f.budget.device_bytes = 8000000000;
    f.budget.host_bytes = 1000000000;
    refuse(CST_EBUDGET, "host memory of 953.7 MiB");
    one_byte(&f.budget.host_bytes, CST_EBUDGET);
}
END_TEST

/* If the host is too small for all candidates, and the device for some, by fewer bytes, only the
 * host is named, because a larger device would not help. If both are too small for all, both are
 * named with their needs, and a plan fits with these. */
START_TEST(limit_that_none_meets)
{
    struct cst_plan_least least = {0};
    struct cst_err err;

    declare("opt-6.7b", 1, 1, true);
    f.budget.device_bytes = _i == 0 ? UINT64_C(4) << 30 : UINT64_C(1) << 30;
    f.budget.host_bytes = UINT64_C(80) << 30;
    f.config.least = &least;
    if (_i == 0) {
        refuse(CST_EBUDGET, "host memory of 80.0 GiB");
        ck_assert_uint_eq(least.device_bytes, f.budget.device_bytes);
        one_byte(&f.budget.host_bytes, CST_EBUDGET);
        return;
    }
    refuse(CST_EPOOL, "; host memory of 80.0 GiB");
    ck_assert_uint_gt(least.host_bytes, f.budget.host_bytes);
    f.budget.device_bytes = least.device_bytes - 1;
    f.budget.host_bytes = least.host_bytes;
    ck_assert_int_eq(cst_plan_search(&f.plans, &f.config, &err), CST_EPOOL);
    ck_assert_uint_eq(least.device_bytes, f.budget.device_bytes + 1);
    f.budget.device_bytes++;
    search();
}
END_TEST

/* A budget of no bytes is a limit: the first missing byte is the first one that is needed.
 * CST_PLAN_NO_LIMIT is different. */
START_TEST(nothing_is_a_limit)
{
    declare("gpt2-124m", 1, 1, false);
    f.budget.device_bytes = 0;
    refuse(CST_EPOOL, "device memory of 0 B");
    one_byte(&f.budget.device_bytes, CST_EPOOL);
    f.budget.device_bytes = 8000000000;
    f.budget.host_bytes = 0;
    refuse(CST_EBUDGET, "host memory of 0 B");
    one_byte(&f.budget.host_bytes, CST_EBUDGET);
    f.budget.host_bytes = f.budget.device_bytes = CST_PLAN_NO_LIMIT;
    search();
}
END_TEST

static void declare_on_host(uint32_t world)
{
    declare("gpt2-124m", world, 1, false);
    plan_rig_host_rates(&f.rates);
    f.budget.device_bytes = 300000000;
}

/* Pools on the host are no larger than the remaining host memory, so a plan fits if the arenas and
 * the smallest pools do. */
START_TEST(host_holds_pools)
{
    declare_on_host(1 + (uint32_t)_i);
    f.budget.device_bytes = CST_PLAN_NO_LIMIT;
    f.budget.host_bytes = 1000000000;
    refuse(CST_EBUDGET, "host memory of 953.7 MiB");
    one_byte(&f.budget.host_bytes, CST_EBUDGET);
    ck_assert_uint_le(f.plans.best.host_bytes, f.budget.host_bytes);
    ck_assert_uint_lt(f.plans.best.pool_bytes, 300000000);
}
END_TEST

/* Gradients take the place of weights only if the job asks for it. Otherwise the error says how
 * much memory that would save. */
START_TEST(gradients_over_weights_are_the_users_choice)
{
    declare_on_host(2);
    f.config.chunk_elems = 40000000;
    f.budget.device_bytes = 500000000;
    f.budget.host_bytes = 15 * f.model.n_params + 2 * f.budget.device_bytes;
    refuse(CST_EBUDGET, "which --grad-over-weight would save");
    f.config.states.grad_over_weight = true;
    search();
    ck_assert(f.plans.best.layout.states.grad_over_weight);
}
END_TEST

/* -- time -------------------------------------------------------------------------------- */

/* The search ends, however few replays it may do. */
START_TEST(always_ends)
{
    struct cst_err err;
    int rc;

    declare("opt-6.7b", 1, 1, true);
    f.budget.device_bytes = 30000000000;
    f.config.max_events = (uint64_t)_i * 500 + 1;
    rc = cst_plan_search(&f.plans, &f.config, &err);
    ck_assert_msg(rc == CST_OK || rc == CST_ETIMEDOUT, "%s: %s", cst_status_name(rc), err.text);
    f.config.max_events = 20000;
    search();
}
END_TEST

/* A stop function that returns false @left times and then true. */
struct patience {
    uint32_t left;
    uint32_t n_after; /* number of calls after it returned true */
};

static bool is_over(void *arg)
{
    struct patience *patience = arg;

    if (patience->left > 0) {
        patience->left--;
        return false;
    }
    patience->n_after++;
    return true;
}

/* A search that is stopped ends at once, at any point: with a plan that can be run, or with none if
 * it had no candidate yet. */
START_TEST(stops)
{
    const uint32_t questions[] = {0, 1, 2, 3, 5, 10, 15, 20, 30, 40};
    struct patience patience = {.left = questions[_i]};
    struct cst_replay_result r;
    struct cst_err err;
    int rc;

    declare("opt-6.7b", 1, 1, true);
    f.budget.device_bytes = 30000000000;
    f.config.stop = is_over;
    f.config.stop_arg = &patience;
    rc = cst_plan_search(&f.plans, &f.config, &err);
    /* Once within a replay, and once by the search itself. */
    ck_assert_uint_le(patience.n_after, 2);
    if (_i == 0) {
        ck_assert_int_eq(rc, CST_ETIMEDOUT);
        ck_assert_msg(strstr(err.text, "stopped") != NULL, "%s", err.text);
        return;
    }
    ck_assert_msg(rc == CST_OK, "%s", err.text);
    ck_assert(f.plans.stopped);
    ck_assert_uint_gt(f.plans.best.predicted.step_ns, 0);
    f.config.stop = NULL;
    ck_assert_int_eq(cst_plan_replay(&f.config, &f.plans.best, 0, NULL, NULL, &r, &err), CST_OK);
}
END_TEST

/* A stop function that never returns true does not change the result. */
START_TEST(never_stopped)
{
    struct patience patience = {.left = UINT32_MAX};
    struct cst_plan_choice best;

    declare("gpt2-355m", 2, 2, false);
    f.budget.device_bytes = 6000000000;
    search();
    best = f.plans.best;
    f.config.stop = is_over;
    f.config.stop_arg = &patience;
    search();
    ck_assert(!f.plans.stopped);
    ck_assert_uint_gt(UINT32_MAX - patience.left, 100);
    ck_assert_mem_eq(&f.plans.best.predicted, &best.predicted, sizeof best.predicted);
    ck_assert_mem_eq(&f.plans.best.layout, &best.layout, sizeof best.layout);
}
END_TEST

/* A search gives up if a step has so many micro-batches that its replay would take too long, and so
 * does the replay of one choice. */
START_TEST(gives_up)
{
    struct cst_replay_result r;
    struct cst_err err;

    declare("opt-6.7b", 1, 1, true);
    f.budget.device_bytes = 30000000000;
    f.config.max_events = 20000;
    f.config.micro_batches = 2;
    search();
    f.config.micro_batches = 65536;
    ck_assert_int_eq(cst_plan_replay(&f.config, &f.plans.best, 0, NULL, NULL, &r, &err),
                     CST_ETIMEDOUT);
    ck_assert_int_eq(cst_plan_search(&f.plans, &f.config, &err), CST_ETIMEDOUT);
    ck_assert_msg(strstr(err.text, "more than 320000 events") != NULL, "%s", err.text);
}
END_TEST

/* -- invalid input -------------------------------------------------------------------------- */

/* Invalid input is refused with the reason. */
START_TEST(nonsense)
{
    declare("gpt2-124m", 1, 1, false);
    f.rates.devices[0].flops = 0;
    refuse(CST_EINVAL, "flops");
    f.rates.devices[0].flops = 1e12;
    f.config.world = 0;
    refuse(CST_EINVAL, "0 ranks");
    f.config.world = 1;
    f.config.states.optimizer = CST_OPTIMIZER_MUON;
    f.rates.nodes[0].products = 0;
    refuse(CST_EINVAL, "nodes[0].products");
    f.config.states.optimizer = CST_OPTIMIZER_ADAMW;
    f.config.chunk_elems = UINT64_C(1) << 40;
    refuse(CST_EINVAL, "chunks of");
    f.config.chunk_elems = 0;
    f.rates.request_s = 1e300;
    refuse(CST_EINVAL, "request_s");
    f.rates.request_s = 0;
    f.model.operators[1].flops = 1e300;
    refuse(CST_EINVAL, "flops");
}
END_TEST

/* Hints and rates come from files and messages. No value of them makes sums or clocks overflow. */
START_TEST(numbers_do_not_wrap)
{
    declare("gpt2-124m", 1, 1, false);
    for (uint32_t i = 0; i < f.model.n_operators; i++) {
        f.model.operators[i].activation_bytes = UINT64_MAX - 100;
    }
    f.budget.device_bytes = 8000000000;
    refuse(CST_EPOOL, "device memory of");
    f.budget.activation_bytes = 1;
    f.rates.devices[0].up = f.rates.devices[0].down = 1e-12;
    f.rates.devices[0].up_both = f.rates.devices[0].down_both = 0;
    refuse(CST_EINVAL, "more than a century");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("limits of plans");
    TCase *tc = suite_case(suite, "memory", search_rig_setup, search_rig_teardown);

    suite_add_loop(tc, device_is_short, 0, 2);
    tcase_add_test(tc, host_is_short);
    suite_add_loop(tc, limit_that_none_meets, 0, 2);
    tcase_add_test(tc, nothing_is_a_limit);
    suite_add_loop(tc, host_holds_pools, 0, 2);
    tcase_add_test(tc, gradients_over_weights_are_the_users_choice);
    tc = suite_case(suite, "time", search_rig_setup, search_rig_teardown);
    suite_add_loop(tc, always_ends, 0, 8);
    tcase_add_test(tc, gives_up);
    suite_add_loop(tc, stops, 0, 10);
    tcase_add_test(tc, never_stopped);
    tc = suite_case(suite, "invalid input", search_rig_setup, search_rig_teardown);
    tcase_add_test(tc, nonsense);
    tcase_add_test(tc, numbers_do_not_wrap);
    return suite_run(suite);
}
