/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a layout from a packing: chunks with their tensors and uses. (The places of rows:
 * rows.c.) */
#include "offload/layout/capacity.h"
#include "offload/layout/layout.h"
#include "offload/layout/matrices.h"
#include "offload/layout/min_blocks.h"
#include "offload/layout/packing.h"
#include "offload/layout/rows.h"
#include "proto/round_up.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -- chunks and their tensors --------------------------------------------------------------- */

static void fill_chunks(struct cst_layout *layout, const struct cst_packing *packing)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_packed *from = &packing->chunks[c];
        const struct cst_kind *kind = &packing->kinds[from->kind];

        layout->chunks[c] =
            (struct cst_layout_chunk){.away = cst_pattern(kind->pattern)->has_states &&
                                              !cst_layout_keeps(&layout->machines, c),
                                      .n_elems = from->n_places / cst_packing_places(kind->dtype),
                                      .ranks = &layout->groups[kind->group],
                                      .pattern = kind->pattern,
                                      .muon = kind->muon,
                                      .dtype = kind->dtype,
                                      .size_class = from->size_class,
                                      .base_chunk = from->base_chunk};
    }
}

static void place_tensor(struct cst_layout *layout, const struct cst_packing *packing, uint32_t t,
                         struct cst_layout_tensor *tensor)
{
    uint32_t item = packing->item_of[t];
    struct cst_layout_chunk *chunk;

    tensor->chunk = packing->chunk_of[item];
    tensor->offset = packing->offset[item] / cst_packing_places(tensor->dtype);
    chunk = &layout->chunks[tensor->chunk];
    if (!cst_layout_is_own(chunk)) {
        uint32_t i = cst_model_find(packing->base_model, tensor->name);

        tensor->offset = packing->base_model->tensors[i].offset;
    }
    chunk->n_tensors++;
    chunk->n_uses += tensor->n_uses;
    chunk->muon_flops += chunk->muon ? cst_matrices_flops(tensor) : 0;
}

/* List the tensors chunk by chunk, in each chunk by offset. The job's own chunks were filled in
 * that order. */
static void order_tensors(struct cst_layout *layout, const struct cst_model *model,
                          const struct cst_packing *packing)
{
    uint32_t at = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        layout->chunks[c].first_tensor = at;
        layout->chunks[c].first_span = layout->n_spans;
        at += layout->chunks[c].n_tensors;
        layout->n_spans +=
            cst_layout_has_states(&layout->chunks[c]) ? layout->chunks[c].n_tensors : 0;
        layout->chunks[c].n_tensors = 0;
    }
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        uint32_t t = packing->order[i];
        struct cst_layout_chunk *chunk = &layout->chunks[model->tensors[t].chunk];

        layout->order[chunk->first_tensor + chunk->n_tensors++] = t;
    }
}

struct placed {
    uint64_t offset;
    uint32_t tensor;
};

static int by_offset(const void *a, const void *b)
{
    const struct placed *x = a;
    const struct placed *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Sort the tensors of shared chunks by offset, because the base job's order of first use can
 * differ. */
static int order_shared(struct cst_layout *layout, const struct cst_model *model)
{
    struct placed *list = calloc(model->n_tensors, sizeof *list);

    if (list == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint32_t *order = layout->order + chunk->first_tensor;

        if (cst_layout_is_own(chunk)) {
            continue;
        }
        for (uint32_t i = 0; i < chunk->n_tensors; i++) {
            list[i] =
                (struct placed){.offset = model->tensors[order[i]].offset, .tensor = order[i]};
        }
        qsort(list, chunk->n_tensors, sizeof *list, by_offset);
        for (uint32_t i = 0; i < chunk->n_tensors; i++) {
            order[i] = list[i].tensor;
        }
    }
    free(list);
    return CST_OK;
}

static void number_tiles(struct cst_layout *layout, struct cst_model *model)
{
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        struct cst_layout_tensor *tensor = &model->tensors[t];

        tensor->first_tile = layout->n_tiles;
        if (cst_pattern(tensor->pattern)->has_states) {
            layout->n_tiles += cst_table_n_tiles(tensor->n_elems);
        }
    }
}

static int place_tensors(struct cst_layout *layout, struct cst_model *model,
                         const struct cst_packing *packing)
{
    fill_chunks(layout, packing);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        place_tensor(layout, packing, t, &model->tensors[t]);
    }
    order_tensors(layout, model, packing);
    layout->scratch_bytes = cst_round_up(
        cst_matrices_scratch_bytes(layout, model, CST_MATRICES_ANY_NODE), CST_LAYOUT_ROW_ALIGN);
    number_tiles(layout, model);
    return packing->base != NULL ? order_shared(layout, model) : CST_OK;
}

/* -- uses ----------------------------------------------------------------------------------- */

/* List the chunks of each operator. All lists are in one array, which begins at uses[0].chunks. */
static int list_uses(struct cst_layout *layout, const struct cst_model *model)
{
    uint32_t *seen = calloc(layout->n_chunks, sizeof *seen);
    uint32_t *at;

    layout->uses = calloc(model->n_operators + 1u, sizeof *layout->uses);
    at = calloc(model->n_uses + 1u, sizeof *at);
    if (seen == NULL || layout->uses == NULL || at == NULL) {
        free(seen);
        free(at);
        return CST_ENOMEM;
    }
    layout->uses[0].chunks = at;
    for (uint32_t i = 0; i < model->n_operators; i++) {
        struct cst_layout_use *use = &layout->uses[i];

        use->chunks = at;
        for (uint32_t k = 0; k < model->operators[i].n_tensors; k++) {
            uint32_t chunk = model->tensors[model->operators[i].tensors[k]].chunk;

            if (seen[chunk] != i + 1) {
                seen[chunk] = i + 1;
                *at++ = chunk;
                use->n_chunks++;
            }
        }
    }
    free(seen);
    return CST_OK;
}

static int fill_classes(struct cst_layout *layout, const struct cst_sizes *sizes,
                        struct cst_packing *packing)
{
    struct cst_layout_need most = cst_min_blocks_of_all(packing);

    layout->n_classes = sizes->n;
    for (uint32_t k = 0; k < sizes->n; k++) {
        layout->classes[k] = (struct cst_layout_class){.capacity = sizes->v[k],
                                                       .n_chunks = packing->class_chunks[k],
                                                       .min_blocks = most.min_blocks[k],
                                                       .min_operator = most.min_operator[k],
                                                       .max_blocks = most.max_blocks[k]};
    }
    layout->capacity = layout->classes[0].capacity;
    layout->needs = calloc(packing->world, sizeof *layout->needs);
    if (layout->needs == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t r = 0; r < packing->world; r++) {
        layout->needs[r] = packing->leader_of[r] == r ? cst_min_blocks_of_rank(packing, r)
                                                      : layout->needs[packing->leader_of[r]];
    }
    return CST_OK;
}

/* Copy the groups, because the model's can move while more are declared. */
static int copy_groups(struct cst_layout *layout, const struct cst_packing *packing)
{
    const size_t bytes = packing->model->n_groups * sizeof *layout->groups;

    layout->groups = malloc(bytes);
    if (layout->groups == NULL) {
        return CST_ENOMEM;
    }
    memcpy(layout->groups, packing->groups, bytes);
    return CST_OK;
}

static int build(struct cst_layout *layout, struct cst_model *model, struct cst_packing *packing,
                 const struct cst_sizes *sizes, const struct cst_layout_config *config,
                 struct cst_err *err)
{
    int status = fill_classes(layout, sizes, packing);

    layout->grad_bytes = config->grad_bytes == 4 ? 4 : 2;
    layout->states = config->states;
    layout->machines = config->machines;
    layout->partials = config->partials;
    layout->n_chunks = packing->n_chunks;
    layout->chunks = calloc(layout->n_chunks, sizeof *layout->chunks);
    layout->order = calloc(model->n_tensors, sizeof *layout->order);
    if (status != CST_OK || layout->chunks == NULL || layout->order == NULL ||
        copy_groups(layout, packing) != CST_OK) {
        status = CST_ENOMEM;
    }
    if (status == CST_OK) {
        status = place_tensors(layout, model, packing);
    }
    if (status == CST_OK) {
        status = cst_rows_place_nodes(layout, config, err);
    }
    if (status == CST_OK) {
        cst_rows_place_on_devices(layout, config);
        status = cst_rows_place(layout, model, config);
    }
    if (status == CST_OK) {
        status = list_uses(layout, model);
    }
    if (status == CST_ENOMEM) {
        (void)cst_err_set(err, status, "no memory to lay the model out");
    }
    return status;
}

static int check_config(const struct cst_model *model, const struct cst_layout_config *config,
                        struct cst_err *err)
{
    if (model->n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "the model has no tensors");
    }
    if (config->n_nodes == 0) {
        return cst_err_set(err, CST_EINVAL, "a layout needs at least one node");
    }
    if (config->world > CST_LAYOUT_MAX_WORLD) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu32 " ranks: at most %d are allowed",
                           config->world, CST_LAYOUT_MAX_WORLD);
    }
    if (config->grad_bytes != 0 && config->grad_bytes != 2 && config->grad_bytes != 4) {
        return cst_err_set(err, CST_EINVAL, "gradients of %" PRIu32 " bytes: 2 or 4 are allowed",
                           config->grad_bytes);
    }
    if (config->states.optimizer >= CST_OPTIMIZER_COUNT ||
        config->states.moments >= CST_MOMENTS_COUNT ||
        config->states.masters >= CST_MASTERS_COUNT) {
        return cst_err_set(err, CST_EINVAL, "there is no optimizer %d with moments %d, masters %d",
                           (int)config->states.optimizer, (int)config->states.moments,
                           (int)config->states.masters);
    }
    if (config->states.grad_over_weight && (config->states.two_weights || config->grad_bytes == 4 ||
                                            config->states.masters == CST_MASTERS_SPLIT)) {
        return cst_err_set(
            err, CST_EINVAL,
            "gradients in the place of weights (grad_over_weight) cannot be combined with %s, or "
            "leave grad_over_weight out",
            config->grad_bytes == 4 ? "micro-batches or more than 64 ranks: set micro_batches to 1"
            : config->states.two_weights
                ? "early or delayed updates, or with two versions of the weights: set overlap to "
                  "commit and versions to 1"
                : "split masters, of which the weights are a part: set masters to fp32");
    }
    if (config->n_devices > CST_LAYOUT_MAX_DEVICES) {
        return cst_err_set(err, CST_EINVAL,
                           "states on %" PRIu32 " accelerators and drives: at most %d, so give "
                           "fewer directories (disk), or fewer ranks device_states",
                           config->n_devices, CST_LAYOUT_MAX_DEVICES);
    }
    for (uint32_t i = 0; i < config->n_devices; i++) {
        if (config->states.grad_over_weight ||
            (!config->devices[i].in_host && (config->states.moments != CST_MOMENTS_FP32 ||
                                             config->states.masters != CST_MASTERS_FP32))) {
            return cst_err_set(
                err, CST_EINVAL, "states on %s cannot be combined with %s, or %s",
                config->devices[i].in_host ? "drives (disk)" : "accelerators (device_states)",
                config->states.grad_over_weight
                    ? "gradients in the place of weights, which are made again from master weights "
                      "in memory: leave grad_over_weight out"
                : config->states.masters != CST_MASTERS_FP32
                    ? "split masters: set masters to fp32"
                    : "moments that are not fp32: set moments to fp32",
                config->devices[i].in_host ? "keep the states in memory" : "device_states to 0");
        }
    }
    if (config->max_classes > CST_LAYOUT_MAX_CLASSES) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu32 " classes of chunks: at most %d are allowed",
                           config->max_classes, CST_LAYOUT_MAX_CLASSES);
    }
    return CST_OK;
}

int cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err)
{
    struct cst_layout built = {0};
    struct cst_packing packing;
    struct cst_sizes sizes;
    int status = check_config(model, config, err);

    if (status != CST_OK) {
        return status;
    }
    status = cst_packing_init(&packing, model, config, err);
    if (status != CST_OK) {
        return status;
    }
    status = cst_capacity_choose(&packing, config, &sizes, err);
    if (status != CST_OK) {
        goto out_packing;
    }
    status = build(&built, model, &packing, &sizes, config, err);
    if (status != CST_OK) {
        cst_layout_close(&built);
        goto out_packing;
    }
    *layout = built;
out_packing:
    cst_packing_close(&packing);
    return status;
}

uint64_t cst_layout_percent(const struct cst_model *model, uint64_t bytes)
{
    const uint64_t weights = model->weight_bytes;

    return weights == 0 ? 0
                        : bytes / weights * 100 + (bytes % weights * 100 + weights - 1) / weights;
}

void cst_layout_size_table(const struct cst_layout *layout, struct cst_table_header *header)
{
    cst_table_size(header, layout->n_chunks, layout->n_spans, layout->n_tiles);
    if (layout->states.skips_unused) {
        cst_table_add_steps(header);
    }
}

uint64_t cst_layout_host_bytes(const struct cst_layout *layout)
{
    struct cst_table_header table;

    cst_layout_size_table(layout, &table);
    return layout->arena_bytes + table.total_bytes;
}

void cst_layout_close(struct cst_layout *layout)
{
    if (layout->uses != NULL) {
        free(layout->uses[0].chunks);
    }
    free(layout->uses);
    free(layout->landings);
    free(layout->partial_rows);
    free(layout->partial_landings);
    free(layout->scratches);
    free(layout->segments);
    free(layout->order);
    free(layout->chunks);
    free(layout->groups);
    free(layout->needs);
    memset(layout, 0, sizeof *layout);
}
