/* SPDX-License-Identifier: Apache-2.0 */
/* Edges with slots in the memory of stand-in GPUs, whose memory is made again: because a GPU is
 * lost and its rank moves, because the job was done and its ranks come back, or because the daemon
 * has died and the job goes on with the next one. */
#include "tests/lib/edge_ring.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/settle.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* Kill the engine of a GPU until it is given up. */
static void lose(const char *gpu)
{
    pid_t killed = 0;

    while (strcmp(edge_ring_engine(gpu)->state, "failed") != 0) {
        pid_t next = edge_ring_engine(gpu)->pid;

        if (next > 0 && next != killed) {
            ck_assert_int_eq(kill(next, SIGKILL), 0);
            killed = next;
        }
        (void)poll(NULL, 0, 1);
    }
}

/* Sync by cst_sync, or by cst_try_sync. */
static int sync_in_turns(struct nccl_worker *w, const struct nccl_order *order, struct cst_err *err)
{
    struct pollfd fd = {.fd = cst_client_fd(w->client), .events = POLLIN};
    int rc = order->seed % 2 == 0 ? cst_sync(w->job, NULL, err) : CST_EAGAIN;

    while (rc == CST_EAGAIN) {
        rc = cst_try_sync(w->job, NULL, err);
        if (rc == CST_EAGAIN) {
            (void)poll(&fd, 1, -1);
        }
    }
    return rc;
}

/* Sync, and run rings until one ends well: another rank may sync twice, because it has refused
 * slots. */
static void go_on(struct nccl_worker *w, struct nccl_order *order)
{
    const int expected = strcmp(order->devices[order->victim], "host") != 0;
    struct cst_err err = {0};
    int rc = CST_EPEERDIED;

    while (rc == CST_EPEERDIED || rc == CST_ESTALE) {
        nccl_must(sync_in_turns(w, order, &err), &err, "sync");
        rc = edge_ring(w, order, NULL, &err);
    }
    nccl_must(rc, &err, "ring after the move");
    for (uint32_t rank = 0; rank < 2; rank++) { /* Rank 0 has refused its edge to rank 1. */
        edge_ring_on_device(w, edge_ring_out(order, rank),
                            expected && (order->n_calls == 0 || rank != 0));
    }
    (void)sem_post(&order->begun);
    (void)sem_wait(&order->ended);
}

/* Run a ring. The rank `victim` ends when its GPU is lost, and the other one goes on with its
 * successor. */
static void lose_gpu(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    if (!order->dead) {
        nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
        edge_ring_on_device(w, edge_ring_out(order, w->rank), 1);
        nccl_must(edge_ring(w, order, NULL, &err), &err, "ring");
        (void)sem_post(&order->begun);
        (void)sem_wait(&order->ended);
        if (w->rank == order->victim) {
            _exit(0);
        }
    }
    go_on(w, order);
}

/* Run a job of two ranks in which the GPU of order->victim is lost, and its rank is opened again on
 * @device. Its edges then have @bytes of memory on GPUs. */
static void move(struct nccl_order *order, const char *device, uint64_t bytes)
{
    pid_t pids[2];

    edge_ring_fork(lose_gpu, order, pids);
    edge_ring_await(order);
    lose(fake_gpu_uuid(order->victim));
    order->devices[order->victim] = device;
    order->dead = true;
    edge_ring_release(order);
    (void)child_wait(pids[order->victim]);
    pids[order->victim] = nccl_fork(lose_gpu, order->victim, order);
    edge_ring_await(order);
    ck_assert_uint_eq(raw_job_info(&witness, "j")->edge_device_bytes, bytes);
    edge_ring_release(order);
    edge_ring_join(pids);
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}

/* A rank's GPU is lost, and a new worker opens the rank on the host, on the other GPU, or on the
 * same one. The slots of its edges are there then, in both directions, and the rank that lived on
 * uses them, too. _i: the rank, and the device. */
START_TEST(slots_follow_a_rank_that_moves)
{
    static const char *const devices[2][3] = {{"host", "cuda:1", "cuda:0"},
                                              {"host", "cuda:0", "cuda:1"}};
    struct nccl_order *order = edge_ring_order(2);
    const int rank = _i % 2, device = _i / 2;

    order->victim = (uint32_t)rank;
    /* On the host, only the edge of the other rank to itself is on a GPU. */
    move(order, devices[rank][device], device == 0 ? EDGE_RING_GRAIN : 4 * EDGE_RING_GRAIN);
}
END_TEST

/* The rank that lives on cannot map the slots of its edge that were made again. It gets slots in
 * host memory within its cst_sync. The other rank may have begun to use the slots on the GPU: its
 * step is void then, and its next sync gets it the same slots. */
START_TEST(slots_that_cannot_be_mapped_again)
{
    struct nccl_order *order = edge_ring_order(2);

    order->n_calls = 1;
    order->victim = 1;
    /* Imports: the pool's memory, three edges, and the same edges again, of which the second one is
     * the edge to rank 1. */
    order->setting = "CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:6=304";
    move(order, "cuda:0", 3 * EDGE_RING_GRAIN);
}
END_TEST

/* -- jobs that are done ----------------------------------------------------------------------- */

static void run_ring(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    edge_ring_on_device(w, edge_ring_in(order, w->rank), 1);
    nccl_must(edge_ring(w, order, NULL, &err), &err, "ring");
    nccl_arrive(order);
}

/* When all ranks have left, the slots are given back with the pools. They are made again when the
 * ranks come back. */
START_TEST(slots_are_made_again)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2];

    for (int i = 0; i < 3; i++) {
        order->n_arrived = 0;
        edge_ring_fork(run_ring, order, pids);
        edge_ring_join(pids);
        while (raw_stat(&witness)->gpus[0]->pool_used > 0 ||
               raw_stat(&witness)->gpus[1]->pool_used > 0) {
            (void)poll(NULL, 0, 1);
        }
        ck_assert(!raw_job_info(&witness, "j")->has_edge_device_bytes);
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- the daemon dies -------------------------------------------------------------------------- */

/* Fixture: a daemon whose jobs outlive it. */
static void open_kept(void)
{
    cuda_rig_dawdle(true);
    daemon_proc_keep();
    cuda_rig_open("");
}

static void close_kept(void)
{
    settle_remove_jobs(&witness);
    while (raw_stat(&witness)->gpus[0]->pool_used > 0 ||
           raw_stat(&witness)->gpus[1]->pool_used > 0) {
        (void)poll(NULL, 0, 1);
    }
    raw_close(&witness);
    ck_assert_int_eq(daemon_proc_stop(&proc), 0);
    cuda_rig_check_end();
}

static void kill_daemon(void)
{
    raw_close(&witness);
    daemon_proc_kill_kept(&proc);
    raw_open(&witness, proc.socket);
}

/* Rank 0 tells the test where it is. */
static void tell(struct nccl_worker *w, struct nccl_order *order, uint32_t group)
{
    (void)group;
    if (w->rank == 0) {
        (void)sem_post(&order->begun);
    }
}

/* Make order->n_calls steps with a ring in each. Rank 0 begins the last one when the test says that
 * it kills no more: a rank whose last step is done would not take part in another sync. */
static void make_steps(struct nccl_worker *w, struct nccl_order *order)
{
    const struct cst_hyper_params params = {.lr = 0.1f, .grad_scale = 1};
    struct cst_step_result result = {0};
    struct cst_err err = {0};
    int rc = CST_ESTALE;
    bool waits = w->rank == 0;

    while (result.step < order->n_calls) {
        if (rc != CST_OK) {
            edge_ring_must(rc == CST_ESTALE || rc == CST_EPEERDIED, cst_status_name(rc), &err);
            nccl_must(cst_sync(w->job, &result.step, &err), &err, "sync");
            edge_ring_on_device(w, edge_ring_in(order, w->rank), 1);
        }
        if (waits && result.step + 1 == order->n_calls) {
            (void)sem_wait(&order->ended);
            waits = false;
        }
        rc = edge_ring(w, order, tell, &err);
        rc = rc == CST_OK ? cst_step(w->job, &params, &result, &err) : rc;
    }
    nccl_arrive(order);
}

/* The daemon is killed while arrays pass, at moments that follow from the seed. The ranks do the
 * step again with the next daemon, through new slots on their GPUs. */
START_TEST(the_daemon_dies_at_any_time)
{
    struct nccl_order *order = edge_ring_order(2);
    pid_t pids[2];

    order->n_calls = 4;
    edge_ring_fork(make_steps, order, pids);
    for (unsigned i = 0; i < 2; i++) {
        for (uint64_t n = 1 + (order->seed >> 8 * i) % EDGE_RING_GROUPS; n > 0; n--) {
            (void)sem_wait(&order->begun);
        }
        kill_daemon();
    }
    (void)sem_post(&order->ended);
    edge_ring_join(pids);
    child_unshare(order, sizeof *order);
}
END_TEST

/* Leave an array in an edge of this rank to itself. Afterwards the daemon has died if order->at is
 * 1, and the engine of the GPU otherwise. */
static void leave_array(struct nccl_worker *w, struct nccl_order *order)
{
    const struct cst_hyper_params params = {.lr = 0.1f, .grad_scale = 1};
    uint8_t sent[EDGE_RING_SLOT], got[EDGE_RING_SLOT] = {0};
    struct cst_err err = {0};
    int rc;

    memset(sent, 0x5a, sizeof sent);
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_put(w->job, 0, 7, sent, sizeof sent, &err), &err, "put");
    nccl_must(cst_step(w->job, &params, NULL, &err), &err, "step");
    (void)sem_post(&order->begun);
    (void)sem_wait(&order->ended);
    if (order->at == 1) {
        nccl_must(cst_sync(w->job, NULL, &err), &err, "sync with the next daemon");
    }
    rc = cst_take(w->job, 0, 7, got, sizeof got, &err);
    edge_ring_must(rc == (order->at == 1 ? CST_ENOTFOUND : CST_OK), cst_status_name(rc), &err);
    edge_ring_must(rc != CST_OK || memcmp(got, sent, sizeof sent) == 0, "wrong bytes", &err);
    for (uint32_t i = 0; i < EDGE_RING_SLOTS; i++) {
        nccl_must(cst_put(w->job, 0, i, sent, sizeof sent, &err), &err, "put in a free slot");
    }
}

/* What is in slots outlives the engine that has allocated them, and a step. It does not outlive the
 * daemon: all slots are free then. _i: the daemon dies. */
START_TEST(arrays_outlive_the_engine_but_not_the_daemon)
{
    struct nccl_order *order = edge_ring_order(1);
    pid_t pid, engine;

    order->at = (unsigned)_i;
    pid = nccl_fork(leave_array, 0, order);
    (void)sem_wait(&order->begun);
    if (_i == 1) {
        kill_daemon();
    } else {
        engine = edge_ring_engine(fake_gpu_uuid(0))->pid;
        ck_assert_int_eq(kill(engine, SIGKILL), 0);
        while (edge_ring_engine(fake_gpu_uuid(0))->pid == engine) {
            (void)poll(NULL, 0, 1);
        }
    }
    (void)sem_post(&order->ended);
    ck_assert(!child_join(pid, "a worker failed"));
    child_unshare(order, sizeof *order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *moves, *kept;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("edge moves");
    moves = suite_case(suite, "moves", nccl_rig_open_late, cuda_rig_close);
    suite_add_loop(moves, slots_follow_a_rank_that_moves, 0, 6);
    suite_add_loop(moves, slots_that_cannot_be_mapped_again, 0, 3); /* With other seeds. */
    tcase_add_test(moves, slots_are_made_again);
    kept = suite_case(suite, "kept", open_kept, close_kept);
    suite_add_loop(kept, the_daemon_dies_at_any_time, 0, 3); /* With other seeds. */
    suite_add_loop(kept, arrays_outlive_the_engine_but_not_the_daemon, 0, 2);
    return suite_run(suite);
}
