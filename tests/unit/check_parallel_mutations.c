/* SPDX-License-Identifier: Apache-2.0 */
/* Mutated pipeline schedules: the verifier takes those that workers could do, and no others. */
#include "offload/parallel/schedule_check.h"
#include "offload/parallel/schedule_text.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 5, MOST_STAGES = 3 * MOST_RANKS, MOST_MICRO = 8 };

static struct cst_schedule schedule;
static struct cst_err err;

static void teardown(void)
{
    cst_schedule_close(&schedule);
}

static uint64_t seed;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* A rank that does its list as a worker would: it takes each message out of a queue, whose head
 * must be what it wants. The other implementation of what is legal. */
struct executor {
    uint32_t queue[MOST_RANKS][MOST_RANKS][2][MOST_STAGES * MOST_MICRO]; /* Units, by direction. */
    uint32_t n_in[MOST_RANKS][MOST_RANKS][2], n_out[MOST_RANKS][MOST_RANKS][2];
    unsigned had[MOST_STAGES][MOST_MICRO];
    uint32_t at[MOST_RANKS];
};

static struct executor executor;

static bool take(const struct cst_stage_action *a, uint32_t from_stage, unsigned back)
{
    const uint32_t from = schedule.rank_of[from_stage], to = schedule.rank_of[a->stage];
    const uint32_t head = executor.n_out[from][to][back];

    if (from == to) {
        const unsigned had = executor.had[from_stage][a->micro];

        return back ? (had & (1u << CST_STAGE_BACKWARD | 1u << CST_STAGE_BACKWARD_INPUT)) != 0
                    : (had & 1u << CST_STAGE_FORWARD) != 0;
    }
    if (head == executor.n_in[from][to][back] ||
        executor.queue[from][to][back][head] != a->stage * MOST_MICRO + a->micro) {
        return false;
    }
    executor.n_out[from][to][back]++;
    return true;
}

static void put(const struct cst_stage_action *a, uint32_t to_stage, unsigned back)
{
    const uint32_t from = schedule.rank_of[a->stage], to = schedule.rank_of[to_stage];

    if (from != to) {
        executor.queue[from][to][back][executor.n_in[from][to][back]++] =
            to_stage * MOST_MICRO + a->micro;
    }
}

/* Do one action of @rank. False: it cannot be done now. */
static bool execute(uint32_t rank)
{
    const struct cst_stage_action *a = &schedule.actions[executor.at[rank]];
    unsigned *had = &executor.had[a->stage][a->micro];
    const unsigned forward = 1u << CST_STAGE_FORWARD, input = 1u << CST_STAGE_BACKWARD_INPUT,
                   full = 1u << CST_STAGE_BACKWARD;
    const bool back = a->kind == CST_STAGE_BACKWARD || a->kind == CST_STAGE_BACKWARD_INPUT;

    if ((*had & 1u << a->kind) != 0 || schedule.rank_of[a->stage] != rank ||
        (a->kind != CST_STAGE_FORWARD && (*had & forward) == 0) ||
        ((back || a->kind == CST_STAGE_RECOMPUTE) && (*had & (input | full)) != 0) ||
        (a->kind == CST_STAGE_BACKWARD_WEIGHT && (*had & input) == 0)) {
        return false;
    }
    if ((a->kind == CST_STAGE_FORWARD && a->stage > 0 && !take(a, a->stage - 1u, 0)) ||
        (back && a->stage + 1u < schedule.n_stages && !take(a, a->stage + 1u, 1))) {
        return false;
    }
    if (a->kind == CST_STAGE_FORWARD && a->stage + 1u < schedule.n_stages) {
        put(a, a->stage + 1u, 0);
    }
    if (back && a->stage > 0) {
        put(a, a->stage - 1u, 1);
    }
    *had |= 1u << a->kind;
    executor.at[rank]++;
    return true;
}

static bool runs(void)
{
    const unsigned split = 1u << CST_STAGE_BACKWARD_INPUT | 1u << CST_STAGE_BACKWARD_WEIGHT;
    bool moved = true;

    memset(&executor, 0, sizeof executor);
    for (uint32_t rank = 0; rank < schedule.n_ranks; rank++) {
        executor.at[rank] = schedule.first[rank];
    }
    while (moved) {
        moved = false;
        for (uint32_t rank = 0; rank < schedule.n_ranks; rank++) {
            while (executor.at[rank] < schedule.first[rank + 1] && execute(rank)) {
                moved = true;
            }
        }
    }
    for (uint32_t s = 0; s < schedule.n_stages; s++) {
        for (uint32_t k = 0; k < schedule.n_micro; k++) {
            const unsigned had = executor.had[s][k];

            if ((had & 1u << CST_STAGE_FORWARD) == 0 ||
                ((had & 1u << CST_STAGE_BACKWARD) == 0 && (had & split) != split)) {
                return false;
            }
        }
    }
    for (uint32_t rank = 0; rank < schedule.n_ranks; rank++) {
        if (executor.at[rank] != schedule.first[rank + 1]) {
            return false;
        }
    }
    return true;
}

static uint32_t n_kinds(void)
{
    uint32_t n = 0;

    while (cst_schedule_kind(n) != NULL) {
        n++;
    }
    return n;
}

static void make_any(void)
{
    static const bool all[MOST_STAGES] = {true, true, true, true, true, true, true, true,
                                          true, true, true, true, true, true, true};
    const struct cst_schedule_kind *kind = cst_schedule_kind(draw(n_kinds()));
    const uint32_t p = 1 + draw(MOST_RANKS), m = 1 + draw(MOST_MICRO);
    const uint32_t v = kind->interleaves && m % (m / p > 0 ? m / p : 1) == 0 ? 1 + draw(3) : 1;
    const struct cst_schedule_size size = {p, v * p, m, draw(2) == 0 ? NULL : all};

    cst_schedule_close(&schedule);
    suite_must(cst_schedule_make(&schedule, kind, &size, &err) == CST_OK, "%s", err.text);
}

/* Drop an action at a random place, double it in the place of another one, or swap two. */
static void mutate(void)
{
    const uint32_t n = schedule.first[schedule.n_ranks];
    struct cst_stage_action old;
    uint32_t rank = 0, i, j, end;

    if (n == 0) {
        return;
    }
    i = draw(n);
    old = schedule.actions[i];
    while (schedule.first[rank + 1] <= i) {
        rank++;
    }
    end = schedule.first[rank + 1];
    j = schedule.first[rank] + draw(end - schedule.first[rank]);
    switch (draw(4)) {
    case 0: /* Dropped. */
        memmove(&schedule.actions[i], &schedule.actions[i + 1],
                (n - i - 1) * sizeof *schedule.actions);
        for (rank++; rank <= schedule.n_ranks; rank++) {
            schedule.first[rank]--;
        }
        break;
    case 1: /* Doubled, in the place of another one. */
        schedule.actions[j] = old;
        break;
    case 2: /* Swapped with any action of the rank, or with the next one. */
        j = draw(2) == 0 || i + 1 == end ? j : i + 1;
        schedule.actions[i] = schedule.actions[j];
        schedule.actions[j] = old;
        break;
    default: /* Swapped with an action of any rank. */
        j = draw(n);
        schedule.actions[i] = schedule.actions[j];
        schedule.actions[j] = old;
        break;
    }
}

/* A mutated list is refused, unless workers that do it end nevertheless. */
START_TEST(mutations)
{
    uint32_t n_legal = 0, n_refused = 0;

    seed = suite_seed();
    for (uint32_t i = 0; i < 20000; i++) {
        int rc;
        bool legal;

        make_any();
        suite_must(runs(), "%u ranks, %u micro-batches: workers cannot do what was made",
                   schedule.n_ranks, schedule.n_micro);
        for (uint32_t n = 1 + draw(3); n > 0; n--) {
            mutate();
        }
        legal = runs();
        err = (struct cst_err){0};
        rc = cst_schedule_check(&schedule, &err);
        if ((rc == CST_OK) != legal || (!legal && (rc != CST_EINVAL || err.text[0] == '\0'))) {
            char *text;
            size_t n;

            (void)cst_schedule_write(&text, &n, &schedule, true, NULL);
            ck_abort_msg("%s, but: %s\n%s", legal ? "legal" : "not legal", err.text, text);
        }
        n_legal += legal;
        n_refused += !legal;
    }
    ck_assert_uint_gt(n_legal, 500);
    ck_assert_uint_gt(n_refused, 10000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parallel_mutations");
    TCase *tc = suite_case(s, "mutations", NULL, teardown);

    tcase_add_test(tc, mutations);
    return suite_run(s);
}
