/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/parallel/schedule_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char letters[] = {[CST_STAGE_FORWARD] = 'F',
                               [CST_STAGE_BACKWARD] = 'B',
                               [CST_STAGE_BACKWARD_INPUT] = 'I',
                               [CST_STAGE_BACKWARD_WEIGHT] = 'W',
                               [CST_STAGE_RECOMPUTE] = 'R'};

const char *cst_stage_action_words(struct cst_stage_action action, char out[CST_STAGE_ACTION_WORDS])
{
    (void)snprintf(out, CST_STAGE_ACTION_WORDS, "%u%c%" PRIu32, (unsigned)action.stage,
                   action.kind < CST_STAGE_ACTION_COUNT ? letters[action.kind] : '?', action.micro);
    return out;
}

static bool is_backward(uint16_t kind)
{
    return kind == CST_STAGE_BACKWARD || kind == CST_STAGE_BACKWARD_INPUT;
}

/* -- order ------------------------------------------------------------------------------------ */

bool cst_stage_action_needs(const struct cst_schedule *schedule, struct cst_stage_action action,
                            uint32_t *needed)
{
    if (action.kind == CST_STAGE_FORWARD && action.stage > 0) {
        *needed = action.stage - 1U;
        return true;
    }
    if (is_backward(action.kind) && action.stage + 1U < schedule->n_stages) {
        *needed = action.stage + 1U;
        return true;
    }
    return false;
}

/* A walk through all lists. */
struct walk {
    const struct cst_schedule *schedule;
    bool *done;        /* For each stage and micro-batch: forward pass, backward pass. */
    uint32_t *at;      /* Each rank's next action. */
    uint32_t *queue;   /* Ranks that may have something to do, as a ring. */
    bool *queued;      /* Whether a rank is in the ring. */
    uint32_t first, n; /* First entry of the ring, and number of entries. */
};

static bool *done_of(const struct walk *walk, uint32_t stage, struct cst_stage_action action)
{
    const size_t unit = (size_t)stage * walk->schedule->n_micro + action.micro;

    return &walk->done[2 * unit + (action.kind == CST_STAGE_FORWARD ? 0 : 1)];
}

static void wake(struct walk *walk, uint32_t rank)
{
    if (!walk->queued[rank]) {
        walk->queued[rank] = true;
        walk->queue[(walk->first + walk->n++) % walk->schedule->n_ranks] = rank;
    }
}

/* Wake the rank of the stage that waits for @action. */
static void pass_on(struct walk *walk, struct cst_stage_action action)
{
    const struct cst_schedule *schedule = walk->schedule;

    *done_of(walk, action.stage, action) = true;
    if (action.kind == CST_STAGE_FORWARD && action.stage + 1U < schedule->n_stages) {
        wake(walk, schedule->rank_of[action.stage + 1U]);
    } else if (is_backward(action.kind) && action.stage > 0) {
        wake(walk, schedule->rank_of[action.stage - 1U]);
    }
}

static bool is_ready(const struct walk *walk, struct cst_stage_action action)
{
    uint32_t needed;

    return !cst_stage_action_needs(walk->schedule, action, &needed) ||
           *done_of(walk, needed, action);
}

static void walk_rank(struct walk *walk, uint32_t rank,
                      void (*visit)(void *arg, uint32_t rank, uint32_t action), void *arg)
{
    const struct cst_schedule *schedule = walk->schedule;
    uint32_t i = walk->at[rank];

    for (; i < schedule->first[rank + 1] && is_ready(walk, schedule->actions[i]); i++) {
        visit(arg, rank, i);
        if (schedule->actions[i].kind == CST_STAGE_FORWARD ||
            is_backward(schedule->actions[i].kind)) {
            pass_on(walk, schedule->actions[i]);
        }
    }
    walk->at[rank] = i;
}

/* Say which action waits, after a walk that has ended. */
static int find_stuck(const struct walk *walk, struct cst_err *err)
{
    const struct cst_schedule *schedule = walk->schedule;
    char words[CST_STAGE_ACTION_WORDS], wanted[CST_STAGE_ACTION_WORDS];

    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        struct cst_stage_action action;
        uint32_t needed;

        if (walk->at[rank] == schedule->first[rank + 1]) {
            continue;
        }
        action = schedule->actions[walk->at[rank]];
        (void)cst_stage_action_words(action, words);
        if (cst_stage_action_needs(schedule, action, &needed)) {
            action.stage = (uint16_t)needed;
            return cst_err_set(err, CST_EINVAL,
                               "rank %" PRIu32 " waits for ever before %s: it needs %s of rank "
                               "%" PRIu32 ", which waits, too",
                               rank, words, cst_stage_action_words(action, wanted),
                               schedule->rank_of[needed]);
        }
    }
    return CST_OK;
}

static void walk_close(struct walk *walk)
{
    free(walk->done);
    free(walk->at);
    free(walk->queue);
    free(walk->queued);
}

static int walk_open(struct walk *walk, const struct cst_schedule *schedule, struct cst_err *err)
{
    *walk = (struct walk){
        .schedule = schedule,
        .done = calloc((size_t)schedule->n_stages * schedule->n_micro, 2 * sizeof *walk->done),
        .at = calloc(schedule->n_ranks, sizeof *walk->at),
        .queue = calloc(schedule->n_ranks, sizeof *walk->queue),
        .queued = calloc(schedule->n_ranks, sizeof *walk->queued),
    };
    if (walk->done == NULL || walk->at == NULL || walk->queue == NULL || walk->queued == NULL) {
        walk_close(walk);
        return cst_err_set(err, CST_ENOMEM, "the order of a schedule");
    }
    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        walk->at[rank] = schedule->first[rank];
        wake(walk, rank);
    }
    return CST_OK;
}

int cst_schedule_run(const struct cst_schedule *schedule,
                     void (*visit)(void *arg, uint32_t rank, uint32_t action), void *arg,
                     struct cst_err *err)
{
    struct walk walk;
    int rc = walk_open(&walk, schedule, err);

    if (rc != CST_OK) {
        return rc;
    }
    while (walk.n > 0) {
        const uint32_t rank = walk.queue[walk.first];

        walk.first = (walk.first + 1) % schedule->n_ranks;
        walk.n--;
        walk.queued[rank] = false;
        walk_rank(&walk, rank, visit, arg);
    }
    rc = find_stuck(&walk, err);
    walk_close(&walk);
    return rc;
}

/* -- counts ----------------------------------------------------------------------------------- */

/* The kinds of a unit, a stage's work for one micro-batch, that its rank's list has had so far. */
static uint8_t *unit_of(uint8_t *had, const struct cst_schedule *schedule,
                        struct cst_stage_action action)
{
    return &had[(size_t)action.stage * schedule->n_micro + action.micro];
}

#define HAS(had, kind) (((had) >> (kind)&1) != 0)

/* Return why a unit that has had @had cannot have an action of @kind now; NULL: it can. */
static const char *find_fault(unsigned had, unsigned kind)
{
    const bool backward = HAS(had, CST_STAGE_BACKWARD) || HAS(had, CST_STAGE_BACKWARD_INPUT);

    if (HAS(had, kind)) {
        return "comes twice";
    }
    if (kind != CST_STAGE_FORWARD && !HAS(had, CST_STAGE_FORWARD)) {
        return "comes before its forward pass";
    }
    if (is_backward((uint16_t)kind) && backward) {
        return "is a second backward pass";
    }
    if (kind == CST_STAGE_RECOMPUTE && backward) {
        return "comes after its backward pass";
    }
    if (kind == CST_STAGE_BACKWARD_WEIGHT && !HAS(had, CST_STAGE_BACKWARD_INPUT)) {
        return "comes before the gradients of its inputs";
    }
    return NULL;
}

static int count_action(const struct cst_schedule *schedule, uint32_t rank, uint32_t i,
                        uint8_t *had, struct cst_err *err)
{
    const struct cst_stage_action action = schedule->actions[i];
    char words[CST_STAGE_ACTION_WORDS];
    const char *fault;

    (void)cst_stage_action_words(action, words);
    if (action.stage >= schedule->n_stages || action.micro >= schedule->n_micro ||
        action.kind >= CST_STAGE_ACTION_COUNT) {
        return cst_err_set(err, CST_EINVAL,
                           "rank %" PRIu32 ": %s is none of %" PRIu32 " stages and %" PRIu32
                           " micro-batches",
                           rank, words, schedule->n_stages, schedule->n_micro);
    }
    if (schedule->rank_of[action.stage] != rank) {
        return cst_err_set(err, CST_EINVAL,
                           "rank %" PRIu32 ": %s is of rank %" PRIu32
                           ": all actions of a stage belong to one rank",
                           rank, words, schedule->rank_of[action.stage]);
    }
    fault = find_fault(*unit_of(had, schedule, action), action.kind);
    if (fault != NULL) {
        return cst_err_set(err, CST_EINVAL, "rank %" PRIu32 ": %s %s", rank, words, fault);
    }
    *unit_of(had, schedule, action) |= (uint8_t)(1U << action.kind);
    return CST_OK;
}

static int check_unit(const struct cst_schedule *schedule, struct cst_stage_action unit,
                      unsigned had, struct cst_err *err)
{
    char words[CST_STAGE_ACTION_WORDS];

    unit.kind = !HAS(had, CST_STAGE_FORWARD)         ? CST_STAGE_FORWARD
                : HAS(had, CST_STAGE_BACKWARD_INPUT) ? CST_STAGE_BACKWARD_WEIGHT
                                                     : CST_STAGE_BACKWARD;
    return HAS(had, unit.kind)
               ? CST_OK
               : cst_err_set(err, CST_EINVAL, "rank %" PRIu32 ": %s is missing",
                             schedule->rank_of[unit.stage], cst_stage_action_words(unit, words));
}

/* Check that each unit is complete, in its order. @had has an entry of 0 for each unit. */
static int check_units(const struct cst_schedule *schedule, uint8_t *had, struct cst_err *err)
{
    int rc = CST_OK;

    for (uint32_t rank = 0; rank < schedule->n_ranks; rank++) {
        for (uint32_t i = schedule->first[rank]; rc == CST_OK && i < schedule->first[rank + 1];
             i++) {
            rc = count_action(schedule, rank, i, had, err);
        }
        if (rc == CST_OK && schedule->first[rank] == schedule->first[rank + 1]) {
            rc = cst_err_set(err, CST_EINVAL, "rank %" PRIu32 " has no actions", rank);
        }
    }
    for (uint32_t s = 0; s < schedule->n_stages; s++) {
        for (uint32_t k = 0; rc == CST_OK && k < schedule->n_micro; k++) {
            const struct cst_stage_action unit = {.stage = (uint16_t)s, .micro = k};

            rc = check_unit(schedule, unit, *unit_of(had, schedule, unit), err);
        }
    }
    return rc;
}

/* -- messages --------------------------------------------------------------------------------- */

/* Messages of one kind, forward or backward, from a rank to the others. */
struct way {
    uint32_t *sent; /* For each unit: the number of its message among those of its way; from 1. */
    uint32_t *n;    /* Number of messages for each pair of ranks: those that were sent. */
    uint32_t *used; /* Number of messages for each pair of ranks: those that were used. */
};

/* The stage that gets the message of @action, of the direction @backward. */
static bool has_message(const struct cst_schedule *schedule, struct cst_stage_action action,
                        bool backward, uint32_t *to)
{
    *to = backward ? action.stage - 1U : action.stage + 1U;
    return (backward ? is_backward(action.kind) && action.stage > 0
                     : action.kind == CST_STAGE_FORWARD && *to < schedule->n_stages) &&
           schedule->rank_of[*to] != schedule->rank_of[action.stage];
}

static void send_all(const struct cst_schedule *schedule, bool backward, struct way *way)
{
    for (uint32_t i = 0; i < schedule->first[schedule->n_ranks]; i++) {
        const struct cst_stage_action action = schedule->actions[i];
        uint32_t to;

        if (has_message(schedule, action, backward, &to)) {
            const size_t pair =
                (size_t)schedule->rank_of[action.stage] * schedule->n_ranks + schedule->rank_of[to];

            way->sent[(size_t)to * schedule->n_micro + action.micro] = ++way->n[pair];
        }
    }
}

static int use_all(const struct cst_schedule *schedule, bool backward, struct way *way,
                   struct cst_err *err)
{
    char words[CST_STAGE_ACTION_WORDS];

    for (uint32_t i = 0; i < schedule->first[schedule->n_ranks]; i++) {
        const struct cst_stage_action action = schedule->actions[i];
        uint32_t needed;

        if ((action.kind != CST_STAGE_FORWARD) == backward &&
            cst_stage_action_needs(schedule, action, &needed) &&
            schedule->rank_of[needed] != schedule->rank_of[action.stage]) {
            const uint32_t from = schedule->rank_of[needed], to = schedule->rank_of[action.stage];
            const uint32_t used = ++way->used[(size_t)from * schedule->n_ranks + to];

            if (way->sent[(size_t)action.stage * schedule->n_micro + action.micro] != used) {
                return cst_err_set(err, CST_EINVAL,
                                   "rank %" PRIu32 ": %s uses another message than rank %" PRIu32
                                   " sends next: messages are used in the order of sending",
                                   to, cst_stage_action_words(action, words), from);
            }
        }
    }
    return CST_OK;
}

static int check_messages(const struct cst_schedule *schedule, bool backward, struct cst_err *err)
{
    const size_t n_pairs = (size_t)schedule->n_ranks * schedule->n_ranks;
    struct way way = {
        .sent = calloc((size_t)schedule->n_stages * schedule->n_micro, sizeof *way.sent),
        .n = calloc(n_pairs, sizeof *way.n),
        .used = calloc(n_pairs, sizeof *way.used),
    };
    int rc = CST_ENOMEM;

    if (way.sent != NULL && way.n != NULL && way.used != NULL) {
        send_all(schedule, backward, &way);
        rc = use_all(schedule, backward, &way, err);
    } else {
        rc = cst_err_set(err, CST_ENOMEM, "the messages of a schedule");
    }
    free(way.sent);
    free(way.n);
    free(way.used);
    return rc;
}

/* -- the whole -------------------------------------------------------------------------------- */

static void ignore(void *arg, uint32_t rank, uint32_t action)
{
    (void)arg;
    (void)rank;
    (void)action;
}

int cst_schedule_check(const struct cst_schedule *schedule, struct cst_err *err)
{
    uint8_t *had = calloc((size_t)schedule->n_stages * schedule->n_micro, sizeof *had);
    int rc = had == NULL ? cst_err_set(err, CST_ENOMEM, "the units of a schedule")
                         : check_units(schedule, had, err);

    free(had);
    for (int backward = 0; rc == CST_OK && backward < 2; backward++) {
        rc = check_messages(schedule, backward != 0, err);
    }
    return rc == CST_OK ? cst_schedule_run(schedule, ignore, NULL, err) : rc;
}

/* -- what stages hold ------------------------------------------------------------------------- */

/* What the stages hold after the actions so far. */
struct held {
    bool *restored;       /* For each unit: its forward pass is repeated, or its backward pass has
                             begun. */
    uint32_t *n;          /* For each stage: micro-batches in flight, ... */
    uint32_t *n_restored; /* ... and those of them that are restored. */
};

static void hold(const struct cst_schedule *schedule, const struct held *held,
                 struct cst_stage_action action)
{
    bool *restored = &held->restored[(size_t)action.stage * schedule->n_micro + action.micro];

    held->n[action.stage] += action.kind == CST_STAGE_FORWARD;
    if ((action.kind == CST_STAGE_RECOMPUTE || is_backward(action.kind)) && !*restored) {
        *restored = true;
        held->n_restored[action.stage]++;
    }
}

static void let_go(const struct held *held, struct cst_stage_action action)
{
    if (action.kind == CST_STAGE_BACKWARD || action.kind == CST_STAGE_BACKWARD_WEIGHT) {
        held->n[action.stage]--;
        held->n_restored[action.stage]--;
    }
}

int cst_schedule_in_flight(const struct cst_schedule *schedule, uint32_t *in_flight,
                           uint32_t *restored, struct cst_err *err)
{
    const struct held held = {
        .restored = calloc((size_t)schedule->n_stages * schedule->n_micro, sizeof *held.restored),
        .n = calloc(schedule->n_stages, sizeof *held.n),
        .n_restored = calloc(schedule->n_stages, sizeof *held.n_restored),
    };
    int rc = CST_OK;

    if (held.restored == NULL || held.n == NULL || held.n_restored == NULL) {
        rc = cst_err_set(err, CST_ENOMEM, "what the stages of a schedule hold");
    }
    for (uint32_t s = 0; rc == CST_OK && s < schedule->n_stages; s++) {
        in_flight[s] = 0;
        if (restored != NULL) {
            restored[s] = 0;
        }
    }
    for (uint32_t i = 0; rc == CST_OK && i < schedule->first[schedule->n_ranks]; i++) {
        const struct cst_stage_action action = schedule->actions[i];
        const uint32_t s = action.stage;

        hold(schedule, &held, action);
        in_flight[s] = held.n[s] > in_flight[s] ? held.n[s] : in_flight[s];
        if (restored != NULL && held.n_restored[s] > restored[s]) {
            restored[s] = held.n_restored[s];
        }
        let_go(&held, action);
    }
    free(held.restored);
    free(held.n);
    free(held.n_restored);
    return rc;
}
