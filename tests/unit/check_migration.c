/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/layout/migration: whatever the models and layouts, every tensor moves once, its
 * chunks have pages when it does, and there are never more pages than the plan says. */
#include "offload/layout/layout.h"
#include "offload/layout/migration.h"
#include "offload/layout/rows.h"
#include "tests/lib/suite.h"
#include "tests/unit/layout_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 4096, MAX_CHUNKS = 4096 };

/* A model and its layout. */
struct side {
    struct cst_model model;
    struct cst_layout layout;
};

static struct side from, to;
static struct cst_err err;

static void setup(void)
{
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    cst_model_init(&from.model);
    cst_model_init(&to.model);
}

static void teardown(void)
{
    cst_layout_close(&from.layout);
    cst_layout_close(&to.layout);
    cst_model_close(&from.model);
    cst_model_close(&to.model);
}

static void build(struct side *side, uint64_t chunk_elems, uint32_t world)
{
    const struct cst_layout_config config = {.n_nodes = 1,
                                             .world = world,
                                             .grad_bytes = 2 * (1 + rig_below(2)),
                                             .chunk_elems = chunk_elems,
                                             .max_classes = CST_LAYOUT_MAX_CLASSES};

    ck_assert_msg(cst_layout_build(&side->layout, &side->model, &config, &err) == CST_OK, "%s",
                  err.text);
    ck_assert_uint_lt(side->layout.n_chunks, MAX_CHUNKS);
    ck_assert_uint_lt(side->model.n_tensors, MAX_TENSORS);
}

/* Declare @n tensors of random sizes in random groups. Both models get the same tensors, in another
 * order and in other groups, so that other tensors share a chunk. */
static void declare_both(uint32_t n)
{
    int64_t sizes[MAX_TENSORS];

    for (uint32_t i = 0; i < n; i++) {
        sizes[i] = 1 + rig_below(rig_below(4) > 0 ? 3000 : 30000);
    }
    for (uint32_t side = 0; side < 2; side++) {
        struct cst_model *model = side == 0 ? &from.model : &to.model;
        uint32_t step = side == 0 ? 1 : n - 1;

        for (uint64_t group = 1; group < 3; group++) {
            ck_assert_int_eq(cst_model_group(model, bits(group), &err), CST_OK);
        }
        for (uint32_t i = 0, t = rig_below(n); i < n; i++, t = (t + step) % n) {
            char name[32];
            const struct cst_tensor_words words = {.name = name,
                                                   .shape = &sizes[t],
                                                   .n_dims = 1,
                                                   .lr_scale = 1,
                                                   .decay_scale = 1,
                                                   .group = rig_below(3)};

            (void)snprintf(name, sizeof name, "t%u", t);
            ck_assert_msg(cst_model_tensor(model, &words, &err) == CST_OK, "%s", err.text);
        }
    }
}

/* Bytes of pages of chunk @c. */
static uint64_t pages_of(const struct cst_layout *layout, uint32_t c)
{
    struct cst_layout_row place;
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < CST_ROWS_COUNT; r++) {
        bytes += cst_rows_in_host(layout, &layout->chunks[c], r, &place);
    }
    return bytes;
}

/* Carry out @plan with one flag for the pages of each chunk. */
static void check_plan(const struct cst_migration *plan, const struct cst_reshard *reshard)
{
    static bool old_pages[MAX_CHUNKS], new_pages[MAX_CHUNKS], moved[MAX_TENSORS];
    uint64_t most = 0, old_bytes = 0, now;
    struct cst_migration_portion begin = {0};

    memset(new_pages, 0, sizeof new_pages);
    memset(moved, 0, sizeof moved);
    for (uint32_t c = 0; c < from.layout.n_chunks; c++) {
        old_pages[c] = true;
        old_bytes += pages_of(&from.layout, c);
    }
    now = old_bytes + to.layout.arena_bytes;
    for (uint32_t c = 0; c < to.layout.n_chunks; c++) {
        now -= pages_of(&to.layout, c);
    }
    for (uint32_t s = 0; s < plan->n_portions; begin = plan->portions[s++]) {
        for (uint32_t i = begin.begun_end; i < plan->portions[s].begun_end; i++) {
            ck_assert(!new_pages[plan->begun[i]]);
            new_pages[plan->begun[i]] = true;
            now += pages_of(&to.layout, plan->begun[i]);
        }
        most = now > most ? now : most;
        for (uint32_t i = begin.tensors_end; i < plan->portions[s].tensors_end; i++) {
            uint32_t t = plan->tensors[i];
            uint64_t elems = to.model.tensors[t].n_elems;

            ck_assert(!moved[t]);
            moved[t] = true;
            ck_assert(new_pages[to.model.tensors[t].chunk]);
            for (uint64_t at = 0; at < elems;) {
                struct cst_reshard_run run = cst_reshard_run(reshard, t, at, elems - at);

                ck_assert(old_pages[from.model.tensors[run.tensor].chunk]);
                at += run.n_elems;
            }
        }
        ck_assert_uint_gt(plan->portions[s].ended_end, begin.ended_end);
        for (uint32_t i = begin.ended_end; i < plan->portions[s].ended_end; i++) {
            ck_assert(old_pages[plan->ended[i]]);
            old_pages[plan->ended[i]] = false;
            now -= pages_of(&from.layout, plan->ended[i]);
        }
    }
    for (uint32_t t = 0; t < to.model.n_tensors; t++) {
        ck_assert(moved[t]);
    }
    ck_assert_uint_eq(now, to.layout.arena_bytes); /* The old layout has no pages any more. */
    ck_assert_uint_eq(plan->extra_bytes, most > old_bytes ? most - old_bytes : 0);
}

/* Random tensors in random chunks. _i: seed. */
START_TEST(random_layouts)
{
    struct cst_reshard reshard;
    struct cst_migration plan, again;

    srand((unsigned)_i);
    declare_both(2 + rig_below(200));
    build(&from, 4096 * (8 + rig_below(20)), 2 + rig_below(3));
    build(&to, 4096 * (8 + rig_below(20)), 2 + rig_below(3));
    ck_assert_int_eq(cst_reshard_open(&reshard, &from.model, &to.model, &err), CST_OK);
    ck_assert_int_eq(cst_migration_open(&plan, &reshard, &from.layout, &to.layout, &err), CST_OK);
    check_plan(&plan, &reshard);
    /* Another daemon finds the same plan. */
    ck_assert_int_eq(cst_migration_open(&again, &reshard, &from.layout, &to.layout, &err), CST_OK);
    ck_assert_uint_eq(plan.n_portions, again.n_portions);
    ck_assert_mem_eq(plan.portions, again.portions, plan.n_portions * sizeof *plan.portions);
    ck_assert_mem_eq(plan.tensors, again.tensors, to.model.n_tensors * sizeof *plan.tensors);
    cst_migration_close(&again);
    cst_migration_close(&plan);
    cst_reshard_close(&reshard);
}
END_TEST

/* Between layouts of one order, a move needs a chunk of each at a time, however many there are. */
START_TEST(a_chunk_at_a_time)
{
    const int64_t elems = 4096;
    struct cst_reshard reshard;
    struct cst_migration plan;

    for (uint32_t i = 0; i < 256; i++) {
        char name[32];
        const struct cst_tensor_words words = {
            .name = name, .shape = &elems, .n_dims = 1, .lr_scale = 1, .decay_scale = 1};

        (void)snprintf(name, sizeof name, "t%u", i);
        ck_assert_int_eq(cst_model_tensor(&from.model, &words, &err), CST_OK);
        ck_assert_int_eq(cst_model_tensor(&to.model, &words, &err), CST_OK);
    }
    build(&from, 8 * (uint64_t)elems, 1);
    build(&to, 4 * (uint64_t)elems, 1);
    ck_assert_int_eq(cst_reshard_open(&reshard, &from.model, &to.model, &err), CST_OK);
    ck_assert_int_eq(cst_migration_open(&plan, &reshard, &from.layout, &to.layout, &err), CST_OK);
    check_plan(&plan, &reshard);
    ck_assert_uint_eq(plan.n_portions, from.layout.n_chunks);
    ck_assert_uint_le(plan.extra_bytes, to.layout.arena_bytes / 16);
    cst_migration_close(&plan);
    cst_reshard_close(&reshard);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("migration");
    TCase *tc = suite_case(s, "migration", setup, teardown);

    tcase_add_loop_test(tc, random_layouts, 1, 101);
    tcase_add_test(tc, a_chunk_at_a_time);
    return suite_run(s);
}
