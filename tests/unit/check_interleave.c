/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the choice of k: compared with the paper's formula, with a simulation of every k, and
 * where device updates do not pay. */
#include "offload/books/interleave.h"

#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One rank of the machines in the paper's logs: B = 55/4 and 25/4 Gparam/s, and updates of 2.2 and
 * 0.96 Gparam/s including the cast. */
static struct cst_interleave box(double node, double params_per_s)
{
    return (struct cst_interleave){.n_chunks = 50,
                                   .chunk_elems = 100e6,
                                   .node_elems = node,
                                   .device_elems = 100e9,
                                   .up = 4 * params_per_s,
                                   .down = 4 * params_per_s,
                                   .n_links = 1,
                                   .buffers = 3,
                                   .up_bytes = 12,
                                   .down_bytes = 14,
                                   .fetch_bytes = 2};
}

/* The closed formula of the paper, for an endless sequence of chunks whose gradients are on the
 * accelerator and whose weights stay there. While one chunk is copied up and another one down, k -
 * 1 chunks are updated by the nodes and their weights are copied up:
 *
 *   (k - 1) / node_elems >= 12 / up + 1 / device_elems + (k - 1) 2 / up
 *   k = 1 + ceil((12 / up + 1 / device_elems) / (1 / node_elems - 2 / up))
 *
 * The result is the smallest k with which the nodes are the bottleneck. If both directions share
 * the link, 24 replaces 12. CST_INTERLEAVE_NEVER: the link cannot even copy the weights up as fast
 * as the nodes update them. */
static uint32_t formula_of(const struct cst_interleave *machine)
{
    /* Bytes per element of master weights and moments, copied up; on a shared link also those
     * copied down. */
    double states = machine->shared ? 24 : 12;
    double link = states / machine->up + 1 / machine->device_elems;
    double gain = 1 / machine->node_elems - 2 / machine->up;

    if (!(gain > 0) || link / gain > UINT32_MAX / 2) {
        return CST_INTERLEAVE_NEVER;
    }
    return 1 + (uint32_t)ceil(link / gain);
}

/* For both machines k is 2 by both methods, and the phase takes about half of the time. */
START_TEST(the_papers_boxes)
{
    struct cst_interleave m = _i == 0 ? box(2.2e9, 55e9 / 4) : box(0.96e9, 25e9 / 4);
    double ratio;

    ck_assert_uint_eq(formula_of(&m), 2);
    ck_assert_uint_eq(cst_interleave_choose(&m), 2);
    ratio = cst_interleave_seconds(&m, 2) / cst_interleave_seconds(&m, 0);
    ck_assert_msg(ratio > 0.49 && ratio < 0.56, "%g", ratio);
}
END_TEST

/* Device updates do not pay on a very slow or slow link, nor without a reservation, an accelerator
 * or rates. */
START_TEST(where_it_does_not_pay)
{
    struct cst_interleave m = box(2.2e9, 0.5e9);

    ck_assert_uint_eq(formula_of(&m), CST_INTERLEAVE_NEVER);
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    m = box(2.2e9, 55e9 / 4);
    m.buffers = 0;
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    m.buffers = 3;
    m.n_links = 0;
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    m.n_links = 1;
    m.up = 0;
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    m = box(2.2e9, 55e9 / 4);
    m.n_chunks = 0;
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
}
END_TEST

/* With one chunk the node updates it, unless the accelerator is so much faster that the chunk is
 * updated there. */
START_TEST(one_chunk)
{
    struct cst_interleave m = box(2.2e9, 3e9);

    m.n_chunks = 1;
    ck_assert_uint_eq(cst_interleave_choose(&m), CST_INTERLEAVE_NEVER);
    m = box(2.2e9, 500e9);
    m.n_chunks = 1;
    ck_assert_uint_eq(cst_interleave_choose(&m), 1);
}
END_TEST

/* For many chunks, if the formula's k gains more than the margin, the choice is that k or a
 * neighbour of it. */
START_TEST(agrees_with_the_formula)
{
    unsigned n = 0;

    for (double link = 0.5e9; link < 200e9; link *= 1.17) {
        for (double node = 0.1e9; node < 10e9; node *= 1.31) {
            struct cst_interleave m = box(node, link);
            uint32_t formula, chosen;

            m.n_chunks = 840;
            m.shared = _i == 1;
            formula = formula_of(&m);
            chosen = cst_interleave_choose(&m);
            if (formula == CST_INTERLEAVE_NEVER || formula > 16) {
                continue; /* the gain is near the margin */
            }
            n++;
            ck_assert_msg(chosen + 1 >= formula && chosen <= formula + 1 && chosen > 0,
                          "link %g, node %g: k = %u, by the formula %u", link, node, chosen,
                          formula);
        }
    }
    ck_assert_uint_gt(n, 100);
}
END_TEST

static uint64_t seed;

static double between(double low, double high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return low * pow(high / low, (double)(seed >> 40) / (1 << 24));
}

static struct cst_interleave random_machine(void)
{
    struct cst_interleave m = box(between(0.1e9, 10e9), between(0.5e9, 100e9));

    m.n_chunks = (uint32_t)between(2, 33);
    m.device_elems = between(1e9, 200e9);
    m.down = m.up * between(0.5, 1.5);
    m.shared = between(1, 3) > 2;
    m.n_links = (uint32_t)between(1, 4.9);
    m.buffers = (uint32_t)between(1, 3.9);
    m.up_bytes = 14;
    m.down_bytes = 14;
    return m;
}

/* No k up to the number of chunks is faster than the choice, and none that is as fast is larger.
 * The choice is faster than the nodes alone by the margin, or none. 2 to 32 chunks, one to three
 * buffers. */
START_TEST(best_of_all)
{
    seed = 5;
    for (int i = 0; i < 2000; i++) {
        struct cst_interleave m = random_machine();
        uint32_t chosen = cst_interleave_choose(&m);
        double alone = cst_interleave_seconds(&m, CST_INTERLEAVE_NEVER);
        double seconds = cst_interleave_seconds(&m, chosen);

        ck_assert(chosen == CST_INTERLEAVE_NEVER || seconds < (1 - CST_INTERLEAVE_MARGIN) * alone);
        for (uint32_t k = 1; k <= m.n_chunks; k++) {
            double other = cst_interleave_seconds(&m, k);

            if (chosen == CST_INTERLEAVE_NEVER) {
                ck_assert(other >= (1 - CST_INTERLEAVE_MARGIN) * alone * (1 - 1e-6));
            } else {
                ck_assert(other >= seconds * (1 - 1e-6));
                ck_assert_msg(k <= chosen || other > seconds, "machine %d: k = %u is as fast as %u",
                              i, k, chosen);
            }
        }
    }
}
END_TEST

/* The simulated time is at least that of each resource alone, and at most that without any overlap.
 * More buffers, faster links and full-duplex links are never slower. */
START_TEST(bounds)
{
    seed = 6;
    for (int i = 0; i < 2000; i++) {
        struct cst_interleave m = random_machine();
        uint32_t k = 1 + (uint32_t)between(1, 8.9);
        uint32_t there = m.n_chunks / k;
        double here = (m.n_chunks - there) * m.chunk_elems / m.node_elems;
        double seconds, up, down, device;

        m.n_links = 1;
        m.fetch_bytes = 0;
        seconds = cst_interleave_seconds(&m, k);
        up = there * m.chunk_elems * m.up_bytes / m.up;
        down = there * m.chunk_elems * m.down_bytes / m.down;
        device = there * m.chunk_elems / m.device_elems;
        ck_assert(seconds >= fmax(here, m.shared ? up + down : fmax(up, down)) * (1 - 1e-9));
        ck_assert(seconds <= fmax(here, up + down + device) * (1 + 1e-9));
        if (m.buffers < 3) {
            struct cst_interleave more = m;

            more.buffers++;
            ck_assert(m.shared || cst_interleave_seconds(&more, k) <= seconds * (1 + 1e-9));
        }
    }
}
END_TEST

/* Chunks of one element, which take one second to be copied in and one to be copied out and no time
 * to be updated on the accelerator. The nodes update @node_elems elements per second. */
static struct cst_interleave seconds(uint32_t n_chunks, uint32_t n_nodes, double node_elems)
{
    return (struct cst_interleave){.n_chunks = n_chunks,
                                   .chunk_elems = 1,
                                   .n_nodes = n_nodes,
                                   .node_elems = node_elems,
                                   .device_elems = 1e9,
                                   .up = 14,
                                   .down = 14,
                                   .n_links = 1,
                                   .buffers = 3,
                                   .up_bytes = 14,
                                   .down_bytes = 14};
}

/* k = 2 with three chunks on the accelerator, copies of one second each way, updates that take no
 * time, and faster nodes: in 1, in 2 with out 1, in 3 with out 2, out 3. With one buffer nothing
 * overlaps. */
START_TEST(by_hand)
{
    struct cst_interleave m = seconds(6, 1, 10);

    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 4, 1e-6);
    m.buffers = 1;
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 6, 1e-6);
    m.buffers = 3;
    m.shared = true;
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 6, 1e-6);
    m.shared = false;
    m.n_links = 3;
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 2, 1e-6);
    m.n_links = 1;
    m.node_elems = 0.5;
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 6, 1e-6);
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 0), 12, 1e-6);
    m.node_elems = 10;
    m.fetch_bytes = 7; /* fetches of chunk 1 between 2 and 4, those of chunks 3 and 5 before 6 */
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 5.5, 1e-6);
}
END_TEST

/* Two nodes need two seconds for a chunk. Of five chunks the first node has three. With k = 2 the
 * second chunk of each node is copied in and out in one second each: the first node ends at 4, as
 * with k = 3, when only its third chunk uses the accelerator. With k = 4 no chunk does, although
 * there are more than four in all. */
START_TEST(nodes)
{
    struct cst_interleave m = seconds(5, 2, 1);

    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 0), 6, 1e-6);
    /* All use the accelerator: 5 copies in, 1 out. */
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 1), 6, 1e-6);
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 2), 4, 1e-6);
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 3), 4, 1e-6);
    ck_assert_double_eq_tol(cst_interleave_seconds(&m, 4), 6, 1e-6);
    ck_assert_uint_eq(cst_interleave_choose(&m), 3);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("interleave");
    TCase *t = suite_case(s, "k", NULL, NULL);

    tcase_add_loop_test(t, the_papers_boxes, 0, 2);
    tcase_add_test(t, where_it_does_not_pay);
    tcase_add_test(t, one_chunk);
    tcase_add_loop_test(t, agrees_with_the_formula, 0, 2);
    tcase_add_test(t, best_of_all);
    tcase_add_test(t, bounds);
    tcase_add_test(t, by_hand);
    tcase_add_test(t, nodes);
    return suite_run(s);
}
