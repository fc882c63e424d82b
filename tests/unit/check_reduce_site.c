/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of which engine does what when ranks are on GPUs: the choice of a sum's reduce site, and
 * the core's commands. Engine 0 is the host's; engines 1 and 2 are GPUs. */
#include "offload/gradient/reduce_site.h"
#include "tests/lib/bits.h"
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <string.h>

#define NOTHING CST_REDUCE_SITE_NOTHING

/* Each GPU can access the memory of all others. */
static const uint64_t everywhere[CST_CORE_MAX_WORLD];

/* The choice for sets of engines below 64, one bit each. */
static struct cst_reduce_site choose(uint32_t home, uint32_t chunk, uint32_t world,
                                     const uint32_t *engines, const uint64_t *unreachable)
{
    struct cst_set sets[CST_CORE_MAX_WORLD];
    const struct cst_set *pointers[CST_CORE_MAX_WORLD];

    for (uint32_t rank = 0; rank < world; rank++) {
        sets[rank] = bits(unreachable[rank]);
        pointers[rank] = &sets[rank];
    }
    return cst_reduce_site_choose(home, chunk, world, engines, pointers);
}

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* -- the choice ------------------------------------------------------------------------------ */

/* Contributions in host memory are summed by the engine of the chunk's home node. */
START_TEST(host_alone)
{
    const uint32_t engines[] = {0, NOTHING, 0};
    struct cst_reduce_site way = choose(3, 1, 3, engines, everywhere);

    ck_assert_int_eq(way.kind, CST_REDUCE_SITE_HOST);
    ck_assert_uint_eq(way.engine, 3);
    ck_assert_uint_eq(way.n_host, 2);
    ck_assert_uint_eq(way.n_own + way.n_peers, 0);
}
END_TEST

/* Without contributions the sum is zeros, which the engine of the home node writes. */
START_TEST(nothing_at_all)
{
    const uint32_t engines[] = {NOTHING, NOTHING};
    struct cst_reduce_site way = choose(1, 7, 2, engines, everywhere);

    ck_assert_int_eq(way.kind, CST_REDUCE_SITE_HOST);
    ck_assert_uint_eq(way.engine, 1);
}
END_TEST

/* If ranks are on one GPU, and others in host memory, that GPU sums every chunk. */
START_TEST(one_gpu)
{
    const uint32_t engines[] = {2, 0, 2};

    for (uint32_t chunk = 0; chunk < 6; chunk++) {
        struct cst_reduce_site way = choose(0, chunk, 3, engines, everywhere);

        ck_assert_int_eq(way.kind, CST_REDUCE_SITE_DEVICE);
        ck_assert_uint_eq(way.engine, 2);
        ck_assert_uint_eq(way.n_own, 2);
        ck_assert_uint_eq(way.n_host, 1);
    }
}
END_TEST

/* Several GPUs take turns chunk by chunk. A turn of a rank without a contribution goes to the next
 * rank on a GPU that has one. */
START_TEST(turns)
{
    const uint32_t all[] = {1, 2}, gap[] = {1, NOTHING, 0, 4};
    struct cst_reduce_site way;

    for (uint32_t chunk = 0; chunk < 6; chunk++) {
        way = choose(0, chunk, 2, all, everywhere);
        ck_assert_int_eq(way.kind, CST_REDUCE_SITE_PEER);
        ck_assert_uint_eq(way.engine, 1 + chunk % 2);
        ck_assert_uint_eq(way.n_own, 1);
        ck_assert_uint_eq(way.n_peers, 1);
    }
    ck_assert_uint_eq(choose(0, 4, 4, gap, everywhere).engine, 1);
    ck_assert_uint_eq(choose(0, 5, 4, gap, everywhere).engine, 4);
    ck_assert_uint_eq(choose(0, 6, 4, gap, everywhere).engine, 4);
}
END_TEST

/* GPUs that cannot access each other's memory do not sum: all contributions land. If one of them
 * can access all others, that one sums every chunk. */
START_TEST(unreachable)
{
    const uint32_t engines[] = {1, 2, 0};
    const uint64_t none[] = {1 << 2, 1 << 1, 0}, one[] = {1 << 2, 0, 0};

    for (uint32_t chunk = 0; chunk < 6; chunk++) {
        struct cst_reduce_site site = choose(0, chunk, 3, engines, none);

        ck_assert_int_eq(site.kind, CST_REDUCE_SITE_LANDED);
        ck_assert_uint_eq(site.engine, 0);
        ck_assert_uint_eq(site.n_peers, 2);
        ck_assert_uint_eq(site.n_own, 0);
        ck_assert_uint_eq(site.n_host, 1);
        site = choose(0, chunk, 3, engines, one);
        ck_assert_int_eq(site.kind, CST_REDUCE_SITE_PEER);
        ck_assert_uint_eq(site.engine, 2);
    }
}
END_TEST

/* GPUs 1 and 2 reach each other, and so do 3 and 4: a chunk that both pairs hold is summed in host
 * memory, and a chunk of one pair on a GPU of the pair. */
START_TEST(pairs)
{
    const uint64_t apart[] = {0x18, 0x18, 0x6, 0x6};
    const uint32_t all[] = {1, 2, 3, 4}, pair[] = {NOTHING, NOTHING, 3, 4};
    struct cst_reduce_site site = choose(0, 0, 4, all, apart);

    ck_assert_int_eq(site.kind, CST_REDUCE_SITE_LANDED);
    ck_assert_uint_eq(site.n_peers, 4);
    for (uint32_t chunk = 0; chunk < 4; chunk++) {
        site = choose(0, chunk, 4, pair, apart);
        ck_assert_int_eq(site.kind, CST_REDUCE_SITE_PEER);
        ck_assert_uint_eq(site.engine, chunk == 3 ? 4 : 3);
    }
}
END_TEST

/* -- the core -------------------------------------------------------------------------------- */

/* The engine of a rank's GPU copies the rank's weights; the host's engine copies those of ranks on
 * the host. */
START_TEST(loads)
{
    rig_open_on(&rig, 4, 2, 4, 0, (const uint32_t[]){2, 0});
    rig_start(&rig, 2);
    (void)rig_fetch(&rig, 0, 1);
    (void)rig_fetch(&rig, 1, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 1)->node, 0);
    rig_drain(&rig);
}
END_TEST

/* In a whole step, sums are on GPUs in turn, norm and updates on the host, and the loads of the
 * next step wait for updates of another engine. */
START_TEST(step)
{
    const struct cst_command *load, *update;
    uint64_t a, b;

    rig_open_on(&rig, 2, 2, 4, 0, (const uint32_t[]){1, 2});
    rig_start(&rig, 2);
    for (uint32_t c = 0; c < 2; c++) {
        a = rig_get_grad(&rig, 0, c);
        b = rig_get_grad(&rig, 1, c);
        (void)rig_hand_in(&rig, 0, c, a);
        (void)rig_hand_in(&rig, 1, c, b);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 0)->node, 1);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->node, 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_REDUCE, 1)->n_src, 2);
    (void)rig_step(&rig, 0);
    (void)rig_step(&rig, 1);
    while (rig_count(&rig, CST_COMMAND_REDUCE) > 0) {
        rig_done(&rig, rig_command(&rig, CST_COMMAND_REDUCE, 0)->ticket, CST_OK, NULL);
    }
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_NORM, 0)->node, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_NORM, 0)->ticket, CST_OK, NULL);
    update = rig_command(&rig, CST_COMMAND_UPDATE, 1);
    ck_assert_uint_eq(update->node, 0);
    (void)rig_fetch(&rig, 1, update->chunk);
    load = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_uint_eq(load->node, 2);
    ck_assert_uint_eq(load->n_after, 1);
    ck_assert_uint_eq(load->after[0], update->ticket);
    rig_drain(&rig);
}
END_TEST

/* A GPU's engine spills a gradient to the grad row. The sum is then made on the GPU of another rank
 * whose contribution is still in its pool. */
START_TEST(staged)
{
    const struct cst_command *stage, *reduce;
    uint64_t grad;

    rig_open_on(&rig, 4, 2, 3, 0, (const uint32_t[]){1, 2});
    rig_start(&rig, 2);
    grad = rig_get_grad(&rig, 0, 0);
    (void)rig_hand_in(&rig, 0, 0, grad);
    (void)rig_get_grad(&rig, 0, 1);
    (void)rig_get_grad(&rig, 0, 2);
    (void)rig_fetch_grad(&rig, 0, 3);
    stage = rig_command(&rig, CST_COMMAND_COPY, 0);
    ck_assert_uint_eq(stage->node, 1);
    ck_assert_uint_eq(stage->src[0].segment, RIG_POOL_SEGMENT);
    rig_drain(&rig);
    grad = rig_get_grad(&rig, 1, 0);
    (void)rig_hand_in(&rig, 1, 0, grad);
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert_uint_eq(reduce->node, 2);
    ck_assert_uint_eq(reduce->n_src, 2);
    ck_assert_uint_ne(reduce->src[0].segment, RIG_POOL_SEGMENT);
    rig_drain(&rig);
}
END_TEST

/* Reads and writes of states are executed by the host's engine, also after a sum on a GPU. */
START_TEST(states)
{
    const struct cst_command *reduce;
    uint64_t grad, tag;

    rig_open_on(&rig, 2, 1, 3, 0, (const uint32_t[]){1});
    tag = rig_event(&rig, (struct cst_event){.kind = CST_EV_WRITE,
                                             .row = CST_ROW_MASTER,
                                             .n_elems = 4,
                                             .place = {.segment = 900}});
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_SET_MASTER, 0)->node, 0);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
    rig_start(&rig, 1);
    grad = rig_get_grad(&rig, 0, 0);
    (void)rig_hand_in(&rig, 0, 0, grad);
    reduce = rig_command(&rig, CST_COMMAND_REDUCE, 0);
    ck_assert_uint_eq(reduce->node, 1);
    tag = rig_event(&rig, (struct cst_event){.kind = CST_EV_READ,
                                             .row = CST_ROW_GRAD,
                                             .n_elems = 4,
                                             .place = {.segment = 900}});
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->node, 0);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->after[0], reduce->ticket);
    rig_drain(&rig);
    ck_assert_int_eq(rig_status(&rig, tag), CST_OK);
}
END_TEST

/* Explain names the reduce site and its engine. If ranks are on the host, it says nothing of it. */
START_TEST(explained)
{
    char lines[16][192];
    unsigned n, found = 0;

    rig_open_on(&rig, 2, 2, 4, 0, (const uint32_t[]){1, 2});
    n = cst_core_explain(rig.core, 1, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        found += strstr(lines[i], "on the GPU of engine 2: it has 1 contributions, peers that it "
                                  "reads 1") != NULL;
    }
    ck_assert_uint_eq(found, 1);
    rig_close(&rig);
    rig_open(&rig, 2, 2, 4, 0);
    n = cst_core_explain(rig.core, 1, lines, 16);
    for (unsigned i = 0; i < n; i++) {
        ck_assert_ptr_null(strstr(lines[i], "GPU"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduce_site");
    TCase *choice = suite_case(suite, "choice", NULL, NULL);
    TCase *core = suite_case(suite, "core", NULL, teardown);

    tcase_add_test(choice, host_alone);
    tcase_add_test(choice, nothing_at_all);
    tcase_add_test(choice, one_gpu);
    tcase_add_test(choice, turns);
    tcase_add_test(choice, unreachable);
    tcase_add_test(choice, pairs);
    tcase_add_test(core, loads);
    tcase_add_test(core, step);
    tcase_add_test(core, staged);
    tcase_add_test(core, states);
    tcase_add_test(core, explained);
    return suite_run(suite);
}
