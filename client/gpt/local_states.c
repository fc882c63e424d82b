/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/local.h"

#include "client/gpt/memory.h"
#include "offload/layout/layout.h"

#include <stdlib.h>

/* Find the chunk of tensors of the group and pattern of @t, or make it. */
static uint32_t chunk_of(struct gpt_local *local, const struct gpt_tensor *t)
{
    uint32_t c = 0;

    while (c < local->n_chunks &&
           (local->chunks[c].group != t->group || local->chunks[c].pattern != t->pattern)) {
        c++;
    }
    if (c == local->n_chunks) {
        local->chunks[local->n_chunks++] = (struct gpt_local_chunk){
            .group = t->group,
            .pattern = t->pattern,
            .has_states = t->pattern != CST_PATTERN_FROZEN,
        };
    }
    return c;
}

/* Assign a place to every tensor. */
static int lay_out(struct gpt_local *local, struct cst_err *err)
{
    const struct gpt_model *model = local->model;

    /* There are at most as many chunks as tensors. */
    local->chunks = calloc(model->n_tensors, sizeof *local->chunks);
    local->places = calloc(model->n_tensors, sizeof *local->places);
    if (local->chunks == NULL || local->places == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %u tensors", model->n_tensors);
    }
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        const struct gpt_tensor *t = &model->tensors[i];
        const uint32_t c = chunk_of(local, t);
        struct gpt_local_chunk *chunk = &local->chunks[c];

        local->places[i] = (struct gpt_local_place){.chunk = c, .start = chunk->n_elems};
        chunk->n_tiles += cst_table_n_tiles(t->n_elems);
        chunk->n_elems += (t->n_elems + CST_LAYOUT_ALIGN_ELEMS - 1) / CST_LAYOUT_ALIGN_ELEMS *
                          CST_LAYOUT_ALIGN_ELEMS;
    }
    return 0;
}

/* Make the job table: spans chunk by chunk. Frozen chunks have no spans. */
static int table_open(struct gpt_local *local, struct cst_err *err)
{
    const struct gpt_model *model = local->model;
    struct cst_table_header header;
    struct cst_table_span *spans;
    uint64_t *first_tile = calloc(model->n_tensors, sizeof *first_tile);
    uint64_t n_tiles = 0;
    uint32_t n_spans = 0;

    if (first_tile == NULL) {
        return cst_err_set(err, CST_ENOMEM, "out of memory: %u tensors", model->n_tensors);
    }
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        /* Tiles are numbered in order of declaration and not by chunk, as in the daemon. */
        first_tile[i] = n_tiles;
        n_tiles += cst_table_n_tiles(model->tensors[i].n_elems);
    }
    cst_table_size(&header, local->n_chunks, model->n_tensors, n_tiles);
    local->table = gpt_memory_get(header.total_bytes);
    if (local->table == NULL) {
        free(first_tile);
        return cst_err_set(err, CST_ENOMEM, "out of memory: %llu bytes for the table of tiles",
                           (unsigned long long)header.total_bytes);
    }
    header.optimizer = (uint32_t)local->config.optimizer;
    header.masters = (uint32_t)local->config.masters;
    header.moments = (uint32_t)local->config.moments;
    header.rounding = (uint32_t)local->config.rounding;
    header.seed = local->config.seed;
    header.grad_bytes = local->config.micro_batches > 1 ? 4 : 2;
    *local->table = header;
    spans = cst_table_spans(local->table);
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        struct cst_table_chunk *chunk = &cst_table_chunks(local->table)[c];

        chunk->n_elems = local->chunks[c].n_elems;
        chunk->first_span = n_spans;
        for (uint32_t i = 0; i < model->n_tensors && local->chunks[c].has_states; i++) {
            const struct gpt_tensor *t = &model->tensors[i];

            if (local->places[i].chunk == c) {
                spans[n_spans++] = (struct cst_table_span){
                    .start = local->places[i].start,
                    .n_elems = t->n_elems,
                    .first_tile = first_tile[i],
                    .lr_scale = 1.0f,
                    .decay_scale = t->decay_scale,
                };
            }
        }
        chunk->n_spans = n_spans - chunk->first_span;
    }
    free(first_tile);
    return 0;
}

/* Allocate a row of the states and count its bytes. NULL: out of memory. */
static void *row_get(struct gpt_local *local, uint64_t n_elems, size_t elem)
{
    local->bytes += n_elems * elem;
    return gpt_memory_get(n_elems * elem);
}

/* Allocate moment @which in its format. False: out of memory. */
static bool moment_open(struct gpt_local *local, struct gpt_local_chunk *chunk, unsigned which)
{
    const enum cst_moments format = local->config.moments;
    struct cst_update_moment *moment = &chunk->rows.moments[which];

    moment->values = row_get(local, cst_table_moment_bytes(format, chunk->n_elems), 1);
    if (moment->values != NULL && format == CST_MOMENTS_MX8) {
        moment->exponents = (uint8_t *)moment->values + chunk->n_elems;
    }
    return moment->values != NULL;
}

/* Allocate the master row in its format. False: out of memory. */
static bool masters_open(struct gpt_local *local, struct gpt_local_chunk *chunk)
{
    struct cst_rows *rows = &chunk->rows;

    if (local->config.masters == CST_MASTERS_SPLIT) {
        rows->remainder = row_get(local, chunk->n_elems, sizeof *rows->remainder);
        return rows->remainder != NULL;
    }
    rows->master = row_get(local, chunk->n_elems, sizeof *rows->master);
    return rows->master != NULL;
}

static bool chunk_open(struct gpt_local *local, struct gpt_local_chunk *chunk)
{
    struct cst_rows *rows = &chunk->rows;
    bool ok;

    rows->weight = chunk->newest = row_get(local, chunk->n_elems, sizeof(uint16_t));
    ok = rows->weight != NULL;
    if (!ok || !chunk->has_states) {
        return ok;
    }
    ok = masters_open(local, chunk);
    for (unsigned i = 0; ok && i < cst_optimizer_n_moments(local->config.optimizer); i++) {
        ok = moment_open(local, chunk, i);
    }
    /* A delayed update must not change the weights that operators use. */
    if (ok && local->config.overlap == CST_OVERLAP_DELAYED) {
        chunk->spare = row_get(local, chunk->n_elems, sizeof(uint16_t));
        ok = chunk->spare != NULL;
    }
    if (ok && local->config.micro_batches > 1) {
        rows->grad_f32 = row_get(local, chunk->n_elems, sizeof(float));
        ok = rows->grad_f32 != NULL;
    }
    return ok;
}

/* Allocate the gradients of @rank. Called for the ranks in their order. */
static bool rank_open(struct gpt_local *local, uint32_t rank)
{
    struct gpt_local_rank *r = &local->ranks[rank];

    r->grads = calloc(local->n_chunks, sizeof *r->grads);
    r->written = calloc(local->model->n_tensors, sizeof *r->written);
    if (r->grads == NULL || r->written == NULL) {
        return false;
    }
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        struct gpt_local_chunk *chunk = &local->chunks[c];

        if (chunk->has_states && gpt_local_in_group(chunk->group, rank)) {
            r->grads[c] = row_get(local, chunk->n_elems, sizeof(uint16_t));
            if (r->grads[c] == NULL) {
                return false;
            }
            /* The gradient of the group's first rank is also the chunk's row for the sum. */
            if (chunk->rows.grad == NULL && local->config.micro_batches == 1) {
                chunk->rows.grad = r->grads[c];
            }
        }
    }
    return true;
}

int gpt_local_states_open(struct gpt_local *local, struct cst_err *err)
{
    int rc = lay_out(local, err);
    bool ok;

    if (rc == 0) {
        rc = table_open(local, err);
    }
    if (rc != 0) {
        return rc;
    }
    local->ranks = calloc(local->world, sizeof *local->ranks);
    ok = local->ranks != NULL;
    for (uint32_t c = 0; ok && c < local->n_chunks; c++) {
        ok = chunk_open(local, &local->chunks[c]);
    }
    for (uint32_t r = 0; ok && r < local->world; r++) {
        ok = rank_open(local, r);
    }
    return ok ? 0
              : cst_err_set(err, CST_ENOMEM, "out of memory: states of %llu parameters, %u ranks",
                            (unsigned long long)local->model->n_params, local->world);
}

void gpt_local_states_close(struct gpt_local *local)
{
    for (uint32_t r = 0; local->ranks != NULL && r < local->world; r++) {
        for (uint32_t c = 0; local->ranks[r].grads != NULL && c < local->n_chunks; c++) {
            gpt_memory_put(local->ranks[r].grads[c]);
        }
        free(local->ranks[r].grads);
        free(local->ranks[r].written);
    }
    free(local->ranks);
    for (uint32_t c = 0; c < local->n_chunks; c++) {
        gpt_memory_put(local->chunks[c].rows.weight);
        gpt_memory_put(local->chunks[c].spare);
        gpt_memory_put(local->chunks[c].rows.master);
        gpt_memory_put(local->chunks[c].rows.remainder);
        gpt_memory_put(local->chunks[c].rows.moments[0].values);
        gpt_memory_put(local->chunks[c].rows.moments[1].values);
        gpt_memory_put(local->chunks[c].rows.grad_f32);
    }
    free(local->chunks);
    free(local->places);
    gpt_memory_put(local->table);
}
