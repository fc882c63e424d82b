/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the exchange of a mixture's rows: ranks are threads, and each row says where it comes
 * from and which expert it chose. */
#include "client/gpt/exchange.h"
#include "client/gpt/model.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 4, EXPERTS = 10, TURNS = 20 };

struct row {
    uint32_t from, expert, number;
};

struct rank {
    struct cst_comm *comm;
    uint32_t rank;
    bool skips_own;
    unsigned n_wrong;
    struct cst_err err;
    pthread_t thread;
};

/* Rows of @rank for @expert in a turn; often none. */
static uint32_t n_rows(uint32_t rank, uint32_t expert, uint32_t turn)
{
    const uint32_t n = (rank * 7 + expert * 13 + turn * 5) % 11;

    return n > 6 ? 0 : n;
}

static bool is_own(const struct gpt_exchange *x, uint32_t from, uint32_t expert)
{
    return gpt_model_expert_rank(expert, x->world) == from;
}

/* Put this rank's rows in their places. Returns their number. */
static size_t fill(const struct gpt_exchange *x, const uint32_t *all, struct row *sent)
{
    size_t n = 0;

    for (uint32_t e = 0; e < x->experts; e++) {
        const size_t at = gpt_exchange_sent_at(x, all, e);

        for (uint32_t i = 0; i < all[x->rank * x->experts + e]; i++) {
            if (!x->skips_own || !is_own(x, x->rank, e)) {
                sent[at + i] = (struct row){x->rank, e, i};
                n++;
            }
        }
    }
    return n;
}

/* Count the received rows that are not where they should be, and give each a result. */
static unsigned answer(const struct gpt_exchange *x, const uint32_t *all,
                       const struct row *received, struct row *results)
{
    unsigned n_wrong = 0;
    size_t n = 0;

    for (uint32_t r = 0; r < x->world; r++) {
        for (uint32_t e = x->rank; e < x->experts; e += x->world) {
            const size_t at = gpt_exchange_received_at(x, all, r, e);

            for (uint32_t i = 0; i < all[r * x->experts + e] && !(x->skips_own && r == x->rank);
                 i++) {
                const struct row want = {r, e, i};

                n_wrong += memcmp(&received[at + i], &want, sizeof want) != 0;
                results[at + i] = (struct row){r + 100, e, i};
                n++;
            }
        }
    }
    return n_wrong + (n != gpt_exchange_n_received(x, all));
}

static int one_turn(struct rank *k, struct gpt_exchange *x, uint32_t turn)
{
    enum { MOST = WORLD * EXPERTS * 11 };
    uint32_t own[EXPERTS], all[WORLD * EXPERTS] = {0};
    struct row sent[MOST], received[MOST], back[MOST];
    size_t n_sent;
    int rc;

    for (uint32_t e = 0; e < EXPERTS; e++) {
        own[e] = n_rows(x->rank, e, turn);
    }
    rc = gpt_exchange_counts(x, own, all, &k->err);
    for (uint32_t r = 0; rc == 0 && r < x->world; r++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            k->n_wrong += all[r * EXPERTS + e] != n_rows(r, e, turn);
        }
    }
    n_sent = fill(x, all, sent);
    k->n_wrong += n_sent != gpt_exchange_n_sent(x, all);
    rc = rc == 0 ? gpt_exchange_send(x, all, sent, received, sizeof *sent, &k->err) : rc;
    rc = rc == 0 ? gpt_exchange_wait(x, &k->err) : rc;
    if (rc == 0) {
        struct row results[MOST];

        k->n_wrong += answer(x, all, received, results);
        rc = gpt_exchange_return(x, all, results, back, sizeof *back, &k->err);
        rc = rc == 0 ? gpt_exchange_wait(x, &k->err) : rc;
    }
    for (size_t i = 0; rc == 0 && i < n_sent; i++) {
        sent[i].from += 100;
        k->n_wrong += memcmp(&sent[i], &back[i], sizeof back[i]) != 0;
    }
    return rc;
}

static void *run(void *arg)
{
    struct rank *k = arg;
    struct gpt_exchange x;
    int rc = 0;

    gpt_exchange_begin(&x, (struct gpt_exchange_comms){k->comm, k->comm}, EXPERTS, k->skips_own);
    for (uint32_t turn = 0; rc == 0 && turn < TURNS; turn++) {
        rc = one_turn(k, &x, turn);
    }
    cst_comm_close(k->comm);
    return NULL;
}

static void run_ranks(void *(*body)(void *arg), struct rank ranks[WORLD], bool skips_own)
{
    struct cst_comm *comms[WORLD];
    struct cst_err err;

    ck_assert_int_eq(cst_comm_open_threads(comms, WORLD, &err), CST_OK);
    for (uint32_t r = 0; r < WORLD; r++) {
        ranks[r] = (struct rank){.comm = comms[r], .rank = r, .skips_own = skips_own};
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, body, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(pthread_join(ranks[r].thread, NULL), 0);
    }
}

/* Every row reaches the rank of its expert, and its result comes back to the row's place. */
START_TEST(rows_go_and_return)
{
    struct rank ranks[WORLD];

    run_ranks(run, ranks, _i);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_msg(ranks[r].err.status == CST_OK, "rank %u: %s", r, ranks[r].err.text);
        ck_assert_uint_eq(ranks[r].n_wrong, 0);
    }
}
END_TEST

/* A rank without peers receives what it sends, or nothing. */
START_TEST(a_single_rank_has_all_experts)
{
    struct rank alone = {.skips_own = _i};

    (void)run(&alone);
    ck_assert_int_eq(alone.err.status, CST_OK);
    ck_assert_uint_eq(alone.n_wrong, 0);
}
END_TEST

static void *agree(void *arg)
{
    struct rank *k = arg;

    (void)gpt_exchange_agree(k->comm, k->rank == 2 && k->skips_own ? "red rows" : "blue rows",
                             &k->err);
    cst_comm_close(k->comm);
    return NULL;
}

/* Ranks that send rows of different forms refuse each other. */
START_TEST(forms_of_rows_are_compared)
{
    struct rank ranks[WORLD];

    run_ranks(agree, ranks, false);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(ranks[r].err.status, CST_OK);
    }
    run_ranks(agree, ranks, true);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(ranks[r].err.status, CST_EMISMATCH);
        ck_assert_str_eq(ranks[r].err.text, "rank 2 exchanges red rows, but rank 0 blue rows");
    }
}
END_TEST

/* Rank 2 sends a number of rows that nobody has; in 32 bits it is the sum 0. */
static void *boast(void *arg)
{
    struct rank *k = arg;
    uint32_t own[EXPERTS] = {1}, all[WORLD * EXPERTS];
    struct gpt_exchange x;

    gpt_exchange_begin(&x, (struct gpt_exchange_comms){k->comm, k->comm}, EXPERTS, false);
    if (k->rank == 2) {
        own[0] = own[EXPERTS - 1] = 1u << 31;
    }
    (void)gpt_exchange_counts(&x, own, all, &k->err);
    cst_comm_close(k->comm);
    return NULL;
}

/* Numbers of rows whose sum would be wrong are refused by all, before anything has their size. */
START_TEST(counts_are_not_believed)
{
    struct rank ranks[WORLD];

    run_ranks(boast, ranks, false);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(ranks[r].err.status, CST_EMISMATCH);
        ck_assert_str_eq(ranks[r].err.text,
                         "rank 2 sends 4294967296 rows to experts, and the ranks before it 2: "
                         "2147483647 together are the most");
    }
}
END_TEST

static void *leave_early(void *arg)
{
    struct rank *k = arg;

    if (k->rank == 1) {
        cst_comm_close(k->comm);
        return NULL;
    }
    return run(k);
}

/* A rank that ends early ends the exchange of the others, and is named. */
START_TEST(a_rank_that_leaves_is_named)
{
    struct rank ranks[WORLD];

    run_ranks(leave_early, ranks, false);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_int_eq(ranks[r].err.status, r == 1 ? CST_OK : CST_ECANCELLED);
    }
    /* The first that leaves is rank 1, and the others follow. */
    ck_assert_ptr_nonnull(strstr(ranks[0].err.text, " has closed its communicator"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *tcase = suite_case(suite, "exchange", NULL, NULL);

    tcase_add_loop_test(tcase, rows_go_and_return, 0, 2);
    tcase_add_loop_test(tcase, a_single_rank_has_all_experts, 0, 2);
    tcase_add_test(tcase, forms_of_rows_are_compared);
    tcase_add_test(tcase, counts_are_not_believed);
    tcase_add_test(tcase, a_rank_that_leaves_is_named);
    return suite_run(suite);
}
