/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the engine process: how its team pauses for copies. */
#include "proto/traffic.h"
#include "tests/lib/engine_rig.h"

#include "tests/lib/suite.h"

#include <check.h>

static void set_up(void)
{
    engine_proc_copy_share(0.9f);
    engine_rig_setup(false);
}

#define N_COPIES 48
#define N_UPDATES 16 /* so many that a thread has to pause for more than the shortest sleep */
#define COPY_BYTES (32u << 20)

/* The team pauses while the lanes have copies to do, and never otherwise. */
START_TEST(test_stands_back)
{
    static struct engine_command c[N_COPIES + N_UPDATES];
    uint64_t held;
    Engine__Pong pong;
    int fd = engine_proc_memfd(2 * COPY_BYTES, NULL);

    engine_proc_must_add(&proc, 50, fd, 2 * COPY_BYTES);
    engine_rig_must(tiny_job_update(&job, BIG, 1));
    engine_proc_ping(&proc, &pong);
    ck_assert(pong.has_held_ns);
    ck_assert_uint_eq(pong.held_ns, 0);
    for (unsigned i = 0; i < N_COPIES; i++) {
        c[i] = engine_command_copy((struct cst_place){.segment = 50},
                                   (struct cst_place){.segment = 50, .offset = COPY_BYTES},
                                   COPY_BYTES);
        c[i].ticket = ++ticket;
    }
    for (unsigned i = 0; i < N_UPDATES; i++) {
        c[N_COPIES + i] = tiny_job_update(&job, BIG, 2 + i);
        c[N_COPIES + i].ticket = ++ticket;
    }
    engine_proc_submit(&proc, c, N_COPIES + N_UPDATES);
    ck_assert_int_eq(engine_proc_wait(&proc, ticket)->status, CST_OK);
    for (unsigned i = 0; i < N_COPIES; i++) {
        ck_assert_int_eq(engine_proc_wait(&proc, c[i].ticket)->status, CST_OK);
    }
    engine_proc_ping(&proc, &pong);
    held = pong.held_ns;
    ck_assert_uint_gt(held, 0);
    engine_rig_must(tiny_job_update(&job, BIG, 2 + N_UPDATES));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.held_ns, held);
}
END_TEST

static struct cst_traffic *slots;

static void set_up_with_traffic(void)
{
    void *base;

    engine_proc_traffic(engine_proc_memfd(4 * sizeof *slots, &base), 4, -1);
    slots = base;
    set_up();
}

/* The team also pauses for copies that accelerators' engines report in the table of traffic. */
START_TEST(test_stands_back_for_others)
{
    Engine__Pong pong;
    uint64_t held;

    engine_rig_must(tiny_job_update(&job, BIG, 1));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.held_ns, 0);
    cst_traffic_add(&slots[3], 1);
    for (unsigned i = 0; i < N_UPDATES; i++) {
        engine_rig_must(tiny_job_update(&job, BIG, 2 + i));
    }
    engine_proc_ping(&proc, &pong);
    held = pong.held_ns;
    ck_assert_uint_gt(held, 0);
    cst_traffic_add(&slots[3], -1);
    engine_rig_must(tiny_job_update(&job, BIG, 2 + N_UPDATES));
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_eq(pong.held_ns, held);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_budget");
    TCase *tcase = suite_case(suite, "budget", set_up, engine_rig_teardown);

    tcase_add_test(tcase, test_stands_back);
    tcase = suite_case(suite, "traffic", set_up_with_traffic, engine_rig_teardown);
    tcase_add_test(tcase, test_stands_back_for_others);
    return suite_run(suite);
}
