/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plans for all kinds of updates: early and delayed updates, device updates, other
 * optimizers and formats. check_plan_states has states that stay in device memory. */
#include "offload/layout/buffers.h"
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void set_overlap(enum cst_overlap overlap)
{
    f.config.overlap = overlap;
    f.config.states.two_weights = overlap != CST_OVERLAP_COMMIT;
}

/* -- time of updates ------------------------------------------------------------------------ */

/* A plan with early updates promises a step no longer than one without, and delayed updates none
 * longer than early ones. The second weight row is counted in the memory. On one rank and on
 * four. */
START_TEST(overlap_is_planned)
{
    uint64_t ns[CST_OVERLAP_COUNT], host[CST_OVERLAP_COUNT];

    declare_slow(_i == 0 ? 1 : 4);
    for (int i = 0; i < CST_OVERLAP_COUNT; i++) {
        struct cst_layout layout;

        set_overlap((enum cst_overlap)i);
        ns[i] = search_ns();
        check_promise();
        layout = build_best();
        host[i] = f.plans.best.host_bytes;
        ck_assert_uint_eq(host[i], cst_layout_host_bytes(&layout));
        cst_layout_close(&layout);
    }
    printf("commit %.2f ms, early %.2f ms, delayed %.2f ms\n", (double)ns[0] / 1e6,
           (double)ns[1] / 1e6, (double)ns[2] / 1e6);
    ck_assert_uint_lt(ns[CST_OVERLAP_EARLY], ns[CST_OVERLAP_COMMIT]);
    ck_assert_uint_le(ns[CST_OVERLAP_DELAYED], ns[CST_OVERLAP_EARLY]);
    ck_assert_uint_ge(host[CST_OVERLAP_EARLY],
                      host[CST_OVERLAP_COMMIT] + 19 * f.model.n_params / 10);
}
END_TEST

/* With smaller formats of moments, host memory and updates shrink. */
START_TEST(formats_are_planned)
{
    static const enum cst_moments moments[] = {CST_MOMENTS_FP32, CST_MOMENTS_BF16, CST_MOMENTS_MX8};
    uint64_t before = UINT64_MAX, host = UINT64_MAX;

    declare_slow(1);
    f.config.states.optimizer = (enum cst_optimizer)_i;
    for (int i = 0; i < 3; i++) {
        struct cst_layout layout;
        uint64_t ns;

        f.config.states.moments = moments[i];
        ns = search_ns();
        layout = build_best();
        ck_assert_uint_eq(f.plans.best.host_bytes, cst_layout_host_bytes(&layout));
        cst_layout_close(&layout);
        ck_assert_uint_lt(ns, before);
        ck_assert_uint_lt(f.plans.best.host_bytes, host);
        before = ns;
        host = f.plans.best.host_bytes;
    }
}
END_TEST

/* -- reservations ------------------------------------------------------------------------------ */

/* A reservation of a given size is part of the device's memory, has as many buffers as a job would
 * have, and makes steps shorter if accelerators update faster than the nodes. */
START_TEST(reservation_is_planned)
{
    uint64_t without, with;
    struct cst_buffers buffers;
    struct cst_layout layout;

    declare_slow(_i == 0 ? 1 : 4);
    without = search_ns();
    f.config.device_update_bytes = UINT64_C(4) << 30;
    with = search_ns();
    check_promise();
    ck_assert_uint_eq(f.plans.best.device_update_bytes, f.config.device_update_bytes);
    ck_assert_uint_le(f.plans.best.pool_bytes + f.plans.best.state_bytes +
                          f.plans.best.activation_bytes + f.plans.best.device_update_bytes,
                      f.budget.device_bytes);
    ck_assert_uint_gt(f.plans.best.interleave, 0);
    ck_assert_uint_gt(f.plans.best.predicted.states_up, 0);
    layout = build_best();
    cst_buffers_divide(&buffers, &layout, f.config.device_update_bytes);
    ck_assert_uint_gt(buffers.n, 0);
    ck_assert_uint_eq(f.plans.best.n_buffers, buffers.n);
    cst_layout_close(&layout);
    printf("%.2f ms without a reservation, %.2f ms with one, k = %" PRIu32 "\n",
           (double)without / 1e6, (double)with / 1e6, f.plans.best.interleave);
    ck_assert_uint_lt(with, without);
    f.config.interleave_given = true;
    f.config.interleave = 5;
    (void)search_ns();
    ck_assert_uint_eq(f.plans.best.interleave, 5);
    ck_assert_uint_lt(f.plans.best.predicted.update_ns, f.plans.best.predicted.step_ns);
}
END_TEST

/* If the planner may choose, the plan has a reservation where it is faster, and none if the link is
 * slow or the device's rate of updates is unknown. */
START_TEST(reservation_is_chosen)
{
    uint64_t without;

    declare_slow(2);
    without = search_ns();
    f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    if (_i == 1) {
        f.rates.devices[0].up = f.rates.devices[0].up_both = 3e9;
        f.rates.devices[0].down = f.rates.devices[0].down_both = 3e9;
    } else if (_i == 2) {
        f.rates.devices[0].update = 0;
    }
    if (_i == 0) {
        ck_assert_uint_lt(search_ns(), without);
        ck_assert_uint_gt(f.plans.best.device_update_bytes, 0);
        ck_assert_uint_eq(f.plans.best.n_buffers, 3);
        check_promise();
    } else {
        (void)search_ns();
        ck_assert_uint_eq(f.plans.best.device_update_bytes, 0);
        ck_assert_uint_eq(f.plans.best.interleave, 0);
    }
}
END_TEST

/* Ranks that compute on the processor may have reservations on accelerators. Their pools stay on
 * the host. */
START_TEST(accelerators_of_the_host)
{
    uint64_t without, pool;

    declare("gpt2-124m", 2, 1, false);
    plan_rig_host_rates(&f.rates);
    f.rates.devices[0].flops = 20e12;
    f.budget.device_bytes = 600000000;
    without = search_ns();
    pool = f.plans.best.pool_bytes;
    f.config.device_update_bytes = UINT64_C(4) << 30;
    refuse(CST_EINVAL, "the rates have no accelerator");
    f.rates.devices[f.rates.n_devices] = (struct cst_rates_device){
        .name = "paced:0", .up = 24e9, .down = 24e9, .update = 8e9, .memory = 1e12};
    f.config.accelerator = f.rates.n_devices++;
    f.config.n_accelerators = (uint32_t)_i;
    ck_assert_uint_lt(search_ns(), without);
    check_promise();
    ck_assert_uint_ge(f.plans.best.pool_bytes, pool / 2);
    ck_assert_uint_le(f.plans.best.pool_bytes, f.budget.device_bytes);
    f.rates.devices[f.config.accelerator].memory_bytes = 1000000000;
    refuse(CST_EPOOL, "device memory of 'paced:0', 953.7 MiB");
    one_byte(&f.rates.devices[f.config.accelerator].memory_bytes, CST_EPOOL);
    /* States that stay there are counted, too, and the figures of the message are those that were
     * compared. */
    f.config.device_states = UINT64_C(1) << 30;
    refuse(CST_EPOOL, "states that stay there");
    one_byte(&f.rates.devices[f.config.accelerator].memory_bytes, CST_EPOOL);
}
END_TEST

/* All combinations of these options, on GPUs and on the host: a replay gives the promised step, and
 * the bounds hold. */
START_TEST(combinations)
{
    static const uint64_t reservations[] = {0, UINT64_C(1) << 30, CST_PLAN_DEVICE_UPDATE_AUTO,
                                            UINT64_C(1) << 30};
    uint32_t reservation = (uint32_t)_i / 3 % 4;
    bool gpu = _i / 12 % 2 == 0;

    declare(_i % 5 == 0 ? "moe-8x124m" : "gpt2-124m", 1 + (uint32_t)_i / 24 % 2 * 2, 1, false);
    f.config.micro_batches = _i % 7 == 0 ? 2 : 1;
    if (!gpu) {
        plan_rig_host_rates(&f.rates);
        f.rates.devices[0].flops = 20e12;
        f.rates.devices[f.rates.n_devices] = (struct cst_rates_device){
            .name = "paced:0", .up = 8e9, .down = 8e9, .update = 8e9, .memory = 1e12};
        f.config.accelerator = f.rates.n_devices++;
    }
    f.budget.device_bytes = 5000000000;
    f.config.max_events = 30000;
    set_overlap((enum cst_overlap)(_i % CST_OVERLAP_COUNT));
    f.config.device_update_bytes = reservations[reservation];
    f.config.device_states = reservation == 3              ? UINT64_C(300) << 20
                             : reservation == 2 || _i == 0 ? CST_PLAN_DEVICE_UPDATE_AUTO
                                                           : 0;
    search();
    check_promise();
}
END_TEST

/* -- missing memory ------------------------------------------------------------------------- */

/* The missing bytes include the memory for updates, and are exact. */
START_TEST(reservation_is_short)
{
    declare_slow(1);
    f.config.device_update_bytes = UINT64_C(2) << 30;
    f.config.device_states = _i == 0 ? 0 : UINT64_C(1) << 30;
    f.budget.device_bytes = f.config.device_update_bytes + f.config.device_states + 1000000;
    refuse(CST_EPOOL, _i == 0 ? "updates 2.0 GiB, the smallest pool"
                              : "updates 2.0 GiB, states that stay there 1.0 GiB");
    one_byte(&f.budget.device_bytes, CST_EPOOL);
}
END_TEST

START_TEST(second_row_is_short)
{
    declare_slow(1);
    set_overlap(CST_OVERLAP_EARLY);
    f.budget.host_bytes = 16 * f.model.n_params;
    refuse(CST_EBUDGET, "host memory of");
    one_byte(&f.budget.host_bytes, CST_EBUDGET);
}
END_TEST

/* Contradictory options are refused. */
START_TEST(refused)
{
    declare_slow(1);
    f.config.device_states = 1 << 20;
    refuse(CST_EINVAL, "need memory for updates there");
    f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    refuse(CST_EINVAL, "of a given size");
    f.config.device_update_bytes = 1 << 20;
    f.config.states.moments = CST_MOMENTS_BF16;
    refuse(CST_EINVAL, "moments that are not fp32");
    f.config.device_states = f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    refuse(CST_EINVAL, "moments that are not fp32");
    f.config.states.moments = CST_MOMENTS_FP32;
    f.config.states.grad_over_weight = true;
    refuse(CST_EINVAL, "gradients in the place of weights");
    f.config.states.grad_over_weight = false;
    f.config.device_update_bytes = 1 << 20;
    f.config.device_states = 0;
    f.rates.devices[0].update = 0;
    refuse(CST_EINVAL, "update is not known");
    f.rates.devices[0].update = 1e9;
    f.config.overlap = CST_OVERLAP_EARLY;
    refuse(CST_EINVAL, "need two weight rows");
    set_overlap(CST_OVERLAP_EARLY);
    f.config.states.grad_over_weight = true;
    refuse(CST_EINVAL, "cannot be combined with early or delayed updates");
    set_overlap(CST_OVERLAP_COMMIT);
    f.config.device_update_bytes = UINT64_MAX - 1;
    refuse(CST_EINVAL, "bytes of an accelerator");
}
END_TEST

/* -- sums ----------------------------------------------------------------------------------- */

/* If accelerators cannot access each other's memory, a plan counts the host memory in which their
 * gradients are summed, and copies between accelerators do not occur. */
START_TEST(sums_in_host_memory)
{
    struct cst_plan_choice peers;
    uint64_t most;

    declare("gpt2-355m", 4, 2, true);
    f.budget.device_bytes = 6000000000;
    search();
    peers = f.plans.best;
    f.config.apart = true;
    search();
    ck_assert_uint_eq(f.plans.best.predicted.bytes_peer, 0);
    ck_assert_uint_gt(peers.predicted.bytes_peer, 0);
    ck_assert_uint_gt(f.plans.best.host_bytes, peers.host_bytes);
    most = f.plans.best.layout.chunk_elems;
    for (uint32_t i = 1; i < f.plans.best.n_classes; i++) {
        uint64_t elems = f.plans.best.layout.class_elems[i - 1];

        most = elems > most ? elems : most;
    }
    ck_assert_uint_le(f.plans.best.host_bytes - peers.host_bytes,
                      UINT64_C(4) * CST_LAYOUT_LANDINGS * 2 * most);
}
END_TEST

/* -- lent memory ---------------------------------------------------------------------------- */

/* A plan for pools that lend memory predicts device updates without a reservation: steps are
 * shorter than with updates by nodes alone, and a replay gives the promised step. */
START_TEST(lent_is_planned)
{
    uint64_t without;

    declare_slow(1 + (uint32_t)_i);
    search();
    without = f.plans.best.predicted.step_ns;
    f.config.lent = true;
    search();
    printf("%d ranks: %.2f ms without, %.2f ms in lent memory, one of %u chunks, %u buffers\n",
           1 + _i, (double)without / 1e6, (double)f.plans.best.predicted.step_ns / 1e6,
           f.plans.best.interleave, f.plans.best.n_buffers);
    ck_assert_uint_gt(f.plans.best.n_buffers, 0);
    ck_assert_uint_gt(f.plans.best.interleave, 0);
    ck_assert_uint_eq(f.plans.best.device_update_bytes, 0);
    ck_assert_uint_gt(f.plans.best.predicted.states_up, 0);
    ck_assert_uint_lt(f.plans.best.predicted.step_ns, without);
    check_promise();
    f.config.device_update_bytes = 64 << 20;
    refuse(CST_EINVAL, "cannot be combined with");
}
END_TEST

/* The planner chooses lent memory if steps are as short with it as with a device reservation,
 * because the pool then has the memory of the reservation, too. It does not if steps are longer, or
 * if pools are too small to lend. The plan says why, and its replay gives the promised step. */
START_TEST(lent_is_chosen)
{
    static const struct {
        uint64_t device_bytes;
        uint32_t world;
        bool lends;
        const char *why;
    } cases[] = {
        {8000000000, 1, true, "with updates in lent memory a step takes "},
        {2600000000, 1, true, ", in a device reservation "},
        {8000000000, 2, false, "with updates in a device reservation a step takes "},
        {2000000000, 1, false, " a step takes "},
    };
    const struct cst_plan_choice *best = &f.plans.best;
    uint64_t lent;

    declare_slow(cases[_i].world);
    f.budget.device_bytes = cases[_i].device_bytes;
    f.config.lent = true;
    lent = search_ns();
    f.config.lent = false;
    f.config.device_update_bytes = CST_PLAN_DEVICE_UPDATE_AUTO;
    ck_assert_double_le((double)search_ns(), 1.0025 * (double)lent);
    printf("%s\n", f.plans.update_why);
    ck_assert(best->lends == cases[_i].lends);
    ck_assert(!best->lends || best->device_update_bytes == 0);
    ck_assert((best->n_buffers > 0) == (best->lends || best->device_update_bytes > 0));
    ck_assert_ptr_nonnull(strstr(f.plans.update_why, cases[_i].why));
    check_promise();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plans of updates");
    TCase *tc = suite_case(suite, "when", search_rig_setup, search_rig_teardown);

    suite_add_loop(tc, overlap_is_planned, 0, 2);
    suite_add_loop(tc, formats_are_planned, 0, CST_OPTIMIZER_COUNT);
    tc = suite_case(suite, "reservations", search_rig_setup, search_rig_teardown);
    suite_add_loop(tc, reservation_is_planned, 0, 2);
    suite_add_loop(tc, reservation_is_chosen, 0, 3);
    suite_add_loop(tc, accelerators_of_the_host, 0, 3);
    for (int i = (int)suite_first(5); i < 48; i += (int)suite_stride(5)) {
        tcase_add_loop_test(tc, combinations, i, i + 1);
    }
    tc = suite_case(suite, "lent", search_rig_setup, search_rig_teardown);
    suite_add_loop(tc, lent_is_planned, 0, 2);
    suite_add_loop(tc, lent_is_chosen, 0, 4);
    tc = suite_case(suite, "sums", search_rig_setup, search_rig_teardown);
    tcase_add_test(tc, sums_in_host_memory);
    tc = suite_case(suite, "what does not fit", search_rig_setup, search_rig_teardown);
    suite_add_loop(tc, reservation_is_short, 0, 2);
    tcase_add_test(tc, second_row_is_short);
    tcase_add_test(tc, refused);
    return suite_run(suite);
}
