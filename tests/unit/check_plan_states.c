/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plans with states of chunks in device memory, where accelerators update them. */
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* States in device memory count there and not in host memory, as in the layout. */
START_TEST(states_stay)
{
    uint64_t host, reservation = UINT64_C(3) << 30, states = UINT64_C(1) << 30, without;
    struct cst_layout layout;
    uint32_t world = 1 + (uint32_t)_i;

    declare_slow(world);
    f.config.device_update_bytes = reservation;
    without = search_ns();
    host = f.plans.best.host_bytes;
    f.config.device_states = states;
    ck_assert_uint_lt(search_ns(), without);
    check_promise();
    layout = build_best();
    ck_assert_uint_gt(layout.device_bytes, 0);
    ck_assert_uint_eq(f.plans.best.host_bytes, cst_layout_host_bytes(&layout));
    ck_assert_uint_eq(f.plans.best.state_bytes, (layout.device_bytes + world - 1) / world);
    ck_assert_uint_lt(f.plans.best.host_bytes, host);
    ck_assert_uint_le(f.plans.best.pool_bytes + reservation + states +
                          f.plans.best.activation_bytes,
                      f.budget.device_bytes);
    cst_layout_close(&layout);
}
END_TEST

/* Number of elements whose states stay on devices if each accelerator has @less bytes for them than
 * in the best plan. *@n_chunks receives the number of their chunks. */
static uint64_t count_staying(uint64_t less, uint32_t *n_chunks)
{
    struct cst_layout_config config = f.plans.best.layout;
    struct cst_layout layout;
    struct cst_err err;
    uint64_t n = 0;

    *n_chunks = 0;
    for (uint32_t i = 0; i < config.n_devices; i++) {
        config.devices[i].bytes -= less;
    }
    ck_assert_msg(cst_layout_build(&layout, &f.model, &config, &err) == CST_OK, "%s", err.text);
    for (uint32_t c = 0; c < layout.n_chunks; c++) {
        n += layout.chunks[c].tier != 0 ? layout.chunks[c].n_elems : 0;
        *n_chunks += layout.chunks[c].tier != 0;
    }
    cst_layout_close(&layout);
    return n;
}

/* Check that the best plan's device memory is within the budget, and that the bytes for states are
 * exactly those that the states need. With several accelerators another one may have space left. */
static void check_memory(void)
{
    const struct cst_plan_choice *best = &f.plans.best;
    struct cst_layout layout = build_best();
    uint32_t n_chunks, fewer;
    uint64_t staying = count_staying(0, &n_chunks);

    ck_assert_uint_le(best->pool_bytes + best->device_update_bytes + best->device_states +
                          best->activation_bytes,
                      f.budget.device_bytes);
    ck_assert_uint_le(best->state_bytes, best->device_states);
    ck_assert_uint_eq(best->state_bytes,
                      (layout.device_bytes + f.config.world - 1) / f.config.world);
    ck_assert_uint_eq(best->n_staying > 0, best->device_states > 0);
    ck_assert_uint_eq(n_chunks, best->n_staying);
    ck_assert(staying == 0 || f.config.world > 1 || count_staying(1, &fewer) < staying);
    ck_assert_uint_eq(best->host_bytes, cst_layout_host_bytes(&layout));
    cst_layout_close(&layout);
}

/* If the planner may choose the states in device memory, the plan has some where memory is free. It
 * is faster with them, and not slower than with any given share and an equal reservation. The
 * reservation need not be requested. */
START_TEST(states_are_chosen)
{
    uint64_t without, with, reservation, spare;

    declare_slow(_i % 2 == 0 ? 1 : 4);
    f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    without = search_ns();
    ck_assert_str_eq(f.plans.states_why, "");
    f.config.device_update_bytes = _i < 2 ? 0 : CST_PLAN_DEVICE_UPDATE_AUTO;
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    with = search_ns();
    check_promise();
    check_memory();
    ck_assert_uint_lt(with, without);
    ck_assert_uint_gt(f.plans.best.device_states, 0);
    ck_assert_uint_gt(f.plans.best.device_update_bytes, 0);
    ck_assert_uint_eq(f.plans.without_states_ns, without);
    ck_assert_msg(strstr(f.plans.states_why, "without them") != NULL, "%s", f.plans.states_why);
    printf("%.2f ms without, %.2f ms with %" PRIu64 " bytes of states\n", (double)without / 1e6,
           (double)with / 1e6, f.plans.best.device_states);
    reservation = f.plans.best.device_update_bytes;
    spare = f.budget.device_bytes - f.plans.best.activation_bytes - reservation;
    f.config.device_update_bytes = reservation;
    for (uint64_t i = 1; i < 8; i += 2) {
        f.config.device_states = spare / 8 * i;
        ck_assert_uint_ge(search_ns() + with / 50, with);
    }
}
END_TEST

/* If a pool and a given reservation use all device memory, no states stay there; with memory for
 * one more chunk's states, some do. */
START_TEST(no_place_for_states)
{
    declare_slow(1);
    f.config.device_update_bytes = UINT64_C(2) << 30;
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    f.budget.device_bytes = f.config.device_update_bytes + 1000000;
    one_byte(&f.budget.device_bytes, CST_EPOOL);
    (void)search_ns();
    ck_assert_uint_eq(f.plans.best.device_states, 0);
    ck_assert_uint_eq(f.plans.best.state_bytes, 0);
    ck_assert_msg(strstr(f.plans.states_why, "no place") != NULL, "%s", f.plans.states_why);
    f.budget.device_bytes += UINT64_C(1) << 30;
    (void)search_ns();
    check_memory();
    ck_assert_uint_gt(f.plans.best.device_states, 0);
}
END_TEST

/* No states stay in device memory if that is not faster: without a rate of updates, or on a device
 * that is much slower than the nodes. */
START_TEST(states_do_not_pay)
{
    uint64_t without;

    declare_slow(1);
    f.rates.devices[0].update = _i == 0 ? 0 : 1e6;
    without = search_ns();
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    ck_assert_uint_eq(search_ns(), without);
    ck_assert_uint_eq(f.plans.best.device_states, 0);
    ck_assert_msg(strstr(f.plans.states_why, _i == 0 ? "not known" : "step") != NULL, "%s",
                  f.plans.states_why);
}
END_TEST

/* States in device memory need no host memory: if they do not fit there, this makes a plan
 * possible. */
START_TEST(states_make_it_fit)
{
    declare_slow(1);
    f.budget.host_bytes = 12 * f.model.n_params;
    refuse(CST_EBUDGET, "host memory of");
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    (void)search_ns();
    check_promise();
    check_memory();
    ck_assert_uint_le(f.plans.best.host_bytes, f.budget.host_bytes);
    ck_assert_uint_eq(f.plans.without_states_ns, 0);
    ck_assert_str_eq(f.plans.states_why, "without them nothing fits");
}
END_TEST

/* Accelerators of ranks that compute on the processor are filled up to their memory. */
START_TEST(states_beside_the_host)
{
    uint64_t without, memory = 1500000000;

    declare("gpt2-124m", 2, 1, false);
    plan_rig_host_rates(&f.rates);
    f.rates.devices[0].flops = 20e12;
    f.budget.device_bytes = 600000000;
    f.config.max_events = 60000;
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    without = search_ns();
    ck_assert_str_eq(f.plans.states_why, "the rates have no accelerator");
    f.rates.devices[f.rates.n_devices] = (struct cst_rates_device){.name = "paced:0",
                                                                   .memory_bytes = memory,
                                                                   .up = 24e9,
                                                                   .down = 24e9,
                                                                   .update = 8e9,
                                                                   .memory = 1e12};
    f.config.accelerator = f.rates.n_devices++;
    f.config.n_accelerators = 1;
    ck_assert_uint_lt(search_ns(), without);
    check_promise();
    ck_assert_uint_gt(f.plans.best.device_states, 0);
    ck_assert_uint_le(2 * (f.plans.best.device_update_bytes + f.plans.best.device_states), memory);
}
END_TEST

/* The number of layouts that the search for states in device memory builds is limited, however many
 * tensors there are, because layouts take time. The search still finds some. */
START_TEST(layouts_are_bounded)
{
    static const int64_t sizes[] = {1000, 10000, 50000, 200000};
    uint64_t without;
    struct cst_err err;

    for (uint32_t t = 0; t < 30000; t++) {
        char name[32];

        (void)snprintf(name, sizeof name, "t%" PRIu32, t);
        ck_assert_int_eq(declare_tensor(&f.model, name, &sizes[t % 4], 1, 1, 1, &err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&f.model, name, &t, 1, NULL, &err), CST_OK);
    }
    f.budget.device_bytes = 8000000000;
    f.rates.nodes[0].update = 2e9;
    f.config.max_events = 60000;
    f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    (void)search_ns();
    without = f.plans.n_layouts;
    f.config.device_states = CST_PLAN_DEVICE_UPDATE_AUTO;
    (void)search_ns();
    printf("%" PRIu64 " layouts, %" PRIu64 " without\n", f.plans.n_layouts, without);
    ck_assert_uint_gt(f.plans.best.device_states, 0);
    ck_assert_uint_le(f.plans.n_layouts, 3 * without);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plans with states in device memory");
    TCase *tc = suite_case(suite, "states", search_rig_setup, search_rig_teardown);

    suite_add_loop(tc, states_stay, 0, 2);
    suite_add_loop(tc, states_are_chosen, 0, 4);
    tcase_add_test(tc, no_place_for_states);
    suite_add_loop(tc, states_do_not_pay, 0, 2);
    tcase_add_test(tc, states_make_it_fit);
    tcase_add_test(tc, states_beside_the_host);
    tcase_add_test(tc, layouts_are_bounded);
    return suite_run(suite);
}
