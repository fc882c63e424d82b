/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of ranks on GPUs that do not end well (tests/lib/nccl_rig.h): deaths in all of them,
 * streams that wait for ranks that are gone, calls that differ, and failures of NCCL. */
#include "tests/lib/fake_gpu.h"
#include "tests/lib/nccl_rig.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- deaths ----------------------------------------------------------------------------------- */

/* Die in call `at`: before it, in the communicator's making, or with its part on the way. */
static void die(const struct nccl_worker *w, struct cst_comm *comm, const struct nccl_order *order)
{
    struct collective c;
    struct nccl_arrays g;
    uint64_t ticket;

    if (order->seed % 2 == 0) {
        collective_make(&c, order->seed, order->at, cst_comm_rank(comm), cst_comm_size(comm),
                        NCCL_MOST_ELEMS, order->op);
        nccl_arrays_make(w, &c, &g);
        (void)cst_comm_start(comm, &g.call, &ticket, NULL);
    }
    (void)raise(SIGKILL);
}

/* The error must name the rank that died. */
static void check_words(const struct nccl_order *order, const struct cst_err *err)
{
    char name[32];

    (void)snprintf(name, sizeof name, "rank %u ", order->victim);
    if (err->status != CST_EPEERDIED || strstr(err->text, name) == NULL) {
        (void)fprintf(stderr, "rank %u died, and the error is %s: %s\n", order->victim,
                      cst_status_name(err->status), err->text);
        _exit(1);
    }
}

/* Make all calls in one attempt. */
static int attempt(struct nccl_worker *w, struct nccl_order *order, struct cst_err *err)
{
    struct cst_comm *comm = NULL;
    int rc;

    nccl_must(cst_sync(w->job, NULL, err), err, "sync");
    rc = nccl_comm_open(w, order, &comm, err);
    for (unsigned i = 0; rc == CST_OK && i < order->n_calls; i++) {
        if (i == order->at && w->rank == order->victim &&
            !__atomic_exchange_n(&order->dead, true, __ATOMIC_ACQ_REL)) {
            die(w, comm, order);
        }
        rc = nccl_call(w, comm, order->seed, i, i == order->at ? order->op : 0,
                       order->waits_for_stream, err);
    }
    rc = rc == CST_OK ? cst_comm_barrier(comm, err) : rc;
    cst_comm_close(comm);
    return rc;
}

static void survive(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_err err = {0};
    int rc = attempt(w, order, &err);

    if (rc == CST_EPEERDIED) {
        check_words(order, &err);
        rc = attempt(w, order, &err);
    }
    nccl_must(rc, &err, "attempt");
}

/* A rank that is killed in a collective of any kind, before its part or after the beginning of it,
 * is named by the other, whose stream goes on, even if the program waits for nothing but the stream
 * meanwhile. When a new process has its rank, both open the
 * communicator again and make the same calls, with the same bits. CST_TEST_DEATHS: number of deaths
 * for each kind. */
START_TEST(a_death_is_named_and_made_good)
{
    const char *given = getenv("CST_TEST_DEATHS");
    const unsigned n = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 2;

    for (unsigned i = 0; i < n; i++) {
        struct nccl_order *order = nccl_order_new(2);

        order->seed = order->seed * 2 + i % 2;
        order->op = (enum cst_comm_op)_i;
        order->victim = (uint32_t)(order->seed / 7 % order->world);
        order->n_calls = 5;
        order->at = (unsigned)(order->seed / 11 % 5);
        /* Versions without ncclCommRevoke, or where it fails: the communicator is aborted. */
        order->setting = i % 2 == 1 ? "CST_FAKENCCL_FAIL=ncclCommRevoke:1=4" : NULL;
        order->victim = i % 2 == 1 ? 1 : order->victim;
        order->waits_for_stream = (i + (unsigned)_i) % 2 == 1;
        nccl_run_one_death(survive, order);
        child_unshare(order, sizeof *order);
    }
}
END_TEST

/* Of four ranks one dies: the three others name it. _i: sums are in order, in memory of the GPUs.
 */
START_TEST(all_others_name_the_dead)
{
    struct nccl_order *order = nccl_order_new(NCCL_MAX_WORLD);

    order->in_order = _i;
    order->victim = (uint32_t)(order->seed / 7 % order->world);
    order->n_calls = 5;
    order->at = (unsigned)(order->seed / 11 % 5);
    order->waits_for_stream = true;
    nccl_run_one_death(survive, order);
    child_unshare(order, sizeof *order);
}
END_TEST

/* A death without NCCL is named and made good: in memory of the GPUs, or with @setting. */
static void die_without_nccl(enum cst_comm_op op, const char *setting)
{
    struct nccl_order *order = nccl_order_new(2);

    order->in_order = true;
    order->setting = setting;
    order->op = op;
    order->victim = 1; /* The setting is in the environment of rank 0. */
    order->n_calls = 5;
    order->at = (unsigned)(order->seed / 11 % 5);
    nccl_run_one_death(survive, order);
    child_unshare(order, sizeof *order);
}

/* _i: operation. */
START_TEST(a_death_in_memory_of_gpus)
{
    die_without_nccl((enum cst_comm_op)_i, NULL);
}
END_TEST

/* Staging in host memory has the same rounds, so that two operations suffice. */
START_TEST(a_death_while_staging)
{
    die_without_nccl(_i == 0 ? CST_COMM_ALL_REDUCE : CST_COMM_ALL_TO_ALL,
                     "CST_FAKECUDA_PEERS=none");
}
END_TEST

/* -- streams that wait ------------------------------------------------------------------------- */

enum { CLOSED, REMOVED, KILLED, N_ENDS };

static const struct {
    int status;
    const char *words;
} ends[N_ENDS] = {
    [CLOSED] = {CST_ECANCELLED, "rank 1 has closed its communicator"},
    [REMOVED] = {CST_ENOTFOUND, "the job was removed"},
    [KILLED] = {CST_ECONN, "daemon"},
};

/* Rank 0 waits for its stream, which waits for rank 1. */
static void be_freed(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    if (w->rank == 0) {
        nccl_must(
            cst_comm_start(comm, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, &ticket, &err),
            &err, "start");
        (void)sem_post(&order->begun);
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
        if (cst_comm_wait(comm, ticket, &err) != ends[order->at].status ||
            strstr(err.text, ends[order->at].words) == NULL) {
            (void)fprintf(stderr, "end %u: %s: %s\n", order->at, cst_status_name(err.status),
                          err.text);
            _exit(1);
        }
        (void)sem_post(&order->ended);
    } else {
        if (order->at == CLOSED) {
            (void)sem_wait(&order->begun);
            cst_comm_close(comm);
            comm = NULL;
        }
        (void)sem_wait(&order->ended);
    }
    cst_comm_close(comm);
    nccl_worker_free(w);
    exit(0);
}

/* Nobody dies, but rank 1 will never make the call: it closes the communicator, or the job is
 * removed, or the daemon dies. _i: which. The stream of rank 0 goes on, although the program calls
 * nothing of libcistern, and the next call says why. */
START_TEST(a_stream_is_freed)
{
    struct nccl_order *order = nccl_order_new(2);
    pid_t pids[2];

    order->at = (unsigned)_i;
    for (uint32_t rank = 0; rank < 2; rank++) {
        pids[rank] = nccl_fork(be_freed, rank, order);
    }
    if (_i != CLOSED) {
        (void)sem_wait(&order->begun);
    }
    if (_i == REMOVED) {
        raw_job_remove(&witness, "j");
    } else if (_i == KILLED) {
        daemon_proc_kill(&proc);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    if (_i == KILLED) {
        raw_close(&witness);
        daemon_proc_restart(&proc, (const char *[]){"--gpus=all", "--engine-threads=2", NULL});
        raw_open(&witness, proc.socket);
        base_fds = settle_base_fds(&witness, &proc);
    } else if (_i == CLOSED) {
        raw_job_remove(&witness, "j");
    }
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- calls that end in some ranks -------------------------------------------------------------- */

enum { DIES, DIES_WHILE_TRYING, HANGS, N_LOSSES };

/* Ranks 0 and 2 exchange something, and rank 1 nothing. */
static const size_t parts[3][3] = {{1, 0, 1}, {0, 1, 0}, {1, 0, 1}};

/* Never ends. */
static void CUDA_CB hold(void *arg)
{
    (void)arg;
    for (;;) {
        (void)pause();
    }
}

static void lose(struct nccl_worker *w, const struct nccl_order *order, struct cst_comm *comm,
                 uint64_t ticket)
{
    struct cst_err err = {0};
    int rc;

    do {
        rc = order->at == DIES_WHILE_TRYING ? cst_comm_try_wait(comm, ticket, &err)
                                            : cst_comm_wait(comm, ticket, &err);
    } while (rc == CST_EAGAIN);
    if (rc != (order->at == HANGS ? CST_ETIMEDOUT : CST_EPEERDIED) ||
        strstr(err.text, order->at == HANGS ? "for rank 2" : "rank 2 ") == NULL) {
        (void)fprintf(stderr, "case %u: %s: %s\n", order->at, cst_status_name(rc), err.text);
        _exit(1);
    }
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
}

/* Rank 1 has done the call and closes its communicator. Rank 2 has started it only. */
static void lose_a_rank(struct nccl_worker *w, struct nccl_order *order)
{
    const CUdeviceptr array = nccl_array_new(w, (char[8]){0}, 8);
    struct cst_comm_call call = {.op = CST_COMM_ALL_TO_ALL,
                                 .type = CST_COMM_BYTE,
                                 .in = (const void *)(uintptr_t)array,
                                 .out = (void *)(uintptr_t)(array + 4),
                                 .counts = parts[w->rank],
                                 .recv_counts = parts[w->rank]};
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    if (w->rank == 2) {
        nccl_must_cuda(w, w->driver.cuLaunchHostFunc(w->stream, hold, NULL), "hold");
    }
    nccl_must(cst_comm_start(comm, &call, &ticket, &err), &err, "start");
    if (w->rank == 0) {
        lose(w, order, comm, ticket);
        (void)sem_post(&order->ended);
    } else if (w->rank == 1) {
        nccl_must(cst_comm_wait(comm, ticket, &err), &err, "wait");
        cst_comm_close(comm);
        (void)sem_post(&order->begun);
        (void)sem_wait(&order->ended);
    } else {
        (void)sem_wait(&order->begun);
        if (order->at == HANGS) {
            (void)pause();
        }
        (void)raise(SIGKILL);
    }
    comm = w->rank == 0 ? comm : NULL;
    cst_comm_close(comm);
    nccl_must_cuda(w, w->driver.cuMemFree(array), "array");
}

/* A rank has done its last call and closed its communicator, which does not end for another one,
 * because the third dies or hangs. The error names it, and the stream goes on. */
START_TEST(a_loss_after_a_close_is_named)
{
    struct nccl_order *order = nccl_order_new(3);
    pid_t pids[3];

    order->at = (unsigned)_i;
    order->timeout_ms = _i == HANGS ? (uint32_t)patience_ms(3000) : order->timeout_ms;
    for (uint32_t rank = 0; rank < 3; rank++) {
        pids[rank] = nccl_fork(lose_a_rank, rank, order);
    }
    ck_assert(!child_join(pids[0], "rank 0 failed"));
    ck_assert(!child_join(pids[1], "rank 1 failed"));
    (void)kill(pids[2], SIGKILL);
    ck_assert(child_join(pids[2], "rank 2 failed"));
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- calls that differ ------------------------------------------------------------------------- */

#define ONE_FOR_EACH ((size_t[]){1, 1})

/* What the ranks call at the same time. */
static const struct {
    struct cst_comm_call calls[2];
    const char *words;
} differences[] = {
    {{{.op = CST_COMM_BARRIER}, {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 100}},
     "rank 0 calls barrier, rank 1 calls all_reduce of 100 fp32"},
    {{{.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_BF16, .n_elems = 100},
      {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_BF16, .n_elems = 99}},
     "rank 0 calls all_reduce of 100 bf16, rank 1 calls all_reduce of 99 bf16"},
    {{{.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_BF16, .n_elems = 100},
      {.op = CST_COMM_ALL_REDUCE, .type = CST_COMM_FP32, .n_elems = 100}},
     "rank 0 calls all_reduce of 100 bf16, rank 1 calls all_reduce of 100 fp32"},
    {{{.op = CST_COMM_BROADCAST, .type = CST_COMM_BYTE, .n_elems = 7},
      {.op = CST_COMM_BROADCAST, .type = CST_COMM_BYTE, .n_elems = 7, .root = 1}},
     "rank 0 calls broadcast of 7 bytes from rank 0, rank 1 calls broadcast of 7 bytes from rank "
     "1"},
    {{{.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .counts = ONE_FOR_EACH},
      {.op = CST_COMM_ALL_GATHER, .type = CST_COMM_FP32, .counts = (size_t[]){2, 0}}},
     "rank 0 calls all_gather of 2 fp32, rank 1 calls all_gather of 2 fp32 (with other numbers of "
     "elements for the ranks)"},
    {{{.op = CST_COMM_REDUCE_SCATTER, .type = CST_COMM_FP32, .counts = ONE_FOR_EACH},
      {.op = CST_COMM_ALL_TO_ALL,
       .type = CST_COMM_FP32,
       .counts = ONE_FOR_EACH,
       .recv_counts = ONE_FOR_EACH}},
     "rank 0 calls reduce_scatter of 2 fp32, rank 1 calls all_to_all of fp32"},
    {{{.op = CST_COMM_ALL_TO_ALL,
       .type = CST_COMM_FP32,
       .counts = ONE_FOR_EACH,
       .recv_counts = (size_t[]){1, 3}},
      {.op = CST_COMM_ALL_TO_ALL,
       .type = CST_COMM_FP32,
       .counts = (size_t[]){2, 1},
       .recv_counts = ONE_FOR_EACH}},
     "rank 1 calls all_to_all and sends 8 bytes to rank 0, which calls all_to_all and receives 12"},
};

/* The ranks make the same call, and then different ones. Rank 0 begins, and waits for its stream
 * first. */
static void differ(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_comm_call call = differences[order->at].calls[w->rank];
    const struct cst_comm_call same = {.op = CST_COMM_BARRIER};
    CUdeviceptr array = nccl_array_new(w, (char[1024]){0}, 1024);
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int rc;

    call.in = (const void *)(uintptr_t)array;
    call.out = (void *)(uintptr_t)(array + (call.op == CST_COMM_ALL_REDUCE ? 0 : 512));
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    nccl_must(cst_comm_start(comm, &same, &ticket, &err), &err, "start");
    if (w->rank == 1 && order->waits_for_stream) {
        (void)sem_wait(&order->begun);
    }
    rc = cst_comm_start(comm, &call, &ticket, &err);
    if (w->rank == 0 && order->waits_for_stream) {
        nccl_must(rc, &err, "start");
        (void)sem_post(&order->begun);
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    rc = rc == CST_OK ? cst_comm_wait(comm, ticket, &err) : rc;
    if (rc != CST_EMISMATCH || strstr(err.text, "collective 2: ") == NULL ||
        strstr(err.text, differences[order->at].words) == NULL) {
        (void)fprintf(stderr, "case %u, rank %u: %s: %s\n", order->at, w->rank, cst_status_name(rc),
                      err.text);
        _exit(1);
    }
    cst_comm_close(comm);
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    nccl_must_cuda(w, w->driver.cuMemFree(array), "array");
}

/* Ranks that call different operations, types, numbers of elements or roots are told so, with both
 * calls, and their streams go on. */
START_TEST(different_calls_are_named)
{
    for (int waits = 0; waits < 2; waits++) {
        struct nccl_order *order = nccl_order_new(2);

        order->at = (unsigned)_i;
        order->waits_for_stream = waits == 1;
        nccl_run(differ, order);
    }
}
END_TEST

/* Rank 2 expects more of rank 1 than it sends. The numbers of rank 0 are right. */
static void count_wrongly(struct nccl_worker *w, struct nccl_order *order)
{
    const size_t sent[] = {1, 1, 1}, received[] = {1, w->rank == 2 ? 5 : 1, 1};
    const CUdeviceptr array = nccl_array_new(w, (char[64]){0}, 64);
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(nccl_comm_open(w, order, &comm, &err), &err, "comm_open");
    (void)cst_comm_all_to_all(comm, (const void *)(uintptr_t)array, sent,
                              (void *)(uintptr_t)(array + 32), received, CST_COMM_BYTE, &err);
    if (err.status != CST_EMISMATCH || strstr(err.text, "sends 1 bytes to rank 2, which") == NULL) {
        (void)fprintf(stderr, "rank %u: %s: %s\n", w->rank, cst_status_name(err.status), err.text);
        _exit(1);
    }
    nccl_arrive(order); /* A rank that leaves makes the step void. */
    cst_comm_close(comm);
    nccl_must_cuda(w, w->driver.cuMemFree(array), "array");
}

/* If two ranks count differently, a third one learns it. _i: by NCCL, or in memory of GPUs. */
START_TEST(different_counts_are_named_everywhere)
{
    struct nccl_order *order = nccl_order_new(3);

    order->in_order = _i == 1;
    nccl_run(count_wrongly, order);
}
END_TEST

/* -- failures --------------------------------------------------------------------------------- */

static const struct {
    const char *setting;
    int status[2];     /* What the ranks get from opening and two barriers. */
    const char *words; /* Part of the error of rank 0. */
} cases[] = {
    {"CST_FAKENCCL_FAIL=ncclAllReduce:2=1",
     {CST_EGPU, CST_ECANCELLED},
     "a collective: NCCL says: unhandled cuda error"},
    {"CST_FAKECUDA_FAIL=cuMemAlloc:1+=2",
     {CST_ENOMEM, CST_ECANCELLED},
     "communicator of group 0: 4 bytes for barriers on GPU-"},
    {"CST_FAKENCCL_FAIL=work:2=6",
     {CST_EINTERNAL, CST_ECANCELLED},
     "collectives: NCCL says: remote process exited"},
};

static void end_so(struct nccl_worker *w, struct nccl_order *order)
{
    const int i = (int)order->n_calls;
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    int rc;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    rc = cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err);
    for (int k = 0; k < 2 && rc == CST_OK; k++) {
        rc = cst_comm_barrier(comm, &err);
    }
    if (rc != cases[i].status[w->rank] ||
        (w->rank == 0 && strstr(err.text, cases[i].words) == NULL)) {
        (void)fprintf(stderr, "case %d, rank %u: %s: %s\n", i, w->rank, cst_status_name(rc),
                      err.text);
        _exit(1);
    }
    cst_comm_close(comm);
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    /* If rank 0 left the job earlier, rank 1 would get this as the cause. */
    if (w->rank == 1) {
        (void)sem_post(&order->ended);
    } else {
        (void)sem_wait(&order->ended);
    }
}

/* Where NCCL fails in a call, or everything in opening, every rank gets a clear error, and the
 * stream goes on. */
START_TEST(a_failure_is_named)
{
    struct nccl_order *order = nccl_order_new(2);

    order->n_calls = (unsigned)_i;
    order->setting = cases[_i].setting;
    nccl_run(end_so, order);
}
END_TEST

/* Rank 0 has a work that fails, in a call that rank 1 has started, too. */
static void try_after_failure(struct nccl_worker *w, struct nccl_order *order)
{
    const struct cst_comm_call call = {.op = CST_COMM_BARRIER};
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int first, rc;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err,
              "comm_open");
    nccl_must(cst_comm_start(comm, &call, &ticket, &err), &err, "start");
    if (w->rank == 0) {
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
        first = rc = cst_comm_try_wait(comm, ticket, &err);
        while (rc == CST_EAGAIN) {
            rc = cst_comm_try_wait(comm, ticket, &err);
        }
        if (first != CST_EAGAIN || rc != CST_EINTERNAL ||
            strstr(err.text, "collectives: NCCL says: remote process exited") == NULL) {
            (void)fprintf(stderr, "first %s, then %s: %s\n", cst_status_name(first),
                          cst_status_name(rc), err.text);
            _exit(1);
        }
        (void)sem_post(&order->ended);
    } else {
        (void)sem_wait(&order->ended);
    }
    cst_comm_close(comm);
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
}

/* cst_comm_try_wait does not wait for the cause of a failure: a rank that has died or has closed
 * its communicator would be it. */
START_TEST(a_failure_is_not_awaited)
{
    struct nccl_order *order = nccl_order_new(2);

    order->setting = "CST_FAKENCCL_FAIL=work:1=6";
    nccl_run(try_after_failure, order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *deaths, *large, *failures;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("nccl_ends");
    deaths = suite_case(suite, "deaths", nccl_rig_open, cuda_rig_close);
    large = suite_case(suite, "large", nccl_rig_open_large, cuda_rig_close);
    failures = suite_case(suite, "failures", nccl_rig_open, cuda_rig_close);
    suite_add_loop(deaths, a_death_is_named_and_made_good, CST_COMM_BARRIER,
                   CST_COMM_ALL_TO_ALL + 1);
    suite_add_loop(deaths, a_death_in_memory_of_gpus, CST_COMM_BARRIER, CST_COMM_ALL_TO_ALL + 1);
    suite_add_loop(deaths, a_death_while_staging, 0, 2);
    suite_add_loop(deaths, a_stream_is_freed, 0, N_ENDS);
    suite_add_loop(large, all_others_name_the_dead, 0, 2);
    suite_add_loop(large, a_loss_after_a_close_is_named, 0, N_LOSSES);
    suite_add_loop(large, different_counts_are_named_everywhere, 0, 2);
    suite_add_loop(failures, different_calls_are_named, 0,
                   sizeof differences / sizeof differences[0]);
    suite_add_loop(failures, a_failure_is_named, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(failures, a_failure_is_not_awaited);
    return suite_run(suite);
}
