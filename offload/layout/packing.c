/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/layout/packing.h"

#include "offload/layout/box.h"
#include "offload/layout/matrices.h"
#include "proto/round_up.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NO_CHUNK UINT32_MAX
#define NO_ITEM UINT32_MAX
#define NO_KIND UINT32_MAX
#define N_DTYPES 2

/* -- groups and kinds ----------------------------------------------------------------------- */

/* Fill in the groups, which must not have ranks beyond the world. */
static int find_groups(struct cst_packing *p, struct cst_err *err)
{
    const struct cst_model *model = p->model;

    p->groups = calloc(model->n_groups, sizeof *p->groups);
    if (p->groups == NULL) {
        return CST_ENOMEM;
    }
    p->groups[0] = cst_set_range(0, p->world);
    for (uint32_t g = 1; g < model->n_groups; g++) {
        p->groups[g] = cst_model_group_ranks(model, g);
        if (!cst_set_within(&p->groups[g], &p->groups[0])) {
            return cst_err_set(err, CST_EINVAL,
                               "group %" PRIu32 " has rank %" PRIu32
                               ", the job has ranks 0..%" PRIu32,
                               g, cst_set_last(&p->groups[g]), p->world - 1);
        }
    }
    return CST_OK;
}

/* True if both ranks are in the same groups, and therefore run the same operators. */
static bool same_groups(const struct cst_packing *p, uint32_t a, uint32_t b)
{
    for (uint32_t g = 0; g < p->model->n_groups; g++) {
        if (cst_set_has(&p->groups[g], a) != cst_set_has(&p->groups[g], b)) {
            return false;
        }
    }
    return true;
}

static void find_leaders(struct cst_packing *p)
{
    for (uint32_t r = 0; r < p->world; r++) {
        p->leader_of[r] = (uint16_t)r;
        CST_SET_EACH (q, &p->leaders) {
            if (same_groups(p, q, r)) {
                p->leader_of[r] = (uint16_t)q;
                break;
            }
        }
        if (p->leader_of[r] == r) {
            cst_set_add(&p->leaders, r);
        }
    }
}

/* Number of combinations of group, pattern, type, and being updated by Muon. */
static size_t n_combinations(const struct cst_model *model)
{
    return (size_t)model->n_groups * CST_PATTERN_COUNT * N_DTYPES * 2;
}

static bool same_stages(const struct cst_stages *a, const struct cst_stages *b)
{
    return a->first == b->first && a->last == b->last;
}

/* The kind of tensor @t. @known: per combination, the kind that was found last. */
static uint32_t find_kind(struct cst_packing *p, uint32_t *known, uint32_t t)
{
    const struct cst_layout_tensor *tensor = &p->model->tensors[t];
    uint32_t row = tensor->group * CST_PATTERN_COUNT + tensor->pattern;
    uint32_t *at = &known[(N_DTYPES * row + (tensor->dtype == CST_FP32)) * 2 + p->muon[t]];
    const struct cst_pattern *pattern = cst_pattern(tensor->pattern);
    struct cst_kind kind = {.group = tensor->group,
                            .pattern = tensor->pattern,
                            .dtype = tensor->dtype,
                            .muon = p->muon[t],
                            .stages = p->stages[t],
                            .has_states = pattern->has_states,
                            .sparse = pattern->sparse};

    if (*at != NO_KIND && same_stages(&p->kinds[*at].stages, &kind.stages)) {
        return *at;
    }
    /* Another group with the same ranks is not another kind. */
    for (*at = 0; *at < p->n_kinds; ++*at) {
        if (cst_set_equal(&p->groups[p->kinds[*at].group], &p->groups[kind.group]) &&
            p->kinds[*at].pattern == kind.pattern && p->kinds[*at].dtype == kind.dtype &&
            p->kinds[*at].muon == kind.muon && same_stages(&p->kinds[*at].stages, &kind.stages)) {
            return *at;
        }
    }
    p->kinds[p->n_kinds++] = kind;
    return *at;
}

/* -- items ---------------------------------------------------------------------------------- */

static void find_stages(struct cst_packing *p)
{
    const struct cst_model *model = p->model;

    /* From the last operator to the first one: the first use is the last one that is seen. */
    for (uint32_t i = model->n_operators; i-- > 0;) {
        const struct cst_layout_operator *op = &model->operators[i];

        for (uint32_t k = 0; k < op->n_tensors; k++) {
            struct cst_stages *stages = &p->stages[op->tensors[k]];

            stages->first = op->stage;
            stages->last = op->stage > stages->last ? op->stage : stages->last;
        }
    }
}

static void order_by_first_use(struct cst_packing *p)
{
    const struct cst_model *model = p->model;
    uint32_t n = 0;

    memset(p->item_of, 0, model->n_tensors * sizeof *p->item_of);
    for (uint32_t i = 0; i < model->n_operators; i++) {
        for (uint32_t k = 0; k < model->operators[i].n_tensors; k++) {
            uint32_t t = model->operators[i].tensors[k];

            if (p->item_of[t] == 0) {
                /* Temporarily: 1 + the first operator that uses the tensor. */
                p->item_of[t] = i + 1;
                p->order[n++] = t;
            }
        }
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        if (p->item_of[t] == 0) {
            p->item_of[t] = model->n_operators + 1;
            p->order[n++] = t;
        }
    }
}

/* Chunk of the base job's layout that holds tensor @t, if it is frozen here and there;
 * CST_PACKING_OWN: there is none. */
static uint32_t find_in_base(const struct cst_packing *p, uint32_t t)
{
    const struct cst_layout_tensor *mine = &p->model->tensors[t];
    const struct cst_layout_tensor *theirs;
    uint32_t i;

    if (p->base == NULL || cst_pattern(mine->pattern)->has_states) {
        return CST_PACKING_OWN;
    }
    i = cst_model_find(p->base_model, mine->name);
    if (i == UINT32_MAX) {
        return CST_PACKING_OWN;
    }
    theirs = &p->base_model->tensors[i];
    if (cst_pattern(theirs->pattern)->has_states || theirs->dtype != mine->dtype ||
        !cst_box_same_whole(theirs, mine) || !cst_box_same(theirs, mine)) {
        return CST_PACKING_OWN;
    }
    return theirs->chunk;
}

/* The item of this kind that represents chunk @base_chunk of the base. @last: per chunk of the
 * base, the last item made for it. */
static uint32_t find_item(const struct cst_packing *p, const uint32_t *last, uint32_t base_chunk,
                          uint32_t kind)
{
    if (base_chunk == CST_PACKING_OWN || last[base_chunk] == NO_ITEM ||
        p->items[last[base_chunk]].kind != kind) {
        return NO_ITEM;
    }
    return last[base_chunk];
}

/* Returns the places of which an item of @kind begins at a multiple. */
static uint64_t align_of(const struct cst_packing *p, uint32_t kind)
{
    return CST_LAYOUT_ALIGN_ELEMS * cst_packing_places(p->kinds[kind].dtype);
}

static void add_item(struct cst_packing *p, const struct cst_item *item)
{
    uint64_t places = cst_round_up(item->n_places, align_of(p, item->kind));

    p->items[p->n_items++] = *item;
    p->n_places += item->n_places;
    p->largest = places > p->largest ? places : p->largest;
    p->smallest = places < p->smallest ? places : p->smallest;
}

static void list_items(struct cst_packing *p, uint32_t *known, uint32_t *last)
{
    p->smallest = UINT64_MAX;
    for (uint32_t i = 0; i < p->model->n_tensors; i++) {
        uint32_t t = p->order[i];
        uint32_t base_chunk = find_in_base(p, t);
        uint64_t places = cst_packing_places(p->model->tensors[t].dtype);
        struct cst_item item = {.n_places = p->model->tensors[t].n_elems * places,
                                .kind = find_kind(p, known, t),
                                .op = p->item_of[t] - 1,
                                .base_chunk = base_chunk};
        uint32_t found = find_item(p, last, base_chunk, item.kind);

        if (found != NO_ITEM) {
            p->item_of[t] = found;
            continue;
        }
        p->item_of[t] = p->n_items;
        if (base_chunk != CST_PACKING_OWN) {
            item.n_places = p->base->chunks[base_chunk].n_elems * places;
            last[base_chunk] = p->n_items;
        }
        add_item(p, &item);
    }
}

static int find_items(struct cst_packing *p)
{
    size_t n_known = n_combinations(p->model);
    size_t n_last = p->base != NULL ? p->base->n_chunks : 0;
    uint32_t *known = malloc((n_known + n_last) * sizeof *known);

    if (known == NULL) {
        return CST_ENOMEM;
    }
    memset(known, 0xff, (n_known + n_last) * sizeof *known);
    find_stages(p);
    order_by_first_use(p);
    list_items(p, known, known + n_known);
    free(known);
    return CST_OK;
}

static void list_op_items(struct cst_packing *p)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < p->model->n_operators; i++) {
        const struct cst_layout_operator *op = &p->model->operators[i];
        const struct cst_set runners =
            cst_set_intersect(cst_model_runners(p->model, op), p->groups[0]);
        struct cst_set holders = {{0}};

        p->op_first[i] = at;
        for (uint32_t k = 0; k < op->n_tensors; k++) {
            uint32_t item = p->item_of[op->tensors[k]];

            p->op_items[at++] = item;
            p->op_sparse[i] = p->op_sparse[i] || p->kinds[p->items[item].kind].sparse;
            holders = cst_set_union(holders, p->groups[p->kinds[p->items[item].kind].group]);
        }
        cst_sets_put(&p->op_runners, i, &runners);
        if (!cst_set_none(&runners)) {
            cst_sets_put(&p->op_holders, i, &holders);
        }
    }
    p->op_first[p->model->n_operators] = at;
}

/* -- open and close --------------------------------------------------------------------------- */

static int allocate(struct cst_packing *p)
{
    size_t n = p->model->n_tensors; /* Upper limit for the numbers of items and of chunks. */
    size_t n_ops = p->model->n_operators;
    size_t n_kinds = n; /* Every kind has a tensor. */

    p->stages = calloc(n, sizeof *p->stages);
    p->order = calloc(n, sizeof *p->order);
    p->muon = calloc(n, sizeof *p->muon);
    p->item_of = calloc(n, sizeof *p->item_of);
    p->items = calloc(n, sizeof *p->items);
    p->chunk_of = calloc(n, sizeof *p->chunk_of);
    p->offset = calloc(n, sizeof *p->offset);
    p->chunks = calloc(n, sizeof *p->chunks);
    p->swept = calloc(n, sizeof *p->swept);
    p->op_first = calloc(n_ops + 1, sizeof *p->op_first);
    p->op_items = calloc(p->model->n_uses + 1u, sizeof *p->op_items);
    p->op_sparse = calloc(n_ops + 1, sizeof *p->op_sparse);
    p->kinds = calloc(n_kinds, sizeof *p->kinds);
    p->slots = calloc(n_kinds * CST_LAYOUT_MAX_CLASSES, sizeof *p->slots);
    return p->stages != NULL && p->order != NULL && p->muon != NULL && p->item_of != NULL &&
                   p->items != NULL && p->chunk_of != NULL && p->offset != NULL &&
                   p->chunks != NULL && p->swept != NULL && p->op_first != NULL &&
                   p->op_items != NULL && p->op_sparse != NULL && p->kinds != NULL &&
                   p->slots != NULL && cst_sets_open(&p->op_runners, n_ops, p->world) == CST_OK &&
                   cst_sets_open(&p->op_holders, n_ops, p->world) == CST_OK &&
                   cst_sets_open(&p->users, n, p->world) == CST_OK
               ? CST_OK
               : CST_ENOMEM;
}

int cst_packing_init(struct cst_packing *packing, const struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err)
{
    int status;

    *packing = (struct cst_packing){.model = model,
                                    .base_model = config->base_model,
                                    .base = config->base,
                                    .world = config->world == 0 ? 1 : config->world};
    status = find_groups(packing, err);
    if (status == CST_OK) {
        find_leaders(packing);
        status = allocate(packing);
    }
    if (status == CST_OK) {
        status = cst_matrices_choose(model, config->states.optimizer, packing->muon, err);
    }
    if (status == CST_OK) {
        status = find_items(packing);
    }
    if (status != CST_OK) {
        cst_packing_close(packing);
        return status == CST_ENOMEM ? cst_err_set(err, status, "no memory to lay the model out")
                                    : status;
    }
    list_op_items(packing);
    return CST_OK;
}

void cst_packing_close(struct cst_packing *packing)
{
    free(packing->stages);
    free(packing->order);
    free(packing->muon);
    free(packing->item_of);
    free(packing->items);
    free(packing->chunk_of);
    free(packing->offset);
    free(packing->chunks);
    free(packing->swept);
    free(packing->op_first);
    free(packing->op_items);
    free(packing->op_sparse);
    cst_sets_close(&packing->op_runners);
    cst_sets_close(&packing->op_holders);
    cst_sets_close(&packing->users);
    free(packing->groups);
    free(packing->kinds);
    free(packing->slots);
    memset(packing, 0, sizeof *packing);
}

/* -- packing -------------------------------------------------------------------------------- */

static uint32_t class_of(const struct cst_sizes *sizes, uint64_t n_places)
{
    uint32_t c = 0;

    while (c + 1 < sizes->n && n_places > sizes->v[c]) {
        c++;
    }
    return c;
}

static uint32_t open_chunk(struct cst_packing *p, const struct cst_item *item, uint32_t size_class)
{
    p->chunks[p->n_chunks] = (struct cst_packed){
        .kind = item->kind, .size_class = size_class, .base_chunk = item->base_chunk};
    p->class_chunks[size_class]++;
    return p->n_chunks++;
}

/* The chunk where @item is placed. */
static uint32_t find_chunk(struct cst_packing *p, const struct cst_item *item, uint32_t size_class,
                           uint64_t capacity)
{
    struct cst_slot *slot = &p->slots[item->kind * CST_LAYOUT_MAX_CLASSES + size_class];

    if (item->base_chunk != CST_PACKING_OWN) {
        return open_chunk(p, item, size_class);
    }
    if (slot->chunk == NO_CHUNK || p->chunks[slot->chunk].n_places + item->n_places > capacity ||
        (p->kinds[item->kind].sparse && slot->op != item->op)) {
        slot->chunk = open_chunk(p, item, size_class);
        slot->op = item->op;
    }
    return slot->chunk;
}

void cst_packing_pack(struct cst_packing *packing, const struct cst_sizes *sizes)
{
    struct cst_packing *p = packing;

    p->n_chunks = 0;
    memset(p->slots, 0xff, (size_t)p->n_kinds * CST_LAYOUT_MAX_CLASSES * sizeof *p->slots);
    memset(p->class_chunks, 0, sizeof p->class_chunks);
    memset(p->class_places, 0, sizeof p->class_places);
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct cst_item *item = &p->items[i];
        uint32_t k = class_of(sizes, item->n_places);
        uint32_t c = find_chunk(p, item, k, sizes->v[k]);
        struct cst_packed *chunk = &p->chunks[c];

        p->chunk_of[i] = c;
        p->offset[i] = chunk->n_places;
        chunk->n_places = cst_round_up(chunk->n_places + item->n_places, align_of(p, item->kind));
        if (chunk->n_places > p->class_places[k]) {
            p->class_places[k] = chunk->n_places;
        }
    }
}
