/* SPDX-License-Identifier: Apache-2.0 */
/* Undo slots let a change of a tile in place survive `kill -9` of the engine. There is one slot per
 * thread of the team, in a segment of shared memory that outlives the process. The old values of
 * elements are stored in the slot before the elements are changed, and the next engine restores a
 * torn tile from the slot. The slots do not protect against a machine that stops: the memory is
 * lost.
 *
 * A slot is EMPTY or HOLDS a tile. One thread owns it.
 *
 *      +---------+   begin: tile named;                              +-----------+
 *      |  EMPTY  | ------------------------------------------------> |   HOLDS   |
 *      | no held |   UPDATE: first group saved, states.held set      | one held  |
 *      |  word   |   REDUCE: whole tile saved, grad_held set         | word set  |
 *      |         |   ACCUMULATE: fp32 tile saved, grad_held set      |           |
 *      |         | <------------------------------------------------ |           |
 *      +---------+   end: mark of the tile stored, word cleared      +-----------+
 *           ^                                                              |
 *           +------- restore, by the next engine --------------------------+
 *
 *   UPDATE HOLDS   One group after the other is saved and changed (kernels/math/update_undo.h).
 *                  restore: the old values of what is held are put back, and the tile is finished
 *                  with the scalars in the slot, which goes on holding groups; then `end`. The tile
 *                  is new.
 *   FUSED HOLDS    As UPDATE. The summed gradients of the tile are in the slot; restore needs no
 *                  contributions.
 *   MUON HOLDS     As UPDATE. The orthogonalised directions of the tile are in the slot.
 *   REDUCE HOLDS   The old gradients are in the slot while sums are written over them.
 *                  restore: they are put back. The tile is old, and the command must be repeated.
 *   ACCUMULATE HOLDS  The old gradients are in the slot while a sum is added to them.
 *                  restore: as for REDUCE.
 *   PARTIAL HOLDS  As ACCUMULATE, for a row that the slot names.
 *   BLOCKS HOLDS   No tile, but blocks of MX8 of which a conversion writes a part: it reads the
 *                  rest of the block, and writes it anew with the block's new exponent.
 *                  restore: the old blocks are put back, and the command must be repeated.
 *
 *   If the tile already carries the mark in the slot, the process was killed within `end`. The tile
 *   is complete, and restore only clears the word.
 *
 * If the process is killed while the slot is EMPTY, the tile is old or new; the slot may name a
 * tile incompletely, but nobody reads the name. If the process is killed within restore, restore is
 * repeated. A killed process stops between two instructions, with all earlier stores made, as if
 * interrupted by a signal. Order of stores is therefore a matter of the compiler alone. */
#ifndef CST_UNDO_H
#define CST_UNDO_H

#include "kernels/math/update_undo.h"
#include "proto/table.h"

#include <stdbool.h>

struct cst_tile;      /* Defined in kernels/math/tile.h. */
struct cst_tile_work; /* Defined in kernels/math/tile.h. */

/* What a slot holds. */
enum cst_undo_kind {
    /* Holds master weights, moments, and a gradient that the weights overwrite. */
    CST_UNDO_UPDATE = 1,
    /* Holds a bf16 grad row that is one of the sources of the reduction. */
    CST_UNDO_REDUCE = 2,
    /* Holds an fp32 grad row to which a reduction adds, or that is one of its sources. */
    CST_UNDO_ACCUMULATE = 3,
    /* Holds master and moments in an update whose gradient is summed in the same pass. */
    CST_UNDO_FUSED = 4,
    CST_UNDO_MUON = 5,   /* As UPDATE, and the directions with which Muon updates the tile. */
    CST_UNDO_BLOCKS = 6, /* Holds blocks of MX8, which are written in part. */
    /* As ACCUMULATE, with the row at `row` in place of the grad row of the table. */
    CST_UNDO_PARTIAL = 7,
};

/* A block of MX8 as it was. */
struct cst_undo_block {
    uint32_t segment;         /* Id of the segment in which the block is. */
    uint64_t codes, exponent; /* Offsets in the segment. */
    uint8_t old_codes[CST_UPDATE_GROUP], old_exponent;
};

/* A conversion writes at most two blocks of a moments row in part: those at its ends. */
#define CST_UNDO_MAX_BLOCKS (2 * CST_MAX_MOMENTS)

/* The gradients of a tile, or blocks. */
union cst_undo_grads {
    alignas(64) uint16_t bf16[CST_TILE_ELEMS];
    alignas(64) float fp32[CST_TILE_ELEMS];
    struct cst_undo_block blocks[CST_UNDO_MAX_BLOCKS];
};

/* The undo slot of one thread. */
struct cst_undo_slot {
    struct cst_update_undo states; /* UPDATE, FUSED: the group that is being changed. */
    /* REDUCE, ACCUMULATE, PARTIAL: number of elements in `grads`; BLOCKS: number of blocks; 0:
     * none. */
    _Atomic uint32_t grad_held;
    /* enum cst_undo_kind; `UPDATE` below includes MUON. With BLOCKS, what follows means nothing,
     * but for `grads`. */
    uint32_t kind;
    uint32_t table; /* Segment id of the job table. */
    uint32_t chunk; /* Index of the chunk in the table. */
    uint64_t tile;  /* Number of the tile in the table. */
    uint64_t start; /* Number of elements before the tile in the chunk's rows. */
    /* Mark of the command: the optimizer's step or a reduction number. */
    uint64_t mark;
    uint32_t n_elems; /* Number of elements of the tile. */
    /* UPDATE, FUSED: 1 if the weights are written to the second weight row. */
    uint32_t other_weight;
    union {
        struct cst_update_scalars scalars; /* UPDATE, FUSED: with which the tile is finished. */
        struct cst_place row;              /* PARTIAL: the row that is changed. */
    };
    /* REDUCE: old bf16 gradients. ACCUMULATE, PARTIAL: old fp32 gradients. FUSED: sums in the
     * format of the job's grad rows. MUON: bf16 directions. */
    union cst_undo_grads grads;
};

/* Name in @slot the tile of an UPDATE, MUON or FUSED update. The kernel then saves groups in
 * slot->states. FUSED: the sums are in slot->grads. MUON: the directions are there. The slot must
 * be EMPTY; a new slot is all zeros. Owner thread. */
void cst_undo_begin_update(struct cst_undo_slot *slot, enum cst_undo_kind kind,
                           const struct cst_tile *tile, const struct cst_update_scalars *scalars,
                           bool other_weight);

/* Name in @slot the tile of a REDUCE and save its old gradients @grad (n_elems of the tile). The
 * gradients may be changed after the call. The slot must be EMPTY. Owner thread. */
void cst_undo_begin_reduce(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const uint16_t *grad);

/* Name in @slot the tile of an addition to an fp32 row and save its old gradients @grad. The other
 * rules are those of cst_undo_begin_reduce. */
void cst_undo_begin_accumulate(struct cst_undo_slot *slot, const struct cst_tile *tile,
                               const float *grad);

/* Save @n blocks, at most CST_UNDO_MAX_BLOCKS, which may be changed after the call; cst_undo_drop
 * ends the change. The slot must be EMPTY. Owner thread. */
void cst_undo_begin_blocks(struct cst_undo_slot *slot, const struct cst_undo_block *blocks,
                           uint32_t n);

/* End the change of a tile: store its mark (with FUSED both marks), then make @slot EMPTY. @slot
 * may be NULL: only the marks are stored. Owner thread. */
void cst_undo_end(struct cst_undo_slot *slot, const struct cst_tile *tile, enum cst_undo_kind kind);

/* Returns whether the slot holds a tile. If it does, table, chunk, kind and other_weight say which
 * rows cst_undo_restore needs: all rows for UPDATE, all but the gradient for FUSED, the row at
 * `row` as the grad row for PARTIAL, the grad row for the other kinds. BLOCKS are restored by
 * cst_undo_put_back. Any thread. */
bool cst_undo_holds(const struct cst_undo_slot *slot);

/* Move the tile that @slot holds to @to, which is EMPTY. A process that is killed within the call
 * leaves the tile in @slot, or in both: it is then restored twice, and the second time finds it
 * complete. No command may change the tile between the two. While no thread owns either slot. */
void cst_undo_move(struct cst_undo_slot *slot, struct cst_undo_slot *to);

/* Make @slot EMPTY and leave its tile torn: its job is gone, or the slot is implausible. */
void cst_undo_drop(struct cst_undo_slot *slot);

/* Restore the tile that @slot holds and make the slot EMPTY. Called for every slot, on one thread,
 * after its owner died and before any command of the dead engine is repeated. The call may itself
 * be killed and repeated. @work is found from slot->table and slot->chunk. Only its table, kernels
 * and rows are used; rows.weight is the row that other_weight selects. @chunk_elems is the number
 * of elements of the chunk's rows. CST_EINVAL: the slot is implausible because it was overwritten.
 * Nothing is changed, and the chunk cannot be trusted. */
int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_tile_work *work,
                     uint64_t chunk_elems);

/* Returns the blocks that @slot holds, and their number in *n; NULL: it holds none. */
const struct cst_undo_block *cst_undo_blocks(const struct cst_undo_slot *slot, uint32_t *n);

/* Write the old bytes of @block. @segment: the beginning of the segment, in which it lies. */
void cst_undo_put_back(const struct cst_undo_block *block, void *segment);

#endif
