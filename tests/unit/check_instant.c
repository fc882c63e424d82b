/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the core's exposed time of updates with steps whose updates take no time. Both run in
 * virtual time, with models, machines and policies that are chosen from a seed. */
#include "offload/layout/buffers.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"

#include <check.h>
#include <math.h>
#include <stdio.h>

static struct plan_rig rig;

static void teardown(void)
{
    plan_rig_close(&rig);
}

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % n;
}

static void open_chain(uint32_t n_layers, int64_t elems, double flops, uint32_t world, bool gpu,
                       double share)
{
    struct cst_model model;
    struct cst_err err;

    cst_model_init(&model);
    for (uint32_t i = 0; i < n_layers; i++) {
        const struct cst_operator_hints hints = {.flops = flops};
        const int64_t shape[] = {elems};
        char name[16];

        (void)snprintf(name, sizeof name, "layer%u", i);
        ck_assert_int_eq(declare_tensor(&model, name, shape, 1, 1, 1, &err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&model, name, &i, 1, &hints, &err), CST_OK);
    }
    plan_rig_open_model(&rig, &model, world, (uint64_t)elems, gpu, share);
}

static const struct cst_layout_states plain = {.optimizer = CST_OPTIMIZER_ADAMW};

/* Check that the exposed time is the time by which the step would be shorter, with an error of a
 * tenth of that time or a hundredth of the step. The error is a twentieth with delayed updates:
 * some update is always under way then, and it cannot be observed how long copies and sums would
 * take without it. Compute that is slower because updates use the same cores does not count as
 * waiting. */
static void hold(const char *what)
{
    double update = rig.rates.nodes[0].update, waits, exposed, step;
    uint32_t k = rig.core.interleave;
    struct cst_replay_result real, instant;

    real = plan_rig_run(&rig);
    rig.rates.nodes[0].update = 1e4 * update;
    rig.core.interleave = 0;
    instant = plan_rig_run(&rig);
    rig.rates.nodes[0].update = update;
    rig.core.interleave = k;
    step = (double)real.step_ns;
    exposed = (double)real.update_exposed_ns;
    waits = step - (double)instant.step_ns - ((double)real.compute_ns - (double)instant.compute_ns);
    printf("%s: a step of %.3f ms is %.3f ms later for its updates, which take %.3f; without them "
           "it would be %.3f ms shorter, in waits\n",
           what, step / 1e6, exposed / 1e6, (double)real.update_ns / 1e6, waits / 1e6);
    ck_assert_msg(fabs(exposed - waits) <=
                      0.1 * fabs(waits) +
                          (rig.core.policy.overlap == CST_OVERLAP_DELAYED ? 0.05 : 0.01) * step,
                  "%s: %.3f ms exposed, %.3f ms by a step without updates", what, exposed / 1e6,
                  waits / 1e6);
}

START_TEST(drawn)
{
    static const char *const when[] = {"commit", "early", "delayed"};
    uint64_t seed = (uint64_t)_i;
    uint32_t n = 20 + (uint32_t)draw(&seed, 100);
    bool gpu = draw(&seed, 4) != 0;
    double share = 0.1 + 0.1 * (double)draw(&seed, 9);
    uint32_t world = 1 + (uint32_t)draw(&seed, 2);
    double flops = (gpu ? 1e10 : 1e8) * (double)(1 + draw(&seed, 50));
    int64_t elems = (1 << 20) * (int64_t)(1 + draw(&seed, 16));
    enum cst_overlap overlap = (enum cst_overlap)draw(&seed, CST_OVERLAP_COUNT);
    char what[120];

    open_chain(n, elems, flops, world, gpu, share);
    plan_rig_updates(&rig, &plain, overlap);
    (void)snprintf(what, sizeof what, "seed %d: %u layers, %u ranks, %s, pool of %.0f %%, %s", _i,
                   n, world, gpu ? "GPU" : "host", 100 * share, when[overlap]);
    hold(what);
}
END_TEST

/* Many small chunks: nearly all delays are copies that come after updates. */
START_TEST(thousand_layers)
{
    open_chain(1000, 1 << 20, 1e8, 1, true, 0.1 * (_i + 1));
    hold("1000 layers");
}
END_TEST

START_TEST(presets)
{
    static const char *const names[] = {"gpt2-124m", "gpt2-355m", "opt-1.3b", "opt-6.7b"};

    plan_rig_open(&rig, names[_i % 4], 1 + (uint32_t)_i / 8, 0, true, _i / 4 % 2 == 0 ? 0.2 : 0.6);
    hold(names[_i % 4]);
}
END_TEST

/* Device updates, whose states share the accelerator's link with the weights. */
START_TEST(reservations)
{
    open_chain(48, 3 << 20, _i % 2 == 0 ? 1e10 : 1e11, 1, true, 0.5);
    plan_rig_reservations(&rig, 1, cst_buffers_want(&rig.layout, rig.layout.n_classes),
                          (uint32_t)_i / 2 + 2, 0);
    hold("reservations");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("instant");
    TCase *tc = suite_case(s, "drawn", NULL, teardown);

    suite_add_loop(tc, drawn, 0, 200);
    suite_add_loop(tc, thousand_layers, 0, 4);
    suite_add_loop(tc, reservations, 0, 6);
    suite_add_loop(tc, presets, 0, 16);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
