/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/memory/memory: what is counted as populated, and when the memory is ready. The
 * engines are replaced by the test, which keeps the segments that they are to map. */
#include "daemon/base/daemon_state.h"
#include "daemon/memory/memory_pools.h"
#include "daemon/memory/tiers/tier.h"
#include "offload/layout/edge.h"
#include "tests/lib/declare.h"
#include "tests/lib/suite.h"
#include "daemon/budget/arena.h"
#include "daemon/engine/engines.h"
#include "daemon/memory/memory.h"

#include <check.h>
#include <string.h>

enum { MOST = 16, TENSORS = 4, ELEMS = 1 << 20 };

void __wrap_cstd_engines_mount(struct cstd_engines *engines, struct cstd_segment *segment);

static struct cstd_budget host_budget, pool_budget;
static struct cstd_engines engines_of_test;
static const struct cstd_tier_kinds kinds = {.host = &cstd_tier_host};
static struct cstd_tiers tiers_of_test;
static struct cstd_daemon daemon_of_test = {.host = &host_budget,
                                            .pool = &pool_budget,
                                            .engines = &engines_of_test,
                                            .tiers = &tiers_of_test};
static struct cstd_settings settings;
static struct cstd_memory memory;
static struct cst_model model;
static struct cst_layout layout;
static struct cstd_segment *mounted[MOST];
static unsigned n_mounted, n_ready, n_gone;

void __wrap_cstd_engines_mount(struct cstd_engines *engines, struct cstd_segment *segment)
{
    (void)engines;
    ck_assert_uint_lt(n_mounted, MOST);
    mounted[n_mounted++] = segment;
}

static void on_ready(struct cstd_memory *which)
{
    (void)which;
    n_ready++;
}

static void on_gone(struct cstd_memory *which)
{
    (void)which;
    n_gone++;
}

static void make_layout(void)
{
    struct cst_layout_config config = {.n_nodes = 1, .grad_bytes = 2, .chunk_elems = ELEMS};
    const struct cst_edge_words edge = {
        .name = "e", .slot_bytes = 3000, .n_slots = 3, .on_device = true};
    const int64_t shape = ELEMS;
    struct cst_err err;
    char name[8];

    cst_model_init(&model);
    for (uint32_t i = 0; i < TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_int_eq(declare_tensor(&model, name, &shape, 1, 1, 1, &err), CST_OK);
        ck_assert_int_eq(cst_model_operator(&model, name, &i, 1, NULL, &err), CST_OK);
    }
    ck_assert_msg(cst_model_edge(&model, &edge, 1, &err) == CST_OK, "%s", err.text);
    ck_assert_msg(cst_layout_build(&layout, &model, &config, &err) == CST_OK, "%s", err.text);
}

static void setup(void)
{
    struct cstd_memory_pool pool = {.tier = cstd_tiers_host(&daemon_of_test), .blocks.n[0] = 4};
    const struct cstd_memory_request request = {
        .layout = &layout, .model = &model, .world = 1, .pools = &pool};
    struct cst_err err;

    daemon_of_test.config = &settings;
    cstd_tiers_init(&tiers_of_test, &daemon_of_test, &kinds);
    daemon_of_test.host->limit = daemon_of_test.pool->limit = UINT64_C(1) << 40;
    daemon_of_test.engines->n = daemon_of_test.engines->n_nodes = 1;
    daemon_of_test.engines->next_segment = 1;
    cstd_deferred_init(&daemon_of_test.later);
    make_layout();
    pool.bytes = cstd_pools_bytes(&layout, &pool.blocks, 1);
    cstd_memory_init(&memory, &daemon_of_test, "j");
    memory.on_ready = on_ready;
    memory.on_gone = on_gone;
    ck_assert_msg(cstd_memory_open(&memory, &request, &err) == CST_OK, "%s", err.text);
    ck_assert_uint_eq(n_mounted, memory.n_segments);
}

static void teardown(void)
{
    cstd_memory_close(&memory);
    cstd_deferred_run(&daemon_of_test.later);
    ck_assert_uint_eq(n_gone, 1);
    ck_assert_uint_eq(daemon_of_test.host->used, 0);
    ck_assert_uint_eq(daemon_of_test.pool->used, 0);
    cst_layout_close(&layout);
    cst_model_close(&model);
}

/* All segments count when all engines have answered, whether or not progress was reported, except
 * for a segment that failed: none of its bytes counts, not even those that were reported. _i:
 * number of the segment that fails; n_mounted: none. */
START_TEST(failed_segments_are_not_populated)
{
    unsigned fails = _i == 0 ? n_mounted : (unsigned)_i - 1;
    uint64_t total = memory.arena_bytes + memory.pool_bytes;

    for (unsigned i = 0; i < n_mounted; i++) {
        mounted[i]->populated = mounted[i]->bytes / 2;
        mounted[i]->on_progress(mounted[i]);
        if (i == fails) {
            (void)cst_err_set(&mounted[i]->err, CST_ENOMEM, "no memory");
            total -= mounted[i]->bytes;
        }
        mounted[i]->on_mounted(mounted[i]);
    }
    cstd_deferred_run(&daemon_of_test.later);
    ck_assert_uint_eq(n_ready, 1);
    ck_assert_uint_eq(memory.populated, total);
    ck_assert_int_eq(memory.err.status, _i == 0 ? CST_OK : CST_ENOMEM);
}
END_TEST

/* All segments are populated, but their readiness is not reported before others are added: it is
 * reported when those are populated, too, and with the error of the first ones. _i: 1 if one of the
 * first ones fails. */
START_TEST(readiness_waits_for_what_is_added)
{
    const unsigned n_first = n_mounted;
    struct cstd_segment *added;
    struct cst_err err;

    for (unsigned i = 0; i < n_first; i++) {
        if (_i == 1 && i == n_first - 1) {
            (void)cst_err_set(&mounted[i]->err, CST_ENOMEM, "no memory");
        }
        mounted[i]->on_mounted(mounted[i]);
    }
    ck_assert_int_eq(cstd_memory_make_host_slots(&memory, 0, &added, &err), CST_OK);
    ck_assert_uint_eq(n_mounted, n_first + 1);
    cstd_deferred_run(&daemon_of_test.later);
    ck_assert_uint_eq(n_ready, 0);
    added->on_mounted(added);
    cstd_deferred_run(&daemon_of_test.later);
    ck_assert_uint_eq(n_ready, 1);
    ck_assert_int_eq(memory.err.status, _i == 1 ? CST_ENOMEM : CST_OK);
    (void)cstd_memory_release(&memory, added);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tc = suite_case(suite, "populated", setup, teardown);

    tcase_add_loop_test(tc, failed_segments_are_not_populated, 0, 3);
    tcase_add_loop_test(tc, readiness_waits_for_what_is_added, 0, 2);
    return suite_run(suite);
}
