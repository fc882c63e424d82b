/* SPDX-License-Identifier: Apache-2.0 */
/* A job with more ranks than an engine adds contributions in one command, with real processes. The
 * results must have the bits of a computation in this process that adds all contributions in the
 * order of the ranks, also when a worker is killed and another one takes its place. */
#include "cistern/cistern.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_rig.h"

#include <check.h>

enum { WORLD = 96, VICTIM = 70 };

static struct train_placement at = {.name = "many", .world = WORLD};
static pid_t pids[WORLD];

static void setup(void)
{
    for (uint32_t r = 0; r < WORLD; r++) {
        at.devices[r] = "host";
    }
    train_rig_start("[host]\nnodes = 0\n[device host]\npool = 64M\n",
                    (const char *[]){"--engine-threads=1", NULL});
}

/* With and without micro-batches: sums go on in the same row. */
START_TEST(bits)
{
    train_like.n_steps = 2;
    train_like.micro_batches = (uint32_t)_i;
    train_rig_run(&at, at.name, 0);
    ck_assert_uint_eq(raw_job_info(&witness, at.name)->n_ranks, WORLD);
}
END_TEST

START_TEST(worker_killed)
{
    struct train_order victim;

    train_like.n_steps = 2;
    for (uint32_t r = 0; r < WORLD; r++) {
        struct train_order order = train_rig_order(&at, "killed", r);

        if (r == VICTIM) {
            order.die_at = 12;
            victim = order;
        }
        pids[r] = train_rig_send(&order);
    }
    ck_assert(train_worker_join_dying(pids[VICTIM], reports[VICTIM]));
    victim.die_at = UINT32_MAX;
    pids[VICTIM] = train_worker_start(&victim, reports[VICTIM]);
    for (uint32_t r = 0; r < WORLD; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check_states(reports, WORLD, train_like.n_steps, (struct train_bad){.step = TRAIN_NEVER});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("many_ranks");
    TCase *plain = suite_case(suite, "bits", setup, train_rig_stop);
    TCase *deaths = suite_case(suite, "deaths", setup, train_rig_stop);

    suite_add_loop(plain, bits, 1, 3);
    tcase_add_test(deaths, worker_killed);
    tcase_set_timeout(plain, 60);
    tcase_set_timeout(deaths, 60);
    return suite_run(suite);
}
