/* Training with pools in the memory of paced accelerators through a real daemon gives the bits that
 * a calculation in this process gives, wherever the ranks are and whoever dies when; and what such
 * an accelerator is to the daemon. */
#include "client/cistern_device.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"
#include "tests/lib/train_check.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { N_STEPS = 3, N_PACED = 2, FIRST = 1 /* engine of the first; the node's is 0 */ };

/* Copies take some time, so that there is something to be in the middle of. */
#define CONFIG                                                                                     \
    "[host]\nnodes = 0\n[paced]\ndevices = 2\nup = 64M\ndown = 32M\nupdate = 32M\nmemory = 8M\n"

static struct daemon_proc proc;
static struct raw_client witness;
static unsigned base_fds;
static struct train_report *reports[TRAIN_MAX_WORLD];

/* Where the ranks of a job are. */
static const struct placement {
    const char *name;
    uint32_t world;
    const char *devices[TRAIN_MAX_WORLD];
} placements[] = {
    {"one", 1, {"paced:0"}},
    {"same", 2, {"paced:1", "paced:1"}},
    {"peers", 2, {"paced", "paced"}},
    {"mixed", 2, {"host", "paced"}},
    {"four", 4, {"paced:1", "host", "paced:0", "paced:1"}},
};

enum { N_PLACEMENTS = sizeof placements / sizeof *placements, PEERS = 2, MIXED = 3 };

static const struct train_bad none = {.step = TRAIN_NEVER};
static uint32_t micro_batches; /* of the jobs to come ... */
static uint64_t update_room;   /* ... and of each of their ranks */

static void setup(void)
{
    micro_batches = 1;
    update_room = 0;
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        reports[r] = train_report_new();
    }
    daemon_proc_start_with(&proc, CONFIG, (const char *[]){"--engine-threads=2", NULL});
    ck_assert_int_eq(shutdown(proc.notify, SHUT_RD), 0);
    raw_open(&witness, proc.socket);
    base_fds = settle_base_fds(&witness, &proc);
}

static void teardown(void)
{
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    for (int r = 0; r < TRAIN_MAX_WORLD; r++) {
        train_report_free(reports[r]);
    }
}

/* -- jobs -----------------------------------------------------------------------------------------
 */

static struct train_order order_of(const struct placement *at, const char *name, uint32_t rank)
{
    return (struct train_order){.socket = proc.socket,
                                .name = name,
                                .rank = rank,
                                .world = at->world,
                                .device = at->devices[rank],
                                .n_steps = N_STEPS,
                                .micro_batches = micro_batches,
                                .update_room = update_room,
                                .bad = none,
                                .die_at = UINT32_MAX,
                                .kill_at = UINT32_MAX};
}

static pid_t start(const struct train_order *order)
{
    memset(reports[order->rank], 0, sizeof *reports[order->rank]);
    return train_worker_start(order, reports[order->rank]);
}

static void run(const struct placement *at, const char *name, uint64_t pool_bytes)
{
    pid_t pids[TRAIN_MAX_WORLD];

    for (uint32_t r = 0; r < at->world; r++) {
        struct train_order order = order_of(at, name, r);

        order.pool_bytes = pool_bytes;
        pids[r] = start(&order);
    }
    for (uint32_t r = 0; r < at->world; r++) {
        train_worker_join(pids[r], reports[r]);
    }
    train_check(reports, at->world, 0, N_STEPS, none);
}

/* Every placement, with the largest pools and with the smallest. */
START_TEST(bits)
{
    const struct placement *at = &placements[_i];
    const struct cst_plan *plan = &reports[0]->plan;

    run(at, at->name, 0);
    ck_assert_uint_gt(plan->n_blocks, plan->min_blocks);
    run(at, "smallest", plan->min_blocks * plan->block_bytes);
    ck_assert_uint_eq(plan->n_blocks, plan->min_blocks);
}
END_TEST

/* The same with steps of three micro-batches. */
START_TEST(micro_batch_bits)
{
    const struct placement *at = &placements[_i];
    const struct cst_plan *plan = &reports[0]->plan;

    micro_batches = 3;
    run(at, at->name, 0);
    run(at, "smallest", plan->min_blocks * plan->block_bytes);
}
END_TEST

/* Weights went up and gradients came down over the accelerator's own lanes; its memory is charged
 * while the job is there. */
START_TEST(its_engine_copies)
{
    const Cistern__StatReply *stat;

    run(&placements[0], "one", 0);
    stat = raw_stat(&witness);
    ck_assert_uint_eq(stat->n_engines, 1 + N_PACED);
    ck_assert_str_eq(stat->engines[FIRST]->kind, "paced");
    ck_assert_str_eq(stat->engines[FIRST]->device, "paced:0");
    ck_assert_str_eq(stat->engines[FIRST]->state, "ready");
    ck_assert_str_eq(stat->engines[FIRST + 1]->state, "off");
    ck_assert_uint_gt(stat->engines[FIRST]->commands, 0);
    ck_assert_uint_eq(stat->n_gpus, N_PACED);
    ck_assert_str_eq(stat->gpus[0]->uuid, "paced:0");
    ck_assert_uint_eq(stat->gpus[0]->pool_budget, 8u << 20);
    ck_assert_uint_gt(stat->gpus[0]->pool_used, 0);
    ck_assert_uint_eq(stat->gpus[1]->pool_used, 0);
}
END_TEST

/* JobOpen on @device; what the daemon calls it, or a status. */
static int open_on(const char *device, char *became)
{
    struct cst_job_spec spec = {.name = "device", .world = 2, .rank = 1, .device = device};
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    int rc;

    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    rc = cst_job_open(&job, client, &spec, &err);
    if (rc == CST_OK) {
        (void)strcpy(became, cst_job_device(job));
    } else {
        ck_assert_ptr_nonnull(strstr(err.text, device));
    }
    cst_disconnect(client);
    return rc;
}

/* A device by its number, or by the rank's; one that is not there is refused with its name. */
START_TEST(devices_are_checked)
{
    char became[64];

    ck_assert_int_eq(open_on("paced", became), CST_OK);
    ck_assert_str_eq(became, "paced:1");
    ck_assert_int_eq(open_on("paced:0", became), CST_OK);
    ck_assert_str_eq(became, "paced:0");
    ck_assert_int_eq(open_on("paced:2", became), CST_ENOTFOUND);
    ck_assert_int_eq(open_on("paced:", became), CST_ENOTFOUND);
    ck_assert_int_eq(open_on("pacedd", became), CST_ENOTFOUND);
}
END_TEST

/* -- rooms ----------------------------------------------------------------------------------------
 */

static uint64_t used(unsigned paced)
{
    return raw_stat(&witness)->gpus[paced]->pool_used;
}

/* Whatever the ranks' rooms are, and where: the bits are the same. */
START_TEST(room_bits)
{
    const struct placement *at = &placements[_i % N_PLACEMENTS];

    update_room = _i < N_PLACEMENTS ? 1 << 20 : 4096;
    run(at, at->name, 0);
}
END_TEST

/* Ranks on the host device have their rooms on accelerators by their number, one room for all that
 * are on the same one; the job's end gives them back. */
START_TEST(rooms_of_host_ranks)
{
    static const struct placement at = {"host", 3, {"host", "host", "host"}};
    const Cistern__StatReply *stat;

    update_room = (1 << 20) + 5;
    run(&at, at.name, 0);
    stat = raw_stat(&witness);
    ck_assert_str_eq(stat->engines[FIRST]->state, "ready");
    ck_assert_str_eq(stat->engines[FIRST + 1]->state, "ready");
    ck_assert_uint_eq(used(0), 2 << 20);
    ck_assert_uint_eq(used(1), 1 << 20);
    settle_remove_jobs(&witness);
    settle(&witness, &proc, settle_fds(&witness, base_fds));
    ck_assert_uint_eq(used(0), 0);
}
END_TEST

/* A room has its own beside the pool of a rank that asks for all there is, and one that is larger
 * than its accelerator is refused with the numbers. */
START_TEST(rooms_are_charged)
{
    struct cst_job_spec spec = {
        .name = "large", .world = 1, .device = "paced:0", .update_room = (8 << 20) + 4096};
    const int64_t n = 1000;
    struct cst_client *client;
    struct cst_job *job;
    struct cst_err err = {0};
    int tensor;

    update_room = 7 << 20;
    run(&placements[0], "one", 0);
    ck_assert_uint_gt(used(0), 7 << 20);
    ck_assert_uint_le(used(0), 8 << 20);
    ck_assert_int_eq(cst_connect(&client, proc.socket, &err), CST_OK);
    ck_assert_int_eq(cst_job_open(&job, client, &spec, &err), CST_OK);
    tensor = cst_tensor(job, "t", CST_BF16, 1, &n, CST_GROUP_ALL);
    ck_assert_int_eq(cst_operator(job, "o", &tensor, 1), 0);
    ck_assert_int_eq(cst_commit(job, NULL, &err), CST_EBUDGET);
    ck_assert_msg(strstr(err.text, "memory of paced:0") != NULL, "%s", err.text);
    cst_disconnect(client);
}
END_TEST

/* -- deaths -------------------------------------------------------------------------------------
 */

static int engine_pid(unsigned engine)
{
    return raw_stat(&witness)->engines[engine]->pid;
}

/* Engine _i (0: the node's, 1 and 2: accelerators) is killed at every point of a worker's life:
 * another one takes over with the memory that its daemon kept, and no step is given up. */
START_TEST(engine_killed_anywhere)
{
    const struct placement *at = &placements[PEERS];
    uint64_t n_kills = 0;
    uint32_t n_points;

    run(at, "dry", 0);
    n_points = reports[0]->n_points;
    for (uint32_t point = 4; point < n_points; point += suite_stride(5)) {
        struct train_order orders[2];
        pid_t pids[2];
        char name[32];

        (void)snprintf(name, sizeof name, "engine-%u", point);
        for (uint32_t r = 0; r < 2; r++) {
            orders[r] = order_of(at, name, r);
            orders[r].pool_bytes = point % 2 == 0 ? 0 : 6ull * 2 * TRAIN_CHUNK_ELEMS;
        }
        orders[0].kill_at = point;
        orders[0].victim = engine_pid((unsigned)_i);
        ck_assert_int_gt(orders[0].victim, 0);
        for (uint32_t r = 0; r < 2; r++) {
            pids[r] = start(&orders[r]);
        }
        for (uint32_t r = 0; r < 2; r++) {
            train_worker_join(pids[r], reports[r]);
            ck_assert_uint_eq(reports[r]->n_syncs, 0);
        }
        train_check_states(reports, 2, N_STEPS, none);
        settle_remove_jobs(&witness);
        ck_assert_uint_eq(raw_stat(&witness)->engines[_i]->restarts, ++n_kills);
    }
}
END_TEST

/* One rank of a host and an accelerator is killed at every point; another process takes its place,
 * and finds the pool as it was made. _i: the rank. */
START_TEST(worker_killed_anywhere)
{
    const struct placement *at = &placements[MIXED];
    uint32_t victim = (uint32_t)_i, n_points;

    run(at, "dry", 0);
    n_points = reports[victim]->n_points;
    for (uint32_t point = 0; point < n_points; point += suite_stride(5)) {
        struct train_order orders[2];
        pid_t pids[2];
        char name[32];

        (void)snprintf(name, sizeof name, "killed-%u", point);
        for (uint32_t r = 0; r < 2; r++) {
            orders[r] = order_of(at, name, r);
            orders[r].die_at = r == victim ? point : UINT32_MAX;
            orders[r].pool_bytes = point % 2 == 0 ? 0 : 6ull * 2 * TRAIN_CHUNK_ELEMS;
            pids[r] = start(&orders[r]);
        }
        ck_assert_msg(train_worker_join_dying(pids[victim], reports[victim]), "point %u", point);
        orders[victim].die_at = UINT32_MAX;
        pids[victim] = train_worker_start(&orders[victim], reports[victim]);
        train_worker_join(pids[victim], reports[victim]);
        train_worker_join(pids[1 - victim], reports[1 - victim]);
        train_check_states(reports, 2, N_STEPS, none);
        settle_remove_jobs(&witness);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("paced");
    TCase *plain = suite_case(suite, "bits", setup, teardown);
    TCase *rooms = suite_case(suite, "rooms", setup, teardown);
    TCase *deaths = suite_case(suite, "deaths", setup, teardown);

    tcase_add_loop_test(plain, bits, 0, N_PLACEMENTS);
    tcase_add_loop_test(plain, micro_batch_bits, 0, N_PLACEMENTS);
    tcase_add_test(plain, its_engine_copies);
    tcase_add_test(plain, devices_are_checked);
    tcase_add_loop_test(rooms, room_bits, 0, 2 * N_PLACEMENTS);
    tcase_add_test(rooms, rooms_of_host_ranks);
    tcase_add_test(rooms, rooms_are_charged);
    tcase_add_loop_test(deaths, engine_killed_anywhere, 0, 1 + N_PACED);
    tcase_add_loop_test(deaths, worker_killed_anywhere, 0, 2);
    tcase_set_timeout(deaths, 180);
    return suite_run(suite);
}
