/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/tile.h"

#include "kernels/math/moments.h"
#include "proto/grad_limit.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

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

/* Returns the span of the next tile; NULL at the end. A tensor without elements has no tiles. */
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
        .fp32 = cst_tile_src_dtype(work) == CST_FP32,
        .row = work->row,
    };
    assert(tile->number < work->table->n_tiles);
    if (work->batch != NULL) {
        uint32_t number = (uint32_t)(span - work->batch->spans);

        tile->direction = cst_muon_values(work->batch, number, true) + done;
    }
    tile->entry = &cst_table_tiles(work->table)[tile->number];
    walk->span_tile++;
    walk->left--;
    return span;
}

/* Gradients of a tile, in one of two formats. The other pointer is NULL. */
struct grads {
    const uint16_t *bf16;
    const float *fp32;
    const uint16_t *direction; /* MUON: the tile's orthogonalised directions. */
};

static enum cst_optimizer optimizer_of(const struct cst_tile_work *work)
{
    return cst_table_optimizer(work->table, &cst_table_chunks(work->table)[work->chunk]);
}

/* Returns the rows of @tile from its element @first on. The rows are read at work->rows and written
 * at @out. */
static struct cst_update_rows rows_at(const struct cst_tile_work *work, const struct cst_rows *out,
                                      const struct cst_tile *tile, struct grads grads,
                                      uint32_t first)
{
    const enum cst_moments format = (enum cst_moments)work->table->moments;
    const unsigned n = cst_optimizer_n_moments(optimizer_of(work));
    const struct cst_rows *in = &work->rows;
    uint64_t at = tile->start + first;
    struct cst_update_rows rows = {.grad_bf16 = grads.bf16 != NULL ? grads.bf16 + first : NULL,
                                   .grad_fp32 = grads.fp32 != NULL ? grads.fp32 + first : NULL,
                                   .direction =
                                       grads.direction != NULL ? grads.direction + first : NULL,
                                   .weight = out->weight != NULL ? out->weight + at : NULL};

    if (out->master != NULL) {
        rows.master_in = (in->master_in != NULL ? in->master_in : in->master) + at;
        rows.master = out->master + at;
    } else {
        rows.weight_in = in->weight_in + at;
        rows.remainder_in = in->remainder + at;
        rows.remainder = out->remainder + at;
    }
    for (unsigned k = 0; k < n; k++) {
        rows.moments_in[k] = cst_moments_at(format, &in->moments[k], at);
        rows.moments[k] = cst_moments_at(format, &out->moments[k], at);
    }
    return rows;
}

/* Update the elements of @tile from @first on. Returns the bytes read and written, without sums of
 * contributions, which are in cache. */
static uint64_t run_kernel(const struct cst_tile_work *work, const struct cst_rows *out,
                           const struct cst_update_scalars *scalars, const struct cst_tile *tile,
                           struct grads grads, uint32_t first, struct cst_update_undo *undo)
{
    const struct cst_table_header *table = work->table;
    struct cst_update_rows rows = rows_at(work, out, tile, grads, first);
    const uint16_t *next[CST_TILE_MAX_SRC];
    const struct cst_update_random random = {
        .seed = table->seed, .t = tile->mark, .element = tile->number * CST_TILE_ELEMS + first};

    /* The contributions to the next tile are summed next. */
    for (uint32_t r = 0; r < work->n_src; r++) {
        next[r] = work->src[r] + tile->start + tile->n_elems;
    }
    rows.next = next;
    rows.n_next = work->n_src;
    work->kernels->update->v[optimizer_of(work)][table->moments][table->rounding](
        scalars, &random, tile->n_elems - first, &rows, undo);
    if (work->n_src > 0) {
        /* The sums of the contributions are in cache and are not counted. */
        rows.grad_bf16 = NULL;
        rows.grad_fp32 = NULL;
    }
    return cst_update_bytes(&rows, (enum cst_moments)table->moments, tile->n_elems - first);
}

/* Returns the bytes of @n_src contributions to @tile. */
static uint64_t src_bytes(uint32_t n_src, const struct cst_tile *tile)
{
    return (uint64_t)n_src * tile->n_elems * (tile->fp32 ? sizeof(float) : sizeof(uint16_t));
}

/* Sum the contributions into @sums, as cst_tile_reduce does into the grad row. */
static struct grads sum_tile(const struct cst_tile_work *work, const struct cst_tile *tile,
                             union cst_undo_grads *sums, uint64_t *bytes)
{
    const uint16_t *at[CST_TILE_MAX_SRC];

    assert(work->n_src <= CST_TILE_MAX_SRC && !tile->fp32);
    for (uint32_t r = 0; r < work->n_src; r++) {
        at[r] = work->src[r] + tile->start;
    }
    *bytes += src_bytes(work->n_src, tile);
    if (work->table->grad_bytes == sizeof(float)) {
        tile->entry->sum_squares =
            work->kernels->accumulate(tile->n_elems, work->n_src, at, false, sums->fp32);
        return (struct grads){.fp32 = sums->fp32};
    }
    tile->entry->sum_squares = work->kernels->reduce(tile->n_elems, work->n_src, at, sums->bf16);
    return (struct grads){.bf16 = sums->bf16};
}

static struct grads grad_row(const struct cst_tile_work *work, const struct cst_tile *tile)
{
    const struct cst_rows *rows = &work->rows;

    return (struct grads){.bf16 = rows->grad != NULL ? rows->grad + tile->start : NULL,
                          .fp32 = rows->grad_f32 != NULL ? rows->grad_f32 + tile->start : NULL,
                          .direction = tile->direction};
}

/* Write the weights of @n elements whose states stay: the gradient may have overwritten the
 * weights, or another weight row is written. Returns the bytes read and written. */
static uint64_t keep_weights(const struct cst_tile_work *work, const struct cst_update_rows *rows,
                             size_t n)
{
    if (rows->weight == NULL) {
        if (rows->master == rows->master_in) {
            return 0;
        }
        memcpy(rows->master, rows->master_in, n * sizeof *rows->master);
        return 2 * n * sizeof *rows->master;
    }
    if (rows->master_in != NULL) {
        work->kernels->cast(n, rows->master_in, rows->weight);
        return n * (sizeof *rows->master_in + sizeof *rows->weight);
    }
    if (rows->weight == rows->weight_in) {
        return 0;
    }
    memcpy(rows->weight, rows->weight_in, n * sizeof *rows->weight);
    return 2 * n * sizeof *rows->weight;
}

/* Copy the states of @n elements, which are written elsewhere, except the weights. Returns the
 * bytes read and written. */
static uint64_t keep_states(struct cst_update_rows rows, enum cst_moments format, size_t n)
{
    if (rows.weight == NULL) {
        rows.master = NULL; /* The weights have been copied. */
        rows.master_in = NULL;
    } else if (rows.master != NULL) {
        memcpy(rows.master, rows.master_in, n * sizeof *rows.master);
    } else {
        memcpy(rows.remainder, rows.remainder_in, n * sizeof *rows.remainder);
    }
    for (int k = 0; k < CST_MAX_MOMENTS && rows.moments[k].values != NULL; k++) {
        memcpy(rows.moments[k].values, rows.moments_in[k].values,
               n * cst_moments_elem_bytes(format));
        if (rows.moments[k].exponents != NULL) {
            memcpy(rows.moments[k].exponents, rows.moments_in[k].exponents,
                   (n + CST_UPDATE_GROUP - 1) / CST_UPDATE_GROUP);
        }
    }
    rows.weight = NULL;
    rows.weight_in = NULL;
    return cst_update_bytes(&rows, format, n);
}

/* Keep the states of the tile. Out of place, the states are copied to @out. Returns the bytes read
 * and written. */
static uint64_t keep_tile(const struct cst_tile_work *work, const struct cst_rows *out,
                          const struct cst_tile *tile)
{
    struct cst_update_rows rows = rows_at(work, out, tile, (struct grads){0}, 0);
    uint64_t bytes = keep_weights(work, &rows, tile->n_elems);

    /* In place, the states are in their rows already. */
    return work->elsewhere
               ? bytes + keep_states(rows, (enum cst_moments)work->table->moments, tile->n_elems)
               : bytes;
}

static enum cst_undo_kind undo_kind(const struct cst_tile_work *work)
{
    return work->n_src > 0 ? CST_UNDO_FUSED : work->batch != NULL ? CST_UNDO_MUON : CST_UNDO_UPDATE;
}

/* Returns whether the states of @tile stay, because its tensor has no gradient or the guard spares
 * the tile. Without contributions, the sum of squares is the one that REDUCE stored. */
static bool is_spared(const struct cst_tile_work *work, const struct cst_tile *tile,
                      float grad_scale)
{
    return tile->spared || (work->batch == NULL && work->guard &&
                            !cst_grad_limit_holds(tile->entry->sum_squares, grad_scale));
}

/* Update @tile. Contributions are summed in @sums first. Returns the bytes read and written. */
static uint64_t update_tile(const struct cst_tile_work *work, const struct cst_rows *out,
                            const struct cst_update_scalars *scalars, const struct cst_tile *tile,
                            union cst_undo_grads *sums, struct cst_undo_slot *undo)
{
    uint64_t bytes = 0;
    struct grads grads =
        work->n_src > 0 ? sum_tile(work, tile, sums, &bytes) : grad_row(work, tile);

    if (is_spared(work, tile, scalars->grad_scale)) {
        return bytes + keep_tile(work, out, tile);
    }
    if (undo != NULL && work->batch != NULL) {
        /* A restored tile finds its directions in the slot. */
        memcpy(undo->grads.bf16, tile->direction, tile->n_elems * sizeof *tile->direction);
    }
    if (undo != NULL) {
        cst_undo_begin_update(undo, undo_kind(work), tile, scalars, work->other_weight);
    }
    return bytes +
           run_kernel(work, out, scalars, tile, grads, 0, undo != NULL ? &undo->states : NULL);
}

bool cst_tile_update(const struct cst_tile_work *work, const struct cst_update_scalars *scalars,
                     const struct cst_tile *tile, struct cst_undo_slot *undo,
                     struct cst_tile_done *done)
{
    /* Holds the sums of contributions if there is no slot. */
    union cst_undo_grads sums;

    if (work->elsewhere) {
        done->bytes += update_tile(work, &work->out, scalars, tile, &sums, NULL);
        done->n_elems += tile->n_elems;
        return true;
    }
    if (tile->entry->update_mark == (uint32_t)tile->mark) {
        return false;
    }
    done->bytes +=
        update_tile(work, &work->rows, scalars, tile, undo != NULL ? &undo->grads : &sums, undo);
    done->n_elems += tile->n_elems;
    cst_undo_end(undo, tile, undo_kind(work));
    return true;
}

void cst_tile_finish_update(const struct cst_tile_work *work, const struct cst_tile *tile,
                            struct cst_undo_slot *slot)
{
    uint32_t first = cst_update_undo_first(slot->states.held);
    struct grads grads = grad_row(work, tile);

    if (slot->kind == CST_UNDO_FUSED) {
        grads = work->table->grad_bytes == sizeof(float) ? (struct grads){.fp32 = slot->grads.fp32}
                                                         : (struct grads){.bf16 = slot->grads.bf16};
    }
    if (slot->kind == CST_UNDO_MUON) {
        grads.direction = slot->grads.bf16;
    }
    slot->states.base = first;
    (void)run_kernel(work, &work->rows, &slot->scalars, tile, grads, first, &slot->states);
    cst_update_fence();
}

/* Sum the contributions into the elements of @tile of the fp32 row @grad, or add them. Returns the
 * sum of squares. */
static double accumulate(const struct cst_kernels *kernels, uint32_t n_src, const void *const *src,
                         float *grad, const struct cst_tile *tile)
{
    const uint16_t *bf16[CST_TILE_MAX_SRC];
    const float *fp32[CST_TILE_MAX_SRC];

    if (tile->fp32) {
        for (uint32_t r = 0; r < n_src; r++) {
            fp32[r] = (const float *)src[r] + tile->start;
        }
        return kernels->accumulate_fp32(tile->n_elems, n_src, fp32, tile->accumulate,
                                        grad + tile->start);
    }
    for (uint32_t r = 0; r < n_src; r++) {
        bf16[r] = (const uint16_t *)src[r] + tile->start;
    }
    return kernels->accumulate(tile->n_elems, n_src, bf16, tile->accumulate, grad + tile->start);
}

static bool is_source(const void *row, uint32_t n_src, const void *const *src)
{
    bool found = false;

    for (uint32_t r = 0; r < n_src; r++) {
        found = found || src[r] == row;
    }
    return found;
}

/* Sum into the fp32 row @grad. Returns the bytes read and written. */
static uint64_t reduce_f32(const struct cst_kernels *kernels, uint32_t n_src,
                           const void *const *src, float *grad, const struct cst_tile *tile,
                           struct cst_undo_slot *undo)
{
    /* If the row is not read, the command can be repeated from unchanged sources. */
    if (!tile->accumulate && !is_source(grad, n_src, src)) {
        undo = NULL;
    }
    if (undo != NULL) {
        cst_undo_begin_accumulate(undo, tile, grad + tile->start);
    }
    tile->entry->sum_squares = accumulate(kernels, n_src, src, grad, tile);
    cst_undo_end(undo, tile, CST_UNDO_ACCUMULATE);
    return src_bytes(n_src, tile) + tile->n_elems * sizeof *grad * (tile->accumulate ? 2 : 1);
}

/* Sum into the bf16 row @grad. Returns the bytes read and written. */
static uint64_t reduce_bf16(const struct cst_kernels *kernels, uint32_t n_src,
                            const void *const *src, uint16_t *grad, const struct cst_tile *tile,
                            struct cst_undo_slot *undo)
{
    const uint16_t *at[CST_TILE_MAX_SRC];

    for (uint32_t r = 0; r < n_src; r++) {
        at[r] = (const uint16_t *)src[r] + tile->start;
    }
    if (!is_source(grad, n_src, src)) {
        undo = NULL;
    }
    if (undo != NULL) {
        cst_undo_begin_reduce(undo, tile, grad + tile->start);
    }
    tile->entry->sum_squares = kernels->reduce(tile->n_elems, n_src, at, grad + tile->start);
    cst_undo_end(undo, tile, CST_UNDO_REDUCE);
    return src_bytes(n_src, tile) + tile->n_elems * sizeof *grad;
}

bool cst_tile_reduce(const struct cst_kernels *kernels, uint32_t n_src, const void *const *src,
                     const struct cst_rows *rows, const struct cst_tile *tile,
                     struct cst_undo_slot *undo, struct cst_tile_done *done)
{
    assert(n_src <= CST_TILE_MAX_SRC && (!tile->fp32 || rows->grad_f32 != NULL));
    if (tile->entry->reduce_mark == (uint32_t)tile->mark) {
        return false;
    }
    if (rows->grad_f32 != NULL) {
        done->bytes += reduce_f32(kernels, n_src, src, rows->grad_f32, tile, undo);
    } else {
        done->bytes += reduce_bf16(kernels, n_src, src, rows->grad, tile, undo);
    }
    done->n_elems += tile->n_elems;
    return true;
}

bool cst_tile_reduce_sum(const struct cst_kernels *kernels, const float *sum,
                         const struct cst_rows *rows, const struct cst_tile *tile,
                         struct cst_tile_done *done)
{
    assert(!tile->accumulate);
    if (tile->entry->reduce_mark == (uint32_t)tile->mark) {
        return false;
    }
    tile->entry->sum_squares =
        kernels->accumulate_fp32(tile->n_elems, 1, &sum, false, rows->grad_f32 + tile->start);
    cst_undo_end(NULL, tile, CST_UNDO_ACCUMULATE);
    done->bytes += tile->n_elems * sizeof *rows->grad_f32;
    done->n_elems += tile->n_elems;
    return true;
}

enum cst_dtype cst_tile_dtype(const struct cst_tile_work *work)
{
    return (enum cst_dtype)cst_table_chunks(work->table)[work->chunk].dtype;
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

/* Compute the scalars of @span. */
static void prepare(const struct cst_tile_work *work, const struct cst_tile_hyper *hyper,
                    const struct cst_table_span *span, struct cst_update_scalars *out)
{
    double lr = hyper->lr * cst_table_lr(work->table, span, work->mark);
    double decay = hyper->weight_decay * cst_table_decay(work->table, span, work->mark);

    if (work->batch != NULL) {
        cst_update_prepare_muon(out, lr, decay, hyper->grad_scale, span->rows, span->columns);
    } else {
        cst_update_prepare(out, lr, hyper->beta1, hyper->beta2, hyper->eps, decay,
                           hyper->grad_scale, cst_table_step(work->table, span, work->mark));
    }
}

bool cst_tile_spares(const struct cst_tile_work *work, const struct cst_table_span *span,
                     float grad_scale)
{
    const struct cst_table_tile *tiles = cst_table_tiles(work->table) + span->first_tile;
    bool holds = !cst_table_is_idle(work->table, span, work->mark);

    if (work->batch == NULL) {
        return !holds;
    }
    for (uint64_t i = 0; work->guard && i < cst_table_n_tiles(span->n_elems) && holds; i++) {
        holds = cst_grad_limit_holds(tiles[i].sum_squares, grad_scale);
    }
    return !holds;
}

struct cst_tile_done cst_tile_update_range(const struct cst_tile_work *work,
                                           const struct cst_tile_hyper *hyper, uint64_t first,
                                           uint64_t count, struct cst_undo_slot *undo)
{
    const struct cst_table_span *prepared = NULL;
    const struct cst_table_span *span;
    struct cst_update_scalars scalars;
    struct cst_tile tile;
    struct cst_tile_walk walk;
    struct cst_tile_done done = {0};
    bool spared = false;

    cst_tile_walk_start(&walk, work, first, count);
    while ((span = cst_tile_walk_next(&walk, &tile)) != NULL) {
        if (span != prepared) {
            prepare(work, hyper, span, &scalars);
            spared = cst_tile_spares(work, span, hyper->grad_scale);
            prepared = span;
        }
        tile.spared = spared;
        (void)cst_tile_update(work, &scalars, &tile, undo, &done);
    }
    cst_update_fence();
    return done;
}

/* Compute the directions of @tile and store them at @out, which has whole groups. */
static void direct_tile(const struct cst_tile_work *work, const struct cst_update_scalars *scalars,
                        const struct cst_tile *tile, uint16_t *out)
{
    const enum cst_moments format = (enum cst_moments)work->table->moments;
    struct grads grads = grad_row(work, tile);
    size_t n = tile->n_elems, whole = n - n % CST_UPDATE_GROUP;
    alignas(64) float m[CST_TILE_ELEMS];
    union {
        uint16_t bf16[CST_UPDATE_GROUP];
        float fp32[CST_UPDATE_GROUP];
    } rest = {0};

    memset(m + whole, 0, (CST_TILE_ELEMS - whole) * sizeof *m);
    cst_moments_decode(format, 0, tile->start, n, &work->rows.moments[0], m);
    work->kernels->direction(whole, scalars, grads.bf16, grads.fp32, m, out);
    if (whole == n) {
        return;
    }
    /* The gradient may end with the last element. */
    if (grads.bf16 != NULL) {
        memcpy(rest.bf16, grads.bf16 + whole, (n - whole) * sizeof *rest.bf16);
    } else {
        memcpy(rest.fp32, grads.fp32 + whole, (n - whole) * sizeof *rest.fp32);
    }
    work->kernels->direction(n - whole, scalars, grads.bf16 != NULL ? rest.bf16 : NULL,
                             grads.bf16 != NULL ? NULL : rest.fp32, m + whole, out + whole);
}

struct cst_tile_done cst_tile_direct_range(const struct cst_tile_work *work,
                                           const struct cst_tile_hyper *hyper, uint64_t first,
                                           uint64_t count)
{
    const uint64_t moment = cst_moments_elem_bytes((enum cst_moments)work->table->moments);
    const uint64_t grad = cst_table_grad_bytes(work->table, cst_tile_dtype(work));
    const struct cst_table_span *span;
    struct cst_tile tile;
    struct cst_update_scalars scalars;
    const struct cst_table_span *prepared = NULL;
    struct cst_tile_walk walk;
    struct cst_tile_done done = {0};
    bool spared = false;

    cst_tile_walk_start(&walk, work, first, count);
    while ((span = cst_tile_walk_next(&walk, &tile)) != NULL) {
        uint16_t *out = cst_muon_values(work->batch, (uint32_t)(span - work->batch->spans), false) +
                        (tile.start - span->start);

        if (span != prepared) {
            prepare(work, hyper, span, &scalars);
            spared = cst_tile_spares(work, span, hyper->grad_scale);
            prepared = span;
        }
        if (spared) {
            memset(out, 0, tile.n_elems * sizeof *out);
        } else {
            direct_tile(work, &scalars, &tile, out);
        }
        done.bytes += tile.n_elems * (grad + moment + sizeof *out);
    }
    return done;
}

struct cst_tile_done cst_tile_reduce_range(const struct cst_tile_work *work, uint32_t n_src,
                                           const void *const *src, uint64_t first, uint64_t count,
                                           struct cst_undo_slot *undo)
{
    struct cst_tile tile;
    struct cst_tile_walk walk;
    struct cst_tile_done done = {0};

    cst_tile_walk_start(&walk, work, first, count);
    while (cst_tile_walk_next(&walk, &tile) != NULL) {
        (void)cst_tile_reduce(work->kernels, n_src, src, &work->rows, &tile, undo, &done);
    }
    return done;
}
