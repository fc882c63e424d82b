/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/base/flight.h"

#include "cistern/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void cst_flights_init(struct cst_flights *flights)
{
    memset(flights, 0, sizeof *flights);
}

void cst_flights_close(struct cst_flights *flights)
{
    free(flights->slots);
    cst_flights_init(flights);
}

/* Distance of an entry from its preferred slot. Tickets count up, so that most entries are in the
 * slot of their low bits. The others follow, those with a larger distance first (Robin Hood
 * hashing), so a search can stop at the first entry that is nearer to its slot. */
static uint32_t distance(const struct cst_flights *flights, uint32_t at)
{
    return (at - (uint32_t)flights->slots[at].ticket) & (flights->n_slots - 1);
}

/* The slot of @ticket, or n_slots if it is not there. */
static uint32_t find_slot(const struct cst_flights *flights, uint64_t ticket)
{
    uint32_t mask = flights->n_slots - 1;
    uint32_t at = (uint32_t)ticket & mask;

    for (uint32_t d = 0; flights->slots[at].ticket != 0 && distance(flights, at) >= d; d++) {
        if (flights->slots[at].ticket == ticket) {
            return at;
        }
        at = (at + 1) & mask;
    }
    return flights->n_slots;
}

static void insert(struct cst_flights *flights, struct cst_flight flight)
{
    uint32_t mask = flights->n_slots - 1;
    uint32_t at = (uint32_t)flight.ticket & mask;

    for (uint32_t d = 0; flights->slots[at].ticket != 0; d++) {
        if (distance(flights, at) < d) {
            struct cst_flight nearer = flights->slots[at];

            d = distance(flights, at);
            flights->slots[at] = flight;
            flight = nearer;
        }
        at = (at + 1) & mask;
    }
    flights->slots[at] = flight;
}

int cst_flights_reserve(struct cst_flights *flights, uint32_t n)
{
    struct cst_flights grown = {.n_slots = 64, .n = flights->n};

    if (n < flights->n_slots / 2) {
        return CST_OK;
    }
    while (n >= grown.n_slots / 2) {
        grown.n_slots *= 2;
    }
    grown.slots = calloc(grown.n_slots, sizeof *grown.slots);
    if (grown.slots == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t i = 0; i < flights->n_slots; i++) {
        if (flights->slots[i].ticket != 0) {
            insert(&grown, flights->slots[i]);
        }
    }
    free(flights->slots);
    *flights = grown;
    return CST_OK;
}

void cst_flights_add(struct cst_flights *flights, const struct cst_flight *flight)
{
    assert(flight->ticket != 0 && flights->n + 1 < flights->n_slots);
    insert(flights, *flight);
    flights->n++;
}

/* Move the entries after the hole at @hole that are not in their preferred slot up by one. */
static void close_hole(struct cst_flights *flights, uint32_t hole)
{
    uint32_t mask = flights->n_slots - 1;
    uint32_t at = (hole + 1) & mask;

    while (flights->slots[at].ticket != 0 && distance(flights, at) > 0) {
        flights->slots[(at - 1) & mask] = flights->slots[at];
        flights->slots[at].ticket = 0;
        at = (at + 1) & mask;
    }
}

bool cst_flights_take(struct cst_flights *flights, uint64_t ticket, struct cst_flight *out)
{
    uint32_t at;

    if (flights->n_slots == 0 || ticket == 0) {
        return false;
    }
    at = find_slot(flights, ticket);
    if (at == flights->n_slots) {
        return false;
    }
    *out = flights->slots[at];
    flights->slots[at].ticket = 0;
    flights->n--;
    close_hole(flights, at);
    return true;
}

const struct cst_flight *cst_flights_find(const struct cst_flights *flights, uint64_t ticket)
{
    uint32_t at;

    if (flights->n_slots == 0 || ticket == 0) {
        return NULL;
    }
    at = find_slot(flights, ticket);
    return at == flights->n_slots ? NULL : &flights->slots[at];
}
