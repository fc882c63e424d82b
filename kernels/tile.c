#include "kernels/tile.h"

#include <assert.h>
#include <stddef.h>

void cst_tile_walk_start(struct cst_tile_walk *walk, const struct cst_tile_work *work,
                         uint64_t first, uint64_t count)
{
    const struct cst_table_chunk *chunk = &cst_table_chunks(work->table)[work->chunk];
    const struct cst_table_span *spans = cst_table_spans(work->table);

    *walk = (struct cst_tile_walk){.work = work,
                                   .span = chunk->first_span,
                                   .end_span = chunk->first_span + chunk->n_spans,
                                   .span_tile = first,
                                   .left = count};
    while (walk->span < walk->end_span) {
        uint64_t n_tiles = cst_table_n_tiles(spans[walk->span].n_elems);

        if (walk->span_tile < n_tiles) {
            break;
        }
        walk->span_tile -= n_tiles;
        walk->span++;
    }
}

/* The span of the next tile, NULL at the end. A tensor of no elements has no tiles. */
static const struct cst_table_span *span_of(struct cst_tile_walk *walk)
{
    const struct cst_table_span *spans = cst_table_spans(walk->work->table);

    while (walk->left > 0 && walk->span < walk->end_span) {
        if (walk->span_tile < cst_table_n_tiles(spans[walk->span].n_elems)) {
            return &spans[walk->span];
        }
        walk->span++;
        walk->span_tile = 0;
    }
    return NULL;
}

const struct cst_table_span *cst_tile_walk_next(struct cst_tile_walk *walk, struct cst_tile *tile)
{
    const struct cst_tile_work *work = walk->work;
    const struct cst_table_span *span = span_of(walk);
    uint64_t done = walk->span_tile * CST_TILE_ELEMS;
    uint64_t left;

    if (span == NULL) {
        return NULL;
    }
    left = span->n_elems - done;
    *tile = (struct cst_tile){
        .number = span->first_tile + walk->span_tile,
        .start = span->start + done,
        .mark = work->mark,
        .n_elems = (uint32_t)(left < CST_TILE_ELEMS ? left : CST_TILE_ELEMS),
        .table = work->table_id,
        .chunk = work->chunk,
        .accumulate = work->accumulate,
    };
    assert(tile->number < work->table->n_tiles);
    tile->entry = &cst_table_tiles(work->table)[tile->number];
    walk->span_tile++;
    walk->left--;
    return span;
}

bool cst_tile_update(const struct cst_kernels *kernels, const struct cst_adamw *hyper,
                     const struct cst_rows *rows, const struct cst_tile *tile,
                     struct cst_undo_slot *undo)
{
    uint64_t at = tile->start;
    float *master = rows->master + at;
    float *exp_avg = (float *)rows->moments[0].values + at;
    float *exp_avg_sq = (float *)rows->moments[1].values + at;
    uint16_t *weight = rows->weight + at;

    if (tile->entry->update_mark == (uint32_t)tile->mark) {
        return false;
    }
    if (undo != NULL) {
        cst_undo_begin_update(undo, tile, hyper);
    }
    if (rows->grad_f32 != NULL && undo != NULL) {
        kernels->adamw_undo_f32(hyper, tile->n_elems, rows->grad_f32 + at, master, exp_avg,
                                exp_avg_sq, weight, &undo->states);
    } else if (rows->grad_f32 != NULL) {
        kernels->adamw_f32(hyper, tile->n_elems, rows->grad_f32 + at, master, exp_avg, exp_avg_sq,
                           weight);
    } else if (undo != NULL) {
        kernels->adamw_undo(hyper, tile->n_elems, rows->grad + at, master, exp_avg, exp_avg_sq,
                            weight, &undo->states);
    } else {
        kernels->adamw(hyper, tile->n_elems, rows->grad + at, master, exp_avg, exp_avg_sq, weight);
    }
    cst_undo_end(undo, tile, CST_UNDO_UPDATE);
    return true;
}

/* The slot that an addition to the fp32 row needs, holding its old gradients; NULL: none, as it is
 * only written. */
static struct cst_undo_slot *begin_accumulate(struct cst_undo_slot *undo,
                                              const struct cst_tile *tile, const float *grad)
{
    if (undo == NULL || !tile->accumulate) {
        return NULL;
    }
    cst_undo_begin_accumulate(undo, tile, grad);
    return undo;
}

static void reduce_f32(const struct cst_kernels *kernels, uint32_t n_src, const uint16_t *const *at,
                       float *grad, const struct cst_tile *tile, struct cst_undo_slot *undo)
{
    undo = begin_accumulate(undo, tile, grad);
    tile->entry->sum_squares =
        kernels->accumulate(tile->n_elems, n_src, at, tile->accumulate, grad);
    cst_undo_end(undo, tile, CST_UNDO_ACCUMULATE);
}

static void reduce_bf16(const struct cst_kernels *kernels, uint32_t n_src,
                        const uint16_t *const *at, uint16_t *grad, const struct cst_tile *tile,
                        struct cst_undo_slot *undo)
{
    bool in_place = false;

    for (uint32_t r = 0; r < n_src; r++) {
        in_place = in_place || at[r] == grad;
    }
    if (!in_place) {
        undo = NULL;
    }
    if (undo != NULL) {
        cst_undo_begin_reduce(undo, tile, grad);
    }
    tile->entry->sum_squares = kernels->reduce(tile->n_elems, n_src, at, grad);
    cst_undo_end(undo, tile, CST_UNDO_REDUCE);
}

bool cst_tile_reduce(const struct cst_kernels *kernels, uint32_t n_src, const uint16_t *const *src,
                     const struct cst_rows *rows, const struct cst_tile *tile,
                     struct cst_undo_slot *undo)
{
    const uint16_t *at[CST_TILE_MAX_SRC];

    assert(n_src <= CST_TILE_MAX_SRC);
    if (tile->entry->reduce_mark == (uint32_t)tile->mark) {
        return false;
    }
    for (uint32_t r = 0; r < n_src; r++) {
        at[r] = src[r] + tile->start;
    }
    if (rows->grad_f32 != NULL) {
        reduce_f32(kernels, n_src, at, rows->grad_f32 + tile->start, tile, undo);
    } else {
        reduce_bf16(kernels, n_src, at, rows->grad + tile->start, tile, undo);
    }
    return true;
}

bool cst_tile_reduce_sum(const struct cst_kernels *kernels, const float *sum,
                         const struct cst_rows *rows, const struct cst_tile *tile)
{
    assert(!tile->accumulate);
    if (tile->entry->reduce_mark == (uint32_t)tile->mark) {
        return false;
    }
    tile->entry->sum_squares =
        kernels->accumulate_sum(tile->n_elems, sum, rows->grad_f32 + tile->start);
    cst_undo_end(NULL, tile, CST_UNDO_ACCUMULATE);
    return true;
}

uint64_t cst_tile_count(const struct cst_tile_work *work)
{
    const struct cst_table_chunk *chunk = &cst_table_chunks(work->table)[work->chunk];
    const struct cst_table_span *spans = cst_table_spans(work->table) + chunk->first_span;
    uint64_t n = 0;

    for (uint32_t i = 0; i < chunk->n_spans; i++) {
        n += cst_table_n_tiles(spans[i].n_elems);
    }
    return n;
}

uint64_t cst_tile_update_range(const struct cst_tile_work *work, const struct cst_tile_hyper *hyper,
                               uint64_t first, uint64_t count, struct cst_undo_slot *undo)
{
    const struct cst_table_span *prepared = NULL;
    const struct cst_table_span *span;
    struct cst_adamw adamw;
    struct cst_tile tile;
    struct cst_tile_walk walk;
    uint64_t n_elems = 0;

    cst_tile_walk_start(&walk, work, first, count);
    while ((span = cst_tile_walk_next(&walk, &tile)) != NULL) {
        if (span != prepared) {
            cst_adamw_prepare(
                &adamw, hyper->lr * (double)span->lr_scale, hyper->beta1, hyper->beta2, hyper->eps,
                hyper->weight_decay * (double)span->decay_scale, hyper->grad_scale, work->mark);
            prepared = span;
        }
        if (cst_tile_update(work->kernels, &adamw, &work->rows, &tile, undo)) {
            n_elems += tile.n_elems;
        }
    }
    return n_elems;
}

uint64_t cst_tile_reduce_range(const struct cst_tile_work *work, uint32_t n_src,
                               const uint16_t *const *src, uint64_t first, uint64_t count,
                               struct cst_undo_slot *undo)
{
    struct cst_tile tile;
    struct cst_tile_walk walk;
    uint64_t n_elems = 0;

    cst_tile_walk_start(&walk, work, first, count);
    while (cst_tile_walk_next(&walk, &tile) != NULL) {
        if (cst_tile_reduce(work->kernels, n_src, src, &work->rows, &tile, undo)) {
            n_elems += tile.n_elems;
        }
    }
    return n_elems;
}
