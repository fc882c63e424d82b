/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of ranks on GPUs whose first transport fails when it is begun
 * (tests/lib/nccl_rig.h): NCCL cannot join, or a rank cannot map the others' slots. The group opens
 * the communicator again by other means, all calls have the right results, and the log and `cistern
 * explain` say why. */
#include "tests/lib/fake_gpu.h"
#include "tests/lib/nccl_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"
#include "client/cuda/cuda.h"
#include "proto/comm_memory.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_JOIN "CST_FAKENCCL_FAIL=ncclCommInitRankConfig:1=3"
#define BREAKS_IN_JOIN "CST_FAKENCCL_FAIL=ncclCommGetAsyncError:1=2"
#define NO_ID "CST_FAKENCCL_FAIL=ncclGetUniqueId:1=2"
/* The first import is that of the rank's pool. */
#define NO_IMPORT "CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:2+=999"
#define LATE_NO_IMPORT "CST_FAKECUDA_FAIL=cuMemImportFromShareableHandle:3+=999"
#define NO_KERNELS "CST_FAKECUDA_FAIL=cuModuleLoadData:1=2"
#define SEES_ONE "CUDA_VISIBLE_DEVICES=1"

/* -- other means ------------------------------------------------------------------------------ */

static const struct {
    uint32_t world;
    bool in_order;
    bool shares; /* All ranks are on one GPU. */
    const char *settings[3];
    const char *words;     /* Of `cistern explain`. */
    const char *logged[2]; /* By the daemon. */
} cases[] = {
    {2,
     false,
     false,
     {NULL, NO_JOIN},
     "memory of the GPUs,\n  because rank 1 cannot use NCCL: joining a communicator: NCCL says: "
     "internal error",
     {"communicator of group 0: rank 1 cannot use NCCL: joining a communicator: NCCL says: "
      "internal "
      "error; its 2 ranks use memory of the GPUs instead"}},
    {2,
     false,
     false,
     {NO_JOIN},
     "memory of the GPUs,\n  because rank 0 cannot use NCCL: joining",
     {"rank 0 cannot use NCCL: joining"}},
    {3,
     false,
     false,
     {NULL, NO_JOIN},
     "its 3 ranks use memory of the GPUs,\n  because rank 1 cannot use NCCL: joining",
     {"rank 1 cannot use NCCL: joining"}},
    {3,
     false,
     false,
     {NO_JOIN, NULL, NO_JOIN},
     "cannot use NCCL: joining", /* Rank 0 or rank 2, or both. */
     {"cannot use NCCL: joining"}},
    {2,
     false,
     false,
     {NULL, BREAKS_IN_JOIN},
     "memory of the GPUs,\n  because rank 1 cannot use NCCL: the state of a communicator: NCCL "
     "says",
     {"rank 1 cannot use NCCL: the state of a communicator"}},
    {2,
     false,
     false,
     {NO_ID},
     "memory of the GPUs,\n  because rank 0 cannot use NCCL: a unique id of NCCL: NCCL says",
     {NULL}},
    {2,
     false,
     false,
     {NO_JOIN, SEES_ONE},
     "staging in host memory,\n  because rank 0 cannot use NCCL: joining a communicator: NCCL "
     "says: "
     "internal error; rank 1 does not see GPU-",
     {"rank 0 cannot use NCCL: joining"}},
    {2,
     true,
     false,
     {NULL, NO_IMPORT},
     "staging in host memory,\n  because rank 0 wants sums in the order of the ranks; rank 1 "
     "cannot "
     "use memory of the GPUs: importing 16777216 bytes",
     {"rank 1 cannot use memory of the GPUs: importing 16777216 bytes"}},
    {3,
     true,
     false,
     {LATE_NO_IMPORT},
     "its 3 ranks use staging in host memory,\n  because rank 0 wants sums in the order of the "
     "ranks; rank 0 cannot use memory of the GPUs: importing",
     {"rank 0 cannot use memory of the GPUs: importing"}},
    {2,
     false,
     true,
     {NO_KERNELS},
     "staging in host memory,\n  because ranks 0 and 1 are both on GPU-",
     {"rank 0 cannot use memory of the GPUs: loading the kernels"}},
    {3,
     false,
     false,
     {NO_JOIN, NO_IMPORT},
     "its 3 ranks use staging in host memory,\n  because rank 0 cannot use NCCL: joining a "
     "communicator: NCCL says: internal error; rank 1 cannot use memory of the GPUs:",
     {"rank 0 cannot use NCCL: joining",
      "rank 1 cannot use memory of the GPUs: importing 16777216 bytes"}},
};

/* A rank, or two, cannot use what the daemon has chosen first. _i: which case. */
START_TEST(other_ways_are_found)
{
    struct nccl_order *order = nccl_order_new(cases[_i].world);

    order->n_calls = suite_is_sparse() ? 10 : 30;
    order->in_order = cases[_i].in_order;
    order->words = cases[_i].words;
    memcpy(order->settings, cases[_i].settings, sizeof cases[_i].settings);
    for (uint32_t rank = 0; rank < order->world && cases[_i].shares; rank++) {
        order->devices[rank] = "cuda:0";
    }
    nccl_run(nccl_call_all, order);
    for (int i = 0; i < 2 && cases[_i].logged[i] != NULL; i++) {
        ck_assert_msg(daemon_proc_logged(&proc, cases[_i].logged[i]), "'%s' is not in the log",
                      cases[_i].logged[i]);
    }
    ck_assert(cases[_i].logged[0] != NULL || !daemon_proc_logged(&proc, "cannot use"));
}
END_TEST

/* NCCL has failed, and a budget has no GPU memory left for the ranks. */
START_TEST(there_is_no_memory_left)
{
    struct nccl_order *order = nccl_order_new(2);

    order->n_calls = 10;
    order->settings[1] = NO_JOIN;
    order->words = "staging in host memory,\n  because rank 1 cannot use NCCL: joining a "
                   "communicator: NCCL says: internal error; pools of cuda:0 (GPU-";
    nccl_run(nccl_call_all, order);
    ck_assert(daemon_proc_logged(&proc, "rank 1 cannot use NCCL: joining a communicator: NCCL "
                                        "says: internal error; its 2 ranks use staging"));
    ck_assert(daemon_proc_logged(&proc, "there are no slots on the GPUs of its 2 ranks: pools of"));
}
END_TEST

static void open_small(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open("[gpu]\npool = 12M\n");
}

/* -- libraries of other versions -------------------------------------------------------------- */

/* Open job "j" as two ranks on a GPU each. The first attempt begins. Returns its number. */
static uint64_t open_raw(struct raw_client clients[2])
{
    const Cistern__Synced *synced = NULL;
    uint64_t ids[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        struct raw_job job = {.name = "j",
                              .rank = rank,
                              .world = 2,
                              .pool_bytes = 8 << 20,
                              .chunk_elems = 4096,
                              .timeout_ms = (uint32_t)patience_ms(20000),
                              .device = rank == 0 ? "cuda:0" : "cuda:1"};

        raw_open(&clients[rank], proc.socket);
        ck_assert_int_eq(raw_job_open(&clients[rank], &job), CST_OK);
        ck_assert_int_eq(raw_declare_many(&clients[rank], 1, 1000), CST_OK);
        ids[rank] = raw_commit(&clients[rank], 1, 1);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(raw_status(&clients[rank], ids[rank]), CST_OK);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ids[rank] = raw_ask(&clients[rank], CISTERN__MSG_TYPE__MSG_SYNC, NULL);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        synced = raw_expect(&clients[rank], ids[rank], CISTERN__MSG_TYPE__MSG_SYNCED,
                            &cistern__synced__descriptor);
    }
    return synced->attempt;
}

/* Ask for a communicator by NCCL. @refused 0: the rank has refused nothing. Returns the request. */
static uint64_t ask_raw(struct raw_client *client, uint64_t attempt, bool can_refuse, int refused)
{
    static uint8_t nccl_id[128];
    Cistern__CommOpen open = CISTERN__COMM_OPEN__INIT;
    Cistern__CommDevice device = CISTERN__COMM_DEVICE__INIT;

    open.attempt = attempt;
    open.device = &device;
    device.nccl_version = 22809;
    device.has_nccl_id = true;
    device.nccl_id.data = nccl_id;
    device.nccl_id.len = sizeof nccl_id;
    device.has_can_refuse = can_refuse;
    device.can_refuse = can_refuse;
    device.has_refused = refused != 0;
    device.refused = (Cistern__CommTransport)refused;
    return raw_ask(client, CISTERN__MSG_TYPE__MSG_COMM_OPEN, &open.base);
}

/* Ranks only wait for each other's words about the transport if all of them have libraries that say
 * them. What no rank can refuse is an error. */
START_TEST(all_libraries_must_know_it)
{
    struct nccl_order *order = nccl_order_new(2);
    struct raw_client clients[2];
    const uint64_t attempt = open_raw(clients);

    for (int knows = 0; knows < 4; knows++) {
        uint64_t ids[2];

        for (int rank = 0; rank < 2; rank++) {
            ids[rank] = ask_raw(&clients[rank], attempt, (knows >> rank & 1) != 0, 0);
        }
        for (int rank = 0; rank < 2; rank++) {
            const Cistern__CommOpened *opened =
                raw_expect(&clients[rank], ids[rank], CISTERN__MSG_TYPE__MSG_COMM_OPENED,
                           &cistern__comm_opened__descriptor);

            ck_assert_int_eq(opened->transport, CISTERN__COMM_TRANSPORT__COMM_NCCL);
            ck_assert_int_eq(opened->has_can_refuse && opened->can_refuse, knows == 3);
            ck_assert_uint_eq(clients[rank].reply.n_fds, 1);
            cst_frame_close_fds(&clients[rank].reply);
        }
    }
    (void)ask_raw(&clients[0], attempt, true, CISTERN__COMM_TRANSPORT__COMM_STAGED);
    ck_assert_int_eq(raw_status(&clients[0], 0), CST_EINVAL);
    raw_says(&clients[0], "transport 3 cannot be refused");
    for (int rank = 0; rank < 2; rank++) {
        raw_close(&clients[rank]);
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    order->n_calls = 5;
    nccl_run(nccl_call_all, order); /* The daemon serves others as before. */
}
END_TEST

/* -- what is charged -------------------------------------------------------------------------- */

/* Wait for @go between the steps of hold, until the test has read what is charged. */
static void stop_here(struct nccl_order *order, sem_t *go)
{
    (void)sem_post(&order->begun);
    (void)sem_wait(go);
}

static void hold(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    stop_here(order, &order->ended);
    nccl_must(nccl_comm_open(w, order, &comm, &err), &err, "comm_open");
    nccl_must(nccl_call(w, comm, order->seed, 0, 0, false, &err), &err, "call");
    stop_here(order, &order->ended); /* All ranks have gone on from the first stop. */
    cst_comm_close(comm);
    stop_here(order, &order->arrived);
}

/* Wait until all ranks are in stop_here. */
static void await_stop(struct nccl_order *order)
{
    for (uint32_t rank = 0; rank < order->world; rank++) {
        (void)sem_wait(&order->begun);
    }
}

static void let_go(const struct nccl_order *order, sem_t *go)
{
    for (uint32_t rank = 0; rank < order->world; rank++) {
        (void)sem_post(go);
    }
}

/* Wait until @gpu_bytes are charged for each GPU, and for the host @host_bytes and less than
 * @tables for the daemon's tables of a communicator. Memory is given back without a wait of the
 * ranks. */
static void await_charge(const uint64_t gpu_bytes[2], uint64_t host_bytes, uint64_t tables)
{
    const uint64_t until = patience_until(20000);
    const Cistern__StatReply *stat = raw_stat(&witness);

    while (stat->gpus[0]->pool_used != gpu_bytes[0] || stat->gpus[1]->pool_used != gpu_bytes[1] ||
           stat->host_used - host_bytes >= tables) {
        ck_assert_msg(!patience_over(until),
                      "%llu and %llu bytes of GPU memory, %llu of the host, not %llu",
                      (unsigned long long)stat->gpus[0]->pool_used,
                      (unsigned long long)stat->gpus[1]->pool_used,
                      (unsigned long long)stat->host_used, (unsigned long long)host_bytes);
        (void)poll(NULL, 0, 1);
        stat = raw_stat(&witness);
    }
}

/* Only what the communicator uses in the end is charged, and nothing after it was closed. _i: NCCL
 * is refused, or slots on the GPUs, or both. */
START_TEST(nothing_stays_charged)
{
    const uint64_t slots = CST_COMM_SLOTS * (uint64_t)CST_COMM_PEER_SLOT_BYTES;
    const bool by_peers = _i == 0;
    const uint64_t bytes =
        cst_comm_bytes(2, by_peers ? cst_comm_call_slot_bytes(2) : CST_COMM_SLOT_BYTES);
    struct nccl_order *order = nccl_order_new(2);
    uint64_t before[2], host, open[2];
    pid_t pids[2];

    order->in_order = _i == 1;
    order->settings[0] = _i != 1 ? NO_JOIN : NULL;
    order->settings[1] = _i != 0 ? NO_IMPORT : NULL;
    for (uint32_t rank = 0; rank < 2; rank++) {
        pids[rank] = nccl_fork(hold, rank, order);
    }
    await_stop(order);
    for (int i = 0; i < 2; i++) {
        before[i] = raw_stat(&witness)->gpus[i]->pool_used;
        open[i] = before[i] + (by_peers ? slots : 0);
    }
    host = raw_stat(&witness)->host_used;
    let_go(order, &order->ended);
    await_stop(order);
    await_charge(open, host + bytes, 16384);
    let_go(order, &order->ended);
    await_stop(order);
    await_charge(before, host, 1);
    let_go(order, &order->arrived);
    for (int i = 0; i < 2; i++) {
        ck_assert(!child_join(pids[i], "a worker failed"));
    }
    ck_assert_int_eq(raw_job_remove(&witness, "j"), CST_OK);
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

static CUresult CUDAAPI die_freeing(CUdeviceptr address)
{
    (void)address;
    (void)raise(SIGKILL);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI die_loading(CUmodule *module, const void *image)
{
    (void)module;
    (void)image;
    (void)raise(SIGKILL);
    return CUDA_SUCCESS;
}

enum { DIES_BEFORE_ANSWER, REFUSES_AND_DIES, DIES_AFTER_REFUSAL, N_DEATHS };

/* Let the victim die before it has said whether it can use the slots on the GPUs, or after a rank,
 * itself or another one, has refused NCCL and before the opening of the next round. */
static void prepare_death(struct nccl_worker *w, const struct nccl_order *order)
{
    if (order->at == DIES_BEFORE_ANSWER) {
        w->cuda->driver.cuModuleLoadData = die_loading;
    } else {
        w->cuda->driver.cuMemFree = die_freeing;
    }
}

static int attempt(struct nccl_worker *w, struct nccl_order *order, struct cst_err *err)
{
    struct cst_comm *comm = NULL;
    int rc;

    nccl_must(cst_sync(w->job, NULL, err), err, "sync");
    rc = nccl_comm_open(w, order, &comm, err);
    for (unsigned i = 0; rc == CST_OK && i < order->n_calls; i++) {
        rc = nccl_call(w, comm, order->seed, i, 0, false, err);
    }
    rc = rc == CST_OK ? cst_comm_barrier(comm, err) : rc;
    cst_comm_close(comm);
    return rc;
}

static void survive(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};
    char name[32];
    int rc;

    (void)snprintf(name, sizeof name, "rank %u ", order->victim);
    if (w->rank == order->victim && !__atomic_exchange_n(&order->dead, true, __ATOMIC_ACQ_REL)) {
        prepare_death(w, order);
    }
    rc = attempt(w, order, &err);
    if (rc == CST_EPEERDIED && strstr(err.text, name) != NULL) {
        rc = attempt(w, order, &err);
    }
    nccl_must(rc, &err, "attempt");
}

/* A rank dies while the group finds out whether all can use the transport, or before it has opened
 * the communicator again. The others name it, and open the communicator with its successor. */
START_TEST(a_death_is_named_and_made_good)
{
    struct nccl_order *order = nccl_order_new(3);

    order->at = (unsigned)_i;
    order->n_calls = 5;
    order->victim = 1;
    order->in_order = _i == DIES_BEFORE_ANSWER;
    if (_i != DIES_BEFORE_ANSWER) {
        order->settings[_i == REFUSES_AND_DIES ? 1 : 2] = NO_JOIN;
    }
    nccl_run_one_death(survive, order);
    child_unshare(order, sizeof *order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *ways, *small, *charges, *deaths;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("nccl_refused");
    ways = suite_case(suite, "ways", nccl_rig_open_large, cuda_rig_close);
    small = suite_case(suite, "small", open_small, cuda_rig_close);
    charges = suite_case(suite, "charges", nccl_rig_open, cuda_rig_close);
    deaths = suite_case(suite, "deaths", nccl_rig_open_large, cuda_rig_close);
    tcase_add_loop_test(ways, other_ways_are_found, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(small, there_is_no_memory_left);
    tcase_add_test(charges, all_libraries_must_know_it);
    tcase_add_loop_test(charges, nothing_stays_charged, 0, 3);
    tcase_add_loop_test(deaths, a_death_is_named_and_made_good, 0, N_DEATHS);
    return suite_run(suite);
}
