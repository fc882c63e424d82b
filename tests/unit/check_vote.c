/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of offload/machines/vote.h: members that all propose at once, whose messages come in any
 * order or never. */
#include "offload/machines/vote.h"
#include "tests/lib/suite.h"

#include <check.h>

enum { MAX = 5, MAX_MESSAGES = 200, N_TURNS = 150 };

enum kind { PREPARE, PROMISE, ACCEPT, ACCEPTED };

struct message {
    enum kind kind;
    uint32_t from, to;
    uint64_t ballot, accepted;
    struct cst_epoch value;
};

static uint64_t random_state;
static uint32_t n;
static struct cst_epoch epoch;
static struct cst_vote votes[MAX];
static struct cst_proposal proposals[MAX];
static struct message messages[MAX_MESSAGES];
static uint32_t n_messages;

static uint32_t below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % limit;
}

static void send(struct message message)
{
    if (n_messages < MAX_MESSAGES) {
        messages[n_messages++] = message;
    }
}

static void send_all(uint32_t from, enum kind kind)
{
    for (uint32_t to = 0; to < n; to++) {
        if (to != from) {
            send(
                (struct message){kind, from, to, proposals[from].ballot, 0, proposals[from].value});
        }
    }
}

/* What member @m would propose: an epoch with the member as its mark. */
static struct cst_epoch wish_of(uint32_t m)
{
    struct cst_epoch wish = {.number = 2};

    cst_epoch_add(&wish, m, m + 1);
    return wish;
}

static void receive(const struct message *message)
{
    struct cst_vote *vote = &votes[message->to];
    struct cst_proposal *proposal = &proposals[message->to];

    switch (message->kind) {
    case PREPARE:
        if (cst_vote_promise(vote, message->ballot)) {
            send((struct message){PROMISE, message->to, message->from, message->ballot,
                                  vote->accepted, vote->value});
        }
        break;
    case PROMISE:
        cst_proposal_promised(proposal, message->from, message->ballot, message->accepted,
                              &message->value);
        break;
    case ACCEPT:
        if (cst_vote_accept(vote, message->ballot, &message->value)) {
            send((struct message){ACCEPTED, message->to, message->from, message->ballot, 0,
                                  message->value});
        }
        break;
    case ACCEPTED:
        cst_proposal_accepted(proposal, message->from, message->ballot);
        break;
    }
}

/* Let member @m go on with its proposal, if a quorum has answered. True: *out is decided. */
static bool go_on(uint32_t m, struct cst_epoch *out)
{
    struct cst_proposal *proposal = &proposals[m];
    const struct cst_set none = {{0}};
    const struct cst_epoch wish = wish_of(m);

    if (!cst_epoch_quorum(&epoch, &proposal->answered, &none)) {
        return false;
    }
    if (proposal->phase == CST_PROPOSAL_PREPARING &&
        cst_proposal_propose(proposal, &votes[m], m, &wish)) {
        send_all(m, ACCEPT);
    } else if (proposal->phase == CST_PROPOSAL_ACCEPTING) {
        *out = proposal->value;
        return true;
    }
    return false;
}

/* One vote. Returns how many members have seen a decision. */
static uint32_t run(uint64_t seed)
{
    struct cst_epoch decided = {.number = 0}, next;
    struct cst_set knows = {{0}};

    random_state = seed;
    n = 3 + below(MAX - 2);
    n_messages = 0;
    epoch = (struct cst_epoch){.number = 1};
    memset(votes, 0, sizeof votes);
    memset(proposals, 0, sizeof proposals);
    for (uint32_t m = 0; m < n; m++) {
        cst_epoch_add(&epoch, m, m + 1);
    }
    for (uint32_t turn = 0; turn < N_TURNS; turn++) {
        uint32_t m = below(n);

        if (below(12) == 0) {
            cst_proposal_begin(&proposals[m], &votes[m], m, below(2) * below(3000));
            send_all(m, PREPARE);
        } else if (n_messages > 0) {
            uint32_t i = below(n_messages);
            const struct message message = messages[i];

            messages[i] = messages[--n_messages];
            m = message.to;
            if (below(5) > 0) {
                receive(&message);
            }
        }
        if (go_on(m, &next)) {
            suite_must(decided.number == 0 || cst_epoch_equal(&decided, &next),
                       "seed %llu: two values are decided", (unsigned long long)seed);
            decided = next;
            cst_set_add(&knows, m);
        }
    }
    return cst_set_count(&knows);
}

START_TEST(one_value_is_decided)
{
    uint32_t n_decided = 0, n_twice = 0;

    for (uint64_t seed = 1; seed <= 10000; seed++) {
        uint32_t n_knows = run(seed);

        n_decided += n_knows > 0;
        n_twice += n_knows > 1;
    }
    ck_assert_uint_gt(n_decided, 2000);
    ck_assert_uint_gt(n_twice, 200); /* There was something to disagree on. */
}
END_TEST

START_TEST(ballots_belong_to_one_member)
{
    struct cst_vote vote = {.promised = 0};
    struct cst_proposal first, second;

    cst_proposal_begin(&first, &vote, 3, 0);
    cst_proposal_begin(&second, &vote, 3, 0);
    ck_assert_uint_gt(second.ballot, first.ballot);
    ck_assert_uint_eq(vote.promised, second.ballot);
    ck_assert_uint_eq(first.ballot % CST_SET_MAX, 3);
    cst_proposal_begin(&first, &vote, 4, 100 * CST_SET_MAX + 7);
    ck_assert_uint_eq(first.ballot, 101 * CST_SET_MAX + 4);
}
END_TEST

START_TEST(a_quorum_is_a_majority_or_all_that_are_not_down)
{
    struct cst_set down = {{0}};

    epoch = (struct cst_epoch){.number = 1};
    for (uint32_t m = 0; m < (uint32_t)_i; m++) {
        cst_epoch_add(&epoch, m, 1);
    }
    for (uint32_t answered = 0; answered < 1u << _i; answered++) {
        for (uint32_t bits = 0; bits < 1u << _i; bits++) {
            struct cst_set set = {{answered | UINT64_C(1) << 40}}; /* A stranger does not count. */
            uint32_t n_answered = (uint32_t)__builtin_popcount(answered);
            bool all = answered != 0 && ((1u << _i) - 1) == (answered | bits);

            down.words[0] = bits;
            ck_assert_int_eq(cst_epoch_quorum(&epoch, &set, &down),
                             2 * n_answered > (uint32_t)_i || all);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("vote");
    TCase *c = suite_case(s, "vote", NULL, NULL);

    tcase_add_test(c, one_value_is_decided);
    tcase_add_test(c, ballots_belong_to_one_member);
    tcase_add_loop_test(c, a_quorum_is_a_majority_or_all_that_are_not_down, 1, 6);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
