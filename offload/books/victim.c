/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which blocks of one part of a pool (one size class) are evicted. block.c,
 * residency.c and prefetch.c call it. */
#include "offload/books/victim.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

int cst_victims_init(struct cst_victims *victims, uint32_t n_blocks)
{
    size_t n = n_blocks + 1ul;
    int status;

    *victims = (struct cst_victims){.v = calloc(n, sizeof *victims->v),
                                    .at = malloc(n * sizeof *victims->at),
                                    .counted = calloc(n, sizeof *victims->counted),
                                    .serial = 1};
    status =
        victims->v == NULL || victims->at == NULL || victims->counted == NULL ? CST_ENOMEM : CST_OK;
    for (int cost = 0; cost < CST_VICTIM_COSTS && status == CST_OK; cost++) {
        status = cst_heap_init(&victims->heaps[cost], n_blocks, victims->at);
    }
    if (status != CST_OK) {
        cst_victims_close(victims);
        return status;
    }
    memset(victims->at, 0xff, n * sizeof *victims->at); /* CST_HEAP_OUT. */
    return CST_OK;
}

void cst_victims_close(struct cst_victims *victims)
{
    for (int cost = 0; cost < CST_VICTIM_COSTS; cost++) {
        cst_heap_close(&victims->heaps[cost]);
    }
    free(victims->v);
    free(victims->at);
    free(victims->counted);
    *victims = (struct cst_victims){0};
}

static bool have(const struct cst_victims *victims, uint32_t id)
{
    return victims->at[id] != CST_HEAP_OUT;
}

static void count(struct cst_victims *victims, uint32_t id)
{
    if (victims->v[id].cost != CST_VICTIM_STAYS && victims->v[id].next < victims->horizon) {
        victims->counted[id] = victims->serial;
        victims->n_inside++;
    }
}

static void uncount(struct cst_victims *victims, uint32_t id)
{
    if (victims->counted[id] == victims->serial) {
        victims->counted[id] = 0;
        victims->n_inside--;
    }
}

void cst_victims_put(struct cst_victims *victims, uint32_t id, const struct cst_victim *victim)
{
    const struct cst_heap_key key = {.major = victim->next, .minor = ~victim->last_use};

    /* Within one heap the key can be changed in place. */
    if (have(victims, id) && victims->v[id].cost == victim->cost) {
        uncount(victims, id);
    } else {
        cst_victims_remove(victims, id);
        victims->n += victim->cost != CST_VICTIM_STAYS;
    }
    victims->v[id] = *victim;
    cst_heap_put(&victims->heaps[victim->cost], id, key);
    count(victims, id);
}

void cst_victims_remove(struct cst_victims *victims, uint32_t id)
{
    if (have(victims, id)) {
        uncount(victims, id);
        victims->n -= victims->v[id].cost != CST_VICTIM_STAYS;
        cst_heap_remove(&victims->heaps[victims->v[id].cost], id);
    }
}

/* -- choice ----------------------------------------------------------------------------------- */

/* The block of @cost to evict next, if its next use is after @limit. */
static uint32_t top(const struct cst_victims *victims, enum cst_victim_cost cost, uint64_t limit)
{
    const struct cst_heap_item *item = cst_heap_top(&victims->heaps[cost]);

    if (item == NULL || (limit != CST_VICTIM_ANY && victims->v[item->id].next <= limit)) {
        return NONE;
    }
    return item->id;
}

/* True if the cheap block is the better one to evict: unless the dear one is used more than twice
 * as late. */
static bool is_better(const struct cst_victims *victims, uint32_t cheap, uint32_t dear,
                      uint64_t now)
{
    const struct cst_victim *c = &victims->v[cheap];
    const struct cst_victim *d = &victims->v[dear];
    uint64_t wait = c->next > now ? c->next - now : 0;

    return wait >= (d->next > now ? (d->next - now) / 2 : 0);
}

uint32_t cst_victims_choose(const struct cst_victims *victims, uint64_t now, uint64_t limit)
{
    uint32_t cheap = top(victims, CST_VICTIM_CHEAP, limit);
    uint32_t dear = top(victims, CST_VICTIM_DEAR, limit);

    if (cheap != NONE && (dear == NONE || is_better(victims, cheap, dear, now))) {
        return cheap;
    }
    if (dear != NONE || limit != CST_VICTIM_ANY) {
        return dear;
    }
    return top(victims, CST_VICTIM_STAYS, limit);
}

/* -- horizon -------------------------------------------------------------------------------------
 */

void cst_victims_reset_horizon(struct cst_victims *victims, uint64_t horizon)
{
    victims->serial++;
    victims->n_inside = 0;
    victims->horizon = horizon;
}

void cst_victims_pass(struct cst_victims *victims, uint32_t id)
{
    victims->horizon++;
    if (id != NONE && have(victims, id) && victims->counted[id] != victims->serial) {
        count(victims, id);
    }
}

static bool reaches(const struct cst_victims *victims, enum cst_victim_cost cost, uint64_t horizon)
{
    const struct cst_heap_item *item = cst_heap_top(&victims->heaps[cost]);

    return item != NULL && victims->v[item->id].next >= horizon;
}

bool cst_victims_retreat(struct cst_victims *victims, uint64_t horizon)
{
    if (reaches(victims, CST_VICTIM_CHEAP, horizon) || reaches(victims, CST_VICTIM_DEAR, horizon)) {
        return false;
    }
    victims->horizon = horizon;
    return true;
}

const char *cst_victims_check(const struct cst_victims *victims, uint32_t n_blocks)
{
    uint32_t n_inside = 0;
    uint32_t n = 0;

    for (int cost = 0; cost < CST_VICTIM_COSTS; cost++) {
        n += cost == CST_VICTIM_STAYS ? 0 : victims->heaps[cost].n;
        if (!cst_heap_check(&victims->heaps[cost])) {
            return "what may be given up is in order";
        }
    }
    for (uint32_t id = 0; id < n_blocks; id++) {
        bool counted = victims->counted[id] == victims->serial;

        n_inside += counted;
        if (counted && (!have(victims, id) || victims->v[id].next >= victims->horizon)) {
            return "what is wanted before the horizon is inside";
        }
    }
    return n != victims->n || n_inside != victims->n_inside ? "victims are counted" : NULL;
}
