/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the commands of a paced accelerator's engine process, which is driven over its socket as
 * by the daemon. Its memory is memfds, which the test can read. */
#include "kernels/engine/rate_limit.h"
#include "proto/traffic.h"
#include "tests/lib/device_cases.h"
#include "tests/lib/engine_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define OWN 70 /* id of a segment in the accelerator's memory */

static uint64_t seed;

static void set_up(void)
{
    device_cases_seed(seed);
    engine_proc_use_option("--paced", "memory=67108864");
    engine_rig_setup(true);
}

/* Like the other fixture, with copies that take some milliseconds. */
static void set_up_slow(void)
{
    device_cases_seed(seed);
    engine_proc_use_option("--paced",
                           "up=100000000,down=50000000,update=100000000,memory=67108864");
    engine_rig_setup(true);
}

/* READY reports memory of a given size and granularity, as for a GPU. */
START_TEST(test_ready)
{
    ck_assert_str_eq(proc.device_name, "paced");
    ck_assert_uint_eq(proc.device_bytes, 67108864);
    ck_assert_uint_gt(proc.granularity, 0);
    ck_assert_uint_eq(proc.driver, 0);
}
END_TEST

/* Memory that the engine allocates is zero and can neither shrink nor grow. Another engine finds in
 * it what this one wrote. */
START_TEST(test_memory_outlives_it)
{
    struct cst_place own = {.segment = OWN}, row = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    uint64_t bytes = 16 * proc.granularity;
    struct engine_segment_done made = engine_proc_add_device(&proc, OWN, -1, bytes);
    uint8_t *base;

    ck_assert_msg(made.status == CST_OK && made.fd >= 0, "%s", made.text);
    ck_assert_int_ne(ftruncate(made.fd, (off_t)bytes / 2), 0);
    ck_assert_int_ne(ftruncate(made.fd, (off_t)bytes * 2), 0);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    ck_assert(engine_rig_all_zero(base, bytes));
    engine_rig_must(engine_command_copy(own, row, bytes));
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    ck_assert_mem_eq(base, engine_rig_at(row), bytes);
    tiny_job_start(&job, &proc, 3, 2, 1);
    ck_assert_int_eq(engine_proc_add_device(&proc, OWN, made.fd, bytes).status, CST_OK);
    memset(engine_rig_at(row), 0, bytes);
    engine_rig_must(engine_command_copy(row, own, bytes));
    ck_assert_mem_eq(base, engine_rig_at(row), bytes);
    ck_assert(!engine_rig_all_zero(base, bytes));
}
END_TEST

/* Sizes that are no multiple of the granularity, and handles of other memory, are refused with a
 * message. */
START_TEST(test_wrong_memory)
{
    int small = engine_proc_memfd(proc.granularity, NULL), open_end = memfd_create("test", 0);

    ck_assert_int_eq(engine_proc_add_device(&proc, OWN, -1, proc.granularity + 1).status,
                     CST_EINVAL);
    ck_assert_int_eq(engine_proc_add_device(&proc, OWN, small, 2 * proc.granularity).status,
                     CST_EINVAL);
    ck_assert_int_eq(ftruncate(open_end, (off_t)proc.granularity), 0);
    ck_assert_int_eq(engine_proc_add_device(&proc, OWN, open_end, proc.granularity).status,
                     CST_EINVAL);
    ck_assert_int_eq(engine_proc_add_device(&proc, OWN, small, proc.granularity).status, CST_OK);
    (void)close(small);
    (void)close(open_end);
}
END_TEST

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Check that @command, run alone, takes at least the time of @units at @rate per second. */
static void check_time(struct engine_command command, uint64_t units, uint64_t rate)
{
    uint64_t began = now_ns();

    engine_rig_must(command);
    ck_assert_uint_ge(now_ns() - began + CSTE_RATE_LIMIT_LATE_NS, units * 1000000000 / rate);
}

/* Copies in each direction keep the rate of the direction, and a sum keeps that of copies to the
 * host. Copies within the memory have no rate. */
START_TEST(test_takes_its_time)
{
    struct cst_place row = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    struct cst_place block = tiny_job_block(&job, BIG, 0);
    uint64_t bytes = BIG_ELEMS * 2;

    check_time(engine_command_copy(block, row, bytes), bytes, 100000000);
    check_time(engine_command_copy(row, block, bytes), bytes, 50000000);
    check_time(tiny_job_reduce(&job, 0, 1), job.n_elems[0] * 2, 50000000);
}
END_TEST

static struct cst_traffic *slots;

static void set_up_traffic(void)
{
    void *base;

    engine_proc_traffic(engine_proc_memfd(4 * sizeof *slots, &base), 4, 2);
    slots = base;
    set_up();
}

/* Start another engine for the job, with these rates. */
static void start_again(const char *rates)
{
    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    engine_proc_use_option("--paced", rates);
    tiny_job_start(&job, &proc, 1, 2, 1);
}

/* While the engine copies over the link, its slot in the table of traffic says so: here for
 * minutes, unless the engine is killed. */
START_TEST(test_tells_its_copies)
{
    struct cst_place row = tiny_job_row(&job, BIG, CST_ROW_MASTER);
    struct cst_place block = tiny_job_block(&job, BIG, 0);
    struct engine_command up = engine_command_copy(block, row, BIG_ELEMS * 2);

    engine_rig_must(up);
    ck_assert(!cst_traffic_any(slots, 4));
    start_again("up=1000,memory=67108864");
    up.ticket = ++ticket;
    engine_proc_submit(&proc, &up, 1);
    while (!cst_traffic_any(slots, 4)) {
        (void)sched_yield();
    }
    ck_assert(cst_traffic_any(slots + 2, 1));
    start_again("memory=67108864");
}
END_TEST

static void set_up_node(void)
{
    engine_proc_use_option("--pace", "update=20000000");
    engine_rig_setup(false);
}

/* An update by a node's engine keeps its rate if the engine has one. */
START_TEST(test_node_takes_its_time)
{
    const struct cst_table_span *spans = cst_table_spans(job.table) + TINY_SPANS * BIG;
    uint64_t n = 0;

    for (unsigned i = 0; i < TINY_SPANS; i++) {
        n += spans[i].n_elems;
    }
    check_time(tiny_job_update(&job, BIG, 1), n, 20000000);
}
END_TEST

/* The busy time of updates that overlap counts each moment once: the last pieces of one are done
 * next to the first ones of the next. */
START_TEST(test_busy_once)
{
    struct engine_command commands[N_CHUNKS];
    Engine__Pong pong;
    uint64_t began = now_ns();

    for (uint32_t c = 0; c < N_CHUNKS; c++) {
        commands[c] = tiny_job_update(&job, c, 1);
        commands[c].ticket = ++ticket;
    }
    engine_proc_submit(&proc, commands, N_CHUNKS);
    for (uint64_t t = ticket - N_CHUNKS + 1; t <= ticket; t++) {
        const struct engine_completion *done = engine_proc_wait(&proc, t);

        ck_assert_msg(done != NULL && done->status == CST_OK, "chunk %" PRIu64, t);
    }
    engine_proc_ping(&proc, &pong);
    ck_assert_uint_gt(pong.update_ns, 0);
    ck_assert_uint_le(pong.update_ns, now_ns() - began);
}
END_TEST

/* An update with newest_first is executed before waiting ones of its priority; an update of 30 ms
 * keeps the only thread busy. */
START_TEST(test_newest_first)
{
    struct engine_command commands[] = {tiny_job_update(&job, BIG, 1), tiny_job_update(&job, 0, 1),
                                        tiny_job_update(&job, 2, 1)};
    unsigned order[] = {0, 2, 1};

    engine_proc_kill(&proc);
    (void)engine_proc_close(&proc);
    tiny_job_start(&job, &proc, 1, 1, 1);
    for (unsigned i = 0; i < 3; i++) {
        commands[i].ticket = ++ticket;
        commands[i].priority = i > 0 ? ENGINE__PRIORITY__PREFETCH : ENGINE__PRIORITY__DEMAND;
    }
    commands[2].newest_first = true;
    engine_proc_submit(&proc, commands, 3);
    ck_assert_ptr_nonnull(engine_proc_wait(&proc, ticket - 1));
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_uint_eq(proc.done[i].ticket, commands[order[i]].ticket);
        ck_assert_int_eq(proc.done[i].status, CST_OK);
    }
}
END_TEST

int main(void)
{
    const char *text = getenv("CST_SEED");
    Suite *suite = suite_create("paced_engine");
    TCase *node = suite_case(suite, "node", set_up_node, engine_rig_teardown);
    TCase *plain = suite_case(suite, "plain", set_up, engine_rig_teardown);
    TCase *slow = suite_case(suite, "slow", set_up_slow, engine_rig_teardown);

    seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    printf("seed: CST_SEED=%" PRIu64 "\n", seed);
    tcase_add_test(plain, test_ready);
    tcase_add_test(plain, test_memory_outlives_it);
    tcase_add_test(plain, test_wrong_memory);
    device_cases_add(plain);
    device_cases_add_slow(slow);
    tcase_add_test(slow, test_takes_its_time);
    tcase_add_test(suite_case(suite, "traffic", set_up_traffic, engine_rig_teardown),
                   test_tells_its_copies);
    tcase_add_test(node, test_node_takes_its_time);
    tcase_add_test(node, test_busy_once);
    tcase_add_test(node, test_newest_first);
    return suite_run(suite);
}
