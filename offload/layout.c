/* From a packing to a layout: chunks with their tensors and uses, rows in segments, NUMA nodes. */
#include "offload/buffers.h"
#include "offload/capacity.h"
#include "offload/layout.h"
#include "offload/need.h"
#include "offload/packing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096

static bool has_states(const struct cst_layout_chunk *chunk)
{
    return cst_pattern(chunk->pattern)->has_states;
}

static bool is_own(const struct cst_layout_chunk *chunk)
{
    return chunk->base_chunk == CST_LAYOUT_OWN;
}

/* -- chunks and their tensors --------------------------------------------------------------- */

static void fill_chunks(struct cst_layout *layout, const struct cst_packing *packing)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_packed *from = &packing->chunks[c];
        const struct cst_kind *kind = &packing->kinds[from->kind];

        layout->chunks[c] = (struct cst_layout_chunk){.n_elems = from->n_elems,
                                                      .ranks = kind->ranks,
                                                      .pattern = kind->pattern,
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
    tensor->offset = packing->offset[item];
    chunk = &layout->chunks[tensor->chunk];
    if (!is_own(chunk)) {
        uint32_t i = cst_model_find(packing->base_model, tensor->name);

        tensor->offset = packing->base_model->tensors[i].offset;
    }
    chunk->n_tensors++;
    chunk->n_uses += tensor->n_uses;
}

/* Chunk by chunk, in each by offset: own chunks were filled in that order. */
static void order_tensors(struct cst_layout *layout, const struct cst_model *model,
                          const struct cst_packing *packing)
{
    uint32_t at = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        layout->chunks[c].first_tensor = at;
        layout->chunks[c].first_span = layout->n_spans;
        at += layout->chunks[c].n_tensors;
        layout->n_spans += has_states(&layout->chunks[c]) ? layout->chunks[c].n_tensors : 0;
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

/* The base's order of first use may be another one. */
static int order_shared(struct cst_layout *layout, const struct cst_model *model)
{
    struct placed *list = calloc(model->n_tensors, sizeof *list);

    if (list == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        const struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint32_t *order = layout->order + chunk->first_tensor;

        if (is_own(chunk)) {
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
    number_tiles(layout, model);
    return packing->base != NULL ? order_shared(layout, model) : CST_OK;
}

/* -- rows ----------------------------------------------------------------------------------- */

#define N_ROWS (CST_ROW_COUNT + 1) /* the second weight row included */

uint64_t cst_layout_row_bytes(const struct cst_layout_states *states, uint32_t grad_bytes, int row,
                              uint64_t n_elems)
{
    switch (row) {
    case CST_ROW_WEIGHT:
        return 2 * n_elems;
    case CST_ROW_GRAD:
        return states->grad_over_weight ? 0 : grad_bytes * n_elems;
    case CST_ROW_MASTER:
        return 4 * n_elems;
    case CST_ROW_EXP_AVG:
        return cst_table_moment_bytes(states->moments, n_elems);
    case CST_ROW_EXP_AVG_SQ:
        return cst_table_has_second(states->optimizer)
                   ? cst_table_moment_bytes(states->moments, n_elems)
                   : 0;
    case CST_ROW_WEIGHT_OTHER:
        return states->two_weights ? 2 * n_elems : 0;
    default:
        return 0;
    }
}

double cst_layout_update_bytes(const struct cst_layout_states *states, uint32_t grad_bytes)
{
    uint64_t group = CST_MX8_BLOCK, bytes = (grad_bytes + 2) * group;

    for (int row = CST_ROW_MASTER; row <= CST_ROW_EXP_AVG_SQ; row++) {
        bytes += 2 * cst_layout_row_bytes(states, grad_bytes, row, group);
    }
    return (double)bytes / (double)group;
}

/* 0: the chunk has no such row of its own. */
static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          uint32_t row)
{
    if (row != CST_ROW_WEIGHT && !has_states(chunk)) {
        return 0;
    }
    return cst_align_up(
        cst_layout_row_bytes(&layout->states, layout->grad_bytes, (int)row, chunk->n_elems),
        PAGE_BYTES);
}

static struct cst_layout_row *row_of(struct cst_layout_chunk *chunk, uint32_t row)
{
    return row == CST_ROW_WEIGHT_OTHER ? &chunk->other_weight : &chunk->rows[row];
}

static uint64_t chunk_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    uint64_t bytes = 0;

    for (uint32_t r = 0; r < N_ROWS && is_own(chunk); r++) {
        bytes += row_bytes(layout, chunk, r);
    }
    return bytes;
}

/* Contiguous ranges of chunks, balanced by bytes: a chunk goes to the node that its middle falls
 * on; one of the base is where it is. */
static int place_nodes(struct cst_layout *layout, const struct cst_layout_config *config,
                       struct cst_err *err)
{
    uint64_t total = 0, before = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        total += chunk_bytes(layout, &layout->chunks[c]);
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = chunk_bytes(layout, chunk);

        if (is_own(chunk)) {
            chunk->node = (uint32_t)((2 * before + bytes) * config->n_nodes / (2 * total));
        } else {
            chunk->node = config->base->chunks[chunk->base_chunk].node;
        }
        if (chunk->node >= config->n_nodes) {
            return cst_err_set(err, CST_EINVAL,
                               "a chunk of the base is on node %" PRIu32 " of %" PRIu32,
                               chunk->node, config->n_nodes);
        }
        before += bytes;
    }
    return CST_OK;
}

/* -- rows on accelerators --------------------------------------------------------------------- */

/* It stays there: row of a chunk whose states are on an accelerator. */
static bool is_on_device(const struct cst_layout_chunk *chunk, uint32_t row)
{
    return chunk->device != 0 &&
           (row == CST_ROW_MASTER || row == CST_ROW_EXP_AVG || row == CST_ROW_EXP_AVG_SQ);
}

static uint64_t state_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk)
{
    return row_bytes(layout, chunk, CST_ROW_MASTER) + row_bytes(layout, chunk, CST_ROW_EXP_AVG) +
           row_bytes(layout, chunk, CST_ROW_EXP_AVG_SQ);
}

static uint64_t grain_of(const struct cst_layout_device *device)
{
    return device->grain > PAGE_BYTES ? device->grain : PAGE_BYTES;
}

/* Rounding segments up must not take more than there is. All but the last are half full at least.
 */
static uint64_t usable(const struct cst_layout_device *device)
{
    uint64_t lost = (device->bytes / (CST_LAYOUT_SEGMENT_BYTES / 2) + 1) * (grain_of(device) - 1);

    return device->bytes > lost ? device->bytes - lost : 0;
}

/* The last chunks first: the next forward wants them last. Accelerators take turns, as long as they
 * have room. */
static void place_on_devices(struct cst_layout *layout, const struct cst_layout_config *config)
{
    uint64_t left[CST_LAYOUT_MAX_DEVICES], most[CST_LAYOUT_MAX_DEVICES];
    uint32_t turn = 0;

    for (uint32_t i = 0; i < config->n_devices; i++) {
        struct cst_buffers buffers;

        cst_buffers_divide(&buffers, layout, config->devices[i].room_bytes);
        left[i] = usable(&config->devices[i]);
        most[i] = buffers.max_elems;
    }
    for (uint32_t c = layout->n_chunks; c-- > 0 && config->n_devices > 0;) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        uint64_t bytes = state_bytes(layout, chunk);

        for (uint32_t i = 0; i < config->n_devices && is_own(chunk) && has_states(chunk); i++) {
            uint32_t d = (turn + i) % config->n_devices;

            if (left[d] >= bytes && chunk->n_elems <= most[d]) {
                left[d] -= bytes;
                chunk->device = config->devices[d].engine;
                turn = d + 1;
                break;
            }
        }
    }
}

static struct cst_layout_segment *add_segment(struct cst_layout *layout, uint32_t node)
{
    struct cst_layout_segment *segment = &layout->segments[layout->n_segments++];

    segment->node = node;
    return segment;
}

/* The rows of one accelerator's chunks that stay there, as below. */
static void place_device_rows(struct cst_layout *layout, const struct cst_layout_device *device)
{
    struct cst_layout_segment *segment = NULL;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (uint32_t r = 0; r < CST_ROW_COUNT && chunk->device == device->engine; r++) {
            uint64_t bytes = is_on_device(chunk, r) ? row_bytes(layout, chunk, r) : 0;

            if (bytes == 0) {
                continue;
            }
            if (segment == NULL || segment->bytes + bytes > CST_LAYOUT_SEGMENT_BYTES) {
                segment = add_segment(layout, device->engine);
            }
            chunk->rows[r] = (struct cst_layout_row){.segment = layout->n_segments - 1,
                                                     .offset = segment->bytes};
            segment->bytes += bytes;
        }
    }
    for (uint32_t i = 0; i < layout->n_segments; i++) {
        struct cst_layout_segment *s = &layout->segments[i];

        if (s->node == device->engine) {
            s->bytes = cst_align_up(s->bytes, grain_of(device));
            layout->device_bytes += s->bytes;
        }
    }
}

/* Rows one behind the other; a segment ends where the next row would not fit or the node changes.
 */
static void place_own_rows(struct cst_layout *layout)
{
    struct cst_layout_segment *segment = NULL;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (uint32_t r = 0; r < N_ROWS && is_own(chunk); r++) {
            uint64_t bytes = row_bytes(layout, chunk, r);

            if (bytes == 0) {
                row_of(chunk, r)->segment = CST_LAYOUT_NO_ROW;
                continue;
            }
            if (is_on_device(chunk, r)) {
                continue;
            }
            if (segment == NULL || segment->node != chunk->node ||
                segment->bytes + bytes > CST_LAYOUT_SEGMENT_BYTES) {
                segment = add_segment(layout, chunk->node);
            }
            *row_of(chunk, r) = (struct cst_layout_row){.segment = layout->n_segments - 1,
                                                        .offset = segment->bytes};
            segment->bytes += bytes;
            layout->arena_bytes += bytes;
        }
        if (layout->states.grad_over_weight && is_own(chunk) && has_states(chunk)) {
            chunk->rows[CST_ROW_GRAD] = chunk->rows[CST_ROW_WEIGHT];
        }
    }
}

/* The base's segments that hold its chunks which are used here, behind this job's own. @known: per
 * segment of the base, its number here. */
static void place_base_rows(struct cst_layout *layout, const struct cst_layout *base,
                            uint32_t *known)
{
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];
        const struct cst_layout_row *row;

        if (is_own(chunk)) {
            continue;
        }
        row = &base->chunks[chunk->base_chunk].rows[CST_ROW_WEIGHT];
        if (known[row->segment] == UINT32_MAX) {
            struct cst_layout_segment *segment = add_segment(layout, chunk->node);

            segment->bytes = base->segments[row->segment].bytes;
            segment->is_base = true;
            segment->base_segment = row->segment;
            known[row->segment] = layout->n_segments - 1;
        }
        for (uint32_t r = 0; r < N_ROWS; r++) {
            row_of(chunk, r)->segment = CST_LAYOUT_NO_ROW;
        }
        chunk->rows[CST_ROW_WEIGHT] =
            (struct cst_layout_row){.segment = known[row->segment], .offset = row->offset};
    }
}

static int place_rows(struct cst_layout *layout, const struct cst_layout_config *config)
{
    const struct cst_layout *base = config->base;
    size_t n_base = base != NULL ? base->n_segments : 0;
    uint32_t *known = malloc((n_base + 1) * sizeof *known);

    layout->segments = calloc((size_t)layout->n_chunks * N_ROWS, sizeof *layout->segments);
    if (known == NULL || layout->segments == NULL) {
        free(known);
        return CST_ENOMEM;
    }
    memset(known, 0xff, n_base * sizeof *known);
    place_own_rows(layout);
    for (uint32_t i = 0; i < config->n_devices; i++) {
        place_device_rows(layout, &config->devices[i]);
    }
    place_base_rows(layout, base, known);
    free(known);
    return CST_OK;
}

/* -- uses ----------------------------------------------------------------------------------- */

/* All lists lie in one array, which uses[0] starts. */
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

static void fill_classes(struct cst_layout *layout, const struct cst_sizes *sizes,
                         struct cst_packing *packing)
{
    struct cst_layout_need most = cst_need_of_all(packing);

    layout->n_classes = sizes->n;
    for (uint32_t k = 0; k < sizes->n; k++) {
        layout->classes[k] = (struct cst_layout_class){.capacity = sizes->v[k],
                                                       .n_chunks = packing->class_chunks[k],
                                                       .min_blocks = most.min_blocks[k],
                                                       .min_operator = most.min_operator[k],
                                                       .max_blocks = most.max_blocks[k]};
    }
    layout->capacity = layout->classes[0].capacity;
    layout->min_blocks = layout->classes[0].min_blocks;
    layout->min_operator = layout->classes[0].min_operator;
    layout->max_blocks = layout->classes[0].max_blocks;
    for (uint32_t r = 0; r < CST_LAYOUT_MAX_WORLD && (packing->world >> r & 1) != 0; r++) {
        layout->needs[r] = packing->leader_of[r] == r ? cst_need_of_rank(packing, r)
                                                      : layout->needs[packing->leader_of[r]];
    }
}

static int build(struct cst_layout *layout, struct cst_model *model, struct cst_packing *packing,
                 const struct cst_layout_config *config, struct cst_err *err)
{
    int status;

    layout->grad_bytes = config->grad_bytes == 4 ? 4 : 2;
    layout->states = config->states;
    layout->n_chunks = packing->n_chunks;
    layout->chunks = calloc(layout->n_chunks, sizeof *layout->chunks);
    layout->order = calloc(model->n_tensors, sizeof *layout->order);
    status = layout->chunks != NULL && layout->order != NULL ? place_tensors(layout, model, packing)
                                                             : CST_ENOMEM;
    if (status == CST_OK) {
        status = place_nodes(layout, config, err);
    }
    if (status == CST_OK) {
        place_on_devices(layout, config);
        status = place_rows(layout, config);
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
        config->states.moments >= CST_MOMENTS_COUNT) {
        return cst_err_set(err, CST_EINVAL, "optimizer %d with moments %d: there is no such",
                           (int)config->states.optimizer, (int)config->states.moments);
    }
    if (config->states.grad_over_weight &&
        (config->states.two_weights || config->grad_bytes == 4)) {
        return cst_err_set(err, CST_EINVAL, "gradients over the weights: not with %s",
                           config->grad_bytes == 4 ? "micro-batches" : "early or delayed updates");
    }
    if (config->n_devices > CST_LAYOUT_MAX_DEVICES) {
        return cst_err_set(err, CST_EINVAL, "states on %" PRIu32 " accelerators: at most %d",
                           config->n_devices, CST_LAYOUT_MAX_DEVICES);
    }
    if (config->n_devices > 0 &&
        (config->states.moments != CST_MOMENTS_FP32 || config->states.grad_over_weight)) {
        return cst_err_set(err, CST_EINVAL, "states on accelerators: not with %s",
                           config->states.grad_over_weight ? "gradients over the weights"
                                                           : "moments that are not fp32");
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
    fill_classes(&built, &sizes, &packing);
    status = build(&built, model, &packing, config, err);
    if (status != CST_OK) {
        cst_layout_close(&built);
        goto out_packing;
    }
    *layout = built;
out_packing:
    cst_packing_close(&packing);
    return status;
}

int cst_layout_candidates(const struct cst_model *model, const struct cst_layout_config *config,
                          struct cst_layout_candidate list[CST_LAYOUT_MAX_CANDIDATES],
                          uint32_t *n_out, struct cst_err *err)
{
    struct cst_packing packing;
    int status = check_config(model, config, err);

    if (status == CST_OK) {
        status = cst_packing_init(&packing, model, config, err);
    }
    if (status != CST_OK) {
        return status;
    }
    status = cst_capacity_list(&packing, config, list, CST_LAYOUT_MAX_CANDIDATES, n_out, err);
    cst_packing_close(&packing);
    return status;
}

void cst_layout_close(struct cst_layout *layout)
{
    if (layout->uses != NULL) {
        free(layout->uses[0].chunks);
    }
    free(layout->uses);
    free(layout->segments);
    free(layout->order);
    free(layout->chunks);
    memset(layout, 0, sizeof *layout);
}
