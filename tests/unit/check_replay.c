/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulator: bytes are those that the core counts, times follow from the rates, and
 * results are reproducible. */
#include "tests/lib/suite.h"
#include "tests/unit/plan_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct plan_rig rig;

static void teardown(void)
{
    plan_rig_close(&rig);
}

static uint64_t weight_bytes(void)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < rig.layout.n_chunks; c++) {
        bytes += cst_layout_weight_bytes(&rig.layout.chunks[c]);
    }
    return bytes;
}

/* -- bytes ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t world;
    bool gpu, worker_copies;
    double share;
    uint32_t micro_batches;
} cases[] = {
    {"cistern-gpt", 1, false, false, 0, 1},   {"cistern-gpt", 2, false, false, 0.3, 1},
    {"cistern-gpt", 3, false, false, 1, 1},   {"cistern-gpt", 1, true, false, 0, 1},
    {"cistern-gpt", 4, true, false, 0.4, 1},  {"cistern-gpt", 2, true, true, 0.2, 1},
    {"gpt2-124m", 1, true, true, 0, 1},       {"gpt2-355m", 8, true, false, 0.25, 1},
    {"cistern-gpt", 1, false, false, 0.3, 4}, {"cistern-gpt", 2, true, false, 0.3, 3},
};

/* For each device, pool and number of ranks, and with bf16 and fp32 tensors, the bytes that
 * commands and copies move are those that the core has counted. */
START_TEST(bytes_are_the_cores)
{
    struct cst_replay_result r;
    struct cst_model model;
    const int n = sizeof cases / sizeof cases[0];
    const bool fp32 = _i >= n;

    cst_model_init(&model);
    plan_rig_declare(&model, cases[_i % n].name, cases[_i % n].world);
    if (fp32) {
        plan_rig_fp32(&model);
    }
    plan_rig_open_model(&rig, &model, cases[_i % n].world,
                        _i % 2 == 1 && cases[_i % n].name[0] == 'c' ? fp32 ? 256 << 10 : 128 << 10
                                                                    : 0,
                        cases[_i % n].gpu, cases[_i % n].share);
    if (cases[_i % n].micro_batches > 1) {
        plan_rig_micro_batches(&rig, cases[_i % n].micro_batches);
    }
    for (uint32_t rank = 0; rank < cases[_i % n].world; rank++) {
        rig.pools[rank].worker_copies = cases[_i % n].worker_copies;
    }
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(r.moved_up, r.total.bytes_up);
    ck_assert_uint_eq(r.moved_down, r.total.bytes_down);
    /* Gradients are copied to the host once for each micro-batch and rank. */
    ck_assert_uint_eq(r.bytes_down,
                      weight_bytes() * cases[_i % n].world * cases[_i % n].micro_batches);
    ck_assert_uint_ge(r.bytes_up, weight_bytes() * cases[_i % n].world);
}
END_TEST

/* In a pool for the whole model, weights are copied in once per step, because the update has
 * changed them. */
START_TEST(room_for_all)
{
    struct cst_replay_result r;

    plan_rig_open(&rig, "cistern-gpt", 2, 256 << 10, _i == 1, 1);
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(r.bytes_up, 2 * weight_bytes());
    ck_assert_uint_eq(r.evictions, 0);
    ck_assert_uint_le(r.peak_blocks[0], rig.layout.classes[0].max_blocks);
}
END_TEST

/* The largest number of blocks in use is never more than the pool has, and is all of them in a
 * small pool. */
START_TEST(peaks)
{
    struct cst_replay_result r;

    plan_rig_open(&rig, "cistern-gpt", 1, 128 << 10, false, 0);
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(r.peak_blocks[0], rig.layout.classes[0].min_blocks);
}
END_TEST

/* -- times ---------------------------------------------------------------------------------- */

/* Two replays with equal input agree to the nanosecond. */
START_TEST(deterministic)
{
    struct cst_replay_result a, b;

    plan_rig_open(&rig, "gpt2-124m", 4, 0, _i == 1, 0.3);
    a = plan_rig_run(&rig);
    b = plan_rig_run(&rig);
    ck_assert_mem_eq(&a, &b, sizeof a);
}
END_TEST

/* A step consists of compute, waits, a tail, and the way of the reply. */
START_TEST(parts_add_up)
{
    struct cst_replay_result r;
    uint64_t hop;

    plan_rig_open(&rig, "gpt2-124m", 1, 0, _i == 1, 0.3);
    hop = (uint64_t)(rig.rates.request_s * 1e9 / 2);
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(r.step_ns, r.compute_ns + r.wait_ns + r.tail_ns + hop);
    ck_assert_uint_le(r.update_exposed_ns, r.wait_ns);
}
END_TEST

/* If compute takes long, a GPU waits for the first weights and the last gradient, and for little
 * else. */
START_TEST(slow_compute_hides_copies)
{
    struct cst_replay_result r;

    plan_rig_open(&rig, "cistern-gpt", 1, 128 << 10, true, 0.5);
    rig.replay.flops_share = 0.001;
    r = plan_rig_run(&rig);
    ck_assert_uint_le(r.step_ns, r.compute_ns + r.compute_ns / 20);
}
END_TEST

/* If compute takes no time, the step takes at least as long as the processor's update. */
START_TEST(fast_compute_shows_updates)
{
    struct cst_replay_result r;
    double update_ns;

    plan_rig_open(&rig, "gpt2-124m", 1, 0, true, 0.5);
    rig.rates.devices[0].flops = 1e18;
    r = plan_rig_run(&rig);
    update_ns = (double)rig.model.n_params / rig.rates.nodes[0].update * 1e9;
    ck_assert_double_ge((double)r.step_ns, update_ns);
    ck_assert_uint_lt(r.compute_ns, r.step_ns / 10);
}
END_TEST

/* Recomputation makes four passes of flops out of three. */
START_TEST(recompute_costs_a_pass)
{
    struct cst_replay_result a, b;

    plan_rig_open(&rig, "cistern-gpt", 1, 0, true, 1);
    a = plan_rig_run(&rig);
    rig.replay.recompute = true;
    b = plan_rig_run(&rig);
    ck_assert_double_eq_tol((double)b.compute_ns / (double)a.compute_ns, 4.0 / 3, 0.001);
}
END_TEST

/* One rank that represents four moves the bytes of four and takes about as long. */
START_TEST(representatives)
{
    const uint32_t four = 4;
    struct cst_replay_result all, one;

    plan_rig_open(&rig, "gpt2-124m", 4, 0, _i == 1, 0.3);
    all = plan_rig_run(&rig);
    rig.core.world = 1;
    rig.replay.stands_for = &four;
    one = plan_rig_run(&rig);
    ck_assert_uint_eq(one.bytes_up, all.bytes_up);
    ck_assert_uint_eq(one.bytes_down, all.bytes_down);
    ck_assert_double_eq_tol((double)one.step_ns / (double)all.step_ns, 1, 0.1);
}
END_TEST

/* GPUs exchange pieces of weights: each link carries fewer bytes from the host, other GPUs supply
 * the rest, and all bytes are counted. */
START_TEST(gathered)
{
    struct cst_replay_result alone, together;

    plan_rig_open(&rig, "gpt2-124m", 4, 0, true, 1);
    alone = plan_rig_run(&rig);
    rig.core.policy.gather_bytes = 1 << 20;
    together = plan_rig_run(&rig);
    ck_assert_uint_lt(2 * together.bytes_up, alone.bytes_up);
    ck_assert_uint_gt(together.bytes_peer, alone.bytes_peer);
    ck_assert_uint_eq(together.moved_up, together.total.bytes_up);
}
END_TEST

/* Let no accelerator access the memory of another one. @one: rank 0 stands for several ranks. */
static void separate(bool one)
{
    rig.layout_config.landings = CST_LANDINGS_SHARED;
    plan_rig_micro_batches(&rig, rig.replay.micro_batches);
    for (uint32_t rank = 0; rank < rig.core.world; rank++) {
        rig.pools[rank].unreachable = bits(one ? UINT64_MAX : ~(1ull << rig.pools[rank].tier));
    }
}

/* Accelerators that cannot access each other's memory copy their gradients down, nothing goes
 * between them, and the processor sums. One rank that represents all takes about as long; with two
 * micro-batches the ranks also wait for each other's gradients. _i: with one micro-batch and with
 * two. */
START_TEST(apart)
{
    const uint32_t four = 4;
    struct cst_replay_result all, one;

    plan_rig_open(&rig, "gpt2-124m", 4, 0, true, 0.5);
    plan_rig_micro_batches(&rig, (uint32_t)_i);
    separate(false);
    all = plan_rig_run(&rig);
    ck_assert_uint_eq(all.bytes_peer, 0);
    ck_assert_uint_eq(all.moved_down, all.total.bytes_down);
    ck_assert_uint_eq(all.bytes_down, weight_bytes() * 4 * (uint32_t)_i);
    rig.core.world = 1;
    rig.replay.stands_for = &four;
    separate(true);
    one = plan_rig_run(&rig);
    ck_assert_uint_eq(one.bytes_down, all.bytes_down);
    ck_assert_uint_eq(one.bytes_peer, 0);
    ck_assert_double_eq_tol((double)one.step_ns / (double)all.step_ns, 1, _i == 1 ? 0.1 : 0.15);
}
END_TEST

/* -- intervals ------------------------------------------------------------------------------ */

struct seen {
    uint64_t busy[CST_LANE_WAIT + 1]; /* ns in the last step */
    uint64_t last_end[CST_LANE_WAIT + 1];
    uint32_t n[CST_LANE_WAIT + 1];
};

/* Lanes of one rank whose intervals do not overlap. */
static void note(void *arg, const struct cst_interval *interval)
{
    struct seen *seen = arg;

    ck_assert_uint_ge(interval->end, interval->begin);
    if (interval->lane == CST_LANE_COMPUTE || interval->lane == CST_LANE_WAIT) {
        ck_assert_uint_ge(interval->begin, seen->last_end[interval->lane]);
    }
    seen->last_end[interval->lane] = interval->end;
    seen->n[interval->lane]++;
    if (interval->step == 2) {
        seen->busy[interval->lane] += interval->end - interval->begin;
    }
}

/* The intervals agree with the statistics. */
START_TEST(intervals)
{
    struct seen seen = {0};
    struct cst_replay_result r;

    plan_rig_open(&rig, "gpt2-124m", 1, 0, _i == 1, 0.3);
    rig.replay.interval = note;
    rig.replay.arg = &seen;
    r = plan_rig_run(&rig);
    ck_assert_uint_eq(seen.busy[CST_LANE_COMPUTE], r.compute_ns);
    ck_assert_uint_eq(seen.busy[CST_LANE_WAIT], r.wait_ns);
    ck_assert_uint_eq(seen.n[CST_LANE_COMPUTE], 3 * 2 * rig.model.n_operators);
    ck_assert_uint_eq(seen.n[CST_LANE_UPDATE], 3 * rig.layout.n_chunks);
    ck_assert_uint_eq(seen.n[CST_LANE_REDUCE], 3 * rig.layout.n_chunks);
    ck_assert_uint_gt(seen.n[CST_LANE_UP], 0);
}
END_TEST

/* -- errors --------------------------------------------------------------------------------- */

/* A replay with too many events gives up. */
START_TEST(gives_up)
{
    struct cst_replay_result r;
    struct cst_err err;

    plan_rig_open(&rig, "gpt2-124m", 2, 0, false, 0.3);
    rig.replay.deadline_events = 20;
    ck_assert_int_eq(cst_replay_run(&rig.replay, &r, &err), CST_ETIMEDOUT);
}
END_TEST

/* A missing rate is named. */
START_TEST(names_the_rate)
{
    struct cst_replay_result r;
    struct cst_err err;

    plan_rig_open(&rig, "gpt2-124m", 1, 0, false, 0.3);
    rig.rates.devices[0].flops = 0;
    ck_assert_int_eq(cst_replay_run(&rig.replay, &r, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "'host': flops") != NULL, "%s", err.text);
    rig.rates.nodes[0].update = 0;
    ck_assert_int_eq(cst_replay_run(&rig.replay, &r, &err), CST_EINVAL);
    ck_assert_msg(strstr(err.text, "nodes[0].update") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replay");
    TCase *tc = suite_case(suite, "bytes", NULL, teardown);

    tcase_add_loop_test(tc, bytes_are_the_cores, 0, 2 * sizeof cases / sizeof cases[0]);
    tcase_add_loop_test(tc, room_for_all, 0, 2);
    tcase_add_test(tc, peaks);
    tc = suite_case(suite, "times", NULL, teardown);
    tcase_add_loop_test(tc, deterministic, 0, 2);
    tcase_add_loop_test(tc, parts_add_up, 0, 2);
    tcase_add_test(tc, slow_compute_hides_copies);
    tcase_add_test(tc, fast_compute_shows_updates);
    tcase_add_test(tc, recompute_costs_a_pass);
    tcase_add_loop_test(tc, representatives, 0, 2);
    tcase_add_test(tc, gathered);
    tcase_add_loop_test(tc, apart, 1, 3);
    tc = suite_case(suite, "intervals", NULL, teardown);
    tcase_add_loop_test(tc, intervals, 0, 2);
    tc = suite_case(suite, "ends", NULL, teardown);
    tcase_add_test(tc, gives_up);
    tcase_add_test(tc, names_the_rate);
    return suite_run(suite);
}
