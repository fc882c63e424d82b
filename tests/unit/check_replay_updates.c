/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of updates in the simulator: early and delayed updates, device updates, states in device
 * memory, formats of moments. */
#include "offload/layout/matrices.h"
#include "offload/layout/buffers.h"
#include "offload/gradient/lent_memory.h"
#include "offload/plan/pipeline.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct plan_rig rig;

static void teardown(void)
{
    plan_rig_close(&rig);
}

#define N_LAYERS 48
#define LAYER (3 << 20) /* elements of a layer, which is a chunk of its own */

/* Open a chain of layers of one chunk each. The compute of a layer takes as long as @flops. */
static void open_chain(uint32_t world, bool gpu, double share, double flops)
{
    struct cst_model model;
    struct cst_err err;

    cst_model_init(&model);
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        const struct cst_operator_hints hints = {.flops = flops};
        const int64_t shape[] = {LAYER};
        char name[16];

        (void)snprintf(name, sizeof name, "layer%u", i);
        ck_assert_int_eq(declare_tensor(&model, name, shape, 1, 1, 1, &err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&model, name, &i, 1, &hints, &err), CST_OK);
    }
    plan_rig_open_model(&rig, &model, world, LAYER, gpu, share);
    ck_assert_uint_eq(rig.layout.n_chunks, N_LAYERS);
}

static const struct cst_layout_states plain = {.optimizer = CST_OPTIMIZER_ADAMW};

/* -- time of updates ------------------------------------------------------------------------ */

static const struct {
    uint32_t world;
    bool gpu;
    double share;
    uint32_t micro_batches;
    double chain; /* flops of each layer; 0: GPT-2 */
    bool slow;    /* updates have a tenth of their rate */
} cases[] = {
    {1, false, 0.5, 1, 0, false},   {2, false, 0.4, 1, 0, false}, {3, false, 1, 1, 0, false},
    {1, true, 0.5, 1, 0, false},    {2, false, 1, 3, 0, false},   {2, true, 0.5, 2, 0, false},
    {4, true, 0.3, 1, 1e11, false}, {1, true, 0.1, 1, 0, false},  {1, true, 0.5, 1, 1e12, false},
    {1, false, 0.5, 1, 1e8, false}, {1, false, 0.5, 1, 0, true},  {2, false, 1, 1, 0, true},
    {1, true, 0.5, 1, 1e11, true},
};
#define N_CASES (sizeof cases / sizeof cases[0])

static void open_case(int i)
{
    if (cases[i].chain > 0) {
        open_chain(cases[i].world, cases[i].gpu, cases[i].share, cases[i].chain);
    } else {
        plan_rig_open(&rig, "gpt2-124m", cases[i].world, 0, cases[i].gpu, cases[i].share);
    }
    if (cases[i].micro_batches > 1) {
        plan_rig_micro_batches(&rig, cases[i].micro_batches);
    }
    rig.rates.nodes[0].update /= cases[i].slow ? 10 : 1;
}

static struct cst_replay_result run_overlap(enum cst_overlap overlap)
{
    struct cst_replay_result r;

    plan_rig_updates(&rig, &plain, overlap);
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(r.moved_up, r.total.bytes_up);
    ck_assert_uint_eq(r.moved_down, r.total.bytes_down);
    ck_assert_uint_le(r.update_exposed_ns, r.wait_ns + r.tail_ns);
    ck_assert_uint_gt(r.update_ns, 0);
    return r;
}

/* Early updates make no step longer, and delayed updates do not either, even if updates take
 * longest. Equally many bytes of gradients are copied. */
START_TEST(early_is_not_slower)
{
    struct cst_replay_result commit, early, delayed;

    open_case(_i);
    commit = run_overlap(CST_OVERLAP_COMMIT);
    early = run_overlap(CST_OVERLAP_EARLY);
    delayed = run_overlap(CST_OVERLAP_DELAYED);
    printf("%u ranks, %s: commit %.2f ms (%.2f exposed of %.2f), early %.2f (%.2f of %.2f), "
           "delayed %.2f (%.2f of %.2f)\n",
           cases[_i].world, cases[_i].gpu ? "gpu" : "host", (double)commit.step_ns / 1e6,
           (double)commit.update_exposed_ns / 1e6, (double)commit.update_ns / 1e6,
           (double)early.step_ns / 1e6, (double)early.update_exposed_ns / 1e6,
           (double)early.update_ns / 1e6, (double)delayed.step_ns / 1e6,
           (double)delayed.update_exposed_ns / 1e6, (double)delayed.update_ns / 1e6);
    ck_assert_double_le((double)early.step_ns, 1.01 * (double)commit.step_ns);
    ck_assert_double_le((double)delayed.step_ns, 1.01 * (double)commit.step_ns);
    ck_assert_uint_eq(early.bytes_down, commit.bytes_down);
    ck_assert_uint_eq(delayed.bytes_down, commit.bytes_down);
}
END_TEST

/* If compute takes longer than the updates, early updates are hidden behind the backward pass
 * except for the last chunk's, and delayed updates are hidden completely. */
START_TEST(hidden)
{
    struct cst_replay_result r;

    open_chain(1, true, 1, 1e12);
    r = run_overlap(_i == 0 ? CST_OVERLAP_EARLY : CST_OVERLAP_DELAYED);
    ck_assert_uint_lt(r.update_exposed_ns, r.update_ns / (_i == 0 ? 10 : 100));
    ck_assert_uint_eq(r.update_hidden_ns, r.update_ns - r.update_exposed_ns);
}
END_TEST

/* Updates by Muon take the time of their products and of their bytes, those of the other tensors
 * that of AdamW: 20 and 28 bytes of an element. */
START_TEST(products_take_time)
{
    static const struct cst_layout_states muon = {.optimizer = CST_OPTIMIZER_MUON};
    struct cst_rates_node *node = &rig.rates.nodes[0];
    struct cst_replay_result r;
    double seconds = 0;

    plan_rig_open(&rig, "gpt2-124m", 1, 0, _i % 2 == 1, 1);
    rig.rates.devices[0].flops = 1e18;
    node->products /= _i < 2 ? 1 : 20;
    plan_rig_updates(&rig, &muon, CST_OVERLAP_COMMIT);
    for (uint32_t c = 0; c < rig.layout.n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &rig.layout.chunks[c];

        ck_assert((chunk->muon_flops > 0) == chunk->muon);
        if (chunk->muon) {
            seconds += cst_matrices_core_flops(&rig.layout, &rig.model, chunk, node->cores) *
                       node->cores / node->products;
        }
        seconds += (double)chunk->n_elems * (chunk->muon ? 1 : 28.0 / 20) / node->update;
    }
    r = plan_rig_run(&rig);
    ck_assert_double_eq_tol((double)r.update_ns * 1e-9 / seconds, 1, 0.05);
}
END_TEST

/* -- reservations ------------------------------------------------------------------------------ */

static struct cst_interleave machine(void)
{
    struct cst_interleave m = {0};

    cst_pipeline_describe(&m, &rig.layout, rig.reservations, rig.core.n_reservations, rig.pools,
                          rig.core.world);
    cst_pipeline_rates(&m, &rig.rates, &rig.rates.devices[rig.rates.n_devices - 1]);
    return m;
}

/* A host whose accelerator has its own link and updates ten times as fast as the processor. */
static void open_accelerated(uint32_t world, uint32_t n_reservations, uint32_t k)
{
    open_chain(world, false, 1, 0);
    rig.rates.devices[rig.rates.n_devices++] = (struct cst_rates_device){
        .name = "accelerator", .up = 24e9, .down = 24e9, .update = 8e9, .memory = 1e12};
    rig.rates.nodes[0].cores = 1000; /* only links and updates take time */
    rig.rates.nodes[0].pass = rig.rates.nodes[0].copy = 1e13;
    plan_rig_reservations(&rig, n_reservations, cst_buffers_want(&rig.layout, rig.layout.n_classes),
                          k, 0);
}

/* For each k the update phase takes the time that offload/books/interleave.h predicts. */
START_TEST(as_interleave_says)
{
    uint32_t n_reservations = _i < 8 ? 1 : 2, k = (uint32_t)_i % 8;
    struct cst_replay_result r;
    struct cst_interleave m;
    double expected;

    open_accelerated(1, n_reservations, k);
    r = plan_rig_run(&rig);
    m = machine();
    expected = cst_interleave_seconds(&m, k) * 1e9;
    printf("%u reservations, k = %u: %.2f ms, by interleave.h %.2f ms\n", n_reservations, k,
           (double)r.update_ns / 1e6, expected / 1e6);
    ck_assert_msg(fabs((double)r.update_ns - expected) < 0.06 * expected,
                  "k = %u: %" PRIu64 " ns, not %.0f", k, r.update_ns, expected);
    ck_assert_uint_eq(r.device_updates, k == 0 ? 0 : m.n_chunks / k);
}
END_TEST

static uint64_t bytes_of(uint32_t c, int first, int last)
{
    uint64_t bytes = 0;

    for (int row = first; row <= last; row++) {
        bytes += cst_layout_row_bytes(&rig.layout.states, rig.layout.grad_bytes, CST_BF16, row,
                                      rig.layout.chunks[c].n_elems);
    }
    return bytes;
}

/* The rows that are copied to accelerators and back have the layout's bytes in each format, with
 * pools in the same memory or on the host. */
START_TEST(bytes_are_the_layouts)
{
    static const struct cst_layout_states states[] = {
        {.optimizer = CST_OPTIMIZER_ADAMW},
        {.optimizer = CST_OPTIMIZER_ADAM, .moments = CST_MOMENTS_BF16},
        {.optimizer = CST_OPTIMIZER_ADAMW, .moments = CST_MOMENTS_MX8},
        {.optimizer = CST_OPTIMIZER_LION},
        {.optimizer = CST_OPTIMIZER_SGD, .moments = CST_MOMENTS_BF16},
    };
    enum cst_overlap overlap = (enum cst_overlap)(_i % CST_OVERLAP_COUNT);
    uint64_t up = 0, down = 0;
    struct cst_replay_result r;

    if (_i < 15) {
        open_accelerated(2, 1, 1);
    } else {
        open_chain(2, true, 0.5, 0);
    }
    plan_rig_updates(&rig, &states[_i / 3 % 5], overlap);
    /* A reservation that keeps no gradients. */
    plan_rig_reservations(&rig, 1, cst_buffers_want(&rig.layout, rig.layout.n_classes), 1, 0);
    rig.replay.n_steps = 4;
    r = plan_rig_run(&rig);
    for (uint32_t c = 0; c < rig.layout.n_chunks; c++) {
        up += bytes_of(c, CST_ROW_GRAD, CST_ROW_MOMENT + 1);
        down += bytes_of(c, CST_ROW_MASTER, CST_ROW_MOMENT + 1) + bytes_of(c, 0, 0);
    }
    ck_assert_uint_eq(r.moved_up, r.total.bytes_up);
    ck_assert_uint_eq(r.moved_down, r.total.bytes_down);
    /* With other overlaps, a step's updates end in the next step. */
    if (overlap == CST_OVERLAP_COMMIT) {
        ck_assert_uint_eq(r.states_up, up);
        ck_assert_uint_eq(r.states_down, down);
        ck_assert_uint_eq(r.device_updates, rig.layout.n_chunks);
    }
}
END_TEST

/* Device reservations without buffers count neither as links nor in the number of buffers, which is
 * the least of the others. Without any buffer there are no device updates. */
START_TEST(only_buffers_count)
{
    struct cst_interleave m;
    uint64_t three;

    open_accelerated(1, 2, 1);
    three = cst_buffers_want(&rig.layout, rig.layout.n_classes);
    ck_assert_uint_eq(machine().n_links, 2);
    ck_assert_uint_eq(machine().buffers, 3);
    rig.reservations[0].bytes = 1;
    ck_assert_uint_eq(machine().n_links, 1);
    ck_assert_uint_eq(machine().buffers, 3);
    rig.reservations[0].bytes = three / 3;
    ck_assert_uint_eq(machine().n_links, 2);
    ck_assert_uint_eq(machine().buffers, 1);
    rig.reservations[0].bytes = rig.reservations[1].bytes = 1;
    m = machine();
    ck_assert_uint_eq(m.n_links, 0);
    ck_assert_uint_eq(m.buffers, 0);
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    rig.core.n_reservations = 0;
    ck_assert_uint_eq(machine().buffers, 0);
}
END_TEST

static uint32_t drawn[CST_LANE_WAIT + 1];

static void draw(void *arg, const struct cst_interval *interval)
{
    (void)arg;
    ck_assert_uint_le(interval->begin, interval->end);
    ck_assert_uint_lt(interval->what, N_LAYERS);
    drawn[interval->lane] += interval->lane != CST_LANE_UPDATE || interval->number == 1;
}

/* Each copy of a row to or from the accelerator is an interval there, and so is each update. */
START_TEST(reservations_are_drawn)
{
    open_accelerated(1, 1, 2);
    rig.replay.interval = draw;
    memset(drawn, 0, sizeof drawn);
    (void)plan_rig_run(&rig);
    ck_assert_uint_eq(drawn[CST_LANE_STATES_UP], 4 * 3 * N_LAYERS / 2);
    ck_assert_uint_eq(drawn[CST_LANE_STATES_DOWN], 4 * 3 * N_LAYERS / 2);
    ck_assert_uint_eq(drawn[CST_LANE_UPDATE], 3 * N_LAYERS / 2);
}
END_TEST

/* Device updates in memory that the pool lends take as long as in a reservation of the same size,
 * and the step is not longer. _i: k. */
START_TEST(lent_as_reserved)
{
    const uint32_t n_buffers = 3; /* as cst_buffers_want has */
    struct cst_replay_result nodes, reserved, lent;
    struct cst_lent_division division;

    open_chain(1, true, 0, 1e9);
    rig.rates.nodes[0].update /= 10;
    nodes = plan_rig_run(&rig);
    plan_rig_reservations(&rig, 1, cst_buffers_want(&rig.layout, 1), (uint32_t)_i, 0);
    reserved = plan_rig_run(&rig);
    rig.pools[0].parts[0].n_blocks += n_buffers * 16;
    rig.pools[0].parts[0].blocks_per_slab = rig.pools[0].parts[0].n_blocks;
    rig.reservations[0] =
        (struct cst_core_device_reservation){.engine = 1, .lent = true, .rank = 0};
    cst_lent_memory_divide(&rig.layout, 0, rig.pools[0].parts, &division);
    ck_assert_uint_ge(division.buffers.n, n_buffers);
    lent = plan_rig_run(&rig);
    printf(
        "k = %d: updates %.2f ms in a reservation, %.2f ms in lent memory; steps %.2f and %.2f\n",
        _i, (double)reserved.update_ns / 1e6, (double)lent.update_ns / 1e6,
        (double)reserved.step_ns / 1e6, (double)lent.step_ns / 1e6);
    ck_assert_uint_lt(lent.update_ns, nodes.update_ns);
    ck_assert_double_le((double)lent.update_ns, 1.05 * (double)reserved.update_ns);
    ck_assert_double_le((double)lent.step_ns, 1.05 * (double)reserved.step_ns);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replay of updates");
    TCase *tc = suite_case(suite, "when", NULL, teardown);

    tcase_add_loop_test(tc, early_is_not_slower, 0, N_CASES);
    tcase_add_loop_test(tc, hidden, 0, 2);
    tcase_add_loop_test(tc, products_take_time, 0, 4);
    tc = suite_case(suite, "reservations", NULL, teardown);
    tcase_add_loop_test(tc, as_interleave_says, 0, 16);
    tcase_add_loop_test(tc, bytes_are_the_layouts, 0, 30);
    tcase_add_test(tc, only_buffers_count);
    tcase_add_test(tc, reservations_are_drawn);
    tcase_add_loop_test(tc, lent_as_reserved, 2, 5);
    return suite_run(suite);
}
