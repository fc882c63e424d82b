/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/edge_ring.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOT = EDGE_RING_SLOT, N_SLOTS = EDGE_RING_SLOTS };

struct nccl_order *edge_ring_order(uint32_t world)
{
    struct nccl_order *order = nccl_order_new(world);

    order->slot_bytes = SLOT;
    order->n_slots = N_SLOTS;
    order->on_device = true;
    order->at = EDGE_RING_ARRAYS; /* Nothing happens. */
    return order;
}

void edge_ring_must(bool holds, const char *words, const struct cst_err *err)
{
    if (!holds) {
        (void)fprintf(stderr, "%s: %s\n", words, err->text);
        _exit(1);
    }
}

/* -- arrays ----------------------------------------------------------------------------------- */

int edge_ring_out(const struct nccl_order *order, uint32_t rank)
{
    return (int)(order->world + rank);
}

int edge_ring_in(const struct nccl_order *order, uint32_t rank)
{
    return edge_ring_out(order, (rank + order->world - 1) % order->world);
}

/* A number that follows from the seed, an edge and an array. */
static uint64_t draw(const struct nccl_order *order, int edge, uint32_t number)
{
    uint64_t x = order->seed + (uint64_t)edge * 0x9e3779b97f4a7c15u + number * 0xd1342543de82ef95u;

    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static uint64_t bytes_of(const struct nccl_order *order, int edge, uint32_t number)
{
    return draw(order, edge, number) % (SLOT + 1);
}

static void fill(const struct nccl_order *order, int edge, uint32_t number, uint8_t data[SLOT])
{
    uint8_t salt = (uint8_t)(draw(order, edge, number) >> 20);

    for (uint32_t i = 0; i < SLOT; i++) {
        data[i] = (uint8_t)(salt + i * 7);
    }
}

/* An array of @w: in the memory of its GPU, or of the host if it has none. */
struct array {
    CUdeviceptr gpu;
    uint8_t host[SLOT];
};

static void *place_of(const struct nccl_worker *w, struct array *array)
{
    return w->cuda != NULL ? (void *)(uintptr_t)array->gpu : array->host;
}

/* Enqueue, or do: copy between two of arrays and slots. */
static void copy(const struct nccl_worker *w, void *to, const void *from, uint64_t bytes)
{
    if (w->cuda == NULL) {
        memcpy(to, from, bytes);
    } else if (bytes > 0) {
        nccl_must_cuda(w,
                       w->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
                                               (CUdeviceptr)(uintptr_t)from, bytes, w->stream),
                       "copy");
    }
}

static void await_stream(const struct nccl_worker *w)
{
    if (w->cuda != NULL) {
        nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    }
}

/* The worker's stream uses a slot that cst_put_begin or cst_take_begin has given. Only in device
 * memory do cst_put_end and cst_take_end wait for the stream. */
static void use_slot(struct nccl_worker *w, int edge, void *to, const void *from, uint64_t bytes)
{
    copy(w, to, from, bytes);
    if (cst_edge_on_device(w->job, edge, NULL) == 0) {
        await_stream(w);
    }
}

static void die_if(const struct nccl_worker *w, struct nccl_order *order, uint32_t number,
                   unsigned moment)
{
    if (number >= order->at && w->rank == order->victim && order->seed / 13 % 3 == moment &&
        !__atomic_exchange_n(&order->dead, true, __ATOMIC_ACQ_REL)) {
        (void)raise(SIGKILL);
    }
}

/* Put @array in one of three forms. */
static int put(struct nccl_worker *w, struct nccl_order *order, int edge, uint32_t number,
               struct array *array, struct cst_err *err)
{
    const uint64_t bytes = bytes_of(order, edge, number);
    void *data = place_of(w, array), *slot;
    uint8_t content[SLOT];
    int rc;

    fill(order, edge, number, content);
    copy(w, data, content, SLOT);
    die_if(w, order, number, 0);
    switch (draw(order, edge, number) >> 40 & 3) {
    case 0:
        return cst_put(w->job, edge, number, data, bytes, err);
    case 1:
        rc = cst_put_begin(w->job, edge, number, &slot, err);
        if (rc == CST_OK) {
            use_slot(w, edge, slot, data, bytes);
            die_if(w, order, number, 1);
            rc = cst_put_end(w->job, edge, number, err);
        }
        return rc;
    default:
        rc = cst_put_start(w->job, edge, number, data, bytes, err);
        die_if(w, order, number, 1);
        return rc == CST_OK ? cst_edge_wait(w->job, edge, number, err) : rc;
    }
}

/* Take the array, in one of three forms, and compare it. */
static int take(struct nccl_worker *w, struct nccl_order *order, int edge, uint32_t number,
                struct array *array, struct cst_err *err)
{
    const uint64_t bytes = bytes_of(order, edge, number);
    uint8_t content[SLOT], right[SLOT];
    void *data = place_of(w, array);
    const void *slot;
    int rc;

    switch (draw(order, edge, number) >> 44 & 3) {
    case 0:
        rc = cst_take(w->job, edge, number, data, bytes, err);
        break;
    case 1:
        rc = cst_take_begin(w->job, edge, number, &slot, err);
        if (rc == CST_OK) {
            use_slot(w, edge, data, slot, bytes);
            die_if(w, order, number, 2);
            rc = cst_take_end(w->job, edge, number, err);
        }
        break;
    default:
        rc = cst_take_start(w->job, edge, number, data, bytes, err);
        die_if(w, order, number, 2);
        rc = rc == CST_OK ? cst_edge_wait(w->job, edge, number, err) : rc;
    }
    if (rc == CST_OK) {
        copy(w, content, data, bytes);
        await_stream(w);
        fill(order, edge, number, right);
        edge_ring_must(memcmp(content, right, bytes) == 0, "an array has wrong bytes", err);
    }
    return rc;
}

/* -- a ring ----------------------------------------------------------------------------------- */

int edge_ring(struct nccl_worker *w, struct nccl_order *order, edge_ring_event *happens,
              struct cst_err *err)
{
    const int out = edge_ring_out(order, w->rank), in = edge_ring_in(order, w->rank);
    struct array arrays[N_SLOTS];
    int rc = CST_OK;

    for (uint32_t i = 0; i < N_SLOTS && w->cuda != NULL; i++) {
        nccl_must_cuda(w, w->driver.cuMemAlloc(&arrays[i].gpu, SLOT), "array");
    }
    for (uint32_t group = 0; group < EDGE_RING_GROUPS && rc == CST_OK; group++) {
        const uint32_t first = group * N_SLOTS, turn = (uint32_t)draw(order, in, first);

        if (happens != NULL) {
            happens(w, order, group);
        }
        for (uint32_t i = 0; i < N_SLOTS && rc == CST_OK; i++) {
            rc = put(w, order, out, first + i, &arrays[i], err);
        }
        for (uint32_t i = 0; i < N_SLOTS && rc == CST_OK; i++) {
            rc = take(w, order, in, first + (i + turn) % N_SLOTS, &arrays[i], err);
        }
    }
    await_stream(w);
    for (uint32_t i = 0; i < N_SLOTS && w->cuda != NULL; i++) {
        nccl_must_cuda(w, w->driver.cuMemFree(arrays[i].gpu), "array");
    }
    return rc;
}

void edge_ring_on_device(struct nccl_worker *w, int edge, int expected)
{
    struct cst_err err = {0};

    edge_ring_must(cst_edge_on_device(w->job, edge, &err) == expected, "cst_edge_on_device", &err);
}

/* -- the test's side ----------------------------------------------------------------------------
 */

void edge_ring_await(struct nccl_order *order)
{
    (void)sem_wait(&order->begun);
    (void)sem_wait(&order->begun);
}

void edge_ring_release(struct nccl_order *order)
{
    (void)sem_post(&order->ended);
    (void)sem_post(&order->ended);
}

void edge_ring_fork(nccl_body *body, struct nccl_order *order, pid_t pids[2])
{
    pids[0] = nccl_fork(body, 0, order);
    pids[1] = nccl_fork(body, 1, order);
}

void edge_ring_join(const pid_t pids[2])
{
    ck_assert(!child_join(pids[0], "a worker failed"));
    ck_assert(!child_join(pids[1], "a worker failed"));
}

const Cistern__EngineInfo *edge_ring_engine(const char *gpu)
{
    const Cistern__StatReply *stat = raw_stat(&witness);

    for (size_t i = 0; i < stat->n_engines; i++) {
        if (stat->engines[i]->device != NULL && strcmp(stat->engines[i]->device, gpu) == 0) {
            return stat->engines[i];
        }
    }
    ck_abort_msg("there is no engine of %s", gpu);
}
