/* Undo slots: what makes a tile's change in place survive `kill -9` of the engine. One slot per
 * engine thread, in a segment of shared memory that outlives the process. Before elements are
 * changed their old values are here; the next engine puts a torn tile back, and the command that is
 * issued again redoes it from the same bits. This does not guard against a machine that stops: the
 * memory is gone then as well.
 *
 * A slot's states are the values of one word, `held`. One thread owns the slot and changes it:
 *
 *                                                   save the next s: held += s
 *                                                      +-------+
 *    +----------+   begin: write the names,            |       v
 *    | held = 0 |   then save the first s elements   +-------------+
 *    |  EMPTY   | ---------------------------------> |  held > 0   |
 *    |          | <--------------------------------- |   HOLDS     |
 *    +----------+   clear, after the tile's mark     +-------------+
 *         ^                                                 |
 *         +------- restore, by the next engine -------------+
 *
 *   save      copy elements [held, held + s) from the rows; held += s; now they may be changed
 *   restore   tile's mark = slot's mark: the tile is whole, nothing to put back;
 *             otherwise copy elements [0, held) back: the tile is as it was before the command
 *
 * Killed while EMPTY: every tile is old or new (names may be half written; nobody reads them).
 * Killed while HOLDS: every element that can have changed is below `held`, and its old value is
 * here. Killed in restore: the slot still HOLDS, restore is done again. A process dies between two
 * instructions with all earlier stores made, so the program's order of stores is enough; the fences
 * hold the compiler, and processors with a weaker order, to it.
 *
 *   +--------+------------------------------------------------------+
 *   | header | UPDATE: old master | old exp_avg | old exp_avg_sq    |  64 B + 3 x 16 KiB:
 *   |  64 B  | REDUCE: old grad                                     |  stays in a core's L2
 *   +--------+------------------------------------------------------+ */
#ifndef CST_UNDO_H
#define CST_UNDO_H

#include "proto/table.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Elements saved, then changed, at a time. Measured: large enough that memcpy runs at full speed,
 * small enough that what was saved is still in L1 when it is updated; half a tile costs 3 % over no
 * undo at all, a whole tile 15 %. */
#define CST_UNDO_STRETCH 2048

struct cst_rows; /* kernels/tile.h */
struct cst_tile; /* kernels/tile.h */

enum cst_undo_kind {
    CST_UNDO_UPDATE = 1, /* master, exp_avg, exp_avg_sq; the weight row is only written: the redo
                            writes it whole */
    CST_UNDO_REDUCE = 2, /* grad, where it is one of the reduction's sources */
};

struct cst_undo_slot {
    alignas(64) _Atomic uint32_t
        held;         /* elements from the tile's start whose old values are here; 0: EMPTY */
    uint32_t kind;    /* enum cst_undo_kind */
    uint32_t table;   /* segment id of the job table */
    uint32_t chunk;   /* index in the table */
    uint64_t tile;    /* number in the table */
    uint64_t start;   /* elements, from the start of the chunk's rows to the tile */
    uint64_t mark;    /* of the command: adam step or reduction number */
    uint32_t n_elems; /* of the tile */
    uint32_t pad;     /* 0 */
    union {
        alignas(64) float states[3][CST_TILE_ELEMS]; /* UPDATE: old master, exp_avg, exp_avg_sq */
        alignas(64) uint16_t grad[CST_TILE_ELEMS];   /* REDUCE: old grad */
    } old;                                           /* as many of each as `held` says */
};

/* Name what the following saves belong to. The slot must be EMPTY (a fresh slot is all zeros). Its
 * owner. */
void cst_undo_begin(struct cst_undo_slot *slot, enum cst_undo_kind kind,
                    const struct cst_tile *tile);

/* Save the next @n elements of the tile from @rows, which is the chunk's; after that they may be
 * changed. held + n is at most the tile's n_elems. Its owner. */
void cst_undo_save(struct cst_undo_slot *slot, const struct cst_rows *rows, uint32_t n);

/* EMPTY again; call after the tile's mark was stored. Its owner. */
void cst_undo_clear(struct cst_undo_slot *slot);

/* Does the slot hold a tile (held > 0)? If so table, chunk and kind say whose rows cst_undo_restore
 * needs. Any thread. */
bool cst_undo_holds(const struct cst_undo_slot *slot);

/* After the owner died: make the tile that @slot holds whole again and the slot EMPTY. @rows and
 * @chunk_elems: resolved from slot->table and slot->chunk; @tiles: the table's, @n_tiles of them.
 * Only the rows of the slot's kind are used. May itself be killed and called again. Before any
 * command of the dead engine is issued again, for every slot; one thread. CST_EINVAL: the slot's
 * contents cannot be (it was overwritten): nothing is changed, the chunk cannot be trusted. */
int cst_undo_restore(struct cst_undo_slot *slot, const struct cst_rows *rows, uint64_t chunk_elems,
                     const struct cst_table_tile *tiles, uint64_t n_tiles);

#endif
