/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/weights/multi_gpu_load: which GPUs load a chunk together. tests/sim tests that
 * the pieces add up to the whole whatever fails. */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { PIECES = RIG_CHUNK_ELEMS }; /* bytes of a piece; a chunk's weights are two pieces */

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* Number of GPUs that load a chunk together, by cst_core_explain. 0: it mentions none. */
static unsigned told(void)
{
    char lines[32][192];
    unsigned n = cst_core_explain(rig.core, 0, lines, 32);
    unsigned gpus = 0;

    for (unsigned i = 0; i < n && gpus == 0; i++) {
        (void)sscanf(lines[i], "up to %u GPUs", &gpus);
    }
    return gpus;
}

struct machine {
    uint32_t world;
    uint32_t engines[4]; /* engine of each rank's pool */
    bool worker_copies;
    uint64_t unreachable[4]; /* engines of GPUs that the rank's GPU cannot access, one bit each */
    unsigned gpus;           /* number of GPUs that load together */
};

static const struct machine machines[] = {
    {.world = 2, .engines = {1, 2}, .gpus = 2},
    {.world = 4, .engines = {1, 2, 1, 3}, .gpus = 3},
    {.world = 2, .engines = {1, 1}, .gpus = 0},    /* two ranks share the only GPU */
    {.world = 3, .engines = {0, 1, 0}, .gpus = 0}, /* the other ranks are on the host */
    {.world = 2, .engines = {1, 2}, .worker_copies = true, .gpus = 0},
    {.world = 2, .engines = {1, 2}, .unreachable = {1 << 2, 1 << 1}, .gpus = 0},
    {.world = 2, .engines = {1, 2}, .unreachable = {1 << 2}, .gpus = 0}, /* in one direction */
    /* Two pairs of GPUs. */
    {.world = 4, .engines = {1, 2, 3, 4}, .unreachable = {0x18, 0x18, 0x6, 0x6}, .gpus = 2},
};

static void open_machine(const struct machine *m)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4,
                                         .world = m->world,
                                         .n_blocks = 4,
                                         .engines = m->engines,
                                         .worker_copies = m->worker_copies,
                                         .unreachable = m->unreachable,
                                         .landings = CST_LANDINGS_SHARED,
                                         .gather_bytes = PIECES});
}

/* GPUs are counted, not ranks. Ranks that share one GPU load no pieces, and explain mentions
 * none. */
START_TEST(gpus_are_counted)
{
    open_machine(&machines[_i]);
    ck_assert_uint_eq(told(), machines[_i].gpus);
}
END_TEST

/* Ranks that share one GPU each load the whole chunk. */
START_TEST(one_gpu_loads_alone)
{
    open_machine(&machines[2]);
    rig_start(&rig, 2);
    (void)rig_fetch(&rig, 0, 0);
    (void)rig_fetch(&rig, 1, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 2);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 0)->bytes, 2 * RIG_CHUNK_ELEMS);
    ck_assert_uint_eq(rig_command(&rig, CST_COMMAND_COPY, 1)->bytes, 2 * RIG_CHUNK_ELEMS);
}
END_TEST

/* Of two pairs of GPUs, those of a pair load pieces together, and the other GPUs load alone. */
START_TEST(pairs)
{
    open_machine(&machines[7]);
    rig_start(&rig, 4);
    rig_whole_step(&rig, 4, 4);
    (void)rig_fetch(&rig, 2, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, i);

        ck_assert_uint_eq(copy->bytes, PIECES);
        ck_assert(copy->node == 3 || copy->node == 4);
    }
    rig_drain(&rig);
}
END_TEST

/* -- failures --------------------------------------------------------------------------------- */

/* Open @world GPUs, and run a step so that the order of chunks is known. */
static void open_gpus(uint32_t world)
{
    open_machine(&(struct machine){.world = world, .engines = {1, 2, 3}});
    rig_start(&rig, world);
    rig_whole_step(&rig, 4, world);
}

/* Rank 0 fetches chunk 0, which has two pieces: its GPU loads one piece from host memory and the
 * other from the GPU of engine @other. */
static void gather(uint32_t other)
{
    unsigned n = 0;

    (void)rig_fetch(&rig, 0, 0);
    ck_assert_uint_eq(rig_count(&rig, CST_COMMAND_COPY), 4);
    for (unsigned i = 0; i < 4; i++) {
        n += rig_command(&rig, CST_COMMAND_COPY, i)->node == other;
    }
    ck_assert_uint_eq(n, 2);
}

/* Fail all commands of engine @node with @status, and cancel the commands that wait for them. */
static void fail_all(uint32_t node, int status)
{
    while (rig_count(&rig, CST_COMMAND_COPY) > 0) {
        const struct cst_command *copy = rig_command(&rig, CST_COMMAND_COPY, 0);
        unsigned n = rig_count(&rig, CST_COMMAND_COPY);

        for (unsigned i = 1; i < n && copy->node != node; i++) {
            copy = rig_command(&rig, CST_COMMAND_COPY, i);
        }
        if (copy->node == node) {
            rig_done(&rig, copy->ticket, status, "engine: why");
        } else {
            rig_done(&rig, copy->ticket,
                     copy->src[0].segment >= RIG_POOL_SEGMENT ? CST_ECANCELLED : CST_OK, NULL);
        }
    }
}

/* The attempt is over, and rank 1 attaches again. */
static void come_again(uint32_t world)
{
    uint64_t sync = 0;

    ck_assert_int_eq(rig_stats(&rig).phase, CST_PHASE_INTERRUPTED);
    (void)rig_rank_event(&rig, CST_EV_ATTACH, 1);
    for (uint32_t rank = 0; rank < world; rank++) {
        sync = rig_rank_event(&rig, CST_EV_SYNC, rank);
    }
    rig.attempt = rig_answer(&rig, sync)->attempt;
    rig.n_replies = 0;
}

/* A GPU is lost (_i: how it is reported) with pieces to load and to copy. When it is available
 * again, it takes part again. */
START_TEST(lost)
{
    open_gpus(2);
    gather(2);
    fail_all(2, _i == 0 ? CST_EENGINE : CST_ELOST);
    ck_assert_uint_eq(told(), 2);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    come_again(2);
    rig_whole_step(&rig, 4, 2);
    gather(2);
}
END_TEST

/* A GPU stays lost and its rank's pool moves to the host: the other GPUs go on together. */
START_TEST(lost_for_good)
{
    const struct cst_core_pool host = {.tier = CST_TIER_HOST};

    open_gpus(3);
    gather(2);
    fail_all(2, CST_EENGINE);
    (void)rig_rank_event(&rig, CST_EV_DEAD, 1);
    cst_core_move_pool(rig.core, 1, &host);
    ck_assert_uint_eq(told(), 2);
    come_again(3);
    rig_whole_step(&rig, 4, 3);
    gather(3);
}
END_TEST

/* After copies have failed while their GPUs are available, each GPU loads the whole chunk. */
START_TEST(failed)
{
    open_gpus(2);
    (void)rig_fetch(&rig, 0, 0);
    rig_done(&rig, rig_command(&rig, CST_COMMAND_COPY, 3)->ticket, CST_EIO, "no way");
    ck_assert_uint_eq(told(), 0);
    rig_drain(&rig);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("multi_gpu_load");
    TCase *tc = suite_case(s, "multi_gpu_load", NULL, teardown);

    tcase_add_loop_test(tc, gpus_are_counted, 0, sizeof machines / sizeof *machines);
    tcase_add_test(tc, one_gpu_loads_alone);
    tcase_add_test(tc, pairs);
    tcase_add_loop_test(tc, lost, 0, 2);
    tcase_add_test(tc, lost_for_good);
    tcase_add_test(tc, failed);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
