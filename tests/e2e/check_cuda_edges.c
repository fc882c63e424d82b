/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in the memory of stand-in GPUs that go through edges (tests/lib/nccl_rig.h): to host
 * memory and back, and to another rank. Streams are late, so that a copy that does not wait for the
 * work before it, or work that does not wait for a copy, has wrong bytes. */
#include "tests/lib/fake_gpu.h"
#include "tests/lib/nccl_rig.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOT = 5000, N_SLOTS = 5, N_ARRAYS = 3, TURNS = 12 };

static struct nccl_order *new_order(uint32_t world)
{
    struct nccl_order *order = nccl_order_new(world);

    order->slot_bytes = SLOT;
    order->n_slots = N_SLOTS;
    return order;
}

/* -- arrays of a GPU -------------------------------------------------------------------------- */

static CUdeviceptr array_new(const struct nccl_worker *w)
{
    CUdeviceptr array;

    nccl_must_cuda(w, w->driver.cuMemAlloc(&array, SLOT), "array");
    return array;
}

/* Enqueue: all bytes of @array become @value. */
static void set(const struct nccl_worker *w, CUdeviceptr array, uint8_t value)
{
    nccl_must_cuda(w, w->driver.cuMemsetD8Async(array, value, SLOT, w->stream), "set");
}

/* As set, after a long time. */
static void set_late(const struct nccl_worker *w, CUdeviceptr array, uint8_t value)
{
    for (int i = 0; i < 10; i++) {
        set(w, array, 0x99);
    }
    set(w, array, value);
}

/* The first @bytes of @array, which the stream reads now, must be @value. */
static void check(const struct nccl_worker *w, CUdeviceptr array, uint8_t value, uint64_t bytes,
                  const char *what)
{
    static uint8_t seen[SLOT];

    nccl_must_cuda(w, w->driver.cuMemcpyDtoHAsync(seen, array, SLOT, w->stream), "read");
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "read");
    for (uint64_t i = 0; i < bytes; i++) {
        if (seen[i] != value) {
            (void)fprintf(stderr, "%s: byte %llu is %u, not %u\n", what, (unsigned long long)i,
                          seen[i], value);
            _exit(1);
        }
    }
}

static void *at(CUdeviceptr array)
{
    return (void *)(uintptr_t)array;
}

/* -- an edge to oneself ----------------------------------------------------------------------- */

/* Put arrays whose buffer is used again at once, and take them back in reverse order. */
static void stash(struct nccl_worker *w, struct nccl_order *order)
{
    CUdeviceptr buffers[2] = {array_new(w), array_new(w)}, seen[N_SLOTS];
    const int edge = (int)w->rank;
    struct cst_err err = {0};

    (void)order;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        seen[i] = array_new(w);
    }
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        const uint8_t salt = (uint8_t)(turn * N_SLOTS);

        nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            set(w, buffers[i % 2], (uint8_t)(salt + i));
            nccl_must(cst_put_start(w->job, edge, i, at(buffers[i % 2]), SLOT, &err), &err, "put");
            if (i > 0) {
                nccl_must(cst_edge_wait(w->job, edge, i - 1, &err), &err, "wait");
            }
        }
        if (turn % 4 == 3) { /* The step is given up with a copy under way. */
            continue;
        }
        nccl_must(cst_edge_wait(w->job, edge, N_SLOTS - 1, &err), &err, "wait");
        set(w, buffers[0], 0xee);
        set(w, buffers[1], 0xee);
        for (uint32_t i = N_SLOTS; i-- > 0;) {
            nccl_must(cst_take_start(w->job, edge, i, at(buffers[i % 2]), SLOT, &err), &err,
                      "take");
            nccl_must(cst_edge_wait(w->job, edge, i, &err), &err, "wait");
            nccl_must_cuda(w, w->driver.cuMemcpyDtoDAsync(seen[i], buffers[i % 2], SLOT, w->stream),
                           "use");
            set(w, buffers[i % 2], 0xdd);
        }
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            check(w, seen[i], (uint8_t)(salt + i), SLOT, "an array from the stash");
        }
    }
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        nccl_must_cuda(w, w->driver.cuMemFree(seen[i]), "free");
    }
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    nccl_must_cuda(w, w->driver.cuMemFree(buffers[0]), "free");
    nccl_must_cuda(w, w->driver.cuMemFree(buffers[1]), "free");
}

/* Arrays go to host memory and come back, beside the work of the stream. _i: number of ranks. */
START_TEST(activations_wait_in_host_memory)
{
    nccl_run(stash, new_order((uint32_t)_i));
}
END_TEST

/* The same with slots in the memory of the GPU. */
START_TEST(activations_wait_on_the_device)
{
    struct nccl_order *order = new_order(2);

    order->on_device = true;
    nccl_run(stash, order);
}
END_TEST

/* A slot in host memory that the worker uses in place, and arrays in host memory. */
static void use_host(struct nccl_worker *w, struct nccl_order *order)
{
    CUdeviceptr array = array_new(w);
    uint8_t data[SLOT], back[SLOT] = {0};
    struct cst_err err = {0};
    const void *from;
    void *to;

    (void)order;
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    set(w, array, 3);
    nccl_must(cst_put_start(w->job, 0, 1, at(array), SLOT, &err), &err, "put");
    nccl_must(cst_edge_wait(w->job, 0, 1, &err), &err, "wait");
    nccl_must(cst_take_begin(w->job, 0, 1, &from, &err), &err, "take_begin");
    memset(data, 3, sizeof data);
    if (memcmp(from, data, SLOT) != 0) {
        (void)fprintf(stderr, "a slot is read before the copy to it has ended\n");
        _exit(1);
    }
    nccl_must(cst_take_end(w->job, 0, 1, &err), &err, "take_end");
    for (uint32_t i = 0; i < N_SLOTS; i++) { /* All slots: one of them is being read. */
        nccl_must(cst_put_start(w->job, 0, i, at(array), SLOT, &err), &err, "put");
        nccl_must(cst_edge_wait(w->job, 0, i, &err), &err, "wait");
        nccl_must(cst_take_start(w->job, 0, i, at(array), SLOT, &err), &err, "take");
        nccl_must(cst_edge_wait(w->job, 0, i, &err), &err, "wait");
        nccl_must(cst_put_begin(w->job, 0, i, &to, &err), &err, "put_begin");
        memset(to, (int)(10 + i), SLOT);
        nccl_must(cst_put_end(w->job, 0, i, &err), &err, "put_end");
    }
    check(w, array, 3, SLOT, "an array whose slot was written by the worker");
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        nccl_must(cst_take(w->job, 0, i, at(array), 100 * i, &err), &err, "take");
        check(w, array, (uint8_t)(10 + i), 100 * i, "a part of an array");
    }
    memset(data, 4, sizeof data);
    nccl_must(cst_put(w->job, 0, 2, data, SLOT, &err), &err, "put");
    nccl_must(cst_take(w->job, 0, 2, back, SLOT, &err), &err, "take");
    if (memcmp(data, back, SLOT) != 0) {
        (void)fprintf(stderr, "an array in host memory has changed\n");
        _exit(1);
    }
    nccl_must(cst_put(w->job, 0, 2, NULL, 0, &err), &err, "put");
    /* A step is given up with a copy under way, and all slots are free. */
    set_late(w, array, 6);
    for (uint32_t i = 0; i + 1 < N_SLOTS; i++) {
        nccl_must(cst_put_start(w->job, 0, 10 + i, at(array), SLOT, &err), &err, "put");
    }
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        nccl_must(cst_put_begin(w->job, 0, i, &to, &err), &err, "put_begin");
        memset(to, 5, SLOT);
        nccl_must(cst_put_end(w->job, 0, i, &err), &err, "put_end");
    }
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        nccl_must(cst_take(w->job, 0, i, at(array), SLOT, &err), &err, "take");
        check(w, array, 5, SLOT, "an array after a step that was given up");
    }
    nccl_must_cuda(w, w->driver.cuMemFree(array), "free");
}

START_TEST(slots_and_arrays_in_host_memory)
{
    nccl_run(use_host, new_order(1));
}
END_TEST

/* -- an edge between two ranks ---------------------------------------------------------------- */

/* The first rank puts arrays, and the second one takes them. */
static void pass(struct nccl_worker *w, struct nccl_order *order)
{
    const int edge = (int)order->world;
    CUdeviceptr arrays[N_ARRAYS];
    struct cst_err err = {0};

    for (uint32_t i = 0; i < N_ARRAYS; i++) {
        arrays[i] = array_new(w);
    }
    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    for (uint32_t n = 0; n < TURNS * N_ARRAYS; n++) {
        CUdeviceptr array = arrays[n % N_ARRAYS];
        const uint8_t value = (uint8_t)(n + 1);

        if (w->rank != 0) {
            nccl_must(cst_take_start(w->job, edge, n, at(array), SLOT, &err), &err, "take");
            nccl_must(cst_edge_wait(w->job, edge, n, &err), &err, "wait");
            check(w, array, value, SLOT, "an array of another rank");
            continue;
        }
        set_late(w, array, value);
        if (n % 2 == 0) {
            nccl_must(cst_put(w->job, edge, n, at(array), SLOT, &err), &err, "put");
        } else {
            nccl_must(cst_put_start(w->job, edge, n, at(array), SLOT, &err), &err, "put");
            nccl_must(cst_edge_wait(w->job, edge, n, &err), &err, "wait");
        }
        set(w, array, 0xbb);
    }
    nccl_must_cuda(w, w->driver.cuStreamSynchronize(w->stream), "stream");
    for (uint32_t i = 0; i < N_ARRAYS; i++) {
        nccl_must_cuda(w, w->driver.cuMemFree(arrays[i]), "free");
    }
}

/* _i: the slots are on the receiver's GPU. */
START_TEST(arrays_pass_between_gpus)
{
    struct nccl_order *order = new_order(2);

    order->on_device = _i != 0;
    nccl_run(pass, order);
}
END_TEST

/* -- a GPU that fails ------------------------------------------------------------------------- */

/* The driver refuses a copy, or fails when it is to be waited for. */
static void fail_in_copies(struct nccl_worker *w, struct nccl_order *order)
{
    CUdeviceptr array = array_new(w);
    struct cst_err err = {0};
    int rc = CST_OK;

    nccl_must(cst_sync(w->job, NULL, &err), &err, "sync");
    set(w, array, 1);
    for (uint32_t i = 0; rc == CST_OK && i < N_SLOTS; i++) {
        rc = cst_put_start(w->job, 0, i, at(array), SLOT, &err);
        rc = rc == CST_OK ? cst_edge_wait(w->job, 0, i, &err) : rc;
    }
    if (rc == CST_OK || strstr(err.text, order->words) == NULL) {
        (void)fprintf(stderr, "%s: %s\n", cst_status_name(rc), err.text);
        _exit(1);
    }
    if (cst_put(w->job, 0, 9, at(array), SLOT, &err) != rc) {
        (void)fprintf(stderr, "the step goes on: %s\n", err.text);
        _exit(1);
    }
    exit(0);
}

static const struct {
    const char *setting, *words;
    bool on_device;
} failures[] = {
    {"CST_FAKECUDA_FAIL=cuMemcpyAsync:2+=700", "copying 5000 bytes of an array", false},
    {"CST_FAKECUDA_FAIL=cuMemcpyAsync:2+=700", "copying 5000 bytes of an array", true},
    {"CST_FAKECUDA_FAIL=cuStreamWaitEvent:4+=700", "the step is void", false},
};

/* A failure of the driver makes the step void, with its cause. */
START_TEST(a_failure_makes_the_step_void)
{
    struct nccl_order *order = new_order(1);

    order->setting = failures[_i].setting;
    order->words = failures[_i].words;
    order->on_device = failures[_i].on_device;
    nccl_run(fail_in_copies, order);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite;
    TCase *edges;

    (void)argc;
    fake_gpu_use(argv);
    suite = suite_create("edges of GPUs");
    edges = suite_case(suite, "edges", nccl_rig_open_late, cuda_rig_close);
    suite_add_loop(edges, activations_wait_in_host_memory, 1, 3);
    tcase_add_test(edges, activations_wait_on_the_device);
    tcase_add_test(edges, slots_and_arrays_in_host_memory);
    suite_add_loop(edges, arrays_pass_between_gpus, 0, 2);
    suite_add_loop(edges, a_failure_makes_the_step_void, 0, sizeof failures / sizeof failures[0]);
    return suite_run(suite);
}
