/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/worker/lease_way.h"

#include "offload/worker/lease.h"

#include <stdlib.h>

/* What the search for the next operators needs. */
struct search {
    struct cst_lease_way *way;
    const struct cst_lease_model *model;
    const uint32_t *op_first, *op_chunks;
    uint32_t *used_at; /* Per chunk: 1 + the last place searched for whose operator uses it. */
};

static uint32_t op_at(const struct cst_lease_way *way, uint32_t place)
{
    return way->ops[place < way->n ? place : 2 * way->n - 1 - place];
}

static uint32_t place_of(const struct cst_lease_way *way, uint32_t op, bool backward)
{
    return backward ? 2 * way->n - 1 - way->place[op] : way->place[op];
}

static uint32_t stage_at(const struct search *s, uint32_t place)
{
    return s->model->operators[op_at(s->way, place)].stage;
}

/* Return whether the operator at @at uses chunks that the one of @place, whose chunks are noted,
 * does not use. */
static bool uses_others(const struct search *s, uint32_t at, uint32_t place)
{
    uint32_t op = op_at(s->way, at), i = s->op_first[op];

    while (i < s->op_first[op + 1] && s->used_at[s->op_chunks[i]] == place + 1) {
        i++;
    }
    return i < s->op_first[op + 1];
}

/* Fill way->next of @place. Other stages are other units of work, and this rank may not be the one
 * that does them. Places are done from the last to the first. If the operator of @place uses all
 * chunks of a later place `at`, the places before next[at] use no other chunks either, and the
 * search jumps there. This keeps the search linear for models with many operators in one chunk. */
static void find_next(struct search *s, uint32_t place)
{
    uint32_t op = op_at(s->way, place), end = 2 * s->way->n, at = place + 1;

    for (uint32_t i = s->op_first[op]; i < s->op_first[op + 1]; i++) {
        s->used_at[s->op_chunks[i]] = place + 1;
    }
    while (at < end && stage_at(s, at) == stage_at(s, place) && !uses_others(s, at, place)) {
        at = s->way->next[at];
    }
    s->way->next[place] = at < end && stage_at(s, at) == stage_at(s, place) ? at : end;
}

int cst_lease_way_open(struct cst_lease_way *way, const struct cst_lease_model *model,
                       const uint32_t *op_first, const uint32_t *op_chunks)
{
    struct search s = {way, model, op_first, op_chunks, NULL};

    /* One entry more, so that no result is NULL for an empty model. */
    *way = (struct cst_lease_way){.ops = calloc(model->n_operators + 1ul, sizeof *way->ops),
                                  .place = calloc(model->n_operators + 1ul, sizeof *way->place),
                                  .next = calloc(2ul * model->n_operators + 1, sizeof *way->next)};
    s.used_at = calloc(model->n_chunks + 1ul, sizeof *s.used_at);
    if (way->ops == NULL || way->place == NULL || way->next == NULL || s.used_at == NULL) {
        cst_lease_way_close(way);
        free(s.used_at);
        return CST_ENOMEM;
    }
    for (uint32_t op = 0; op < model->n_operators; op++) {
        if (model->operators[op].runs) {
            way->place[op] = way->n;
            way->ops[way->n++] = op;
        }
    }
    for (uint32_t place = 2 * way->n; place-- > 0;) {
        find_next(&s, place);
    }
    free(s.used_at);
    return CST_OK;
}

void cst_lease_way_close(struct cst_lease_way *way)
{
    free(way->ops);
    free(way->place);
    free(way->next);
    *way = (struct cst_lease_way){0};
}

uint32_t cst_lease_way_next(const struct cst_lease_way *way, uint32_t op, bool backward)
{
    uint32_t at = way->next[place_of(way, op, backward)];

    return at < 2 * way->n ? op_at(way, at) : CST_LEASE_NONE;
}

uint32_t cst_lease_way_before_backward(const struct cst_lease_way *way, uint32_t op)
{
    uint32_t at = way->place[op] + 1;

    return at < way->n ? way->ops[at] : CST_LEASE_NONE;
}
