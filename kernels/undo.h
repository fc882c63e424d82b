/* SPDX-License-Identifier: Apache-2.0 */
/* Undo slots: what makes a tile's change in place survive `kill -9` of the engine. One slot per
 * engine thread, in a segment of shared memory that outlives the process. Before elements are
 * changed their old values are here; the next engine makes a torn tile whole. This does not guard
 * against a machine that stops: the memory is gone then as well.
 *
 * A slot is EMPTY or HOLDS a tile; one thread owns it.
 *
 *    +---------+   begin: names written;                            +-----------+
 *    |  EMPTY  | -------------------------------------------------> |   HOLDS   |
 *    | no held |   UPDATE: the first group saved, states.held set   | one held  |
 *    |  word   |   REDUCE: the whole tile saved, grad_held set      | word set  |
 *    |         |   ACCUMULATE: same of an fp32 row                 |           |
 *    |         | <------------------------------------------------- |           |
 *    +---------+   end: the tile's mark stored, the word cleared    +-----------+
 *         ^                                                               |
 *         +------- restore, by the next engine ---------------------------+
 *
 *   UPDATE HOLDS   one group after the other is saved and changed (kernels/update_undo.h).
 *                  restore: the group in hand is put back and the tile finished with the scalars in
 *                  the slot, holding again as it goes; then `end`. The tile is new.
 *   FUSED HOLDS    same; the tile's summed gradients are here, so that restoring needs no
 *                  contribution.
 *   REDUCE HOLDS   the old gradients are here while sums are written over them.
 *                  restore: they are put back. The tile is old: the command is to be issued again.
 *   ACCUMULATE HOLDS  same, while a sum is added to them.
 *   mark = the slot's: the kill fell into `end`, the tile is whole; restore clears the word alone.
 *
 * Killed while EMPTY: every tile is old or new (names may be half written; nobody reads them).
 * Killed in restore: restore is done again. A process dies between two instructions with all
 * earlier stores made, as if interrupted by a signal: only the compiler must be held to order. */
#ifndef CST_UNDO_H
#define CST_UNDO_H

#include "kernels/update_undo.h"
#include "proto/table.h"

#include <stdbool.h>

struct cst_tile;      /* kernels/tile.h */
struct cst_tile_work; /* kernels/tile.h */

enum cst_undo_kind {
    CST_UNDO_UPDATE = 1,     /* of master and moments, and of a gradient that the weights replace */
    CST_UNDO_REDUCE = 2,     /* of a bf16 grad row, where it is one of the reduction's sources */
    CST_UNDO_ACCUMULATE = 3, /* of an fp32 grad row that a reduction adds to */
    CST_UNDO_FUSED = 4,      /* of master and moments, in an update from a sum that is no row */
};

/* Gradients of a tile. */
union cst_undo_grads {
    alignas(64) uint16_t bf16[CST_TILE_ELEMS];
    alignas(64) float fp32[CST_TILE_ELEMS];
};

struct cst_undo_slot {
    struct cst_update_undo states;     /* UPDATE, FUSED: the group in hand */
    _Atomic uint32_t grad_held;        /* REDUCE, ACCUMULATE: elements in `grads`; 0: none */
    uint32_t kind;                     /* enum cst_undo_kind */
    uint32_t table;                    /* segment id of the job table */
    uint32_t chunk;                    /* index in the table */
    uint64_t tile;                     /* number in the table */
    uint64_t start;                    /* elements, from the start of the chunk's rows */
    uint64_t mark;                     /* of the command: adam step or reduction number */
    uint32_t n_elems;                  /* of the tile */
    uint32_t other_weight;             /* UPDATE, FUSED: 1: to the chunk's other weight row */
    struct cst_update_scalars scalars; /* UPDATE, FUSED: to finish the tile with */
    union cst_undo_grads grads;        /* REDUCE: old bf16 ones; ACCUMULATE: old fp32 ones; FUSED:
                                          sums, in the format of the job's grad rows */
};

/* Name the tile of an UPDATE, or of a FUSED one, whose sums are in slot->grads, for the kernel with
 * @slot's states. The slot must be EMPTY (a fresh one is all zeros). Its owner. */
void cst_undo_begin_update(struct cst_undo_slot *slot, enum cst_undo_kind kind,
                           const struct cst_tile *tile, const struct cst_update_scalars *scalars,
                           bool other_weight);

/* Name the tile of a REDUCE and save its old gradients @grad (the tile's n_elems); after that they
 * may be changed. The slot must be EMPTY. Its owner. */
void cst_undo_begin_reduce(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const uint16_t *grad);

/* The same for an addition to an fp32 row. */
void cst_undo_begin_accumulate(struct cst_undo_slot *slot, const struct cst_tile *tile,
                               const float *grad);

/* The tile is done: store its mark, FUSED both, then make @slot EMPTY. NULL: no slot. Its owner. */
void cst_undo_end(struct cst_undo_slot *slot, const struct cst_tile *tile, enum cst_undo_kind kind);

/* Does the slot hold a tile? If so table, chunk, kind and other_weight say which rows
 * cst_undo_restore needs: all of them for UPDATE, all but grad for FUSED, grad for the others. Any
 * thread. */
bool cst_undo_holds(const struct cst_undo_slot *slot);

/* Make @slot EMPTY without a look at its tile, which then stays torn: for a job that is gone. */
void cst_undo_drop(struct cst_undo_slot *slot);

/* After the owner died: make the tile that @slot holds whole and the slot EMPTY. @work: resolved
 * from slot->table and slot->chunk, with kernels and rows, rows.weight the one that other_weight
 * says; nothing else of it is used; @chunk_elems: elements of its rows. May
 * itself be killed and called again. Before any command of the dead engine is issued again, for
 * every slot; one thread. CST_EINVAL: the slot's contents cannot be (it was overwritten): nothing
 * is changed, the chunk cannot be trusted. */
int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_tile_work *work,
                     uint64_t chunk_elems);

#endif
