/* From a packing to a layout: chunks with their tensors and uses, rows in segments, NUMA nodes. */
#include "offload/capacity.h"
#include "offload/layout.h"
#include "offload/packing.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096

static uint64_t row_bytes(const struct cst_layout *layout, const struct cst_layout_chunk *chunk,
                          enum cst_row row)
{
    uint64_t elem = row == CST_ROW_WEIGHT ? 2 : row == CST_ROW_GRAD ? layout->grad_bytes : 4;

    return cst_align_up(chunk->n_elems * elem, PAGE_BYTES);
}

/* The packing's order and places, copied to where the layout and the model show them. */
static void place_tensors(struct cst_layout *layout, struct cst_model *model,
                          const struct cst_packing *packing)
{
    uint64_t tile = 0;

    for (uint32_t i = 0; i < model->n_tensors; i++) {
        uint32_t t = packing->order[i];
        struct cst_layout_tensor *tensor = &model->tensors[t];
        struct cst_layout_chunk *chunk = &layout->chunks[packing->chunk_of[t]];

        layout->order[i] = t;
        tensor->chunk = packing->chunk_of[t];
        tensor->offset = packing->offset[t];
        if (chunk->n_tensors++ == 0) {
            chunk->first_tensor = i;
        }
        chunk->n_elems = cst_align_up(tensor->offset + tensor->n_elems, CST_LAYOUT_ALIGN_ELEMS);
        chunk->n_uses += tensor->n_uses;
    }
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        model->tensors[t].first_tile = tile;
        tile += cst_table_n_tiles(model->tensors[t].n_elems);
    }
    layout->n_tiles = tile;
}

/* Contiguous ranges of chunks, balanced by elements: a chunk goes to the node that its middle falls
 * on. */
static void place_nodes(struct cst_layout *layout, uint32_t n_nodes)
{
    uint64_t total = 0;
    uint64_t before = 0;

    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        total += layout->chunks[c].n_elems;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        chunk->node = (uint32_t)((2 * before + chunk->n_elems) * n_nodes / (2 * total));
        before += chunk->n_elems;
    }
}

/* Rows one behind the other; a segment ends where the next row would not fit or the node changes.
 */
static int place_rows(struct cst_layout *layout)
{
    struct cst_layout_segment *segment = NULL;
    uint32_t most = layout->n_chunks * CST_ROW_COUNT;

    layout->segments = calloc(most, sizeof *layout->segments);
    if (layout->segments == NULL) {
        return CST_ENOMEM;
    }
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        struct cst_layout_chunk *chunk = &layout->chunks[c];

        for (uint32_t r = 0; r < CST_ROW_COUNT; r++) {
            uint64_t bytes = row_bytes(layout, chunk, (enum cst_row)r);

            if (segment == NULL || segment->node != chunk->node ||
                segment->bytes + bytes > CST_LAYOUT_SEGMENT_BYTES) {
                segment = &layout->segments[layout->n_segments++];
                segment->node = chunk->node;
            }
            chunk->rows[r] = (struct cst_layout_row){.segment = layout->n_segments - 1,
                                                     .offset = segment->bytes};
            segment->bytes += bytes;
            layout->arena_bytes += bytes;
        }
    }
    return CST_OK;
}

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

static uint64_t all_ranks(uint32_t world)
{
    return world >= 64 ? UINT64_MAX : (UINT64_C(1) << (world == 0 ? 1 : world)) - 1;
}

/* One class, one kind. */
static void fill_classes(struct cst_layout *layout, uint64_t ranks)
{
    layout->n_classes = 1;
    layout->classes[0] = (struct cst_layout_class){.capacity = layout->capacity,
                                                   .n_chunks = layout->n_chunks,
                                                   .min_blocks = layout->min_blocks,
                                                   .min_operator = layout->min_operator,
                                                   .max_blocks = layout->max_blocks};
    for (uint32_t c = 0; c < layout->n_chunks; c++) {
        layout->chunks[c].ranks = ranks;
        layout->chunks[c].pattern = CST_PATTERN_SHARD;
    }
}

static int build(struct cst_layout *layout, struct cst_model *model, struct cst_packing *packing,
                 const struct cst_layout_config *config)
{
    int status;

    layout->n_chunks = packing->n_chunks;
    layout->chunks = calloc(layout->n_chunks, sizeof *layout->chunks);
    layout->order = calloc(model->n_tensors, sizeof *layout->order);
    if (layout->chunks == NULL || layout->order == NULL) {
        return CST_ENOMEM;
    }
    place_tensors(layout, model, packing);
    place_nodes(layout, config->n_nodes);
    status = place_rows(layout);
    if (status == CST_OK) {
        status = list_uses(layout, model);
    }
    layout->min_blocks = cst_packing_need(packing, &layout->min_operator);
    layout->max_blocks = 2 * layout->n_chunks;
    fill_classes(layout, all_ranks(config->world));
    return status;
}

int cst_layout_build(struct cst_layout *layout, struct cst_model *model,
                     const struct cst_layout_config *config, struct cst_err *err)
{
    struct cst_layout built = {0};
    struct cst_packing packing;
    int status;

    if (model->n_tensors == 0) {
        return cst_err_set(err, CST_EINVAL, "the model has no tensors");
    }
    if (config->n_nodes == 0) {
        return cst_err_set(err, CST_EINVAL, "a layout needs at least one node");
    }
    status = cst_packing_init(&packing, model);
    if (status != CST_OK) {
        return cst_err_set(err, status, "no memory to lay the model out");
    }
    built.grad_bytes = config->grad_bytes == 4 ? 4 : 2;
    status = cst_capacity_choose(&packing, config, &built.capacity, err);
    if (status != CST_OK) {
        goto out_packing;
    }
    status = build(&built, model, &packing, config);
    if (status != CST_OK) {
        cst_layout_close(&built);
        (void)cst_err_set(err, status, "no memory to lay the model out");
        goto out_packing;
    }
    *layout = built;
out_packing:
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

uint32_t cst_layout_need(const struct cst_layout *layout, const struct cst_model *model,
                         uint32_t *op_out)
{
    (void)model; /* constant since the layout was built from it, and so is the answer */
    if (op_out != NULL) {
        *op_out = layout->min_operator;
    }
    return layout->min_blocks;
}
