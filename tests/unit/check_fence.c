/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/worker/fence: leases that are given back wait for their fence, in a queue
 * between struct cst_leases and a model of the daemon. */
#include "offload/worker/fence.h"
#include "tests/lib/suite.h"
#include "tests/unit/lease_rig.h"

#include <check.h>
#include <string.h>

#define MAX_CHUNKS 16

/* A worker with its stream, and what the daemon knows of the worker. */
struct rig {
    /* The leases in this rig are under test. Its model of the daemon is not used. */
    struct lease_rig *model;
    struct cst_fences fences; /* the fences under test */
    uint64_t mark;            /* the newest fence */
    uint64_t passed;          /* the fence that the stream has reached */
    /* Generation of the weights' lease that the daemon knows of; 0: none. */
    uint64_t weight[MAX_CHUNKS];
    /* Generation of the gradient's lease that the daemon knows of; 0: none. */
    uint64_t grad[MAX_CHUNKS];
    uint64_t used_at[MAX_CHUNKS]; /* the fence after the last work on the chunk */
    uint64_t generation;          /* generation of the newest lease */
    struct cst_lease_item ahead;  /* request sent ahead that is granted but not delivered */
    bool has_ahead;               /* `ahead` is valid */
    uint32_t n_evicted[4];        /* EVICTs sent, by chunk */
    uint32_t n_taken_back;        /* number of fetches that needed no message */
};

static struct rig rig;

/* Open a rig with @n operators, each with a tensor that fills a chunk, and blocks for all of
 * them. */
static void open_rig(uint32_t n)
{
    struct cst_err err = {0};

    memset(&rig, 0, sizeof rig);
    rig.model = lease_rig_new();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = lease_rig_add_tensor(rig.model, 4096);

        lease_rig_add_operator(rig.model, &t, 1);
    }
    lease_rig_open(rig.model, 4096, 0);
    ck_assert_int_eq(cst_fence_init(&rig.fences, rig.model->layout.n_chunks, 1, &err), CST_OK);
}

static void close_rig(void)
{
    cst_fence_close(&rig.fences);
    lease_rig_close(rig.model);
}

static void evict(const struct cst_lease_item *item)
{
    ck_assert_uint_eq(rig.weight[item->chunk], 0);
    rig.n_evicted[item->chunk]++;
}

static void give_back(const struct cst_lease_item *item)
{
    uint64_t *held =
        item->kind == CST_LEASE_RELEASE ? &rig.weight[item->chunk] : &rig.grad[item->chunk];

    ck_assert_uint_ne(*held, 0);
    ck_assert_uint_eq(*held, item->lease.generation);
    ck_assert_uint_le(rig.used_at[item->chunk], rig.passed);
    *held = 0;
}

/* Let the stream reach @passed, and send the requests that this allows. */
static void pass(uint64_t passed)
{
    const struct cst_lease_item *items;
    uint32_t n;

    rig.passed = passed;
    items = cst_fence_pass(&rig.fences, passed, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].kind == CST_LEASE_EVICT) {
            evict(&items[i]);
        } else {
            give_back(&items[i]);
        }
    }
}

static void grant(const struct cst_lease_item *item)
{
    uint64_t *held =
        item->kind == CST_LEASE_FETCH_WEIGHT ? &rig.weight[item->chunk] : &rig.grad[item->chunk];
    struct cst_lease lease = {.generation = ++rig.generation};

    ck_assert_uint_eq(*held, 0);
    *held = lease.generation;
    if (item->ahead) {
        rig.ahead = *item;
        rig.ahead.lease = lease;
        rig.has_ahead = true;
    } else {
        cst_lease_grant(&rig.model->leases, item, &lease, false);
    }
}

static void deliver_ahead(void)
{
    if (rig.has_ahead) {
        rig.has_ahead = false;
        cst_lease_grant(&rig.model->leases, &rig.ahead, &rig.ahead.lease, false);
    }
}

/* Send as offload/worker/sequence.c does. */
static void send_plan(void)
{
    struct cst_leases *leases = &rig.model->leases;
    uint32_t n = leases->n_items;

    cst_fence_take_back(&rig.fences, leases);
    rig.n_taken_back += n - leases->n_items;
    if (cst_fence_is_needed(leases)) {
        cst_fence_hold(&rig.fences, leases, ++rig.mark);
    } else if (rig.fences.n > 0) {
        cst_fence_hold(&rig.fences, leases, rig.mark);
    }
    ck_assert(!cst_fence_is_needed(leases));
    ck_assert_uint_le(rig.fences.n, rig.fences.capacity);
    for (uint32_t i = 0; i < leases->n_items; i++) {
        if (leases->items[i].kind == CST_LEASE_EVICT) {
            evict(&leases->items[i]);
        } else {
            grant(&leases->items[i]);
        }
    }
}

/* Run an operator. Its work on the chunk ends at the next fence. */
static void run(uint32_t op, bool backward)
{
    struct cst_leases *leases = &rig.model->leases;
    struct cst_err err = {0};

    if (cst_lease_must_settle(leases, op, backward)) {
        deliver_ahead();
    }
    ck_assert_int_eq(cst_lease_begin(leases, op, backward, &err), CST_OK);
    send_plan();
    ck_assert_int_eq(leases->chunks[op].weight.state, CST_LEASE_HELD);
    ck_assert(!backward || leases->chunks[op].grad.state == CST_LEASE_HELD);
    cst_lease_ahead(leases, op, backward);
    send_plan();
    rig.used_at[op] = rig.mark + 1;
    cst_lease_end(leases, op, backward);
    send_plan();
}

/* Leases are given back in order, when their fence has passed and not before. */
START_TEST(test_waits)
{
    open_rig(4);
    for (uint32_t op = 0; op < 4; op++) {
        run(op, false);
        deliver_ahead();
    }
    /* The releases of 0 and 1; 2 is used next, in the backward. */
    ck_assert_uint_eq(rig.fences.n, 2);
    ck_assert_uint_ne(rig.weight[0], 0);
    pass(1);
    ck_assert_uint_eq(rig.weight[0], 0);
    ck_assert_uint_ne(rig.weight[1], 0);
    pass(rig.mark);
    ck_assert_uint_eq(rig.weight[1], 0);
    ck_assert_uint_eq(rig.fences.n, 0);
    close_rig();
}
END_TEST

/* A chunk that is wanted again before its release was sent stays leased without a message. This is
 * also true of a prefetch. */
START_TEST(test_taken_back)
{
    uint64_t generation;

    open_rig(4);
    run(0, false);
    deliver_ahead();
    run(1, false);
    deliver_ahead();
    ck_assert_uint_eq(rig.fences.n, 1);
    generation = rig.weight[0];
    run(0, false);
    ck_assert_uint_eq(rig.weight[0], generation);
    ck_assert_uint_eq(rig.model->leases.chunks[0].weight.generation, generation);
    ck_assert_uint_eq(rig.n_taken_back, 1);
    deliver_ahead();
    run(3, false); /* prefetches 2, which the previous operator gave back */
    ck_assert_uint_eq(rig.n_taken_back, 2);
    ck_assert_uint_eq(rig.model->leases.n_asked, 0);
    close_rig();
}
END_TEST

/* A chunk whose release was sent is fetched again. */
START_TEST(test_too_late)
{
    uint64_t generation;

    open_rig(4);
    run(0, false);
    deliver_ahead();
    run(1, false);
    deliver_ahead();
    generation = rig.weight[0];
    pass(rig.mark);
    run(0, false);
    ck_assert_uint_eq(rig.n_taken_back, 0);
    ck_assert_uint_ne(rig.weight[0], generation);
    close_rig();
}
END_TEST

/* An EVICT waits for the RELEASE of its own chunk, once, however often it is asked for. An EVICT of
 * another chunk is sent at once, and is not lost when the release is taken back. */
START_TEST(test_evict)
{
    struct cst_leases *leases;

    open_rig(4);
    leases = &rig.model->leases;
    run(0, false);
    deliver_ahead();
    run(1, false);
    deliver_ahead();
    for (unsigned i = 1; i <= 100; i++) {
        cst_lease_clear(leases);
        cst_lease_evict(leases, 0);
        cst_lease_evict(leases, 3);
        send_plan();
        ck_assert_uint_eq(rig.n_evicted[0], 0);
        ck_assert_uint_eq(rig.n_evicted[3], i);
    }
    pass(rig.mark);
    ck_assert_uint_eq(rig.n_evicted[0], 1);
    close_rig();
}
END_TEST

/* Requests that are dropped are never sent. */
START_TEST(test_drop)
{
    open_rig(4);
    run(0, false);
    deliver_ahead();
    run(1, false);
    ck_assert_uint_eq(rig.fences.n, 1);
    cst_fence_drop(&rig.fences);
    pass(rig.mark);
    ck_assert_uint_ne(rig.weight[0], 0);
    close_rig();
}
END_TEST

/* With operators in any order, on a stream of any speed, nothing is requested twice, given back
 * twice or given back before its work is done. At the end of each step everything is given back. */
START_TEST(test_any_order)
{
    uint64_t seed = suite_seed() + (uint64_t)_i;
    uint32_t n = 3 + lease_rig_draw(&seed, MAX_CHUNKS - 3);

    open_rig(n);
    for (uint32_t step = 0; step < 50; step++) {
        for (uint32_t i = 0; i < 2 * n; i++) {
            run(lease_rig_draw(&seed, n), false);
            if (lease_rig_draw(&seed, 2) == 0) {
                deliver_ahead();
            }
            pass(rig.passed + lease_rig_draw(&seed, (uint32_t)(rig.mark - rig.passed) + 1));
        }
        for (uint32_t op = n; op-- > 0;) {
            if (lease_rig_draw(&seed, 4) != 0) {
                run(op, true);
            }
            pass(rig.passed + lease_rig_draw(&seed, (uint32_t)(rig.mark - rig.passed) + 1));
        }
        deliver_ahead();
        cst_lease_flush(&rig.model->leases);
        send_plan();
        pass(rig.mark);
        ck_assert_uint_eq(rig.fences.n, 0);
        for (uint32_t c = 0; c < n; c++) {
            ck_assert_uint_eq(rig.weight[c], 0);
            ck_assert_uint_eq(rig.grad[c], 0);
        }
        cst_lease_reset_step(&rig.model->leases);
    }
    ck_assert_uint_gt(rig.n_taken_back, 0);
    close_rig();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fence");
    TCase *tcase = suite_case(suite, "fence", NULL, NULL);

    tcase_add_test(tcase, test_waits);
    tcase_add_test(tcase, test_taken_back);
    tcase_add_test(tcase, test_too_late);
    tcase_add_test(tcase, test_drop);
    tcase_add_test(tcase, test_evict);
    tcase_add_loop_test(tcase, test_any_order, 0, 20);
    return suite_run(suite);
}
