/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of command is, for work's own files alone: work.c (a command's life), work_message.c
 * (what the message asked), work_bytes.c (COPY, FILL, CONVERT), work_chunk.c (REDUCE, NORM),
 * work_update.c (UPDATE). */
#ifndef CST_WORK_KINDS_H
#define CST_WORK_KINDS_H

#include "kernels/work.h"

struct cst_work_kind {
    const char *name;          /* in words */
    uint32_t min_src, max_src; /* sources that it takes */
    uint32_t min_dst, max_dst; /* destinations, same */
    bool compute;              /* on the team, not on the lanes */
    bool marks;                /* has a mark, which counts from 1 */
    int (*find)(struct cst_work *work,
                uint64_t *pieces); /* loop thread: resolve, hold, count pieces */
    int (*piece)(struct cst_work *work, uint64_t piece, unsigned thread,
                 struct cst_err *err);   /* crew thread: do one piece */
    void (*done)(struct cst_work *work); /* thread of the last piece, if all went well; or NULL */
    void (*count)(const struct cst_work *work); /* loop thread: it is done; or NULL */
};

extern const struct cst_work_kind cst_work_copy, cst_work_fill, cst_work_convert; /* work_bytes.c */
extern const struct cst_work_kind cst_work_reduce, cst_work_update,
    cst_work_norm; /* work_chunk.c */

/* One without a name: there is no such kind. */
const struct cst_work_kind *cst_work_kind(const struct cst_work *work);

/* Fill in @work, which is zeroed, from @command; what is wrong with it is in work->err. */
int cst_work_read(struct cst_work *work, const Engine__Command *command);

/* Hold @segment until the work is closed. */
void cst_work_hold(struct cst_work *work, struct cst_segment *segment);

/* Resolve and hold one place, as cst_segments_find; words to work->err. */
int cst_work_find(struct cst_work *work, struct cst_place place, uint64_t bytes, uint64_t align,
                  const char *what, struct cst_addr *out);

/* Do the two stretches have a byte in common? */
bool cst_work_overlap(struct cst_addr a, uint64_t a_bytes, struct cst_addr b, uint64_t b_bytes);

/* Make pieces of @grain things out of @total; how many they are. */
uint64_t cst_work_cut(struct cst_work *work, uint64_t total, uint64_t grain);

/* What piece @piece of @total things has: from *first on, so many. */
uint64_t cst_work_share(const struct cst_work *work, uint64_t piece, uint64_t total,
                        uint64_t *first);

static inline struct cst_addr cst_work_ahead(struct cst_addr addr, uint64_t bytes)
{
    return (struct cst_addr){.mem = addr.mem, .offset = addr.offset + bytes};
}

/* From its first piece to its last one. */
static inline void cst_work_was_busy(struct cst_busy *busy, const struct cst_work *work)
{
    cst_busy_add(busy, work->job.began_ns, work->ended_ns);
}

/* -- commands on a chunk: work_chunk.c ------------------------------------------------------ */

/* Resolve and hold the chunk with those rows, as cst_chunk_find; words to work->err. */
int cst_work_find_chunk(struct cst_work *work, unsigned rows);

/* Resolve and hold contribution @i, a bf16 row of so many bytes. */
int cst_work_find_contribution(struct cst_work *work, uint32_t i);
uint64_t cst_work_src_bytes(const struct cst_work *work);

/* Pieces of the chunk; 0: it carries the mark, or has no tile and carries it now. */
uint64_t cst_work_cut_chunk(struct cst_work *work);

/* So much more was done. Any thread. */
void cst_work_add_done(struct cst_work *work, const struct cst_tile_done *done);

/* All of its tiles are done: mark the chunk, if it gets a mark. */
void cst_work_mark_chunk(struct cst_work *work);

#endif
