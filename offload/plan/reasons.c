/* SPDX-License-Identifier: Apache-2.0 */
/* The bottleneck of a plan, and why runners-up lost, in words. */
#include "offload/plan/search.h"

#include <inttypes.h>
#include <stdio.h>

/* -- the bottleneck -------------------------------------------------------------------------- */

#define FASTER 1.25

/* Speed up either the processors of the nodes or, with @memory, their memory bandwidth. */
static void speed_up_nodes(struct cst_search *s, bool memory)
{
    for (uint32_t i = 0; i < s->rates.n_nodes; i++) {
        struct cst_rates_node *node = &s->rates.nodes[i];

        node->update *= memory ? 1 : FASTER;
        node->reduce *= memory ? 1 : FASTER;
        node->pass *= memory ? FASTER : 1;
    }
}

enum cause {
    COMPUTE,
    UP,
    DOWN,
    PEER,
    UPDATE,
    PASS,
    COPIES,
    DEVICE_UPDATE,
    DISK,
    REQUESTS,
    MEMORY,
    N_CAUSES
};

static const char *const names[N_CAUSES] = {
    [COMPUTE] = "compute",
    [UP] = "link up",
    [DOWN] = "link down",
    [PEER] = "link between devices",
    [UPDATE] = "update",
    [PASS] = "host memory's bandwidth",
    [COPIES] = "host copies",
    [DEVICE_UPDATE] = "update on the device",
    [DISK] = "disk",
    [REQUESTS] = "round trips",
    [MEMORY] = "device memory",
};

/* Give *s more of one resource. False: that would change nothing. */
static bool give_more(struct cst_search *s, struct cst_plan_try *try,
                      const struct cst_layout *layout, enum cause cause)
{
    struct cst_rates_device *d = &s->rates.devices[s->accelerator];
    bool links = !s->host || try->device_update_bytes > 0;

    switch (cause) {
    case COMPUTE:
        s->rates.devices[0].flops *= FASTER;
        return true;
    case UP:
        d->up *= FASTER;
        d->up_both *= FASTER;
        return links;
    case DOWN:
        d->down *= FASTER;
        d->down_both *= FASTER;
        return links;
    case PEER:
        d->peer *= FASTER;
        return try->result.bytes_peer > 0;
    case UPDATE:
        speed_up_nodes(s, false);
        return true;
    case PASS:
        speed_up_nodes(s, true);
        return true;
    case COPIES:
        s->rates.nodes[0].copy *= FASTER;
        return s->host;
    case DEVICE_UPDATE:
        d->update *= FASTER;
        return try->n_device > 0 || try->device_update_bytes > 0;
    case DISK:
        s->rates.disk_read *= FASTER;
        s->rates.disk_write *= FASTER;
        return try->disk_bytes > 0;
    case REQUESTS:
        s->rates.request_s /= FASTER;
        return s->rates.request_s > 0;
    case MEMORY:
    case N_CAUSES:
        break;
    }
    if (s->config->budget->device_bytes == CST_PLAN_NO_LIMIT) {
        return false;
    }
    s->room = (uint64_t)((double)s->room * FASTER);
    try->block_room = UINT64_MAX;
    return cst_search_fit(s, try, layout);
}

static const char not_in_time[] = "unknown: the search was stopped";

/* Simulate with a quarter more of each resource in turn, and return the one that makes the step
 * shortest. Of equal ones the first counts. */
const char *cst_search_binds(const struct cst_search *search, const struct cst_plan_try *try,
                             const struct cst_layout *layout)
{
    uint64_t shortest = UINT64_MAX;
    enum cause most = COMPUTE;

    if (try->result.n_events > search->events_most / N_CAUSES) {
        return "unknown: a step takes too long to simulate";
    }
    if (search->stopped) {
        return not_in_time;
    }
    for (enum cause cause = COMPUTE; cause < N_CAUSES; cause++) {
        struct cst_search s = *search; /* A shallow copy: the lists are not changed. */
        struct cst_plan_try more = *try;
        struct cst_replay_config replay = {.n_steps = 3};
        struct cst_replay_result result;

        if (cst_search_stops(&s)) {
            return not_in_time;
        }
        if (give_more(&s, &more, layout, cause) &&
            cst_search_play(&s, &more, layout, &replay, &result, NULL) == CST_OK &&
            result.step_ns < shortest) {
            shortest = result.step_ns;
            most = cause;
        }
    }
    return names[most];
}

/* -- reasons of runners-up -------------------------------------------------------------------- */

struct part {
    const char *what;
    double ms;
};

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static uint64_t waits(const struct cst_replay_result *r)
{
    return r->wait_ns > r->update_exposed_ns ? r->wait_ns - r->update_exposed_ns : 0;
}

/* The reason for a runner-up that is not slower: its costs. */
static void even(const struct cst_plan_try *loser, const struct cst_plan_try *best,
                 char words[CST_PLAN_WORDS])
{
    int64_t more = (int64_t)cst_search_memory(loser) - (int64_t)cst_search_memory(best);

    if (loser->result.step_ns < best->result.step_ns) {
        (void)snprintf(words, CST_PLAN_WORDS,
                       "%.3f %% faster, but it wastes %.1f MiB of blocks, not %.1f MiB",
                       100.0 * (1 - (double)loser->result.step_ns / (double)best->result.step_ns),
                       mib(loser->padding_bytes), mib(best->padding_bytes));
    } else if (more > 0) {
        (void)snprintf(words, CST_PLAN_WORDS,
                       "as fast, but it takes %.1f MiB more of the device's memory",
                       mib((uint64_t)more));
    } else {
        (void)snprintf(words, CST_PLAN_WORDS,
                       "%.3f %% slower, which is %.3f ms in a step of %.3f ms",
                       100.0 * ((double)loser->result.step_ns / (double)best->result.step_ns - 1),
                       ms(loser->result.step_ns - best->result.step_ns), ms(best->result.step_ns));
    }
}

void cst_search_why(const struct cst_plan_try *loser, const struct cst_plan_try *best,
                    char words[CST_PLAN_WORDS])
{
    const struct cst_replay_result *l = &loser->result, *b = &best->result;
    const struct part parts[] = {
        {"for weights and blocks", ms(waits(l)) - ms(waits(b))},
        {"for updates", ms(l->update_exposed_ns) - ms(b->update_exposed_ns)},
        {"for the last gradients", ms(l->tail_ns) - ms(b->tail_ns)},
        {"in compute that other work slows down", ms(l->compute_ns) - ms(b->compute_ns)},
    };
    const struct part *most = &parts[0];
    double slower = ms(l->step_ns) - ms(b->step_ns);
    double more_up = mib(l->bytes_up) - mib(b->bytes_up);

    if (l->step_ns <= b->step_ns + b->step_ns / 2000) {
        even(loser, best, words);
        return;
    }
    for (unsigned i = 1; i < sizeof parts / sizeof parts[0]; i++) {
        most = parts[i].ms > most->ms ? &parts[i] : most;
    }
    (void)snprintf(words, CST_PLAN_WORDS, "%.1f %% (%.3f ms) slower: it spends %.3f ms more %s",
                   100.0 * slower / ms(b->step_ns), slower, most->ms, most->what);
    if (more_up >= 0.1) {
        size_t n = 0;

        while (words[n] != '\0') {
            n++;
        }
        (void)snprintf(words + n, CST_PLAN_WORDS - n, "; %.1f MiB more are copied to the devices",
                       more_up);
    }
}

/* -- states that stay on accelerators ------------------------------------------------------- */

/* The fastest simulated point with states on accelerators, or NULL. *any: there are such points,
 * whether simulated or not. */
static const struct cst_plan_try *fastest_with_states(const struct cst_search *s, bool *any)
{
    const struct cst_plan_try *found = NULL;

    *any = false;
    for (uint32_t i = 0; i < s->n_tries; i++) {
        const struct cst_plan_try *try = &s->tries[i];

        *any = *any || try->device_states > 0;
        if (try->device_states > 0 && try->replayed && try->result.step_ns != UINT64_MAX &&
            (found == NULL || cst_search_is_better(try, found))) {
            found = try;
        }
    }
    return found;
}

static void why_none(const struct cst_search *s, const struct cst_plan_try *best,
                     char words[CST_PLAN_WORDS])
{
    bool any;
    const struct cst_plan_try *other = fastest_with_states(s, &any);
    const char *why =
        "the smallest pool and the memory for updates leave no place for the states of a chunk";

    if (other != NULL) {
        (void)snprintf(
            words, CST_PLAN_WORDS, "with %.1f MiB of them a step takes %.3f ms, without %.3f ms",
            mib(other->device_states), ms(other->result.step_ns), ms(best->result.step_ns));
        return;
    }
    if (s->n_rooms == 0) {
        why = "the rates have no accelerator";
    } else if (!s->splits) {
        why = "how fast the device updates is not known";
    } else if (any) {
        why = "no step is shorter with them";
    }
    (void)snprintf(words, CST_PLAN_WORDS, "%s", why);
}

void cst_search_why_states(const struct cst_search *s, char words[CST_PLAN_WORDS])
{
    const struct cst_plan_try *best = &s->tries[s->best];

    words[0] = '\0';
    if (s->config->device_states != CST_PLAN_DEVICE_UPDATE_AUTO) {
        return;
    }
    if (best->device_states == 0) {
        why_none(s, best, words);
    } else if (s->without_ns == UINT64_MAX) {
        (void)snprintf(words, CST_PLAN_WORDS, "without them nothing fits");
    } else {
        (void)snprintf(words, CST_PLAN_WORDS, "a step takes %.3f ms, without them %.3f ms",
                       ms(best->result.step_ns), ms(s->without_ns));
    }
}
