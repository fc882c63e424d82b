/* offload/gather: who loads together. That the pieces make a whole, whatever fails, is tests/sim's.
 */
#include "tests/lib/suite.h"
#include "tests/unit/core_rig.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { PIECES = RIG_CHUNK_ELEMS }; /* bytes: a chunk's weights are two */

static struct rig rig;

static void teardown(void)
{
    rig_close(&rig);
}

/* How many GPUs explain says may load a chunk together; 0: it says nothing of it. */
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
    uint32_t engines[4]; /* per rank */
    bool worker_copies;
    unsigned gpus; /* that may load together */
};

static const struct machine machines[] = {
    {.world = 2, .engines = {1, 2}, .gpus = 2},
    {.world = 4, .engines = {1, 2, 1, 3}, .gpus = 3},
    {.world = 2, .engines = {1, 1}, .gpus = 0},    /* two ranks share the one GPU */
    {.world = 3, .engines = {0, 1, 0}, .gpus = 0}, /* the others are on the host */
    {.world = 2, .engines = {1, 2}, .worker_copies = true, .gpus = 0},
};

static void open_machine(const struct machine *m)
{
    rig_open_job(&rig, &(struct rig_job){.n_chunks = 4,
                                         .world = m->world,
                                         .n_blocks = 4,
                                         .engines = m->engines,
                                         .worker_copies = m->worker_copies,
                                         .gather_bytes = PIECES});
}

/* GPUs are counted, not ranks: those that share one load no pieces, and explain speaks of none. */
START_TEST(gpus_are_counted)
{
    open_machine(&machines[_i]);
    ck_assert_uint_eq(told(), machines[_i].gpus);
}
END_TEST

/* Ranks that share a GPU each load the whole. */
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

static Suite *suite(void)
{
    Suite *s = suite_create("gather");
    TCase *tc = tcase_create("gather");

    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_loop_test(tc, gpus_are_counted, 0, sizeof machines / sizeof *machines);
    tcase_add_test(tc, one_gpu_loads_alone);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
