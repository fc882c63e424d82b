#include "offload/flight.h"

#include "proto/status.h"

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

/* Tickets count up, so their low bits spread well. */
static uint32_t find_slot(const struct cst_flights *flights, uint64_t ticket)
{
    uint32_t mask = flights->n_slots - 1;
    uint32_t at = (uint32_t)ticket & mask;

    while (flights->slots[at].ticket != 0 && flights->slots[at].ticket != ticket) {
        at = (at + 1) & mask;
    }
    return at;
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
            grown.slots[find_slot(&grown, flights->slots[i].ticket)] = flights->slots[i];
        }
    }
    free(flights->slots);
    *flights = grown;
    return CST_OK;
}

void cst_flights_add(struct cst_flights *flights, const struct cst_flight *flight)
{
    uint32_t at = find_slot(flights, flight->ticket);

    assert(flights->slots[at].ticket == 0 && flights->n + 1 < flights->n_slots);
    flights->slots[at] = *flight;
    flights->n++;
}

/* Move back what a lookup would no longer find behind the hole at @hole. */
static void close_hole(struct cst_flights *flights, uint32_t hole)
{
    uint32_t mask = flights->n_slots - 1;

    for (uint32_t at = (hole + 1) & mask; flights->slots[at].ticket != 0; at = (at + 1) & mask) {
        uint32_t home = (uint32_t)flights->slots[at].ticket & mask;

        if (((at - home) & mask) >= ((at - hole) & mask)) {
            flights->slots[hole] = flights->slots[at];
            flights->slots[at].ticket = 0;
            hole = at;
        }
    }
}

bool cst_flights_take(struct cst_flights *flights, uint64_t ticket, struct cst_flight *out)
{
    uint32_t at;

    if (flights->n_slots == 0 || ticket == 0) {
        return false;
    }
    at = find_slot(flights, ticket);
    if (flights->slots[at].ticket == 0) {
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
    const struct cst_flight *f;

    if (flights->n_slots == 0 || ticket == 0) {
        return NULL;
    }
    f = &flights->slots[find_slot(flights, ticket)];
    return f->ticket == 0 ? NULL : f;
}
