/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of ranks on GPUs, by NCCL and without it (tests/lib/nccl_rig.h): random calls against
 * a serial model, groups of several sizes, and groups that cannot use NCCL. */
#include "client/comm/comm.h"
#include "client/cuda/cuda.h"
#include "proto/shared.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/nccl_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"
#include "proto/comm_memory.h"

#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -- calls ------------------------------------------------------------------------------------ */

/* Random calls of each operation, and of all, have the bits of the serial model. _i: operation. */
START_TEST(calls_agree_with_the_model)
{
    struct nccl_order *order = nccl_order_new(2);

    order->op = (enum cst_comm_op)_i;
    order->n_calls = suite_is_sparse() ? 10 : 30;
    nccl_run(nccl_call_all, order);
}
END_TEST

/* -- groups ----------------------------------------------------------------------------------- */

/* Groups of one rank, and of more than two. _i: number of ranks. */
START_TEST(groups_of_all_sizes)
{
    struct nccl_order *order = nccl_order_new((uint32_t)_i);

    order->n_calls = suite_is_sparse() ? 10 : 30;
    nccl_run(nccl_call_all, order);
}
END_TEST

/* Ranks of the further group have a call of it in the stream while they make one of all ranks. */
static void call_in_two_groups(struct nccl_worker *w, struct nccl_order *order)
{
    const bool is_in = (order->ranks >> w->rank & 1) != 0;
    struct cst_comm *all = NULL, *part = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&all, w->cuda, CST_GROUP_ALL, w->stream, &err), &err, "all");
    if (is_in) {
        nccl_must(cst_cuda_comm_open(&part, w->cuda, w->group, w->stream, &err), &err, "part");
    }
    for (unsigned i = 0; i < order->n_calls; i++) {
        if (is_in) {
            nccl_must(nccl_call(w, part, order->seed + 1, i, 0, false, &err), &err, "part");
            nccl_must(cst_comm_start(part, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, &ticket,
                                     &err),
                      &err, "start");
        }
        nccl_must(nccl_call(w, all, order->seed, i, 0, false, &err), &err, "all");
        if (is_in) {
            nccl_must(cst_comm_wait(part, ticket, &err), &err, "wait");
        }
    }
    nccl_must(cst_comm_barrier(all, &err), &err, "barrier");
    cst_comm_close(part);
    cst_comm_close(all);
}

/* Some ranks have a communicator of their own beside that of all, with the same stream. The ranks
 * of the group and the job have different numbers. _i: which ranks. */
START_TEST(a_group_beside_all)
{
    static const uint32_t ranks[] = {0x2, 0xa, 0xd};
    struct nccl_order *order = nccl_order_new(4);

    order->ranks = ranks[_i];
    order->n_calls = suite_is_sparse() ? 5 : 15;
    nccl_run(call_in_two_groups, order);
}
END_TEST

/* -- waiting ---------------------------------------------------------------------------------- */

/* How often this process has looked whether events have passed. */
static atomic_uint n_looks;
static CUresult(CUDAAPI *event_query)(CUevent event);

static CUresult CUDAAPI count_look(CUevent event)
{
    (void)atomic_fetch_add(&n_looks, 1);
    return event_query(event);
}

/* Something in the stream that lasts until a thread that waits for it has fallen asleep, and has
 * looked @looks times since then. */
struct hold {
    int thread; /* Number of the thread that waits. */
    unsigned looks;
    sem_t end; /* Posted when it is to end. */
};

static void CUDA_CB hold(void *arg)
{
    struct hold *h = arg;

    (void)sem_wait(&h->end);
}

static bool is_asleep(int thread)
{
    char path[64], text[256] = "";
    const char *name;
    FILE *from;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    from = fopen(path, "r");
    if (from == NULL || fgets(text, sizeof text, from) == NULL) {
        perror(path);
        _exit(1);
    }
    (void)fclose(from);
    name = strrchr(text, ')'); /* The state follows the name. */
    return name != NULL && strncmp(name, ") S", 3) == 0;
}

/* A thread: ends what is in the stream. */
static void *end_hold(void *arg)
{
    struct hold *h = arg;
    unsigned from;

    while (!is_asleep(h->thread)) {
        (void)sched_yield();
    }
    from = atomic_load(&n_looks);
    while (atomic_load(&n_looks) - from < h->looks) {
        (void)poll(NULL, 0, 1);
    }
    (void)sem_post(&h->end);
    return NULL;
}

/* Wait for a call that is in the stream after something of the program, which lasts for @looks
 * looks of this thread after it has fallen asleep. */
static void wait_behind_hold(struct nccl_worker *w, struct cst_comm *comm, unsigned looks)
{
    struct hold h = {.thread = (int)syscall(SYS_gettid), .looks = looks};
    struct cst_err err = {0};
    uint64_t ticket = 0;
    pthread_t thread;

    (void)sem_init(&h.end, 0, 0);
    nccl_must_cuda(w, w->driver.cuLaunchHostFunc(w->stream, hold, &h), "hold");
    nccl_must(cst_comm_start(comm, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, &ticket, &err),
              &err, "start");
    if (pthread_create(&thread, NULL, end_hold, &h) != 0) {
        _exit(1);
    }
    nccl_must(cst_comm_wait(comm, ticket, &err), &err, "wait");
    (void)pthread_join(thread, NULL);
    (void)sem_destroy(&h.end);
}

/* The device must wake who waits in the communicator @comm, whose number of wake-ups was @before.
 * Nobody else does: the group has one rank. */
static void await_wakeup(struct cst_comm *comm, uint32_t before)
{
    struct cst_shared_head *head = comm->segment.base;

    for (uint64_t until = patience_until(20000); atomic_load(&head->event) == before;) {
        if (patience_over(until)) {
            (void)fprintf(stderr, "the device has woken nobody\n");
            _exit(1);
        }
        (void)sched_yield();
    }
}

static void sleep_often(struct nccl_worker *w, struct nccl_order *order)
{
    const unsigned many = 12;
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    struct rusage before, after;
    unsigned looks;
    long n_sleeps;

    event_query = w->cuda->driver.cuEventQuery;
    w->cuda->driver.cuEventQuery = count_look;
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    for (unsigned i = 0; i < order->n_calls; i++) {
        const struct cst_shared_head *head = comm->segment.base;
        const uint32_t n_woken = atomic_load(&head->event);

        wait_behind_hold(w, comm, 0);
        await_wakeup(comm, n_woken);
    }
    looks = atomic_load(&n_looks);
    (void)getrusage(RUSAGE_THREAD, &before);
    wait_behind_hold(w, comm, many);
    (void)getrusage(RUSAGE_THREAD, &after);
    n_sleeps = after.ru_nvcsw - before.ru_nvcsw;
    /* A look before a thread announces its sleep, one after that, and one when it is awake. */
    if ((long)many > 3 * n_sleeps) {
        (void)fprintf(stderr, "%u looks, of which %u after falling asleep, with %ld sleeps\n",
                      atomic_load(&n_looks) - looks, many, n_sleeps);
        _exit(1);
    }
    cst_comm_close(comm);
}

/* A rank that waits for its GPU has the GPU wake it when the call has ended. Until then it sleeps
 * between two looks at the GPU. */
START_TEST(a_rank_sleeps_until_the_end)
{
    struct nccl_order *order = nccl_order_new(1);

    order->n_calls = 20;
    nccl_run(sleep_often, order);
}
END_TEST

/* -- calls of the job that are pending --------------------------------------------------------- */

/* Rank 0 has a step pending until rank 1 makes it, too. */
static void step_pending(struct nccl_worker *w, struct nccl_order *order)
{
    const struct cst_hyper_params params = {.lr = 0.1f, .grad_scale = 1};
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int rc;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    if (w->rank == 1) {
        (void)sem_wait(&order->ended);
        rc = cst_step(w->job, &params, NULL, &err);
    } else {
        struct pollfd fd = {.fd = cst_client_fd(w->client), .events = POLLIN};

        rc = cst_try_step(w->job, &params, NULL, &err);
        if (rc != CST_EAGAIN ||
            cst_comm_start(comm, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, &ticket, &err) !=
                CST_EBUSY) {
            (void)fprintf(stderr, "cst_try_step: %s; cst_comm_start: %s\n", cst_status_name(rc),
                          cst_status_name(err.status));
            _exit(1);
        }
        (void)sem_post(&order->ended);
        while (rc == CST_EAGAIN) {
            (void)poll(&fd, 1, -1);
            rc = cst_try_step(w->job, &params, NULL, &err);
        }
    }
    nccl_must(rc, &err, "step");
    nccl_must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
}

/* A collective cannot be started while a call of the job is pending. Nothing is lost by that. */
START_TEST(a_pending_call_comes_first)
{
    nccl_run(step_pending, nccl_order_new(2));
}
END_TEST

/* -- groups without NCCL ---------------------------------------------------------------------- */

static const struct {
    const char *devices[2];
    const char *setting; /* Of rank 0. */
    bool in_order;
    const char *words; /* Of `cistern explain`. */
} without[] = {
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_VERSION=21304",
     false,
     "memory of the GPUs,\n  because rank 0 cannot use NCCL: libnccl.so.2 is version 21304, which "
     "is "
     "too old"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_VERSION=22703",
     false,
     "because rank 0 has NCCL 2.27.3, and rank 1 has NCCL 2.28.9"},
    {{"cuda:0", "cuda:0"}, NULL, false, "and NCCL needs a GPU for each rank"},
    {{"cuda:0", "cuda:1"},
     NULL,
     true,
     "memory of the GPUs,\n  because rank 0 wants sums in the order of the ranks"},
    {{"cuda:0", "cuda:1"},
     "CUDA_VISIBLE_DEVICES=0",
     true,
     "staging in host memory,\n  because rank 0 wants sums in the order of the ranks; rank 0 does "
     "not see "
     "GPU-facec0da-0000-4000-8000-000000000001 of rank 1"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKECUDA_PEERS=none",
     true,
     "staging in host memory,\n  because rank 0 wants sums in the order of the ranks; "
     "GPU-facec0da-0000-4000-8000-000000000000 of rank 0 and "
     "GPU-facec0da-0000-4000-8000-000000000001 of rank 1 cannot access each other's"},
};

static void use_group(struct nccl_order *order, int i)
{
    order->setting = without[i].setting;
    order->in_order = without[i].in_order;
    order->words = without[i].words;
    memcpy(order->devices, without[i].devices, sizeof without[i].devices);
}

/* Ranks that do not use NCCL exchange their arrays in memory of the GPUs or through the host, with
 * the same results. */
START_TEST(others_do_without)
{
    struct nccl_order *order = nccl_order_new(2);

    order->n_calls = suite_is_sparse() ? 10 : 40;
    use_group(order, _i);
    nccl_run(nccl_call_all, order);
}
END_TEST

/* So do four ranks. */
START_TEST(four_ranks_do_without)
{
    struct nccl_order *order = nccl_order_new(NCCL_MAX_WORLD);

    order->n_calls = suite_is_sparse() ? 10 : 40;
    order->in_order = true;
    order->words = "memory of the GPUs,\n  because rank 0 wants sums in the order of the ranks";
    nccl_run(nccl_call_all, order);
}
END_TEST

/* Where a budget has no GPU memory left for the ranks, they exchange their arrays through the
 * host. */
START_TEST(there_is_no_memory_left)
{
    struct nccl_order *order = nccl_order_new(2);

    order->n_calls = 10;
    order->in_order = true;
    order->words =
        "staging in host memory,\n  because rank 0 wants sums in the order of the ranks; pools of "
        "cuda:0 (GPU-facec0da-0000-4000-8000-";
    nccl_run(nccl_call_all, order);
    ck_assert(daemon_proc_logged(&proc, "there are no slots on the GPUs of its 2 ranks: pools of"));
}
END_TEST

static void open_small(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open("[gpu]\npool = 12M\n");
}

/* Element @i of the array of @rank. The sum of two of them is rounded. */
static float element(uint32_t rank, size_t i)
{
    return (float)(i % 1021) / 3.0f + (float)(rank + 1) * 1e-3f;
}

/* Sum arrays that are longer than the slots of all ranks, in place. */
static void sum_long_arrays(struct nccl_worker *w, struct nccl_order *order)
{
    const size_t n = 3 * (size_t)CST_COMM_PEER_SLOT_BYTES / sizeof(float) + 5;
    const size_t bytes = n * sizeof(float);
    float *v = malloc(bytes);
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    CUdeviceptr array;

    if (v == NULL) {
        _exit(1);
    }
    for (size_t i = 0; i < n; i++) {
        v[i] = element(w->rank, i);
    }
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(nccl_comm_open(w, order, &comm, &err), &err, "comm_open");
    array = nccl_array_new(w, v, bytes);
    nccl_must(cst_comm_all_reduce(comm, (const void *)(uintptr_t)array, (void *)(uintptr_t)array, n,
                                  CST_COMM_FP32, &err),
              &err, "all_reduce");
    nccl_must_cuda(w, w->driver.cuMemcpyDtoHAsync(v, array, bytes, w->stream), "copy");
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    for (size_t i = 0; i < n; i++) {
        const float sum = element(0, i) + element(1, i);

        if (v[i] != sum) {
            (void)fprintf(stderr, "rank %u: element %zu is %a, not %a\n", w->rank, i, v[i], sum);
            _exit(1);
        }
    }
    nccl_must_cuda(w, w->driver.cuMemFree(array), "array");
    nccl_must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
    free(v);
}

/* Arrays go through the slots on GPUs in pieces. */
START_TEST(long_arrays_have_pieces)
{
    struct nccl_order *order = nccl_order_new(2);

    order->in_order = true;
    nccl_run(sum_long_arrays, order);
}
END_TEST

/* Open the communicator @n times. Rank 1 makes the opening fail, by a new attempt, if order->at is
 * not 0. */
static void open_often(struct nccl_worker *w, const struct nccl_order *order, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const bool fails = order->at != 0 && i % 2 == 0;
        struct cst_comm *comm = NULL;
        struct cst_err err = {0};
        int rc;

        nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
        if (fails && w->rank == 1) {
            continue;
        }
        rc = cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err);
        if (fails) {
            if (rc != CST_EPEERDIED) {
                (void)fprintf(stderr, "comm_open: %s\n", cst_status_name(rc));
                _exit(1);
            }
            continue;
        }
        nccl_must(rc, &err, "comm_open");
        nccl_must(cst_comm_barrier(comm, &err), &err, "barrier");
        cst_comm_close(comm);
    }
}

static void keep_ids(struct nccl_worker *w, struct nccl_order *order)
{
    unsigned before;

    open_often(w, order, 4);
    before = daemon_proc_fds(getpid());
    open_often(w, order, 10);
    if (daemon_proc_fds(getpid()) != before) {
        (void)fprintf(stderr, "rank %u had %u descriptors, and has %u\n", w->rank, before,
                      daemon_proc_fds(getpid()));
        _exit(1);
    }
}

/* An id that nobody has joined with is offered again: NCCL would keep what belongs to it. _i:
 * the group does without NCCL, because both ranks are on one GPU; or every other opening fails. */
START_TEST(unused_ids_are_kept)
{
    struct nccl_order *order = nccl_order_new(2);

    order->at = (unsigned)_i;
    if (_i == 0) {
        use_group(order, 2);
    }
    nccl_run(keep_ids, order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *calls, *groups, *small;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("nccl");
    calls = suite_case(suite, "calls", nccl_rig_open_late, cuda_rig_close);
    groups = suite_case(suite, "groups", nccl_rig_open_large, cuda_rig_close);
    small = suite_case(suite, "small", open_small, cuda_rig_close);
    tcase_add_test(small, there_is_no_memory_left);
    suite_add_loop(calls, calls_agree_with_the_model, 0, CST_COMM_ALL_TO_ALL + 1);
    tcase_add_test(calls, a_pending_call_comes_first);
    tcase_add_test(calls, a_rank_sleeps_until_the_end);
    tcase_add_test(calls, long_arrays_have_pieces);
    suite_add_loop(calls, others_do_without, 0, sizeof without / sizeof without[0]);
    suite_add_loop(calls, unused_ids_are_kept, 0, 2);
    tcase_add_test(groups, four_ranks_do_without);
    suite_add_loop(groups, groups_of_all_sizes, 1, NCCL_MAX_WORLD + 1);
    suite_add_loop(groups, a_group_beside_all, 0, 3);
    return suite_run(suite);
}
