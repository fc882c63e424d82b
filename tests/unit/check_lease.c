/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of struct cst_leases with a model of the daemon that grants everything and counts
 * blocks. */
#include "tests/lib/suite.h"
#include "tests/unit/lease_rig.h"

#include <check.h>
#include <string.h>

/* @n operators with one tensor each, which fills a chunk of 4096 elements. */
static struct lease_rig *chain(uint32_t n)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = lease_rig_add_tensor(w, 4096);

        lease_rig_add_operator(w, &t, 1);
    }
    return w;
}

/* In the declared order every begin but the first finds its chunk prefetched, and the chunk before
 * is released when the next one is used. */
START_TEST(test_chain_messages)
{
    struct lease_rig *w = chain(3);

    lease_rig_open(w, 4096, 0);
    ck_assert_int_eq(lease_rig_begin(w, 0, false), CST_OK);
    ck_assert_str_eq(w->said, "W0");
    lease_rig_ahead(w, 0, false);
    ck_assert_str_eq(w->said, "W1+");
    lease_rig_end(w, 0, false);
    ck_assert_str_eq(w->said, "");
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    lease_rig_ahead(w, 1, false);
    ck_assert_str_eq(w->said, "r0 W2+");
    lease_rig_end(w, 1, false);
    ck_assert_int_eq(lease_rig_begin(w, 2, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    /* After the last forward its own backward follows, then that of operator 1, whose weights are
     * still leased. */
    lease_rig_ahead(w, 2, false);
    ck_assert_str_eq(w->said, "");
    lease_rig_end(w, 2, false);
    ck_assert_int_eq(lease_rig_begin(w, 2, true), CST_OK);
    ck_assert_str_eq(w->said, "G2");
    lease_rig_ahead(w, 2, true);
    ck_assert_str_eq(w->said, "");
    lease_rig_end(w, 2, true);
    ck_assert_str_eq(w->said, "R2");
    ck_assert_int_eq(lease_rig_begin(w, 1, true), CST_OK);
    ck_assert_str_eq(w->said, "r2 G1");
    lease_rig_ahead(w, 1, true);
    ck_assert_str_eq(w->said, "W0+");
    lease_rig_end(w, 1, true);
    ck_assert_str_eq(w->said, "R1");
    ck_assert_int_eq(lease_rig_begin(w, 0, true), CST_OK);
    ck_assert_str_eq(w->said, "r1 G0");
    lease_rig_ahead(w, 0, true);
    ck_assert_str_eq(w->said, "");
    lease_rig_end(w, 0, true);
    ck_assert_str_eq(w->said, "R0");
    lease_rig_step(w);
    ck_assert_str_eq(w->said, "r0");
    ck_assert_uint_le(w->most_leased, w->layout.classes[0].min_blocks);
    lease_rig_close(w);
}
END_TEST

/* Operators whose tensors share a chunk need no message between them. The chunk's gradient is
 * handed in with the last of them. */
START_TEST(test_shared_chunk)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t i = 0; i < 4; i++) {
        uint32_t t = lease_rig_add_tensor(w, 1024);

        lease_rig_add_operator(w, &t, 1);
    }
    lease_rig_open(w, 4096, 0);
    ck_assert_uint_eq(w->layout.n_chunks, 1);
    for (uint32_t op = 0; op < 4; op++) {
        lease_rig_run(w, op, false);
    }
    ck_assert_uint_eq(w->n_demands, 1);
    for (uint32_t op = 4; op-- > 0;) {
        ck_assert_uint_eq(w->n_handed_in[0], 0);
        lease_rig_run(w, op, true);
    }
    ck_assert_uint_eq(w->n_demands, 2);
    ck_assert_uint_eq(w->n_handed_in[0], 1);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* The first backward writes the gradient of a tensor that two operators use (a tied embedding), and
 * the second adds to it. The gradient is handed in only after the second. */
START_TEST(test_tied_tensor)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t wte = lease_rig_add_tensor(w, 4096), middle = lease_rig_add_tensor(w, 4096);

    lease_rig_add_operator(w, &wte, 1);
    lease_rig_add_operator(w, &middle, 1);
    lease_rig_add_operator(w, (uint32_t[]){wte}, 1);
    lease_rig_open(w, 4096, 0);
    for (uint32_t op = 0; op < 3; op++) {
        lease_rig_run(w, op, false);
    }
    ck_assert(!w->leases.written[wte]);
    lease_rig_run(w, 2, true);
    ck_assert(w->leases.written[wte]);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[wte]], 0);
    lease_rig_run(w, 1, true);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[middle]], 1);
    lease_rig_run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[wte]], 1);
    ck_assert_uint_le(w->most_leased, w->layout.classes[0].min_blocks);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* An operator that uses several chunks fetches all that it lacks in one batch. */
START_TEST(test_spanning_operator)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t t[3];

    for (uint32_t i = 0; i < 3; i++) {
        t[i] = lease_rig_add_tensor(w, 4096);
    }
    lease_rig_add_operator(w, t, 1);
    lease_rig_add_operator(w, t, 3);
    lease_rig_open(w, 4096, 0);
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "W0 W1 W2");
    lease_rig_end(w, 1, false);
    ck_assert_int_eq(lease_rig_begin(w, 1, true), CST_OK);
    ck_assert_str_eq(w->said, "G0 G1 G2");
    lease_rig_end(w, 1, true);
    ck_assert_str_eq(w->said, "R1 R2");
    lease_rig_close(w);
}
END_TEST

/* All chunks of the next operator are fetched ahead, as far as there are blocks to spare. The
 * weights that are opened once more for a backward pass are expected in its order. */
START_TEST(test_ahead_of_operator)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t op = 0; op < 3; op++) {
        uint32_t t[2] = {lease_rig_add_tensor(w, 4096), lease_rig_add_tensor(w, 4096)};

        lease_rig_add_operator(w, t, 2);
    }
    w->n_spare =
        1; /* The smallest pool has 5 blocks: weights and gradients of one operator, and one. */
    lease_rig_open(w, 4096, 0);
    ck_assert_int_eq(lease_rig_begin(w, 0, false), CST_OK);
    ck_assert_str_eq(w->said, "W0 W1");
    lease_rig_ahead(w, 0, false);
    ck_assert_str_eq(w->said, "W2+ W3+");
    lease_rig_deliver_ahead(w);
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    lease_rig_ahead(w, 1, false);
    ck_assert_str_eq(w->said, "r0 r1 W4+ W5+");
    lease_rig_run(w, 2, false);
    lease_rig_run(w, 2, true);
    ck_assert_str_eq(w->said, "R4 R5");
    /* The worker opens the weights of operator 1, computes, and then hands in. */
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "");
    lease_rig_ahead(w, 1, false);
    ck_assert_str_eq(w->said, "r4 r5 W0+ W1+");
    lease_rig_deliver_ahead(w);
    ck_assert_int_eq(lease_rig_begin(w, 1, true), CST_OK);
    ck_assert_str_eq(w->said, "G2 G3");
    lease_rig_end(w, 1, true);
    lease_rig_run(w, 0, true);
    /* The forward pass of the next micro-batch begins before the end of this one is said. */
    lease_rig_run(w, 0, false);
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    lease_rig_ahead(w, 1, false);
    ck_assert_str_eq(w->said, "r1 r0 W4+ W5+");
    lease_rig_close(w);
}
END_TEST

/* A wrong prefetch is waited for, and released in the batch that fetches the required chunk. */
START_TEST(test_wrong_guess)
{
    struct lease_rig *w = chain(4);

    lease_rig_open(w, 4096, 0);
    lease_rig_run(w, 0, false);
    ck_assert_uint_eq(w->n_ahead, 1);
    ck_assert(cst_lease_must_settle(&w->leases, 3, false));
    ck_assert_int_eq(lease_rig_begin(w, 3, false), CST_OK);
    ck_assert_str_eq(w->said, "r0 r1 W3");
    lease_rig_close(w);
}
END_TEST

/* A step hands in a chunk of which some gradients are missing. A chunk whose gradient was never
 * opened is left out. */
START_TEST(test_flush_partial)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t i = 0; i < 4; i++) {
        uint32_t t = lease_rig_add_tensor(w, 2048);

        lease_rig_add_operator(w, &t, 1);
    }
    lease_rig_open(w, 4096, 0);
    ck_assert_uint_eq(w->layout.n_chunks, 2);
    lease_rig_run(w, 3, true);
    ck_assert(w->leases.written[3]);
    ck_assert(!w->leases.written[2]);
    lease_rig_deliver_ahead(w);
    cst_lease_flush(&w->leases);
    lease_rig_send_plan(w);
    ck_assert_uint_eq(w->n_handed_in[1], 1);
    ck_assert_uint_eq(w->n_handed_in[0], 0);
    ck_assert_uint_eq(w->n_leased, 0);
    lease_rig_close(w);
}
END_TEST

/* After a chunk was handed in, an operator that uses it is refused as too late until the step is
 * committed. */
START_TEST(test_handed_in)
{
    struct lease_rig *w = chain(2);

    lease_rig_open(w, 4096, 0);
    lease_rig_run(w, 1, true);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), 1);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 0), CST_LEASE_NONE);
    lease_rig_step(w);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), CST_LEASE_NONE);
    lease_rig_close(w);
}
END_TEST

/* A second backward of an operator on an open chunk adds to the gradient, and does not count as
 * another use. */
START_TEST(test_backward_twice)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t i = 0; i < 2; i++) {
        uint32_t t = lease_rig_add_tensor(w, 2048);

        lease_rig_add_operator(w, &t, 1);
    }
    lease_rig_open(w, 4096, 0);
    lease_rig_run(w, 1, true);
    ck_assert(w->leases.written[1]);
    lease_rig_run(w, 1, true);
    ck_assert_uint_eq(w->n_handed_in[0], 0);
    lease_rig_run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[0], 1);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* A refused fetch gives no lease, whether it was a demand or a prefetch: the next begin fetches
 * again. */
START_TEST(test_refused)
{
    struct lease_rig *w = chain(2);
    struct cst_lease_item item;

    lease_rig_open(w, 4096, 0);
    ck_assert_int_eq(cst_lease_begin(&w->leases, 0, false, NULL), CST_OK);
    item = w->leases.items[0];
    cst_lease_refuse(&w->leases, &item);
    ck_assert_uint_eq(w->leases.n_held, 0);
    ck_assert_int_eq(lease_rig_begin(w, 0, false), CST_OK);
    ck_assert_str_eq(w->said, "W0");
    cst_lease_ahead(&w->leases, 0, false);
    item = w->leases.items[0];
    ck_assert(item.ahead);
    cst_lease_refuse(&w->leases, &item);
    ck_assert_uint_eq(w->leases.n_asked, 0);
    ck_assert_int_eq(lease_rig_begin(w, 1, false), CST_OK);
    ck_assert_str_eq(w->said, "W1");
    lease_rig_close(w);
}
END_TEST

/* After a sync there are no leases, and nothing of the step is remembered. */
START_TEST(test_forget)
{
    struct lease_rig *w = chain(3);

    lease_rig_open(w, 4096, 0);
    lease_rig_run(w, 2, true);
    lease_rig_run(w, 1, false);
    cst_lease_forget(&w->leases);
    memset(w->weight, 0, sizeof w->weight);
    memset(w->grad, 0, sizeof w->grad);
    w->n_leased = 0;
    w->n_ahead = 0;
    ck_assert(!w->leases.written[2]);
    ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 2), CST_LEASE_NONE);
    ck_assert_int_eq(lease_rig_begin(w, 2, true), CST_OK);
    ck_assert_str_eq(w->said, "W2 G2");
    lease_rig_close(w);
}
END_TEST

/* If operators run in an order that opens more gradients than the pool has blocks, the begin fails
 * with EPOOL, and nothing is sent. cst_lease_fits says so one operator earlier. */
START_TEST(test_pool_exhausted)
{
    struct lease_rig *w = lease_rig_new();

    for (uint32_t i = 0; i < 6; i++) {
        uint32_t t = lease_rig_add_tensor(w, 2048);

        lease_rig_add_operator(w, &t, 1);
    }
    lease_rig_open(w, 4096, 0);
    ck_assert_uint_eq(w->layout.classes[0].min_blocks, 3);
    ck_assert(cst_lease_fits(&w->leases, 1));
    lease_rig_run(w, 1, true);
    ck_assert(!cst_lease_fits(&w->leases, 3));
    lease_rig_run(w, 3, true);
    ck_assert_int_eq(lease_rig_begin(w, 5, true), CST_EPOOL);
    ck_assert(!cst_lease_fits(&w->leases, 5));
    ck_assert_uint_le(w->most_leased, w->layout.classes[0].min_blocks);
    lease_rig_close(w);
}
END_TEST

/* A random model: tensors of many sizes and operators that use 1 to 4 of them; some tensors are
 * tied, and some are unused. */
static struct lease_rig *random_world(uint64_t *rng)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t n_tensors = 2 + lease_rig_draw(rng, 40), n_operators = 1 + lease_rig_draw(rng, 40);

    for (uint32_t i = 0; i < n_tensors; i++) {
        (void)lease_rig_add_tensor(w, 1 + lease_rig_draw(rng, 4096));
    }
    for (uint32_t i = 0; i < n_operators; i++) {
        uint32_t list[4], n = 0, from = i * n_tensors / n_operators;

        for (uint32_t k = 0; k < 1 + lease_rig_draw(rng, 4); k++) {
            uint32_t t = lease_rig_draw(rng, 5) == 0 ? lease_rig_draw(rng, n_tensors)
                                                     : (from + k) % n_tensors;
            bool twice = false;

            for (uint32_t j = 0; j < n; j++) {
                twice = twice || list[j] == t;
            }
            if (!twice) {
                list[n++] = t;
            }
        }
        lease_rig_add_operator(w, list, n);
    }
    return w;
}

/* Check that every chunk that an operator uses was handed in exactly once, and no other chunk. */
static void check_handed_in(const struct lease_rig *w)
{
    for (uint32_t c = 0; c < w->layout.n_chunks; c++) {
        ck_assert_uint_eq(w->n_handed_in[c], w->layout.chunks[c].n_uses > 0 ? 1 : 0);
    }
}

/* With any model and the declared order, the pool, which is the smallest one or a little larger, is
 * never exceeded, and each used chunk is handed in once per step. */
START_TEST(test_random_in_order)
{
    uint64_t seed = suite_seed() + (uint64_t)_i, rng = seed;
    struct lease_rig *w = random_world(&rng);

    w->n_spare = (uint32_t)_i % 8;
    lease_rig_open(w, 0, 0);
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t p = 0; p < 2 * w->model.n_operators; p++) {
            bool backward = p >= w->model.n_operators;

            if (lease_rig_draw(&rng, 2) == 0) {
                lease_rig_deliver_ahead(w);
            }
            lease_rig_run(w, backward ? 2 * w->model.n_operators - 1 - p : p, backward);
        }
        check_handed_in(w);
        lease_rig_step(w);
    }
    ck_assert_uint_le(w->most_leased, w->leases.model.blocks[0]);
    lease_rig_close(w);
}
END_TEST

/* In any order of operators the pool is never exceeded, impossible begins are refused, and the step
 * gives everything back. */
START_TEST(test_random_any_order)
{
    uint64_t seed = suite_seed() + (uint64_t)_i, rng = seed;
    struct lease_rig *w = random_world(&rng);
    uint32_t n_blocks;

    w->n_spare = (uint32_t)_i % 8;
    lease_rig_open(w, 0, 0);
    n_blocks = w->leases.model.blocks[0];
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t op = lease_rig_draw(&rng, w->model.n_operators);
        bool backward = lease_rig_draw(&rng, 2) == 0;

        if (lease_rig_draw(&rng, 2) == 0) {
            lease_rig_deliver_ahead(w);
        }
        if (lease_rig_draw(&rng, 20) == 0) {
            lease_rig_step(w);
        }
        if (backward && cst_lease_handed_in(&w->leases, op) != CST_LEASE_NONE) {
            continue;
        }
        if (lease_rig_begin(w, op, backward) == CST_OK) {
            lease_rig_ahead(w, op, backward);
            lease_rig_end(w, op, backward);
        }
        ck_assert_uint_le(w->n_leased, n_blocks);
    }
    lease_rig_step(w);
    ck_assert_uint_le(w->most_leased, n_blocks);
    lease_rig_close(w);
}
END_TEST

/* What test_random_fits has done of a micro-batch. */
struct late {
    bool has[64];  /* The worker keeps the gradients of this operator. */
    bool done[64]; /* They were handed in. */
};

/* Hand in the gradients of @op, which must not fail. */
static void hand_in(struct lease_rig *w, struct late *late, uint32_t op)
{
    ck_assert_int_eq(lease_rig_begin(w, op, true), CST_OK);
    lease_rig_ahead(w, op, true);
    lease_rig_end(w, op, true);
    late->has[op] = false;
    late->done[op] = true;
}

/* In the smallest pool, backward passes in any order find blocks for weights, and for gradients
 * when cst_lease_fits says so; in the end all others are handed in, in the reverse order. */
START_TEST(test_random_fits)
{
    uint64_t seed = suite_seed() + (uint64_t)_i, rng = seed;
    struct lease_rig *w = random_world(&rng);
    uint32_t n = w->model.n_operators, n_blocks;

    w->n_spare = (uint32_t)_i % 8;
    lease_rig_open(w, 0, 0);
    n_blocks = w->leases.model.blocks[0];
    for (uint32_t step = 0; step < 3; step++) {
        struct late late = {0};

        for (uint32_t i = 0; i < 2 * n; i++) {
            uint32_t op = lease_rig_draw(&rng, n);

            lease_rig_run(w, lease_rig_draw(&rng, n), false);
            late.has[op] = !late.done[op];
            for (uint32_t k = n; k-- > 0;) {
                if (late.has[k] && cst_lease_fits(&w->leases, k)) {
                    hand_in(w, &late, k);
                }
            }
            ck_assert_uint_le(w->n_leased, n_blocks);
        }
        for (uint32_t k = n; k-- > 0;) {
            if (!late.done[k]) {
                hand_in(w, &late, k);
            }
        }
        lease_rig_step(w);
    }
    ck_assert_uint_le(w->most_leased, n_blocks);
    lease_rig_close(w);
}
END_TEST

/* With many operators on one chunk the search for the next chunk takes linear time. A quadratic
 * search takes minutes, and the test would time out. */
START_TEST(test_many_operators)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t shared = lease_rig_add_tensor(w, 64), last = lease_rig_add_tensor(w, 4096);

    for (uint32_t i = 0; i < 65535; i++) {
        lease_rig_add_operator(w, &shared, 1);
    }
    lease_rig_add_operator(w, &last, 1);
    lease_rig_open(w, 4096, 0);
    lease_rig_run(w, 0, false);
    lease_rig_deliver_ahead(w);
    ck_assert_uint_ne(w->weight[w->tensor_chunk[last]], 0);
    lease_rig_close(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lease");
    TCase *exact = suite_case(suite, "messages", NULL, NULL);
    TCase *random = suite_case(suite, "random", NULL, NULL);

    tcase_add_test(exact, test_chain_messages);
    tcase_add_test(exact, test_shared_chunk);
    tcase_add_test(exact, test_tied_tensor);
    tcase_add_test(exact, test_spanning_operator);
    tcase_add_test(exact, test_ahead_of_operator);
    tcase_add_test(exact, test_wrong_guess);
    tcase_add_test(exact, test_flush_partial);
    tcase_add_test(exact, test_handed_in);
    tcase_add_test(exact, test_backward_twice);
    tcase_add_test(exact, test_refused);
    tcase_add_test(exact, test_forget);
    tcase_add_test(exact, test_pool_exhausted);
    tcase_add_test(exact, test_many_operators);
    tcase_add_loop_test(random, test_random_in_order, 0, 40);
    tcase_add_loop_test(random, test_random_any_order, 0, 40);
    tcase_add_loop_test(random, test_random_fits, 0, 40);
    return suite_run(suite);
}
