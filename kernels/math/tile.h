/* SPDX-License-Identifier: Apache-2.0 */
/* Tile loops: reducing and updating a chunk tile by tile, in the engine and in the reference
 * worker's own store. A tile that carries the mark of the command is done and is skipped; a command
 * may therefore be repeated. With an undo slot, a tile can be restored whenever the process is
 * killed (kernels/math/undo.h). This module has no threads: callers hand out ranges of tiles. */
#ifndef CST_TILE_H
#define CST_TILE_H

#include "kernels/math/kernels.h"
#include "kernels/math/muon.h"
#include "kernels/math/undo.h"
#include "kernels/math/update.h"
#include "proto/table.h"

#include <stdbool.h>

/* Addresses of the rows of a chunk. Each points to the first element of the row. A row that a call
 * does not use may be NULL. The moments have the format that the header of the table names. */
struct cst_rows {
    uint16_t *weight; /* bf16 weights. NULL: the master weights are the weights. */
    uint16_t *grad;   /* bf16 gradient. NULL: the gradient is in grad_f32. */
    /* fp32 gradient of fp32 tensors, or of a job with micro-batches. NULL: the gradient is in
     * grad. */
    float *grad_f32;
    float *master; /* fp32 master weights. NULL: master weights are split. */
    /* Master weights that are read. If they are the weights, these may be in another row than
     * `master` when an update begins. NULL: they are in `master`. */
    const float *master_in;
    /* Split masters (kernels/math/split.h): remainders, and the weights to which they belong. When
     * an update begins, these may be in another row than `weight`. */
    int16_t *remainder;
    const uint16_t *weight_in;
    struct cst_update_moment moments[CST_MAX_MOMENTS]; /* Those of the optimizer, by number. */
};

/* One tile of a command. */
struct cst_tile {
    /* Entry of the tile in the table, with its marks and its sum of squares. */
    struct cst_table_tile *entry;
    uint64_t number; /* Number of the tile in the table. */
    uint64_t start;  /* Number of elements before the tile in the chunk's rows. */
    /* Mark of the command: the optimizer's step or a reduction number. */
    uint64_t mark;
    uint32_t n_elems; /* Number of elements, 1 to CST_TILE_ELEMS. */
    uint32_t table;   /* Segment id of the table. */
    uint32_t chunk;   /* Index of the chunk in the table. */
    bool accumulate;  /* REDUCE: add to the grad row, which is fp32. */
    bool fp32;        /* The sources of the gradient are fp32 (cst_tile_src_dtype). */
    /* REDUCE: the row that is written instead of the grad row of the table, for undo slots. */
    struct cst_place row;
    /* MUON: orthogonalised directions of the tile; otherwise NULL. */
    const uint16_t *direction;
    /* UPDATE: the states of the whole tensor stay (cst_tile_spares). */
    bool spared;
};

/* A command on a chunk, shared by the threads that run it. */
struct cst_tile_work {
    const struct cst_kernels *kernels;
    struct cst_table_header *table; /* Mapped table. */
    uint32_t table_id;              /* Segment id of the table, for undo slots. */
    uint32_t chunk;                 /* Index of the chunk in the table. */
    /* UPDATE: step t of the optimizer, from 1. REDUCE: reduction number. */
    uint64_t mark;
    bool accumulate; /* REDUCE: add to the fp32 grad row instead of replacing it. */
    bool partials;   /* REDUCE: the sources are fp32, whatever the type of the tensors. */
    /* REDUCE: the place of rows.grad or rows.grad_f32, if that is not the grad row of the table;
     * else CST_PLACE_NONE. */
    struct cst_place row;
    bool elsewhere; /* UPDATE: out of place, from `rows` to `out`, without marks. */
    /* UPDATE in place: rows.weight, or rows.master of fp32 tensors, is the second weight row. */
    bool other_weight;
    /* UPDATE: a tile whose gradients exceed proto/grad_limit.h keeps its states, and its weights
     * are made from the master weights. By Muon: all tiles of the tensor. */
    bool guard;
    /* Rows of the chunk. UPDATE reads them and, in place, writes them. */
    struct cst_rows rows;
    /* UPDATE out of place: the weight, master and moments rows that are written. */
    struct cst_rows out;
    /* UPDATE of bf16 tensors: contributions in rank order, each from the first element of its row.
     * The contributions are summed in the pass of the update; `rows` then has no gradient. */
    const uint16_t *const *src;
    uint32_t n_src; /* Number of contributions. 0: the gradient is in a row. */
    /* UPDATE by Muon: the batch to which all tiles of the call belong; borrowed. The gradient is in
     * a row, and the update is in place. Otherwise NULL. */
    const struct cst_muon_batch *batch;
};

/* Hyper-parameters of an UPDATE before the scales of a span are applied. */
struct cst_tile_hyper {
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    float grad_scale; /* Loss scale x clip factor. */
};

/* Amount of work done. */
struct cst_tile_done {
    uint64_t n_elems; /* Number of elements of the tiles that had not been done before. */
    /* Bytes of rows and contributions that kernels read plus bytes that they wrote. Data of a tile
     * that stays in cache is not counted: sums on their way to the update, and what an undo slot
     * keeps. */
    uint64_t bytes;
};

/* Update one tile, from the grad row or from the contributions in work->src. With contributions,
 * their sum of squares is stored in the tile's entry. Work done is added to @done.
 * - In place: the mark is stored, and with contributions the note that no REDUCE made the sum.
 *   @undo is the slot of this thread, EMPTY before and after; NULL: no protection. Returns false if
 *   the tile already carries the mark; nothing is then touched.
 * - Out of place: there are no marks, @undo is not used, and the tile may be repeated at any time.
 *
 * Other threads may read the weights after cst_update_fence. Any thread, one thread per tile. */
bool cst_tile_update(const struct cst_tile_work *work, const struct cst_update_scalars *scalars,
                     const struct cst_tile *tile, struct cst_undo_slot *undo,
                     struct cst_tile_done *done);

/* Returns whether @span is one that the update does not change: its tensor had no gradient in the
 * step (cst_table_is_idle) or, by MUON with work->guard, a tile has gradients beyond the limit. The
 * direction of a matrix depends on all its gradients. */
bool cst_tile_spares(const struct cst_tile_work *work, const struct cst_table_span *span,
                     float grad_scale);

/* MUON: compute the directions of tiles [@first, @first + @count) of the chunk, which belong to
 * work->batch, and store them in its scratch. With work->guard, those of a tensor with a tile
 * beyond proto/grad_limit.h are zeros. No state is changed. */
struct cst_tile_done cst_tile_direct_range(const struct cst_tile_work *work,
                                           const struct cst_tile_hyper *hyper, uint64_t first,
                                           uint64_t count);

/* Finish an update for cst_undo_restore: update @tile in place, from the group that @slot holds to
 * the end of the tile. The old values of the group have been put back. The work is not counted. */
void cst_tile_finish_update(const struct cst_tile_work *work, const struct cst_tile *tile,
                            struct cst_undo_slot *slot);

/* Sum the @n_src rows @src (each the first element of a row, in rank order; bf16, or fp32 as
 * tile->fp32 says) into rows->grad, or store the sum in, or add it to, rows->grad_f32. Then store
 * the sum of squares, and the mark last. The grad row may be one of @src if it has their format;
 * @undo then protects it. @undo also protects an fp32 row to which the sum is added. @done and the
 * result are as in cst_tile_update. */
bool cst_tile_reduce(const struct cst_kernels *kernels, uint32_t n_src, const void *const *src,
                     const struct cst_rows *rows, const struct cst_tile *tile,
                     struct cst_undo_slot *undo, struct cst_tile_done *done);

/* Store the first sum of a step, which was made elsewhere, in rows->grad_f32. @sum points to the
 * sum of the first element of the tile. @done and the result are as in cst_tile_reduce. */
bool cst_tile_reduce_sum(const struct cst_kernels *kernels, const float *sum,
                         const struct cst_rows *rows, const struct cst_tile *tile,
                         struct cst_tile_done *done);

/* Most contributions to a reduction: the largest number of ranks of a job. */
#define CST_TILE_MAX_SRC 64

/* Position of a walk through the tiles of a chunk. It may be copied in order to return to it
 * later. */
struct cst_tile_walk {
    const struct cst_tile_work *work; /* The command; borrowed. */
    uint32_t span;                    /* Index of the current span in the table. */
    uint32_t end_span;                /* Index after the last span of the chunk. */
    uint64_t span_tile;               /* Number of tiles of the current span that were passed. */
    uint64_t left;                    /* Number of tiles left to visit. */
};

/* Start a walk over @count tiles from tile @first on, counted through the spans of the chunk. Any
 * thread. */
void cst_tile_walk_start(struct cst_tile_walk *walk, const struct cst_tile_work *work,
                         uint64_t first, uint64_t count);

/* Fill in the next tile, in order of the chunk's elements. Returns the span of the tile; NULL:
 * there is no next tile. */
const struct cst_table_span *cst_tile_walk_next(struct cst_tile_walk *walk, struct cst_tile *tile);

/* Returns whether cst_tile_walk_next would fill in a tile. */
static inline bool cst_tile_walk_has_next(const struct cst_tile_walk *walk)
{
    struct cst_tile_walk ahead = *walk;
    struct cst_tile tile;

    return cst_tile_walk_next(&ahead, &tile) != NULL;
}

/* Returns the type of the chunk's tensors. Any thread. */
enum cst_dtype cst_tile_dtype(const struct cst_tile_work *work);

/* Return the type of the sources of a REDUCE of @work: that of the tensors, or fp32. */
static inline enum cst_dtype cst_tile_src_dtype(const struct cst_tile_work *work)
{
    return work->partials ? CST_FP32 : cst_tile_dtype(work);
}

/* Returns the number of tiles of all spans of a chunk. Any thread. */
uint64_t cst_tile_count(const struct cst_tile_work *work);

/* Update tiles [@first, @first + @count) of the chunk, counted through its spans. Numbers beyond
 * the last tile are ignored. lr and weight decay are multiplied by the scales of each span. Returns
 * what was done, without skipped tiles. Any thread, but the ranges of threads must not overlap. All
 * tiles of a chunk must be done before the caller writes the chunk's update_mark. */
struct cst_tile_done cst_tile_update_range(const struct cst_tile_work *work,
                                           const struct cst_tile_hyper *hyper, uint64_t first,
                                           uint64_t count, struct cst_undo_slot *undo);

/* Reduce tiles [@first, @first + @count) of the chunk with cst_tile_reduce. @n_src is at most
 * CST_TILE_MAX_SRC. The other rules are those of cst_tile_update_range. */
struct cst_tile_done cst_tile_reduce_range(const struct cst_tile_work *work, uint32_t n_src,
                                           const void *const *src, uint64_t first, uint64_t count,
                                           struct cst_undo_slot *undo);

#endif
