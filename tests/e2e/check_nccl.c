/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of ranks on GPUs, by NCCL: processes with a daemon, on tests/lib/fakecuda and
 * tests/lib/fakenccl. Random calls against a serial model, deaths in all collectives, failures of
 * NCCL, and groups that cannot use it. */
#include "cistern/cuda.h"
#include "cistern/device.h"
#include "kernels/cuda/driver.h"
#include "tests/lib/child.h"
#include "tests/lib/collective.h"
#include "tests/lib/cuda_rig.h"
#include "tests/lib/fake_gpu.h"
#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORLD 2
#define MOST_ELEMS 60000

static uint64_t new_seed(void)
{
    const char *given = getenv("CST_TEST_SEED");
    struct timespec now;
    uint64_t seed;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)now.tv_nsec + (uint64_t)getpid();
    printf("CST_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void setup(void)
{
    cuda_rig_dawdle(false);
    cuda_rig_open("");
}

/* Streams are late, so that results that are read too early are found. */
static void setup_late(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open("");
}

/* -- a worker --------------------------------------------------------------------------------- */

/* A rank of job "j", on the GPU with its number. */
struct worker {
    struct cst_client *client;
    struct cst_job *job;
    struct cst_cuda *cuda;
    struct cst_cuda_driver driver; /* The program's own. */
    CUcontext context;
    CUstream stream;
    CUdevice device;
    uint32_t rank;
};

/* What the workers of a test do, in memory that they share. */
struct order {
    uint64_t seed;
    unsigned n_calls;
    enum cst_comm_op op; /* The operation in which the victim dies. */
    uint32_t victim;
    unsigned at;           /* The call in which it dies. */
    bool waits_for_stream; /* The others wait for their streams first, and then for the call. */
    bool dead;             /* The victim has died: its successor lives on. */
    const char *devices[WORLD];
    const char *setting; /* NULL, or NAME=VALUE in the environment of rank 0. */
    const char *words;   /* In the explanation of the communicator. */
    sem_t begun;         /* Rank 0 has a call in its stream. */
    sem_t ended;         /* Rank 1 has got its error, or rank 0 has. */
};

/* Workers are children: they do not use Check, and end with a message. */
static void must(int rc, const struct cst_err *err, const char *what)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "%s: %s: %s\n", what, cst_status_name(rc), err->text);
        _exit(1);
    }
}

static void must_cuda(const struct worker *w, CUresult result, const char *what)
{
    struct cst_err err;

    must(cst_cuda_check(&w->driver, result, &err, "%s", what), &err, what);
}

static void open_stream(struct worker *w)
{
    struct cst_err err;

    must(cst_cuda_driver_open(&w->driver, &err), &err, "driver");
    must(cst_cuda_find(&w->driver, cst_job_device(w->job), &w->device, &err), &err, "device");
    must_cuda(w, w->driver.cuDevicePrimaryCtxRetain(&w->context, w->device), "context");
    must_cuda(w, w->driver.cuCtxSetCurrent(w->context), "context");
    must_cuda(w, w->driver.cuStreamCreateWithPriority(&w->stream, CU_STREAM_NON_BLOCKING, 0),
              "stream");
}

static void start_worker(struct worker *w, const struct order *order, uint32_t rank)
{
    const struct cst_job_spec spec = {.name = "j",
                                      .rank = rank,
                                      .world = WORLD,
                                      .device = order->devices[rank],
                                      .timeout_ms = (uint32_t)patience_ms(20000)};
    struct cst_plan plan;
    struct cst_err err = {0};
    int tensor;

    *w = (struct worker){.rank = rank};
    must(cst_connect(&w->client, proc.socket, &err), &err, "connect");
    must(cst_job_open(&w->job, w->client, &spec, &err), &err, "open");
    open_stream(w);
    must(cst_cuda_open(&w->cuda, w->job, w->stream, &err), &err, "cst_cuda_open");
    tensor = cst_tensor(w->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(w->job, "o", &tensor, 1);
    must(cst_commit(w->job, &plan, &err), &err, "commit");
}

/* Free what @w has, which has left its job or cannot. */
static void free_worker(struct worker *w)
{
    cst_disconnect(w->client);
    cst_cuda_close(w->cuda);
    must_cuda(w, w->driver.cuCtxSetCurrent(w->context), "context");
    must_cuda(w, w->driver.cuStreamDestroy(w->stream), "stream");
    must_cuda(w, w->driver.cuDevicePrimaryCtxRelease(w->device), "context");
}

static void end_worker(struct worker *w)
{
    struct cst_err err = {0};

    must(cst_job_leave(w->job, &err), &err, "leave");
    free_worker(w);
}

static pid_t fork_worker(void (*body)(struct worker *w, struct order *order), uint32_t rank,
                         struct order *order)
{
    const pid_t pid = child_start();

    if (pid == 0) {
        struct worker w;

        if (order->setting != NULL && rank == 0) {
            (void)putenv((char *)(uintptr_t)order->setting);
        }
        start_worker(&w, order, rank);
        body(&w, order);
        end_worker(&w);
        exit(0); /* The driver reports what is left. */
    }
    return pid;
}

/* -- calls ------------------------------------------------------------------------------------ */

/* The call of @c with arrays on the GPU. */
struct on_gpu {
    CUdeviceptr in, out; /* 0: no elements. */
    CUdeviceptr seen;    /* What the stream has found in `out`. */
    struct cst_comm_call call;
};

static size_t bytes_of(const struct collective *c, size_t n_elems)
{
    return n_elems * (c->call.type == CST_COMM_BYTE ? 1 : c->call.type == CST_COMM_BF16 ? 2 : 4);
}

static CUdeviceptr new_array(const struct worker *w, const void *from, size_t bytes)
{
    CUdeviceptr array = 0;

    if (bytes > 0) {
        must_cuda(w, w->driver.cuMemAlloc(&array, bytes), "array");
        must_cuda(w, w->driver.cuMemcpyHtoDAsync(array, from, bytes, w->stream), "array");
    }
    return array;
}

static void to_gpu(const struct worker *w, const struct collective *c, struct on_gpu *g)
{
    const bool in_place = c->call.in == c->call.out && c->call.in != NULL;

    g->call = c->call;
    g->out = new_array(w, c->out, bytes_of(c, c->out_elems));
    g->seen = new_array(w, c->out, bytes_of(c, c->out_elems));
    g->in = in_place ? 0 : new_array(w, c->in, bytes_of(c, c->in_elems));
    g->call.in = (const void *)(uintptr_t)(in_place ? g->out : g->in);
    g->call.out = (void *)(uintptr_t)g->out;
}

/* Enqueue: read the result. A copy to host memory that is not pinned would wait for the stream. */
static void read_result(const struct worker *w, const struct collective *c, const struct on_gpu *g)
{
    if (g->out != 0) {
        must_cuda(
            w, w->driver.cuMemcpyDtoDAsync(g->seen, g->out, bytes_of(c, c->out_elems), w->stream),
            "result");
    }
}

/* The stream has ended: return whether it has found the right result. */
static bool is_right(const struct worker *w, const struct collective *c, const struct on_gpu *g)
{
    if (g->out != 0) {
        must_cuda(
            w, w->driver.cuMemcpyDtoHAsync(c->out, g->seen, bytes_of(c, c->out_elems), w->stream),
            "result");
        must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    return collective_is_right(c);
}

static void free_arrays(const struct worker *w, const struct on_gpu *g)
{
    must_cuda(w, g->in != 0 ? w->driver.cuMemFree(g->in) : CUDA_SUCCESS, "array");
    must_cuda(w, g->out != 0 ? w->driver.cuMemFree(g->out) : CUDA_SUCCESS, "array");
    must_cuda(w, g->seen != 0 ? w->driver.cuMemFree(g->seen) : CUDA_SUCCESS, "array");
}

/* Call a collective and check its result, which the stream reads: before the program waits for the
 * call, or after. @by_stream: the program waits for the stream before it waits for the call. */
static int call_one(const struct worker *w, struct cst_comm *comm, uint64_t seed, uint64_t number,
                    enum cst_comm_op op, bool by_stream, struct cst_err *err)
{
    const bool at_once = number % 2 == 1;
    struct collective c;
    struct on_gpu g;
    uint64_t ticket = 0;
    int rc;

    collective_make(&c, seed, number, cst_comm_rank(comm), cst_comm_size(comm), MOST_ELEMS, op);
    to_gpu(w, &c, &g);
    rc = cst_comm_start(comm, &g.call, &ticket, err);
    if (rc == CST_OK && at_once) {
        read_result(w, &c, &g);
    }
    if (by_stream) {
        must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    rc = rc == CST_OK ? cst_comm_wait(comm, ticket, err) : rc;
    if (rc == CST_OK && !at_once) {
        read_result(w, &c, &g);
    }
    /* Also after a failure: the stream does not wait for a rank that has died. */
    must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    if (rc == CST_OK && !is_right(w, &c, &g)) {
        rc = cst_err_set(err, CST_EINTERNAL, "rank %u: call %llu (operation %d) has a wrong result",
                         w->rank, (unsigned long long)number, (int)c.call.op);
    }
    free_arrays(w, &g);
    collective_free(&c);
    return rc;
}

/* `cistern explain` must say how the ranks exchange arrays, and why. */
static void check_explanation(const char *words)
{
    char command[512], text[8192];
    FILE *from;
    size_t n;

    (void)snprintf(command, sizeof command, "CISTERN_SOCKET=%s ./cistern explain j t", proc.socket);
    from = popen(command, "r");
    n = from != NULL ? fread(text, 1, sizeof text - 1, from) : 0;
    text[n] = '\0';
    if (from == NULL || pclose(from) != 0 || strstr(text, words) == NULL) {
        (void)fprintf(stderr, "'%s' is not in:\n%s", words, text);
        _exit(1);
    }
}

static void call_all(struct worker *w, struct order *order)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};

    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err, "comm_open");
    if (w->rank == 0) {
        check_explanation(order->words);
    }
    for (unsigned i = 0; i < order->n_calls; i++) {
        must(call_one(w, comm, order->seed, i, order->op, false, &err), &err, "call");
    }
    must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
}

static struct order *new_order(void)
{
    struct order *order = child_share(sizeof *order);

    *order =
        (struct order){.seed = new_seed(),
                       .devices = {"cuda:0", "cuda:1"},
                       .words = "ranks use NCCL,\n  because each rank has a GPU and NCCL 2.28.9"};
    ck_assert_int_eq(sem_init(&order->begun, 1, 0), 0);
    ck_assert_int_eq(sem_init(&order->ended, 1, 0), 0);
    return order;
}

/* Start @body on all ranks, and wait until they have ended well. */
static void run_all(void (*body)(struct worker *w, struct order *order), struct order *order)
{
    pid_t pids[WORLD];

    for (uint32_t rank = 0; rank < WORLD; rank++) {
        pids[rank] = fork_worker(body, rank, order);
    }
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}

/* Random calls of each operation, and of all, have the bits of the serial model. _i: operation. */
START_TEST(calls_agree_with_the_model)
{
    struct order *order = new_order();

    order->op = (enum cst_comm_op)_i;
    order->n_calls = suite_is_sparse() ? 10 : 30;
    run_all(call_all, order);
}
END_TEST

/* -- calls of the job that are pending --------------------------------------------------------- */

/* Rank 0 has a step pending until rank 1 makes it, too. */
static void step_pending(struct worker *w, struct order *order)
{
    const struct cst_hyper_params params = {.lr = 0.1f, .grad_scale = 1};
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int rc;

    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err, "comm_open");
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
    must(rc, &err, "step");
    must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
}

/* A collective cannot be started while a call of the job is pending. Nothing is lost by that. */
START_TEST(a_pending_call_comes_first)
{
    run_all(step_pending, new_order());
}
END_TEST

/* -- deaths ----------------------------------------------------------------------------------- */

/* Die in call `at`: before it, in the communicator's making, or with its part on the way. */
static void die(const struct worker *w, struct cst_comm *comm, const struct order *order)
{
    struct collective c;
    struct on_gpu g;
    uint64_t ticket;

    if (order->seed % 2 == 0) {
        collective_make(&c, order->seed, order->at, w->rank, WORLD, MOST_ELEMS, order->op);
        to_gpu(w, &c, &g);
        (void)cst_comm_start(comm, &g.call, &ticket, NULL);
    }
    (void)raise(SIGKILL);
}

/* The error must name the rank that died. */
static void check_words(const struct order *order, const struct cst_err *err)
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
static int attempt(struct worker *w, struct order *order, struct cst_err *err)
{
    struct cst_comm *comm = NULL;
    int rc;

    must(cst_sync(w->job, NULL, err), err, "sync");
    rc = cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, err);
    for (unsigned i = 0; rc == CST_OK && i < order->n_calls; i++) {
        if (i == order->at && w->rank == order->victim &&
            !__atomic_exchange_n(&order->dead, true, __ATOMIC_ACQ_REL)) {
            die(w, comm, order);
        }
        rc = call_one(w, comm, order->seed, i, i == order->at ? order->op : 0,
                      order->waits_for_stream, err);
    }
    rc = rc == CST_OK ? cst_comm_barrier(comm, err) : rc;
    cst_comm_close(comm);
    return rc;
}

static void survive(struct worker *w, struct order *order)
{
    struct cst_err err = {0};
    int rc = attempt(w, order, &err);

    if (rc == CST_EPEERDIED) {
        check_words(order, &err);
        rc = attempt(w, order, &err);
    }
    must(rc, &err, "attempt");
}

static void one_death(struct order *order)
{
    pid_t pids[WORLD];
    unsigned n_killed = 0;

    for (uint32_t rank = 0; rank < WORLD; rank++) {
        pids[rank] = fork_worker(survive, rank, order);
    }
    /* The victim is the first that ends, and a new process takes its rank. */
    n_killed += child_join(pids[order->victim], "the victim failed");
    pids[order->victim] = fork_worker(survive, order->victim, order);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        n_killed += child_join(pids[rank], "a worker failed");
    }
    ck_assert_uint_eq(n_killed, 1);
    raw_job_remove(&witness, "j");
}

/* A rank that is killed in a collective of any kind, before its part or after the beginning of it,
 * is named by the other, whose stream goes on, even if the program waits for nothing but the stream
 * meanwhile. When a new process has its rank, both open the
 * communicator again and make the same calls, with the same bits. CST_TEST_DEATHS: number of deaths
 * for each kind. */
START_TEST(a_death_is_named_and_made_good)
{
    const char *given = getenv("CST_TEST_DEATHS");
    const unsigned n = given != NULL ? (unsigned)strtoul(given, NULL, 10) : 4;

    for (unsigned i = 0; i < n; i++) {
        struct order *order = new_order();

        order->seed = order->seed * 2 + i % 2;
        order->op = (enum cst_comm_op)_i;
        order->victim = (uint32_t)(order->seed / 7 % WORLD);
        order->n_calls = 5;
        order->at = (unsigned)(order->seed / 11 % 5);
        /* Versions without ncclCommRevoke, or where it fails: the communicator is aborted. */
        order->setting = i % 2 == 1 ? "CST_FAKENCCL_FAIL=ncclCommRevoke:1=4" : NULL;
        order->victim = i % 2 == 1 ? 1 : order->victim;
        order->waits_for_stream = i / 2 % 2 == 1;
        one_death(order);
        child_unshare(order, sizeof *order);
    }
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
static void be_freed(struct worker *w, struct order *order)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;

    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err, "comm_open");
    if (w->rank == 0) {
        must(cst_comm_start(comm, &(struct cst_comm_call){.op = CST_COMM_BARRIER}, &ticket, &err),
             &err, "start");
        (void)sem_post(&order->begun);
        must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
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
    free_worker(w);
    exit(0);
}

/* Nobody dies, but rank 1 will never make the call: it closes the communicator, or the job is
 * removed, or the daemon dies. _i: which. The stream of rank 0 goes on, although the program calls
 * nothing of libcistern, and the next call says why. */
START_TEST(a_stream_is_freed)
{
    struct order *order = new_order();
    pid_t pids[WORLD];

    order->at = (unsigned)_i;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        pids[rank] = fork_worker(be_freed, rank, order);
    }
    if (_i != CLOSED) {
        (void)sem_wait(&order->begun);
    }
    if (_i == REMOVED) {
        raw_job_remove(&witness, "j");
    } else if (_i == KILLED) {
        daemon_proc_kill(&proc);
    }
    for (uint32_t rank = 0; rank < WORLD; rank++) {
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

/* -- calls that differ ------------------------------------------------------------------------- */

#define ONE_FOR_EACH ((size_t[]){1, 1})

/* What the ranks call at the same time. */
static const struct {
    struct cst_comm_call calls[WORLD];
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
       .recv_counts = (size_t[]){2, 1}}},
     " bytes to rank "},
};

/* The ranks make the same call, and then different ones. Rank 0 begins, and waits for its stream
 * first. */
static void differ(struct worker *w, struct order *order)
{
    struct cst_comm_call call = differences[order->at].calls[w->rank];
    const struct cst_comm_call same = {.op = CST_COMM_BARRIER};
    CUdeviceptr array = new_array(w, (char[1024]){0}, 1024);
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    uint64_t ticket = 0;
    int rc;

    call.in = (const void *)(uintptr_t)array;
    call.out = (void *)(uintptr_t)(array + (call.op == CST_COMM_ALL_REDUCE ? 0 : 512));
    must(cst_sync(w->job, NULL, &err), &err, "sync");
    must(cst_cuda_comm_open(&comm, w->cuda, CST_GROUP_ALL, w->stream, &err), &err, "comm_open");
    must(cst_comm_start(comm, &same, &ticket, &err), &err, "start");
    if (w->rank == 1 && order->waits_for_stream) {
        (void)sem_wait(&order->begun);
    }
    rc = cst_comm_start(comm, &call, &ticket, &err);
    if (w->rank == 0 && order->waits_for_stream) {
        must(rc, &err, "start");
        (void)sem_post(&order->begun);
        must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    rc = rc == CST_OK ? cst_comm_wait(comm, ticket, &err) : rc;
    if (rc != CST_EMISMATCH || strstr(err.text, "collective 2: ") == NULL ||
        strstr(err.text, differences[order->at].words) == NULL) {
        (void)fprintf(stderr, "case %u, rank %u: %s: %s\n", order->at, w->rank, cst_status_name(rc),
                      err.text);
        _exit(1);
    }
    cst_comm_close(comm);
    must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    must_cuda(w, w->driver.cuMemFree(array), "array");
}

/* Ranks that call different operations, types, numbers of elements or roots are told so, with both
 * calls, and their streams go on. */
START_TEST(different_calls_are_named)
{
    for (int waits = 0; waits < 2; waits++) {
        struct order *order = new_order();

        order->at = (unsigned)_i;
        order->waits_for_stream = waits == 1;
        run_all(differ, order);
    }
}
END_TEST

/* -- groups without NCCL ---------------------------------------------------------------------- */

static const struct {
    const char *devices[WORLD];
    const char *setting; /* Of rank 0. */
    const char *words;   /* Of `cistern explain`. */
} without[] = {
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_VERSION=21304",
     "staging in host memory,\n  because rank 0 has no NCCL: libnccl.so.2 is version 21304, which "
     "is "
     "too old"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_VERSION=22703",
     "because rank 0 has NCCL 2.27.3, and rank 1 has NCCL 2.28.9"},
    {{"cuda:0", "cuda:0"}, NULL, "and NCCL needs a GPU for each rank"},
    {{"cuda:0", "cuda:1"}, "CST_FAKECUDA_PEERS=none", "cannot access each other's memory"},
};

static void use_group(struct order *order, int i)
{
    order->setting = without[i].setting;
    order->words = without[i].words;
    memcpy(order->devices, without[i].devices, sizeof order->devices);
}

/* Ranks that cannot use NCCL exchange their arrays through the host, with the same results. */
START_TEST(others_stage)
{
    struct order *order = new_order();

    order->n_calls = suite_is_sparse() ? 10 : 40;
    use_group(order, _i);
    run_all(call_all, order);
}
END_TEST

/* There, too, a death is named and made good. _i: operation. */
START_TEST(a_death_while_staging)
{
    struct order *order = new_order();

    use_group(order, 0);
    order->op = (enum cst_comm_op)_i;
    order->victim = 1; /* The setting is in the environment of rank 0. */
    order->n_calls = 5;
    order->at = (unsigned)(order->seed / 11 % 5);
    one_death(order);
    child_unshare(order, sizeof *order);
}
END_TEST

/* -- failures --------------------------------------------------------------------------------- */

static const struct {
    const char *devices[WORLD];
    const char *setting;
    int status[WORLD]; /* What the ranks get from opening and two barriers. */
    const char *words; /* Part of the error of rank 0. */
} cases[] = {
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_FAIL=ncclGetUniqueId:1=2",
     {CST_EINTERNAL, CST_EPEERDIED},
     "a unique id of NCCL: NCCL says: unhandled system error"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_FAIL=ncclCommInitRankConfig:1=3",
     {CST_EINTERNAL, CST_ECANCELLED},
     "joining a communicator: NCCL says: internal error"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_FAIL=ncclAllReduce:2=1",
     {CST_EGPU, CST_ECANCELLED},
     "a collective: NCCL says: unhandled cuda error"},
    {{"cuda:0", "cuda:1"},
     "CST_FAKENCCL_FAIL=work:2=6",
     {CST_EINTERNAL, CST_ECANCELLED},
     "collectives: NCCL says: remote process exited"},
};

static void end_so(struct worker *w, struct order *order)
{
    const int i = (int)order->n_calls;
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};
    int rc;

    must(cst_sync(w->job, NULL, &err), &err, "sync");
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
    must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    /* If rank 0 left the job earlier, rank 1 would get this as the cause. */
    if (w->rank == 1) {
        (void)sem_post(&order->ended);
    } else if (cases[i].status[1] != CST_EPEERDIED) {
        (void)sem_wait(&order->ended);
    }
}

/* Where NCCL fails, every rank gets a clear error, and the stream goes on. */
START_TEST(a_failure_is_named)
{
    struct order *order = new_order();

    order->n_calls = (unsigned)_i;
    order->setting = cases[_i].setting;
    memcpy(order->devices, cases[_i].devices, sizeof order->devices);
    run_all(end_so, order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *calls, *deaths, *failures;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("nccl");
    calls = suite_case(suite, "calls", setup_late, cuda_rig_close);
    deaths = suite_case(suite, "deaths", setup, cuda_rig_close);
    failures = suite_case(suite, "failures", setup, cuda_rig_close);
    tcase_add_loop_test(calls, calls_agree_with_the_model, 0, CST_COMM_ALL_TO_ALL + 1);
    tcase_add_test(failures, a_pending_call_comes_first);
    tcase_add_loop_test(deaths, a_death_is_named_and_made_good, CST_COMM_BARRIER,
                        CST_COMM_ALL_TO_ALL + 1);
    tcase_add_loop_test(calls, others_stage, 0, sizeof without / sizeof without[0]);
    tcase_add_loop_test(deaths, a_stream_is_freed, 0, N_ENDS);
    tcase_add_loop_test(deaths, a_death_while_staging, CST_COMM_BARRIER, CST_COMM_ALL_TO_ALL + 1);
    tcase_add_loop_test(failures, different_calls_are_named, 0,
                        sizeof differences / sizeof differences[0]);
    tcase_add_loop_test(failures, a_failure_is_named, 0, sizeof cases / sizeof cases[0]);
    return suite_run(suite);
}
