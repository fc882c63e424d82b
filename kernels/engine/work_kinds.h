/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of commands. Private to work.c (life of a command), work_message.c (content of its
 * message), work_parts.c (what all kinds use), work_bytes.c (COPY, FILL, FLUSH, conversions),
 * work_chunk.c (REDUCE, NORM), work_update.c and work_muon.c (UPDATE). */
#ifndef CST_WORK_KINDS_H
#define CST_WORK_KINDS_H

#include "kernels/engine/work.h"

/* The functions and properties of one kind of command. */
struct cste_work_kind {
    const char *name;          /* Name for messages. */
    uint32_t min_src, max_src; /* Smallest and largest number of sources. */
    uint32_t min_dst, max_dst; /* Smallest and largest number of destinations. */
    /* The kind runs on the team, whose threads have undo slots, and not on lanes. */
    bool compute;
    bool marks;    /* The kind has a mark, which counts from 1. */
    bool converts; /* The kind is a conversion: */
    enum cste_device_conversion conversion;
    /* Each piece is one call of the device, which may leave it under way. */
    bool may_be_under_way;
    /* Resolve places, hold segments and count pieces. Loop thread. */
    int (*find)(struct cste_work *work, uint64_t *pieces);
    /* Do one piece. Pool thread. */
    int (*piece)(struct cste_work *work, uint64_t piece, unsigned thread, struct cst_err *err);
    /* Called after the last piece if no piece failed, on the thread of that piece. Returns the
     * number of pieces that are to be done next; 0: the work is over. May be NULL. */
    uint64_t (*next)(struct cste_work *work);
    /* Called when the work is over and no piece failed, on the thread of the last piece. May be
     * NULL. */
    void (*done)(struct cste_work *work);
    /* Add finished work to the counters. Loop thread. May be NULL. */
    void (*count)(const struct cste_work *work);
};

/* Defined in work_bytes.c. */
extern const struct cste_work_kind cste_work_copy, cste_work_fill, cste_work_set_master,
    cste_work_round, cste_work_encode, cste_work_decode, cste_work_join, cste_work_flush;
/* Defined in work_chunk.c; cste_work_update is defined in work_update.c. */
extern const struct cste_work_kind cste_work_reduce, cste_work_update, cste_work_norm;

/* Returns the kind of @work. The kind of an unknown command has no name. */
const struct cste_work_kind *cste_work_kind(const struct cste_work *work);

/* Fill in @work, which is zeroed, from @command. The text of an error is in work->err. */
int cste_work_read(struct cste_work *work, const Engine__Command *command);

/* Hold @segment until the work is closed. */
void cste_work_hold(struct cste_work *work, struct cste_segment *segment);

/* Resolve one place with cste_segments_find and hold its segment. The text of an error is in
 * work->err. */
int cste_work_find(struct cste_work *work, struct cst_place place, uint64_t bytes, uint64_t align,
                   const char *what, struct cste_addr *out);

/* Returns whether the two ranges of memory have a byte in common. */
bool cste_work_overlap(struct cste_addr a, uint64_t a_bytes, struct cste_addr b, uint64_t b_bytes);

/* Divide @total things into pieces of @grain things. Returns the number of pieces. */
uint64_t cste_work_cut(struct cste_work *work, uint64_t total, uint64_t grain);

/* Returns the number of things of piece @piece out of @total things. *first receives the number of
 * its first thing. */
uint64_t cste_work_share(const struct cste_work *work, uint64_t piece, uint64_t total,
                         uint64_t *first);

/* Add the time from the first to the last piece of @work to @busy. */
static inline void cste_work_was_busy(struct cst_busy_time *busy, const struct cste_work *work)
{
    cst_busy_time_add(busy, work->task.began_ns, work->ended_ns);
}

/* Save in @slot the blocks of MX8 of which @part, an ENCODE or SET_MASTER, writes only a part, with
 * what else is in them. @places: where its destinations begin. The slot stays EMPTY if there is no
 * such block. */
void cste_work_save_blocks(const struct cst_place *places, const struct cste_device_convert *part,
                           struct cst_undo_slot *slot);

/* -- commands on a chunk: work_chunk.c ------------------------------------------------------ */

/* Resolve and hold the chunk with @rows, as cste_chunk_find does. The text of an error is in
 * work->err. */
int cste_work_find_chunk(struct cste_work *work, unsigned rows);

/* cste_work_find_contribution resolves and holds contribution @i, a row of cste_work_src_bytes
 * bytes. */
int cste_work_find_contribution(struct cste_work *work, uint32_t i);

/* Returns the bytes of a contribution to the chunk, which has the type of its tensors. */
uint64_t cste_work_src_bytes(const struct cste_work *work);

/* Divide the chunk into pieces and return their number. 0: the chunk carries the mark already, or
 * it has no tile and is marked now. */
uint64_t cste_work_cut_chunk(struct cste_work *work);

/* Divide @n tiles into pieces and return their number. */
uint64_t cste_work_cut_tiles(struct cste_work *work, uint64_t n);

/* Add @done to the work done. Any thread. */
void cste_work_add_done(struct cste_work *work, const struct cst_tile_done *done);

/* Store the mark of the chunk if it gets one. All of its tiles are done. */
void cste_work_mark_chunk(struct cste_work *work);

/* -- UPDATE by Muon: work_muon.c ------------------------------------------------------------ */

/* Check the chunk and its scratch, and begin with the first batch that is not done. All else of the
 * UPDATE is resolved. Loop thread. CST_EINVAL. */
int cste_work_find_muon(struct cste_work *work, uint64_t *pieces);

/* Begin the next phase, as `next` of struct cste_work_kind. */
uint64_t cste_work_next_muon(struct cste_work *work);

/* Do one piece of the present phase, as `piece` of struct cste_work_kind. */
int cste_work_muon_piece(struct cste_work *work, uint64_t piece, unsigned thread,
                         struct cst_err *err);

#endif
