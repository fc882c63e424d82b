/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of struct cst_leases where ranks hold tensors differently: groups, frozen tensors, size
 * classes, micro-batches. */
#include "tests/lib/suite.h"
#include "tests/unit/lease_rig.h"
#include "tests/lib/bits.h"

#include <check.h>
#include <string.h>

enum { ELEMS = 4096, ALL = 0 };

/* Declare a tensor that fills a chunk. */
static uint32_t add(struct lease_rig *w, uint32_t group, enum cst_pattern_kind pattern)
{
    return lease_rig_add_tensor_as(w, ELEMS, group, pattern);
}

static uint32_t add_group(struct lease_rig *w, uint64_t ranks)
{
    ck_assert_int_eq(cst_model_group(&w->model, bits(ranks), NULL), CST_OK);
    return w->model.n_groups - 1;
}

/* There are two experts between shared layers. Rank 0 runs the first one, and neither fetches nor
 * prefetches the other. */
START_TEST(each_rank_its_own)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t groups[2], tensors[4];

    w->rank = (uint32_t)_i;
    groups[0] = add_group(w, 1);
    groups[1] = add_group(w, 2);
    tensors[0] = add(w, ALL, CST_PATTERN_SHARD);
    tensors[1] = add(w, groups[0], CST_PATTERN_EXPERT);
    tensors[2] = add(w, groups[1], CST_PATTERN_EXPERT);
    tensors[3] = add(w, ALL, CST_PATTERN_SHARD);
    for (int i = 0; i < 4; i++) {
        lease_rig_add_operator(w, &tensors[i], 1);
    }
    lease_rig_open(w, ELEMS, 0);
    ck_assert_int_eq(lease_rig_begin(w, 0, false), CST_OK);
    lease_rig_ahead(w, 0, false);
    ck_assert_str_eq(w->said, _i == 0 ? "W1+" : "W2+");
    lease_rig_end(w, 0, false);
    lease_rig_run(w, _i == 0 ? 1 : 2, false);
    lease_rig_run(w, 3, false);
    lease_rig_run(w, 3, true);
    lease_rig_run(w, _i == 0 ? 1 : 2, true);
    lease_rig_run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[1], _i == 0 ? 1 : 0);
    ck_assert_uint_eq(w->n_handed_in[2], _i == 0 ? 0 : 1);
    ck_assert_uint_le(w->most_leased, w->layout.classes[0].min_blocks);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* A chunk that operators of several ranks use is complete when the operators of this rank have
 * ended. */
START_TEST(complete_when_my_uses_end)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t group = add_group(w, 2), shared = add(w, ALL, CST_PATTERN_SHARD);
    uint32_t both[2] = {shared, add(w, group, CST_PATTERN_SHARD)};

    w->rank = (uint32_t)_i;
    lease_rig_add_operator(w, &shared, 1);
    lease_rig_add_operator(w, both, 2);
    lease_rig_open(w, ELEMS, 0);
    if (_i == 1) {
        lease_rig_run(w, 1, true);
        ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[both[1]]], 1);
        ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[shared]], 0);
    }
    lease_rig_run(w, 0, true);
    ck_assert_uint_eq(w->n_handed_in[w->tensor_chunk[shared]], 1);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* Only weights of frozen tensors are fetched, in backward as well. */
START_TEST(frozen_has_no_gradient)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t both[2];

    both[0] = add(w, ALL, CST_PATTERN_FROZEN);
    both[1] = add(w, ALL, CST_PATTERN_SHARD);
    lease_rig_add_operator(w, both, 2);
    lease_rig_add_operator(w, &both[0], 1);
    lease_rig_open(w, ELEMS, 0);
    cst_lease_end(&w->leases, 0, false);
    ck_assert_int_eq(cst_lease_begin(&w->leases, 0, true, NULL), CST_OK);
    lease_rig_send_plan(w);
    ck_assert_str_eq(w->said, "W0 W1 G1");
    lease_rig_end(w, 0, true);
    ck_assert_str_eq(w->said, "R1");
    lease_rig_run(w, 1, true);
    ck_assert_str_eq(w->said, "");
    ck_assert_uint_eq(w->n_handed_in[0], 0);
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* A micro-batch ends with the hand-in of all its gradients, followed by Accumulate. Weights stay
 * leased, and the next micro-batch's gradients are new. */
START_TEST(micro_batches)
{
    struct lease_rig *w = lease_rig_new();
    uint32_t tensors[2];

    for (int i = 0; i < 2; i++) {
        tensors[i] = add(w, ALL, CST_PATTERN_SHARD);
        lease_rig_add_operator(w, &tensors[i], 1);
    }
    lease_rig_add_operator(w, tensors, 2);
    lease_rig_open(w, ELEMS, 0);
    for (int m = 0; m < 3; m++) {
        lease_rig_run(w, 1, false);
        lease_rig_run(w, 2, true);
        ck_assert(w->leases.written[0]);
        lease_rig_run(w, 1, true);
        ck_assert_str_eq(w->said, "R1");
        ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), 1);
        lease_rig_deliver_ahead(w);
        cst_lease_turn(&w->leases);
        lease_rig_send_plan(w);
        ck_assert_str_eq(w->said, "R0 A");
        cst_lease_reset_step(&w->leases);
        ck_assert_uint_eq(w->leases.n_open, 0);
        ck_assert_uint_gt(w->leases.n_held, 0);
        ck_assert(!w->leases.written[0]);
        ck_assert_uint_eq(cst_lease_handed_in(&w->leases, 1), CST_LEASE_NONE);
        ck_assert_uint_eq(w->n_handed_in[0], (uint32_t)m + 1);
    }
    lease_rig_step(w);
    lease_rig_close(w);
}
END_TEST

/* Each size class has its own blocks: a full class neither prevents the prefetch of another class's
 * chunk, nor uses blocks of another class. */
START_TEST(classes_are_apart)
{
    const uint32_t tensors[] = {0, 1, 2};
    const struct cst_lease_operator operators[] = {
        {.tensors = tensors, .n_tensors = 1, .runs = true},
        {.tensors = tensors + 1, .n_tensors = 1, .runs = true},
        {.tensors = tensors + 2, .n_tensors = 1, .runs = true}};
    const struct cst_lease_trait traits[] = {
        {.trains = true}, {.size_class = 1, .trains = true}, {.size_class = 1, .trains = true}};
    struct cst_lease_model model = {.operators = operators,
                                    .tensor_chunk = tensors,
                                    .n_operators = 3,
                                    .n_tensors = 3,
                                    .n_chunks = 3,
                                    .traits = traits,
                                    .blocks = {1, 1}};
    struct cst_leases leases;
    struct cst_lease none = {0};
    struct cst_err err = {0};

    ck_assert_int_eq(cst_lease_init(&leases, &model, &err), CST_OK);
    ck_assert_int_eq(cst_lease_begin(&leases, 0, false, &err), CST_OK);
    cst_lease_grant(&leases, &leases.items[0], &none, false);
    cst_lease_ahead(&leases, 0, false); /* class 0 is full, and chunk 1 is of class 1 */
    ck_assert_uint_eq(leases.n_items, 1);
    ck_assert_uint_eq(leases.items[0].chunk, 1);
    cst_lease_grant(&leases, &leases.items[0], &none, false);
    cst_lease_ahead(&leases, 1, false); /* chunk 1 has the only block that chunk 2 could have */
    ck_assert_uint_eq(leases.n_asked, 0);
    ck_assert_int_eq(cst_lease_begin(&leases, 1, true, &err), CST_EPOOL);
    ck_assert_str_eq(err.text,
                     "1 chunks of weights and 1 chunks of gradients of size class 1 are "
                     "needed at once, but the pool has 1 blocks: operators run in another "
                     "order than declared");
    cst_lease_close(&leases);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lease_kinds");
    TCase *tcase = suite_case(suite, "lease_kinds", NULL, NULL);

    tcase_add_loop_test(tcase, each_rank_its_own, 0, 2);
    tcase_add_loop_test(tcase, complete_when_my_uses_end, 0, 2);
    tcase_add_test(tcase, frozen_has_no_gradient);
    tcase_add_test(tcase, micro_batches);
    tcase_add_test(tcase, classes_are_apart);
    return suite_run(suite);
}
