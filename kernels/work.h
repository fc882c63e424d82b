/* SPDX-License-Identifier: Apache-2.0 */
/* One command while the engine has it: what the message asked, checked; the segments that it holds;
 * its job on a crew; its outcome.
 *
 *   open --(dependencies)--> prepare: places resolved, segments held
 *        --> pieces on lanes or team --> mail --> close */
#ifndef CST_WORK_H
#define CST_WORK_H

#include "kernels/budget.h"
#include "kernels/chunk.h"
#include "kernels/crew.h"
#include "kernels/mailbox.h"
#include "kernels/tickets.h"
#include "proto/busy.h"
#include "proto/engine.pb-c.h"
#include "proto/traffic.h"

#include <stdatomic.h>

#define CST_WORK_MAX_DST CST_CONVERT_MAX_DST
#define CST_WORK_MAX_ROWS 4 /* in `in`, in `out` */
#define CST_WORK_MAX_USES                                                                          \
    (CST_TILE_MAX_SRC + CST_WORK_MAX_DST + 2 * CST_WORK_MAX_ROWS + CST_CHUNK_N_ROWS + 1)

/* What all work shares. Loop thread but for progress. */
struct cst_work_context {
    struct cst_device *device;     /* borrowed */
    struct cst_segments *segments; /* borrowed */
    struct cst_undo_slot *slots;   /* borrowed; one per team thread */
    struct cst_mailbox *box;       /* borrowed; gets the mail of finished jobs */
    unsigned n_threads;            /* of the team */
    struct cst_budget budget;      /* of memory bandwidth, between team and lanes */
    struct cst_traffic *traffic;   /* for nodes' engines: what goes over the link; NULL: not told */
    atomic_ulong progress;         /* pieces done, ever */
    uint64_t commands;             /* completed, ever, whatever the status */
    uint64_t copy_bytes;           /* COPY */
    uint64_t up_bytes, down_bytes; /* of them, from the host to the device, and back */
    uint64_t update_elems;         /* UPDATE: of tiles that were done */
    uint64_t reduce_elems;         /* REDUCE, same */
    uint64_t update_bytes;         /* of rows that UPDATEs read and wrote, pass by pass (tile.h) */
    uint64_t reduce_bytes;         /* same, REDUCE */
    struct cst_busy copying, copying_up, copying_down, updating, reducing; /* at each of these */
};

/* A row that is not where the table says. */
struct cst_work_row {
    uint32_t row; /* enum cst_row */
    struct cst_place place;
};

struct cst_work {
    struct cst_ticket ticket;         /* its number and what it waits for */
    struct cst_job job;               /* its pieces */
    struct cst_mail mail;             /* the job is done */
    struct cst_work *next;            /* in the engine's list of held work */
    uint64_t sequence;                /* number in order of submission, from 1 */
    struct cst_work *older, *younger; /* pending work next to it in that order */
    struct cst_work_context *context; /* borrowed */
    Engine__CommandKind kind;
    unsigned class;              /* the priority */
    bool newest_first;           /* as in cst_job */
    uint64_t bytes;              /* COPY, FILL */
    uint32_t table;              /* REDUCE, NORM, UPDATE: segment id */
    uint32_t chunk_index;        /* REDUCE, UPDATE */
    uint64_t mark;               /* REDUCE, UPDATE */
    bool accumulate;             /* REDUCE */
    struct cst_tile_hyper hyper; /* UPDATE */
    struct cst_work_row in[CST_WORK_MAX_ROWS], out[CST_WORK_MAX_ROWS]; /* UPDATE */
    uint32_t n_in, n_out;
    struct cst_place src_places[CST_TILE_MAX_SRC];
    uint32_t n_src;
    struct cst_place dst_places[CST_WORK_MAX_DST];
    uint32_t n_dst;
    struct cst_addr src, dst;                        /* resolved: COPY, FILL */
    struct cst_device_convert convert;               /* CONVERT, its places resolved */
    struct cst_addr contributions[CST_TILE_MAX_SRC]; /* resolved: REDUCE, UPDATE */
    struct cst_table_header *header;                 /* resolved: NORM */
    struct cst_chunk chunk;                          /* resolved: REDUCE, UPDATE */
    struct cst_device_update update;                 /* UPDATE, resolved but for guard */
    bool marks;                                      /* resolved: the chunk gets the mark */
    uint64_t grain;                                  /* bytes, elements or tiles of a piece */
    struct cst_segment *uses[CST_WORK_MAX_USES];     /* segments held */
    uint32_t n_uses;
    _Atomic uint64_t done_elems; /* REDUCE, UPDATE: of tiles that were done */
    _Atomic uint64_t done_bytes; /* of rows that kernels went over for them */
    uint64_t ended_ns;           /* monotonic time after the last piece */
    atomic_bool failed;          /* pieces that follow do nothing */
    int status;         /* outcome; while failed is set for the first time, by the one who set it */
    double value;       /* NORM */
    struct cst_err err; /* words, where status is not 0 */
};

/* Take over what @command says. What is wrong with it is in work->status and work->err, for prepare
 * to return. CST_ENOMEM: no work. */
int cst_work_open(struct cst_work **out, struct cst_work_context *context,
                  const Engine__Command *command, struct cst_err *err);

/* Give the segments back and free it. Its ticket is done and its job is over. */
void cst_work_close(struct cst_work *work);

/* Check it against segments and table, and hold them. CST_OK: submit it, or, with job.n_pieces 0,
 * it is complete as it is. Otherwise the status and words are in work->status and work->err. */
int cst_work_prepare(struct cst_work *work);

/* Give it to @crew, which is the team or its lane's. It is prepared; its mail comes. */
void cst_work_submit(struct cst_work *work, struct cst_crew *crew);

/* Does it run on the compute team (or on the lanes)? */
bool cst_work_is_compute(const struct cst_work *work);

/* The lane of one that is not. It is prepared. */
enum cst_device_lane cst_work_lane(const struct cst_work *work);

/* It ended: count it. */
void cst_work_count(const struct cst_work *work);

#endif
