/* SPDX-License-Identifier: Apache-2.0 */
/* The bottleneck of a plan, and why runners-up lost, in words. */
#include "offload/plan/knobs.h"
#include "offload/plan/reservation.h"

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
    PRODUCTS,
    PASS,
    COPIES,
    DEVICE_UPDATE,
    REQUESTS,
    DRIVES,
    MEMORY,
    N_CAUSES
};

static const char *const names[N_CAUSES] = {
    [COMPUTE] = "compute",
    [UP] = "link up",
    [DOWN] = "link down",
    [PEER] = "link between devices",
    [UPDATE] = "update",
    [PRODUCTS] = "products of Muon",
    [PASS] = "host memory's bandwidth",
    [COPIES] = "host copies",
    [DEVICE_UPDATE] = "update on the device",
    [REQUESTS] = "round trips",
    [DRIVES] = "drives",
    [MEMORY] = "device memory",
};

/* Give *s more of one resource. False: that would change nothing. */
static bool give_more(struct cst_search *s, struct cst_plan_point *point,
                      const struct cst_layout *layout, enum cause cause)
{
    struct cst_rates_device *d = &s->rates.devices[s->accelerator];
    bool links = !s->host || point->device_update_bytes > 0;

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
        return point->result.bytes_peer > 0;
    case UPDATE:
        speed_up_nodes(s, false);
        return true;
    case PRODUCTS:
        for (uint32_t i = 0; i < s->rates.n_nodes; i++) {
            s->rates.nodes[i].products *= FASTER;
        }
        d->products = FASTER * cst_rates_products(d);
        return cst_optimizer_of_matrices(s->config->states.optimizer);
    case PASS:
        speed_up_nodes(s, true);
        return true;
    case COPIES:
        s->rates.nodes[0].copy *= FASTER;
        return s->host;
    case DEVICE_UPDATE:
        d->update *= FASTER;
        return cst_search_updates_there(point);
    case REQUESTS:
        s->rates.request_s /= FASTER;
        return s->rates.request_s > 0;
    case DRIVES:
        s->rates.disk_read *= FASTER;
        s->rates.disk_write *= FASTER;
        s->rates.disk_mixed *= FASTER;
        return s->config->n_drives > 0;
    case MEMORY:
    case N_CAUSES:
        break;
    }
    if (s->config->budget->device_bytes == CST_PLAN_NO_LIMIT) {
        return false;
    }
    s->device_left = (uint64_t)((double)s->device_left * FASTER);
    point->pool_limit = UINT64_MAX;
    return cst_search_fit(s, point, layout);
}

static const char not_in_time[] = "unknown: the search was stopped";

/* Simulate with a quarter more of each resource in turn, and return the one that makes the step
 * shortest. Of equal ones the first counts. */
const char *cst_search_binds(const struct cst_search *search, const struct cst_plan_point *point,
                             const struct cst_layout *layout)
{
    uint64_t shortest = UINT64_MAX;
    enum cause most = COMPUTE;

    if (point->result.n_events > search->events_most / N_CAUSES) {
        return "unknown: a step takes too long to simulate";
    }
    if (search->stopped) {
        return not_in_time;
    }
    for (enum cause cause = COMPUTE; cause < N_CAUSES; cause++) {
        struct cst_search s = *search; /* A shallow copy: the lists are not changed. */
        struct cst_plan_point more = *point;
        struct cst_replay_config replay = {.n_steps = 3};
        struct cst_replay_result result;

        if (cst_search_stops(&s)) {
            return not_in_time;
        }
        if (give_more(&s, &more, layout, cause) &&
            cst_search_simulate(&s, &more, layout, &replay, &result, NULL) == CST_OK &&
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
static void even(const struct cst_plan_point *loser, const struct cst_plan_point *best, char *words,
                 size_t size)
{
    int64_t more = (int64_t)cst_search_memory(loser) - (int64_t)cst_search_memory(best);

    if (loser->result.step_ns < best->result.step_ns) {
        (void)snprintf(words, size,
                       "%.3f %% faster, but it wastes %.1f MiB of blocks, not %.1f MiB",
                       100.0 * (1 - (double)loser->result.step_ns / (double)best->result.step_ns),
                       mib(loser->padding_bytes), mib(best->padding_bytes));
    } else if (more > 0) {
        (void)snprintf(words, size, "as fast, but it takes %.1f MiB more of the device's memory",
                       mib((uint64_t)more));
    } else {
        (void)snprintf(words, size, "%.3f %% slower, which is %.3f ms in a step of %.3f ms",
                       100.0 * ((double)loser->result.step_ns / (double)best->result.step_ns - 1),
                       ms(loser->result.step_ns - best->result.step_ns), ms(best->result.step_ns));
    }
}

/* Write the knobs in which the points differ: "with other A, B: ". Returns the length. */
static size_t name_knobs(const struct cst_plan_point *loser, const struct cst_plan_point *best,
                         char words[CST_PLAN_WORDS])
{
    size_t n = 0;

    words[0] = '\0';
    for (uint32_t k = 0; k < CST_KNOBS; k++) {
        if (!cst_knobs[k].is_minor && cst_knob_differs(&cst_knobs[k], loser, best)) {
            n += (size_t)snprintf(words + n, CST_PLAN_WORDS - n, "%s%s",
                                  n == 0 ? "with other " : ", ", cst_knobs[k].name);
        }
    }
    return n + (n == 0 ? 0 : (size_t)snprintf(words + n, CST_PLAN_WORDS - n, ": "));
}

/* Write the reason itself, of at most @size bytes. */
static void tell_why(const struct cst_plan_point *loser, const struct cst_plan_point *best,
                     char *words, size_t size)
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
    int n;

    if (l->step_ns <= b->step_ns + b->step_ns / 2000) {
        even(loser, best, words, size);
        return;
    }
    for (unsigned i = 1; i < sizeof parts / sizeof parts[0]; i++) {
        most = parts[i].ms > most->ms ? &parts[i] : most;
    }
    n = snprintf(words, size, "%.1f %% (%.3f ms) slower: it spends %.3f ms more %s",
                 100.0 * slower / ms(b->step_ns), slower, most->ms, most->what);
    if (more_up >= 0.1 && n >= 0 && (size_t)n < size) {
        (void)snprintf(words + n, size - (size_t)n, "; %.1f MiB more are copied to the devices",
                       more_up);
    }
}

void cst_search_why(const struct cst_plan_point *loser, const struct cst_plan_point *best,
                    char words[CST_PLAN_WORDS])
{
    size_t n = name_knobs(loser, best, words);

    tell_why(loser, best, words + n, CST_PLAN_WORDS - n);
}

/* -- updates on accelerators ---------------------------------------------------------------- */

enum update_place { ON_NODES, RESERVED, LENT, N_PLACES };

static enum update_place place_of(const struct cst_plan_point *point)
{
    return point->lends ? LENT : point->device_update_bytes > 0 ? RESERVED : ON_NODES;
}

/* The fastest simulated point with updates at @place, or NULL. */
static const struct cst_plan_point *fastest_at(const struct cst_search *s, enum update_place place)
{
    const struct cst_plan_point *found = NULL;

    for (uint32_t i = 0; i < s->n_points; i++) {
        const struct cst_plan_point *point = &s->points[i];

        if (place_of(point) == place && point->replayed && point->result.step_ns != UINT64_MAX &&
            (found == NULL || cst_search_is_better(s, point, found))) {
            found = point;
        }
    }
    return found;
}

void cst_search_why_update(const struct cst_search *s, char words[CST_PLAN_WORDS])
{
    static const char *const places[N_PLACES] = {"by nodes alone", "in a device reservation",
                                                 "in lent memory"};
    const enum update_place best = place_of(&s->points[s->best]);
    size_t n;

    words[0] = '\0';
    if (!cst_reservation_is_chosen(s)) {
        return;
    }
    n = (size_t)snprintf(words, CST_PLAN_WORDS, "with updates %s a step takes %.3f ms",
                         places[best], ms(s->points[s->best].result.step_ns));
    for (enum update_place place = ON_NODES; place < N_PLACES && n < CST_PLAN_WORDS; place++) {
        const struct cst_plan_point *other = place != best ? fastest_at(s, place) : NULL;

        if (other != NULL) {
            n += (size_t)snprintf(words + n, CST_PLAN_WORDS - n, ", %s %.3f ms", places[place],
                                  ms(other->result.step_ns));
        }
    }
}

/* -- states that stay on accelerators ------------------------------------------------------- */

/* The fastest simulated point with states on accelerators, or NULL. *any: there are such points,
 * whether simulated or not. */
static const struct cst_plan_point *fastest_with_states(const struct cst_search *s, bool *any)
{
    const struct cst_plan_point *found = NULL;

    *any = false;
    for (uint32_t i = 0; i < s->n_points; i++) {
        const struct cst_plan_point *point = &s->points[i];

        *any = *any || point->device_states > 0;
        if (point->device_states > 0 && point->replayed && point->result.step_ns != UINT64_MAX &&
            (found == NULL || cst_search_is_better(s, point, found))) {
            found = point;
        }
    }
    return found;
}

static void why_none(const struct cst_search *s, const struct cst_plan_point *best,
                     char words[CST_PLAN_WORDS])
{
    bool any;
    const struct cst_plan_point *other = fastest_with_states(s, &any);
    const char *why =
        "the smallest pool and the memory for updates leave no place for the states of a chunk";

    if (other != NULL) {
        (void)snprintf(
            words, CST_PLAN_WORDS, "with %.1f MiB of them a step takes %.3f ms, without %.3f ms",
            mib(other->device_states), ms(other->result.step_ns), ms(best->result.step_ns));
        return;
    }
    if (s->n_reservations == 0) {
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
    const struct cst_plan_point *best = &s->points[s->best];

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
