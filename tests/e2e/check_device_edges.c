/* SPDX-License-Identifier: Apache-2.0 */
/* Edges with slots in the memory of stand-in GPUs: all forms of put and take, deaths of ranks and
 * engines, GPUs that are lost, GPUs that cannot access each other, budgets, and removal of the
 * job. */
#include "tests/lib/edge_ring.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int expected; /* What cst_edge_on_device must return for the edges of the ring. */

static void run_ring(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    edge_ring_on_device(w, edge_ring_out(order, w->rank), expected);
    edge_ring_on_device(w, edge_ring_in(order, w->rank), expected);
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(edge_ring(w, order, NULL, &err), &err, "ring");
    nccl_arrive(order);
}

/* Arrays of random sizes reach the next rank. _i: number of ranks. */
START_TEST(arrays_go_round)
{
    nccl_run(run_ring, edge_ring_order((uint32_t)_i));
}
END_TEST

/* Two ranks share a GPU, and a third one has another. */
START_TEST(ranks_share_a_gpu)
{
    struct nccl_order *order = edge_ring_order(3);

    order->devices[1] = "cuda:0";
    order->devices[2] = "cuda:1";
    nccl_run(run_ring, order);
}
END_TEST

/* Questions about edges that are not there. */
static void ask_wrong(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    edge_ring_must(cst_edge_on_device(w->job, -1, &err) == CST_EINVAL, "edge -1", &err);
    edge_ring_must(cst_edge_on_device(w->job, 2 * (int)order->world, &err) == CST_EINVAL,
                   "one more", &err);
    edge_ring_must(cst_edge_on_device(w->job, (int)(w->rank + 1) % 3, &err) == CST_EINVAL &&
                       strstr(err.text, "is no end of it") != NULL,
                   "another rank's edge", &err);
}

START_TEST(wrong_questions_are_refused)
{
    nccl_run(ask_wrong, edge_ring_order(3));
}
END_TEST

/* -- where slots are, and what is said about it ----------------------------------------------- */

static void stay(struct nccl_worker *w, struct nccl_order *order)
{
    run_ring(w, order);
    (void)sem_post(&order->begun);
    (void)sem_wait(&order->ended);
}

/* Fork two ranks that run a ring, and return when both have. */
static void begin_ring(struct nccl_order *order, pid_t pids[2])
{
    edge_ring_fork(stay, order, pids);
    edge_ring_await(order);
}

static void end_ring(struct nccl_order *order, const pid_t pids[2])
{
    edge_ring_release(order);
    edge_ring_join(pids);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    child_unshare(order, sizeof *order);
}

/* The output of `cistern job j` must contain @words. */
static void check_job_command(const char *words)
{
    char line[256], text[8192];
    FILE *from;
    size_t n;

    (void)snprintf(line, sizeof line, "CISTERN_SOCKET=%s ./cistern job j", proc.socket);
    from = popen(line, "r");
    ck_assert_ptr_nonnull(from);
    n = fread(text, 1, sizeof text - 1, from);
    text[n] = '\0';
    ck_assert_int_eq(pclose(from), 0);
    ck_assert_msg(strstr(text, words) != NULL, "%s", text);
}

/* The slots of each edge are charged to the GPU of its receiver, and given back with the job. */
START_TEST(slots_are_charged_to_the_gpu)
{
    struct nccl_order *order = edge_ring_order(2), *without = edge_ring_order(2);
    uint64_t used[2];
    pid_t pids[2];

    without->on_device = false;
    expected = 0;
    begin_ring(without, pids);
    for (int i = 0; i < 2; i++) {
        used[i] = raw_stat(&witness)->gpus[i]->pool_used;
    }
    ck_assert(!raw_job_info(&witness, "j")->has_edge_device_bytes);
    end_ring(without, pids);
    expected = 1;
    begin_ring(order, pids);
    for (int i = 0; i < 2; i++) { /* An edge of the rank to itself, and one of the ring. */
        ck_assert_uint_eq(raw_stat(&witness)->gpus[i]->pool_used, used[i] + 2 * EDGE_RING_GRAIN);
    }
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, 4 * EDGE_RING_GRAIN);
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 2' from rank 0 to rank 1: slots in the memory of cuda:1"));
    check_job_command("of host memory and 8.00 MiB of device memory");
    end_ring(order, pids);
}
END_TEST

static void open_late(void)
{
    expected = 1;
    nccl_rig_open_large();
}

static void open_two(const char *peers, const char *config)
{
    expected = 0;
    cuda_rig_dawdle(true);
    (void)setenv("CST_FAKECUDA_PEERS", peers, 1);
    cuda_rig_open(config);
}

/* Fixture: the driver lets no GPU access the memory of another one. */
static void open_separate(void)
{
    open_two("none", "");
}

/* Fixture: the configuration does not. */
static void open_configured(void)
{
    open_two("all", "[gpu]\npeers = no\n");
}

/* Slots between GPUs without peer access are in host memory, and explain says why. Those of a rank
 * to itself are on its GPU. */
START_TEST(without_access_slots_are_in_host_memory)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2];

    begin_ring(order, pids);
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, 2 * EDGE_RING_GRAIN);
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 2' from rank 0 to rank 1: slots in host memory, because "
                           "cuda:0 cannot access cuda:1"));
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 1' from rank 1 to rank 1: slots in the "
                           "memory of cuda:1"));
    end_ring(order, pids);
}
END_TEST

/* -- simulated accelerators ------------------------------------------------------------------- */

/* Fixture: no GPU, but two simulated accelerators. */
static void open_paced(void)
{
    expected = 0;
    train_rig_start("[host]\nnodes = 0\n[paced]\ndevices = 2\nup = 64M\ndown = 64M\n"
                    "update = 32M\nmemory = 8M\n",
                    (const char *[]){"--engine-threads=2", NULL});
}

static struct nccl_order *paced_order(const char *first, const char *second)
{
    struct nccl_order *order = edge_ring_order(2);

    order->devices[0] = first;
    order->devices[1] = second;
    return order;
}

/* Slots can be in the memory of a simulated accelerator, which the processor accesses. */
START_TEST(slots_of_a_simulated_accelerator)
{
    struct nccl_order *order = paced_order("paced:0", "paced:1");
    pid_t pids[2];

    begin_ring(order, pids);
    ck_assert_uint_ge(raw_job_info(&witness, "j")->edge_device_bytes,
                      (uint64_t)4 * EDGE_RING_SLOTS * EDGE_RING_SLOT);
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 2' from rank 0 to rank 1: slots in the memory of paced:1"));
    end_ring(order, pids);
}
END_TEST

/* A rank whose pool is in host memory can neither have slots nor write to those of others. */
START_TEST(a_rank_on_the_host)
{
    struct nccl_order *order = paced_order("host", "paced:1");
    pid_t pids[2];

    begin_ring(order, pids);
    for (int i = 0; i < 2; i++) {
        ck_assert(raw_explains(
            &witness, "j", "t",
            i == 0 ? "edge 'edge 2' from rank 0 to rank 1: slots in host memory, because the pool "
                     "of rank 0 is in host memory"
                   : "edge 'edge 3' from rank 1 to rank 0: slots in host memory, because the pool "
                     "of rank 0 is in host memory"));
    }
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 1' from rank 1 to rank 1: slots in the "
                           "memory of paced:1"));
    end_ring(order, pids);
}
END_TEST

/* -- budgets ---------------------------------------------------------------------------------- */

/* Fixture: GPUs with 16 MiB for pools. */
static void open_small(void)
{
    expected = 1;
    cuda_rig_dawdle(false);
    cuda_rig_open("[gpu]\npool = 16M\n");
}

/* A commit of one rank on the GPU must be refused. */
static void be_refused(struct nccl_order *order)
{
    pid_t pid = child_start();
    struct cst_err err = {0};
    struct nccl_worker w;

    if (pid == 0) {
        int rc = nccl_join(&w, order, 0, &err);

        edge_ring_must(rc == CST_EBUDGET, cst_status_name(rc), &err);
        edge_ring_must(strstr(err.text, "pools of cuda:0") != NULL &&
                           strstr(err.text, "slots of edges take 36.0 MiB (37748736 bytes)") !=
                               NULL,
                       "the error", &err);
        nccl_worker_free(&w);
        exit(0);
    }
    ck_assert(!child_join(pid, "a worker failed"));
}

/* Slots that leave nothing for the pool are refused with the numbers. Smaller ones are accepted
 * afterwards. */
START_TEST(the_budget_of_the_gpu_limits_slots)
{
    struct nccl_order *order = edge_ring_order(1);

    order->slot_bytes = 6 << 20;
    be_refused(order);
    child_unshare(order, sizeof *order);
    nccl_run(run_ring, edge_ring_order(2));
}
END_TEST

/* -- slots that a worker cannot map ------------------------------------------------------------ */

/* What keeps workers from mapping memory that their GPU's engine, or another one, has made. */
static const struct obstacle {
    const char *setting;
    bool for_all;       /* The setting is that of both ranks, and not only of rank 0. */
    bool on_host[4];    /* Edges whose slots are in host memory then. */
    const char *reason; /* In the explanation of edge 2, which is from rank 0 to rank 1. */
} obstacles[] = {
    {"CST_FAKECUDA_PEERS=none", false, {false, false, true, false}, "access of GPU-"},
    {"CST_FAKECUDA_PEERS=none", true, {false, false, true, true}, "access of GPU-"},
    {"CUDA_VISIBLE_DEVICES=0", false, {false, false, true, false}, "importing 2097152 bytes"},
    /* The first memory is the pool's. */
    {"CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:2+=304",
     false,
     {true, false, true, true},
     "importing 2097152 bytes"},
    {"CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:2+=304",
     true,
     {true, true, true, true},
     "importing 2097152 bytes"},
    {"CST_FAKECUDA_FAIL=cuMemMap:3=2", false, {false, false, true, false}, "mapping 2097152 bytes"},
};
enum { N_OBSTACLES = sizeof obstacles / sizeof obstacles[0] };

/* Run a ring. order->n_calls is the number of the obstacle, or N_OBSTACLES if there is none. */
static void run_refused(struct nccl_worker *w, struct nccl_order *order)
{
    const int edges[] = {(int)w->rank, edge_ring_out(order, w->rank), edge_ring_in(order, w->rank)};
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    for (int i = 0; i < 3; i++) {
        edge_ring_on_device(w, edges[i],
                            order->n_calls == N_OBSTACLES ||
                                !obstacles[order->n_calls].on_host[edges[i]]);
    }
    nccl_must(edge_ring(w, order, NULL, &err), &err, "ring");
    (void)sem_post(&order->begun);
    (void)sem_wait(&order->ended);
}

/* A worker that cannot map slots in device memory gets slots in host memory, and so does the other
 * end of the edge. explain says so, with the driver's words. When the ranks have left and come back
 * without the obstacle, the slots are in device memory. _i: the obstacle. */
START_TEST(slots_that_a_rank_cannot_map_are_in_host_memory)
{
    const struct obstacle *obstacle = &obstacles[_i];
    struct nccl_order *order = edge_ring_order(2);
    uint64_t on_device = 0;
    pid_t pids[2];

    for (int i = 0; i < 4; i++) {
        on_device += obstacle->on_host[i] ? 0 : EDGE_RING_GRAIN;
    }
    order->n_calls = (unsigned)_i;
    order->setting = obstacle->setting;
    order->setting_for_all = obstacle->for_all;
    edge_ring_fork(run_refused, order, pids);
    edge_ring_await(order);
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, on_device);
    ck_assert(raw_explains(&witness, "j", "t",
                           "edge 'edge 2' from rank 0 to rank 1: slots in host memory, because "
                           "rank "));
    ck_assert(raw_explains(&witness, "j", "t", "cannot map them on cuda:1:"));
    ck_assert(raw_explains(&witness, "j", "t", obstacle->reason));
    edge_ring_release(order);
    edge_ring_join(pids);
    order->n_calls = N_OBSTACLES;
    order->setting = NULL;
    edge_ring_fork(run_refused, order, pids);
    edge_ring_await(order);
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, 4 * EDGE_RING_GRAIN);
    end_ring(order, pids);
}
END_TEST

/* There is no host memory for slots that a rank cannot map: the commit says both, and the next one
 * goes on. */
START_TEST(slots_for_which_there_is_no_host_memory)
{
    struct nccl_order *order = edge_ring_order(1);
    struct cst_err err = {0};
    struct nccl_worker w;
    pid_t pid;

    order->slot_bytes =
        90 << 20; /* Three slots have more than the 256 MiB of tests/lib/daemon_proc.c. */
    pid = child_start();
    if (pid == 0) { /* The first memory is the pool's. */
        (void)setenv("CST_FAKECUDA_FAIL", "cuMemImportFromShareableHandle:2=304", 1);
        edge_ring_must(nccl_join(&w, order, 0, &err) == CST_EBUDGET &&
                           strstr(err.text, "edge 'edge 0': its slots in device memory") != NULL &&
                           strstr(err.text, "there are no slots in host memory instead") != NULL,
                       "commit", &err);
        nccl_must(cst_commit(w.job, NULL, &err), &err, "second commit");
        nccl_must(cst_sync(w.job, NULL, &err), &err, "sync");
        edge_ring_on_device(&w, 0, 1);
        nccl_must(cst_job_leave(w.job, &err), &err, "leave");
        nccl_worker_free(&w);
        exit(0);
    }
    ck_assert(!child_join(pid, "a worker failed"));
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

static void survive(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};
    char name[32];
    int rc;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    rc = edge_ring(w, order, NULL, &err);
    if (rc == CST_EPEERDIED) {
        (void)snprintf(name, sizeof name, "rank %u ", order->victim);
        edge_ring_must(strstr(err.text, name) != NULL, "the dead rank is not named", &err);
        nccl_must(cst_sync(w->job, NULL, &err), &err, "second sync");
        rc = edge_ring(w, order, NULL, &err);
    }
    nccl_must(rc, &err, "ring");
    nccl_arrive(order);
}

/* A rank is killed before, in or after a put or a take of any form. The others are told its name.
 * With its successor they pass the same arrays. CST_TEST_DEATHS: number of deaths. */
START_TEST(a_death_is_named_and_made_good)
{
    const char *given = getenv("CST_TEST_DEATHS");
    const unsigned n = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 3;

    for (unsigned i = 0; i < n; i++) {
        struct nccl_order *order = edge_ring_order(2 + (uint32_t)_i);

        order->seed += 13 * (uint64_t)i; /* Another moment. */
        order->victim = (uint32_t)(order->seed / 7 % order->world);
        order->at = (unsigned)(order->seed / 11 % (EDGE_RING_ARRAYS / 2));
        nccl_run_one_death(survive, order);
        child_unshare(order, sizeof *order);
    }
}
END_TEST

/* -- engines ---------------------------------------------------------------------------------- */

/* Rank 0 waits for the test in one group of its ring. */
static void pause_in(struct nccl_worker *w, struct nccl_order *order, uint32_t group)
{
    if (w->rank == 0 && group == order->seed % EDGE_RING_GROUPS) {
        (void)sem_post(&order->begun);
        (void)sem_wait(&order->ended);
    }
}

static void run_paused(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(edge_ring(w, order, pause_in, &err), &err, "ring");
    nccl_arrive(order);
}

/* The engine that has allocated the slots dies while they are in use. No array is lost, and nobody
 * notices. _i: the GPU. */
START_TEST(an_engine_dies)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2], engine;

    edge_ring_fork(run_paused, order, pids);
    (void)sem_wait(&order->begun);
    engine = edge_ring_engine(fake_gpu_uuid((unsigned)_i))->pid;
    ck_assert_int_eq(kill(engine, SIGKILL), 0);
    while (edge_ring_engine(fake_gpu_uuid((unsigned)_i))->pid == engine) {
        (void)poll(NULL, 0, 1);
    }
    (void)sem_post(&order->ended);
    edge_ring_join(pids);
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}
END_TEST

/* Rank 0 tells the test where it is, and goes on. */
static void tell(struct nccl_worker *w, struct nccl_order *order, uint32_t group)
{
    (void)group;
    if (w->rank == 0) {
        (void)sem_post(&order->begun);
    }
}

static void run_watched(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    for (int i = 0; i < 2; i++) {
        nccl_must(edge_ring(w, order, tell, &err), &err, "ring");
    }
    nccl_arrive(order);
}

/* Engines die while arrays pass through the slots that they have allocated, at moments that follow
 * from the seed, each engine twice. */
START_TEST(engines_die_at_any_time)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2], engine;

    edge_ring_fork(run_watched, order, pids);
    for (unsigned i = 0; i < 4; i++) {
        const char *gpu = fake_gpu_uuid((i + (unsigned)order->seed) % 2);

        for (uint64_t n = 1 + (order->seed >> 4 * i) % 4; n > 0; n--) {
            (void)sem_wait(&order->begun);
        }
        engine = edge_ring_engine(gpu)->pid;
        ck_assert_int_eq(kill(engine, SIGKILL), 0);
        while (edge_ring_engine(gpu)->pid == engine || edge_ring_engine(gpu)->pid == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
    edge_ring_join(pids);
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- removal ---------------------------------------------------------------------------------- */

/* Both ranks have a slot open, and wait for an array that nobody puts. */
static void be_removed(struct nccl_worker *w, struct nccl_order *order)
{
    const int out = edge_ring_out(order, w->rank), in = edge_ring_in(order, w->rank);
    struct cst_err err = {0};
    uint8_t data[EDGE_RING_SLOT];
    void *slot;
    int rc;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_put_begin(w->job, out, 0, &slot, &err), &err, "put_begin");
    (void)sem_post(&order->begun);
    rc = cst_take(w->job, in, 1, data, 1, &err);
    edge_ring_must(rc == CST_ENOTFOUND, cst_status_name(rc), &err);
    nccl_worker_free(w);
    exit(0);
}

/* The job is removed while its slots are in use. Waits end, and the memory is given back: the
 * fixture checks that no GPU memory is left. */
START_TEST(the_job_is_removed)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2];

    edge_ring_fork(be_removed, order, pids);
    edge_ring_await(order);
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    edge_ring_join(pids);
    for (int i = 0; i < 2; i++) {
        while (raw_stat(&witness)->gpus[i]->pool_used > 0) {
            (void)poll(NULL, 0, 1);
        }
    }
    child_unshare(order, sizeof *order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *arrays, *separate, *configured, *paced, *small, *narrow, *deaths;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("device edges");
    arrays = suite_case(suite, "arrays", open_late, cuda_rig_close);
    suite_add_loop(arrays, arrays_go_round, 1, 4);
    tcase_add_test(arrays, ranks_share_a_gpu);
    tcase_add_test(arrays, wrong_questions_are_refused);
    tcase_add_test(arrays, slots_are_charged_to_the_gpu);
    suite_add_loop(arrays, slots_that_a_rank_cannot_map_are_in_host_memory, 0, N_OBSTACLES);
    tcase_add_test(arrays, the_job_is_removed);
    separate = suite_case(suite, "separate", open_separate, cuda_rig_close);
    tcase_add_test(separate, without_access_slots_are_in_host_memory);
    configured = suite_case(suite, "configured", open_configured, cuda_rig_close);
    tcase_add_test(configured, without_access_slots_are_in_host_memory);
    paced = suite_case(suite, "paced", open_paced, train_rig_stop);
    tcase_add_test(paced, slots_of_a_simulated_accelerator);
    tcase_add_test(paced, a_rank_on_the_host);
    small = suite_case(suite, "small", open_small, cuda_rig_close);
    tcase_add_test(small, the_budget_of_the_gpu_limits_slots);
    narrow = suite_case(suite, "narrow", nccl_rig_open, cuda_rig_close);
    tcase_add_test(narrow, slots_for_which_there_is_no_host_memory);
    deaths = suite_case(suite, "deaths", open_late, cuda_rig_close);
    suite_add_loop(deaths, a_death_is_named_and_made_good, 0, 2);
    suite_add_loop(deaths, an_engine_dies, 0, 2);
    suite_add_loop(deaths, engines_die_at_any_time, 0, 2); /* With other seeds. */
    return suite_run(suite);
}
