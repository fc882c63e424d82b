/* SPDX-License-Identifier: Apache-2.0 */
/* Tile loops: how a chunk is reduced and updated, tile by tile, in the engine and in the reference
 * worker's own store alike. A tile that carries the command's mark is done and is skipped, so a
 * command may be issued again; with an undo slot a tile can be made whole, whenever the process
 * is killed (kernels/undo.h). No threads here: callers hand out ranges of tiles. */
#ifndef CST_TILE_H
#define CST_TILE_H

#include "kernels/kernels.h"
#include "kernels/undo.h"
#include "kernels/update.h"
#include "proto/table.h"

#include <stdbool.h>

/* Where a chunk's rows are mapped; each points to the row's first element. Rows a call does not use
 * may be NULL. Moments are in the format that the table's header says. */
struct cst_rows {
    uint16_t *weight;                    /* bf16 */
    uint16_t *grad;                      /* bf16; NULL: grad_f32 has it */
    float *grad_f32;                     /* fp32, of a job with micro-batches; NULL: grad has it */
    float *master;                       /* fp32 */
    struct cst_update_moment moments[2]; /* exp_avg, exp_avg_sq */
};

/* One tile of a command. */
struct cst_tile {
    struct cst_table_tile *entry; /* its marks and its sum of squares, in the table */
    uint64_t number;              /* in the table */
    uint64_t start;               /* elements from the start of the chunk's rows */
    uint64_t mark;                /* of the command: adam step or reduction number */
    uint32_t n_elems;             /* 1..CST_TILE_ELEMS */
    uint32_t table;               /* segment id of the table */
    uint32_t chunk;               /* index in the table */
    bool accumulate;              /* REDUCE: add to the grad row, which is fp32 */
};

/* A command on a chunk, as its threads share it. */
struct cst_tile_work {
    const struct cst_kernels *kernels;
    struct cst_table_header *table; /* mapped */
    uint32_t table_id;              /* its segment id: undo slots name it */
    uint32_t chunk;                 /* index in the table */
    uint64_t mark;                  /* UPDATE: adam step t, from 1; REDUCE: reduction number */
    bool accumulate;                /* REDUCE into an fp32 grad row: add to what is there */
    bool elsewhere;                 /* UPDATE: out of place, from `rows` to `out`; not marked */
    bool other_weight;              /* UPDATE in place: rows.weight is the chunk's other weight */
    bool guard;                     /* UPDATE: a tile whose gradients are beyond proto/limit.h keeps
                                       its states; its weight is bf16(master) */
    struct cst_rows rows;           /* of the chunk; UPDATE: what is read and, in place, written */
    struct cst_rows out;            /* UPDATE elsewhere: weight, master, moments as written */
    const uint16_t *const *src;     /* UPDATE: contributions in rank order, each from its row's
                                       first element, summed on the way; `rows` has no gradient */
    uint32_t n_src;                 /* how many; 0: the gradient is a row */
};

/* What UPDATE takes, before a span's scales are applied. Doubles that hold the wire's floats. */
struct cst_tile_hyper {
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    float grad_scale; /* loss scale x clip factor */
};

/* What was done. */
struct cst_tile_done {
    uint64_t n_elems; /* of tiles that were not done already */
    uint64_t bytes;   /* of their rows and contributions, counted where a kernel is given them: once
                         for each time that it reads and each time that it writes them. What is a
                         tile's own and stays in cache does not count: sums on their way to the
                         update, what an undo slot keeps */
};

/* Update one tile, from the grad row or from the contributions work->src, whose sum of squares is
 * then stored. In place: store its mark, and with contributions that no REDUCE made the sum. @undo:
 * this thread's slot, EMPTY before and after; NULL: no protection. What was done is
 * added to @done. False: it is done already, nothing was touched. Elsewhere: there are no marks,
 * @undo is not used, and it may be done again from its start at any time. Any thread, one per tile.
 */
bool cst_tile_update(const struct cst_tile_work *work, const struct cst_update_scalars *scalars,
                     const struct cst_tile *tile, struct cst_undo_slot *undo,
                     struct cst_tile_done *done);

/* For cst_undo_restore: update the rest of @tile in place, from the group that @slot holds on,
 * whose old values are in the rows. Nobody counts that. */
void cst_tile_finish_update(const struct cst_tile_work *work, const struct cst_tile *tile,
                            struct cst_undo_slot *slot);

/* Sum the @n_src bf16 rows @src (each pointing to its row's first element, in rank order) into
 * rows->grad, or into or onto rows->grad_f32; store the sum of squares, then the mark. rows->grad
 * may itself be one of @src: then @undo protects it, as it does an fp32 row that is added to.
 * @done, and False, as in cst_tile_update. */
bool cst_tile_reduce(const struct cst_kernels *kernels, uint32_t n_src, const uint16_t *const *src,
                     const struct cst_rows *rows, const struct cst_tile *tile,
                     struct cst_undo_slot *undo, struct cst_tile_done *done);

/* The same into rows->grad_f32 where the contributions of a step's first sum were summed already:
 * @sum points to that of the tile's first element. */
bool cst_tile_reduce_sum(const struct cst_kernels *kernels, const float *sum,
                         const struct cst_rows *rows, const struct cst_tile *tile,
                         struct cst_tile_done *done);

#define CST_TILE_MAX_SRC 64 /* contributions in a reduction: the most ranks of a job */

/* Where a walk through the tiles of a chunk stands. May be copied, to come back to a place. */
struct cst_tile_walk {
    const struct cst_tile_work *work; /* borrowed */
    uint32_t span;                    /* index in the table */
    uint32_t end_span;                /* one past the chunk's last */
    uint64_t span_tile;               /* tiles of this span before the next one */
    uint64_t left;                    /* tiles to go */
};

/* Begin at tile @first of @count, counted from 0 through the chunk's spans. Any thread. */
void cst_tile_walk_start(struct cst_tile_walk *walk, const struct cst_tile_work *work,
                         uint64_t first, uint64_t count);

/* Fill in the next tile, in order of the chunk's elements. Returns its span; NULL: there is none.
 */
const struct cst_table_span *cst_tile_walk_next(struct cst_tile_walk *walk, struct cst_tile *tile);

/* Tiles of a chunk, all its spans together. Any thread. */
uint64_t cst_tile_count(const struct cst_tile_work *work);

/* Update tiles [@first, @first + @count) of the chunk, counted from 0 through its spans; what lies
 * beyond the last is ignored. Each span's lr and weight decay are scaled as the table says. Returns
 * what was done: skipped tiles do not count. Any thread; ranges of
 * threads do not overlap. Every tile of a chunk must be done before the caller writes the chunk's
 * update_mark. */
struct cst_tile_done cst_tile_update_range(const struct cst_tile_work *work,
                                           const struct cst_tile_hyper *hyper, uint64_t first,
                                           uint64_t count, struct cst_undo_slot *undo);

/* Same for cst_tile_reduce. @n_src at most CST_TILE_MAX_SRC. */
struct cst_tile_done cst_tile_reduce_range(const struct cst_tile_work *work, uint32_t n_src,
                                           const uint16_t *const *src, uint64_t first,
                                           uint64_t count, struct cst_undo_slot *undo);

#endif
