/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/nccl_rig.h"

#include "tests/lib/patience.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* -- the daemon ------------------------------------------------------------------------------- */

void nccl_rig_open(void)
{
    cuda_rig_dawdle(false);
    cuda_rig_open("");
}

void nccl_rig_open_late(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open("");
}

void nccl_rig_open_large(void)
{
    cuda_rig_dawdle(true);
    cuda_rig_open_gpus("", NCCL_MAX_WORLD);
}

/* -- a worker --------------------------------------------------------------------------------- */

void nccl_must(int rc, const struct cst_err *err, const char *what)
{
    if (rc != CST_OK) {
        (void)fprintf(stderr, "%s: %s: %s\n", what, cst_status_name(rc), err->text);
        _exit(1);
    }
}

void nccl_must_cuda(const struct nccl_worker *w, CUresult result, const char *what)
{
    struct cst_err err;

    nccl_must(cst_cuda_check(&w->driver, result, &err, "%s", what), &err, what);
}

void nccl_must_explain(const char *words)
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

static void open_stream(struct nccl_worker *w)
{
    struct cst_err err;

    nccl_must(cst_cuda_driver_open(&w->driver, &err), &err, "driver");
    nccl_must(cst_cuda_find(&w->driver, cst_job_device(w->job), &w->device, &err), &err, "device");
    nccl_must_cuda(w, w->driver.cuDevicePrimaryCtxRetain(&w->context, w->device), "context");
    nccl_must_cuda(w, w->driver.cuCtxSetCurrent(w->context), "context");
    nccl_must_cuda(w, w->driver.cuStreamCreateWithPriority(&w->stream, CU_STREAM_NON_BLOCKING, 0),
                   "stream");
}

static void declare_edges(struct nccl_worker *w, const struct nccl_order *order)
{
    const uint32_t world = order->world;
    char name[16];

    for (uint32_t i = 0; order->slot_bytes > 0 && i < 2 * world; i++) {
        const bool own = i < world;
        const struct cst_edge_spec spec = {.name = name,
                                           .from = i % world,
                                           .to = own ? i : (i + 1) % world,
                                           .slot_bytes = order->slot_bytes,
                                           .n_slots = order->n_slots,
                                           .on_device = order->on_device};

        (void)snprintf(name, sizeof name, "edge %u", i);
        nccl_must(cst_edge(w->job, &spec) < 0 ? CST_EINVAL : CST_OK, cst_job_error(w->job), "edge");
    }
}

int nccl_join(struct nccl_worker *w, const struct nccl_order *order, uint32_t rank,
              struct cst_err *err)
{
    const bool on_gpu = strncmp(order->devices[rank], "cuda", 4) == 0;
    const struct cst_job_spec spec = {.name = "j",
                                      .rank = rank,
                                      .world = order->world,
                                      .device = order->devices[rank],
                                      .limits.timeout_ms = order->timeout_ms};
    struct cst_plan plan;
    uint32_t ranks[NCCL_MAX_WORLD], n = 0;
    int tensor;

    *w = (struct nccl_worker){.rank = rank};
    nccl_must(cst_connect(&w->client, proc.socket, err), err, "connect");
    nccl_must(cst_job_open(&w->job, w->client, &spec, err), err, "open");
    if (on_gpu) {
        open_stream(w);
        nccl_must(cst_cuda_open(&w->cuda, w->job, w->stream, err), err, "cst_cuda_open");
    }
    for (uint32_t i = 0; i < order->world; i++) {
        if ((order->ranks >> i & 1) != 0) {
            ranks[n++] = i;
        }
    }
    if (n > 0) {
        w->group = cst_group(w->job, ranks, n);
    }
    declare_edges(w, order);
    tensor = cst_tensor(w->job, "t", CST_BF16, 1, (int64_t[]){1000}, CST_GROUP_ALL);
    (void)cst_operator(w->job, "o", &tensor, 1);
    return cst_commit(w->job, &plan, err);
}

void nccl_worker_free(struct nccl_worker *w)
{
    cst_disconnect(w->client);
    if (w->cuda == NULL) {
        return;
    }
    cst_cuda_close(w->cuda);
    nccl_must_cuda(w, w->driver.cuCtxSetCurrent(w->context), "context");
    nccl_must_cuda(w, w->driver.cuStreamDestroy(w->stream), "stream");
    nccl_must_cuda(w, w->driver.cuDevicePrimaryCtxRelease(w->device), "context");
}

static void end_worker(struct nccl_worker *w)
{
    struct cst_err err = {0};

    nccl_must(cst_job_leave(w->job, &err), &err, "leave");
    nccl_worker_free(w);
}

void nccl_arrive(struct nccl_order *order)
{
    if (__atomic_add_fetch(&order->n_arrived, 1, __ATOMIC_ACQ_REL) == order->world) {
        for (uint32_t r = 0; r < order->world; r++) {
            (void)sem_post(&order->arrived);
        }
    }
    (void)sem_wait(&order->arrived);
}

pid_t nccl_fork(nccl_body *body, uint32_t rank, struct nccl_order *order)
{
    const pid_t pid = child_start();

    if (pid == 0) {
        struct nccl_worker w;
        struct cst_err err = {0};

        if (order->settings[rank] != NULL) {
            (void)putenv((char *)(uintptr_t)order->settings[rank]);
        }
        if (order->setting != NULL && (rank == 0 || order->setting_for_all)) {
            (void)putenv((char *)(uintptr_t)order->setting);
        }
        nccl_must(nccl_join(&w, order, rank, &err), &err, "commit");
        body(&w, order);
        end_worker(&w);
        exit(0); /* The driver reports what is left. */
    }
    return pid;
}

/* -- a call ----------------------------------------------------------------------------------- */

static size_t bytes_of(const struct collective *c, size_t n_elems)
{
    return n_elems * (c->call.type == CST_COMM_BYTE ? 1 : c->call.type == CST_COMM_BF16 ? 2 : 4);
}

CUdeviceptr nccl_array_new(const struct nccl_worker *w, const void *from, size_t bytes)
{
    CUdeviceptr array = 0;

    if (bytes > 0) {
        nccl_must_cuda(w, w->driver.cuMemAlloc(&array, bytes), "array");
        nccl_must_cuda(w, w->driver.cuMemcpyHtoDAsync(array, from, bytes, w->stream), "array");
    }
    return array;
}

void nccl_arrays_make(const struct nccl_worker *w, const struct collective *c,
                      struct nccl_arrays *g)
{
    const bool in_place = c->call.in == c->call.out && c->call.in != NULL;

    g->call = c->call;
    g->out = nccl_array_new(w, c->out, bytes_of(c, c->out_elems));
    g->seen = nccl_array_new(w, c->out, bytes_of(c, c->out_elems));
    g->in = in_place ? 0 : nccl_array_new(w, c->in, bytes_of(c, c->in_elems));
    g->call.in = (const void *)(uintptr_t)(in_place ? g->out : g->in);
    g->call.out = (void *)(uintptr_t)g->out;
}

/* Enqueue: read the result. A copy to host memory that is not pinned would wait for the stream. */
static void read_result(const struct nccl_worker *w, const struct collective *c,
                        const struct nccl_arrays *g)
{
    if (g->out != 0) {
        nccl_must_cuda(
            w, w->driver.cuMemcpyDtoDAsync(g->seen, g->out, bytes_of(c, c->out_elems), w->stream),
            "result");
    }
}

/* The stream has ended: return whether it has found the right result. */
static bool is_right(const struct nccl_worker *w, const struct collective *c,
                     const struct nccl_arrays *g)
{
    if (g->out != 0) {
        nccl_must_cuda(
            w, w->driver.cuMemcpyDtoHAsync(c->out, g->seen, bytes_of(c, c->out_elems), w->stream),
            "result");
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    return collective_is_right(c);
}

static void free_arrays(const struct nccl_worker *w, const struct nccl_arrays *g)
{
    nccl_must_cuda(w, g->in != 0 ? w->driver.cuMemFree(g->in) : CUDA_SUCCESS, "array");
    nccl_must_cuda(w, g->out != 0 ? w->driver.cuMemFree(g->out) : CUDA_SUCCESS, "array");
    nccl_must_cuda(w, g->seen != 0 ? w->driver.cuMemFree(g->seen) : CUDA_SUCCESS, "array");
}

int nccl_call(const struct nccl_worker *w, struct cst_comm *comm, uint64_t seed, uint64_t number,
              enum cst_comm_op op, bool by_stream, struct cst_err *err)
{
    const bool at_once = number % 2 == 1;
    struct collective c;
    struct nccl_arrays g;
    uint64_t ticket = 0;
    int rc;

    collective_make(&c, seed, number, cst_comm_rank(comm), cst_comm_size(comm), NCCL_MOST_ELEMS,
                    op);
    nccl_arrays_make(w, &c, &g);
    rc = cst_comm_start(comm, &g.call, &ticket, err);
    if (rc == CST_OK && at_once) {
        read_result(w, &c, &g);
    }
    if (by_stream) {
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
    rc = rc == CST_OK ? cst_comm_wait(comm, ticket, err) : rc;
    if (rc == CST_OK && !at_once) {
        read_result(w, &c, &g);
    }
    /* Also after a failure: the stream does not wait for a rank that has died. */
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    if (rc == CST_OK && !is_right(w, &c, &g)) {
        rc = cst_err_set(err, CST_EINTERNAL, "rank %u: call %llu (operation %d) has a wrong result",
                         w->rank, (unsigned long long)number, (int)c.call.op);
    }
    free_arrays(w, &g);
    collective_free(&c);
    return rc;
}

int nccl_comm_open(const struct nccl_worker *w, const struct nccl_order *order,
                   struct cst_comm **out, struct cst_err *err)
{
    return order->in_order
               ? cst_cuda_comm_open_in_order(out, w->cuda, CST_GROUP_ALL, w->stream, err)
               : cst_cuda_comm_open(out, w->cuda, CST_GROUP_ALL, w->stream, err);
}

/* -- all workers ------------------------------------------------------------------------------ */

struct nccl_order *nccl_order_new(uint32_t world)
{
    struct nccl_order *order = child_share(sizeof *order);

    *order = (struct nccl_order){
        .seed = suite_seed(),
        .world = world,
        .timeout_ms = (uint32_t)patience_ms(20000),
        .devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"},
        .words = "ranks use NCCL,\n  because each rank has a GPU and NCCL 2.28.9"};
    ck_assert_int_eq(sem_init(&order->begun, 1, 0), 0);
    ck_assert_int_eq(sem_init(&order->ended, 1, 0), 0);
    ck_assert_int_eq(sem_init(&order->arrived, 1, 0), 0);
    return order;
}

void nccl_run(nccl_body *body, struct nccl_order *order)
{
    pid_t pids[NCCL_MAX_WORLD];

    for (uint32_t rank = 0; rank < order->world; rank++) {
        pids[rank] = nccl_fork(body, rank, order);
    }
    for (uint32_t rank = 0; rank < order->world; rank++) {
        ck_assert(!child_join(pids[rank], "a worker failed"));
    }
    raw_job_remove(&witness, "j");
    child_unshare(order, sizeof *order);
}

void nccl_run_one_death(nccl_body *body, struct nccl_order *order)
{
    pid_t pids[NCCL_MAX_WORLD];
    unsigned n_killed = 0;

    for (uint32_t rank = 0; rank < order->world; rank++) {
        pids[rank] = nccl_fork(body, rank, order);
    }
    /* The victim is the first that ends, and a new process takes its rank. */
    n_killed += child_join(pids[order->victim], "the victim failed");
    pids[order->victim] = nccl_fork(body, order->victim, order);
    for (uint32_t rank = 0; rank < order->world; rank++) {
        n_killed += child_join(pids[rank], "a worker failed");
    }
    ck_assert_uint_eq(n_killed, 1);
    raw_job_remove(&witness, "j");
}

void nccl_call_all(struct nccl_worker *w, struct nccl_order *order)
{
    struct cst_comm *comm = NULL;
    struct cst_err err = {0};

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must(nccl_comm_open(w, order, &comm, &err), &err, "comm_open");
    if (w->rank == 0) {
        nccl_must_explain(order->words);
    }
    for (unsigned i = 0; i < order->n_calls; i++) {
        nccl_must(nccl_call(w, comm, order->seed, i, order->op, false, &err), &err, "call");
    }
    nccl_must(cst_comm_barrier(comm, &err), &err, "barrier");
    cst_comm_close(comm);
}
