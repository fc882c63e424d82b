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
 *   UPDATE HOLDS   one group after the other is saved and changed (kernels/adamw_undo.h).
 *                  restore: the group in hand is put back and the tile finished with the hyper in
 *                  the slot, holding again as it goes; then `end`. The tile is new.
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

#include "kernels/adamw.h"
#include "kernels/adamw_undo.h"
#include "proto/table.h"

#include <stdbool.h>

struct cst_tile;      /* kernels/tile.h */
struct cst_tile_work; /* kernels/tile.h */

enum cst_undo_kind {
    CST_UNDO_UPDATE = 1,     /* of master, exp_avg, exp_avg_sq; the weights are only written */
    CST_UNDO_REDUCE = 2,     /* of a bf16 grad row, where it is one of the reduction's sources */
    CST_UNDO_ACCUMULATE = 3, /* of an fp32 grad row that a reduction adds to */
};

struct cst_undo_slot {
    struct cst_adamw_undo states; /* UPDATE: the group in hand */
    _Atomic uint32_t grad_held;   /* REDUCE, ACCUMULATE: elements in `old`; 0: none */
    uint32_t kind;                /* enum cst_undo_kind */
    uint32_t table;               /* segment id of the job table */
    uint32_t chunk;               /* index in the table */
    uint64_t tile;                /* number in the table */
    uint64_t start;               /* elements, from the start of the chunk's rows */
    uint64_t mark;                /* of the command: adam step or reduction number */
    uint32_t n_elems;             /* of the tile */
    uint32_t pad;                 /* 0 */
    struct cst_adamw hyper;       /* UPDATE: to finish the tile with */
    union {
        alignas(64) uint16_t bf16[CST_TILE_ELEMS]; /* REDUCE */
        float fp32[CST_TILE_ELEMS];                /* ACCUMULATE */
    } old;                                         /* gradients of the tile */
};

/* Name the tile of an UPDATE, for kernels->adamw_undo with @slot's states. The slot must be EMPTY
 * (a fresh one is all zeros). Its owner. */
void cst_undo_begin_update(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const struct cst_adamw *hyper);

/* Name the tile of a REDUCE and save its old gradients @grad (the tile's n_elems); after that they
 * may be changed. The slot must be EMPTY. Its owner. */
void cst_undo_begin_reduce(struct cst_undo_slot *slot, const struct cst_tile *tile,
                           const uint16_t *grad);

/* The same for an addition to an fp32 row. */
void cst_undo_begin_accumulate(struct cst_undo_slot *slot, const struct cst_tile *tile,
                               const float *grad);

/* The tile is done: store its mark, then make @slot EMPTY. NULL: no slot. Its owner. */
void cst_undo_end(struct cst_undo_slot *slot, const struct cst_tile *tile, enum cst_undo_kind kind);

/* Does the slot hold a tile? If so table, chunk and kind say whose rows cst_undo_restore needs: all
 * of them for UPDATE, grad for the others. Any thread. */
bool cst_undo_holds(const struct cst_undo_slot *slot);

/* Make @slot EMPTY without a look at its tile, which then stays torn: for a job that is gone. */
void cst_undo_drop(struct cst_undo_slot *slot);

/* After the owner died: make the tile that @slot holds whole and the slot EMPTY. @work: resolved
 * from slot->table and slot->chunk, its mark is not used; @chunk_elems: elements of its rows. May
 * itself be killed and called again. Before any command of the dead engine is issued again, for
 * every slot; one thread. CST_EINVAL: the slot's contents cannot be (it was overwritten): nothing
 * is changed, the chunk cannot be trusted. */
int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_tile_work *work,
                     uint64_t chunk_elems);

#endif
