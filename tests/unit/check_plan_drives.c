/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of plans for jobs with states on drives: bytes, host memory, times, refusals. */
#include "offload/layout/buffers.h"
#include "tests/lib/suite.h"
#include "tests/unit/search_rig.h"

#include <check.h>
#include <stdio.h>

/* A drive that reads 4 GB/s, writes 3 GB/s, and does 3.2 GB/s of both together. */
static void set_drives(uint32_t n)
{
    f.config.n_drives = n;
    f.rates.disk_read = 4e9;
    f.rates.disk_write = 3e9;
    f.rates.disk_mixed = 3.2e9;
}

static void scale_drives(double factor)
{
    f.rates.disk_read *= factor;
    f.rates.disk_write *= factor;
    f.rates.disk_mixed *= factor;
}

/* Bytes of the rows below @end, of chunks with states, that @layout has in tiers that only copy,
 * without the ends of segments. */
static uint64_t rows_on_drives(const struct cst_layout *layout, int end)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (int row = 0; row < end && cst_layout_has_states(chunk); row++) {
            const struct cst_layout_row *at = cst_layout_row(chunk, row);

            bytes += at->segment != CST_LAYOUT_NO_ROW &&
                             cst_tier_is_apart(layout->segments[at->segment].tier)
                         ? cst_layout_chunk_row_bytes(layout, chunk, row, chunk->n_elems)
                         : 0;
        }
    }
    return bytes;
}

/* Make tensors of all kinds of those that are declared. */
static void mix_kinds(void)
{
    for (uint32_t t = 0; t < f.model.n_tensors; t++) {
        f.model.tensors[t].pattern = t % 5 == 1 ? CST_PATTERN_FROZEN : CST_PATTERN_SHARD;
        f.model.tensors[t].dtype = t % 3 == 1 ? CST_FP32 : CST_BF16;
    }
}

/* Bytes of all rows of @layout on drives that states need: of a durable job, its files have each
 * row of states twice, and frozen weights once. */
static uint64_t all_on_drives(const struct cst_layout *layout)
{
    uint64_t frozen = 0;

    for (uint32_t c = 0; c < layout->n_chunks && layout->states.durable; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];

        frozen += cst_layout_has_states(chunk) ? 0 : cst_layout_weight_bytes(chunk);
    }
    return frozen + rows_on_drives(layout, CST_ROW_COUNT + 1) * (layout->states.durable ? 2 : 1);
}

/* -- bytes ---------------------------------------------------------------------------------- */

static const struct {
    uint32_t world, n_drives;
    enum cst_masters masters;
    enum cst_moments moments;
    enum cst_overlap overlap;
    uint64_t bytes;
    bool durable; /* With tensors of all kinds. */
} cases[] = {
    {1, 1, CST_MASTERS_FP32, CST_MOMENTS_FP32, CST_OVERLAP_COMMIT, 0, false},
    {1, 2, CST_MASTERS_SPLIT, CST_MOMENTS_MX8, CST_OVERLAP_COMMIT, 0, false},
    {2, 1, CST_MASTERS_FP32, CST_MOMENTS_BF16, CST_OVERLAP_DELAYED, 0, false},
    {4, 3, CST_MASTERS_FP32, CST_MOMENTS_FP32, CST_OVERLAP_EARLY, 0, false},
    {1, 2, CST_MASTERS_FP32, CST_MOMENTS_FP32, CST_OVERLAP_COMMIT, UINT64_C(1) << 30, false},
    {1, 2, CST_MASTERS_FP32, CST_MOMENTS_FP32, CST_OVERLAP_COMMIT, 0, true},
    {2, 1, CST_MASTERS_SPLIT, CST_MOMENTS_MX8, CST_OVERLAP_COMMIT, 0, true},
};

/* A step reads and writes each byte of the rows that the layout has on drives once, but of a
 * durable job it does not read the weights, and leaves frozen ones. The host has the layout's
 * memory and three buffers for each drive. */
START_TEST(bytes_are_those_of_the_layout)
{
    const struct cst_plan_choice *best = &f.plans.best;
    struct cst_buffers_drives buffers;
    struct cst_layout layout;
    uint64_t rows;

    declare_slow(cases[_i].world);
    if (cases[_i].durable) {
        mix_kinds();
    }
    set_drives(cases[_i].n_drives);
    f.config.states.durable = cases[_i].durable;
    f.config.states.masters = cases[_i].masters;
    f.config.states.moments = cases[_i].moments;
    f.config.states.two_weights = cases[_i].overlap != CST_OVERLAP_COMMIT;
    f.config.overlap = cases[_i].overlap;
    f.config.drive_bytes = cases[_i].bytes;
    search();
    layout = build_best();
    rows = rows_on_drives(&layout, CST_ROW_COUNT);
    ck_assert_uint_gt(rows, 0);
    ck_assert_uint_eq(best->predicted.disk_read, rows);
    rows = rows_on_drives(&layout, CST_ROW_COUNT + 1);
    ck_assert_uint_eq(best->predicted.disk_written, rows);
    ck_assert_uint_eq(best->drive_bytes, layout.device_bytes);
    ck_assert_uint_ge(best->drive_bytes, all_on_drives(&layout));
    ck_assert_uint_le(best->drive_bytes, all_on_drives(&layout) + (UINT64_C(1) << 20));
    cst_buffers_drives(&buffers, &layout, cases[_i].n_drives,
                       cst_layout_drive_bytes(cases[_i].bytes, cases[_i].n_drives));
    ck_assert_uint_eq(best->window_bytes, cases[_i].n_drives * buffers.bytes);
    ck_assert_uint_eq(best->n_stay_in_host, buffers.n_stay);
    ck_assert_uint_eq(best->host_bytes, cst_layout_host_bytes(&layout) + best->window_bytes);
    ck_assert_uint_eq(best->rows_bytes, best->host_bytes);
    ck_assert_uint_eq(best->n_drives, cases[_i].n_drives);
    ck_assert_uint_eq(best->n_staying, 0);
    ck_assert_uint_eq(best->state_bytes, 0);
    if (cases[_i].bytes > 0) {
        ck_assert_uint_le(best->drive_bytes, cases[_i].bytes);
        ck_assert_uint_ge(best->drive_bytes, cases[_i].bytes / 10 * 8);
        ck_assert_uint_lt(best->n_on_drives, best->n_chunks);
    } else if (!cases[_i].durable) {
        ck_assert_uint_eq(best->n_on_drives + best->n_stay_in_host, best->n_chunks);
    } else { /* All but the frozen ones. */
        ck_assert_uint_eq(best->n_stay_in_host, 0);
        ck_assert_uint_lt(best->n_on_drives, best->n_chunks);
    }
    check_promise();
    cst_layout_close(&layout);
}
END_TEST

/* States on drives let a job fit a host that it does not fit otherwise. Missing host memory is
 * reported to the byte. */
START_TEST(host_memory_is_saved)
{
    declare("gpt2-1.5b", 1, 1, false);
    f.config.max_events = 60000;
    f.budget.host_bytes = UINT64_C(16) << 30;
    refuse(CST_EBUDGET, "host memory of 16.0 GiB");
    set_drives(1);
    search();
    ck_assert_uint_le(f.plans.best.host_bytes, f.budget.host_bytes);
    f.budget.host_bytes = UINT64_C(4) << 30;
    one_byte(&f.budget.host_bytes, CST_EBUDGET);
}
END_TEST

/* -- times ---------------------------------------------------------------------------------- */

/* Drives that are slow set the pace: a step takes what they need at least, and not much more. They
 * are named as the bottleneck, and a second drive halves the time. */
START_TEST(slow_drives_set_the_pace)
{
    struct cst_plan_drives times;
    double one;

    declare_slow(1);
    f.config.overlap = (enum cst_overlap)_i;
    f.config.states.two_weights = _i > 0;
    set_drives(1);
    scale_drives(0.02);
    search();
    times = cst_plan_drives_times(&f.config, &f.plans.best);
    one = (double)f.plans.best.predicted.step_ns * 1e-9;
    printf("%.2f s a step, drives %.2f s\n", one, times.disk_s);
    ck_assert_double_ge(one, times.disk_s * 3.2 / 4);
    ck_assert_double_le(one, times.disk_s * 1.25);
    ck_assert_str_eq(f.plans.best.binds, "drives");
    f.config.n_drives = 2;
    search();
    ck_assert_double_le((double)f.plans.best.predicted.step_ns * 1e-9, 0.7 * one);
}
END_TEST

/* Drives that are fast enough to hide cost little: a step is as long as with states in memory, but
 * for copies of weights and the pipeline of buffers. */
START_TEST(fast_drives_cost_little)
{
    uint64_t without;

    declare("gpt2-355m", 1, 64, false);
    f.config.max_events = 60000;
    without = search_ns();
    set_drives(2);
    scale_drives(10);
    search();
    printf("%.2f ms with states in memory, %.2f ms with drives\n", (double)without / 1e6,
           (double)f.plans.best.predicted.step_ns / 1e6);
    ck_assert_double_le((double)f.plans.best.predicted.step_ns, 1.1 * (double)without);
    ck_assert_str_ne(f.plans.best.binds, "drives");
}
END_TEST

/* The times of drives are those of the formulas, for each time at which chunks are updated. */
START_TEST(times_are_those_of_the_formulas)
{
    struct cst_plan_choice choice = {.n_drives = 2,
                                     .predicted = {.step_ns = UINT64_C(4000000000),
                                                   .compute_ns = UINT64_C(3000000000),
                                                   .disk_read = UINT64_C(16000000000),
                                                   .disk_ahead = UINT64_C(4000000000),
                                                   .disk_written = UINT64_C(16000000000)}};
    struct cst_plan_drives times;

    set_drives(2);
    times = cst_plan_drives_times(&f.config, &choice);
    ck_assert_double_eq_tol(times.disk_s, 5, 1e-9);       /* 32 GB at 6.4 GB/s */
    ck_assert_double_eq_tol(times.read_s, 1.5, 1e-9);     /* 12 GB at 8 GB/s */
    ck_assert_double_eq_tol(times.read_under_s, 1, 1e-9); /* of three passes */
    ck_assert_double_eq_tol(times.write_s, 16.0 / 6, 1e-9);
    ck_assert_double_eq_tol(times.write_under_s, 3, 1e-9);
    ck_assert_double_eq_tol(times.wear, 2e9, 1); /* 8 GB on each drive in 4 s */
    f.config.recompute = true;
    f.config.micro_batches = 3;
    times = cst_plan_drives_times(&f.config, &choice);
    ck_assert_double_eq_tol(times.read_under_s, 0.25, 1e-9);
    f.config.overlap = CST_OVERLAP_EARLY;
    times = cst_plan_drives_times(&f.config, &choice);
    ck_assert_double_eq(times.read_s, 0);
    ck_assert_double_eq_tol(times.write_s, 5, 1e-9);
    ck_assert_double_eq_tol(times.write_under_s, 3, 1e-9);
    f.config.overlap = CST_OVERLAP_DELAYED;
    times = cst_plan_drives_times(&f.config, &choice);
    ck_assert_double_eq_tol(times.write_under_s, 4, 1e-9);
}
END_TEST

/* -- refusals ------------------------------------------------------------------------------- */

/* Rates that are not known, too many drives, and gradients in the place of weights are refused. */
START_TEST(what_cannot_be_is_refused)
{
    declare_slow(1);
    f.config.n_drives = 1;
    refuse(CST_EINVAL, "measure with cistern probe --disk");
    set_drives(CST_CORE_MAX_UPDATE_DEVICES + 1);
    refuse(CST_EINVAL, "states on 9 drives and updates on 0 accelerators: at most 8 together");
    set_drives(CST_CORE_MAX_UPDATE_DEVICES);
    f.config.device_update_bytes = 64 << 20;
    refuse(CST_EINVAL, "states on 8 drives and updates on 1 accelerators: at most 8 together");
    f.config.device_update_bytes = 0;
    search();
    f.config.states.grad_over_weight = true;
    refuse(CST_EINVAL, "cannot be combined with gradients in the place of weights");
}
END_TEST

/* Accelerators update chunks whose states are in memory, while those of the others are on drives.
 */
START_TEST(accelerators_update_the_rest)
{
    const struct cst_plan_choice *best = &f.plans.best;

    declare_slow(1);
    set_drives(1);
    f.config.drive_bytes = UINT64_C(2) << 30;
    f.config.device_update_bytes = UINT64_C(1) << 30;
    search();
    ck_assert_uint_gt(best->predicted.disk_written, 0);
    ck_assert_uint_gt(best->predicted.states_up, 0);
    ck_assert_uint_gt(best->interleave, 0);
    check_promise();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan_drives");
    TCase *tc = suite_case(suite, "drives", search_rig_setup, search_rig_teardown);

    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, bytes_are_those_of_the_layout, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(tc, host_memory_is_saved);
    tcase_add_loop_test(tc, slow_drives_set_the_pace, 0, CST_OVERLAP_COUNT);
    tcase_add_test(tc, fast_drives_cost_little);
    tcase_add_test(tc, times_are_those_of_the_formulas);
    tcase_add_test(tc, what_cannot_be_is_refused);
    tcase_add_test(tc, accelerators_update_the_rest);
    return suite_run(suite);
}
