/* SPDX-License-Identifier: Apache-2.0 */
/* One command in the engine: the checked content of its message, the segments that it holds, its
 * task on a thread pool, and its result.
 *
 *   open --(dependencies)--> prepare: places resolved, segments held
 *        --> pieces on lanes or team --> mail --> close */
#ifndef CST_WORK_H
#define CST_WORK_H

#include "kernels/engine/bandwidth_share.h"
#include "kernels/engine/chunk.h"
#include "kernels/engine/thread_pool.h"
#include "kernels/engine/mailbox.h"
#include "proto/busy_time.h"
#include "proto/engine.pb-c.h"
#include "proto/ticket_graph.h"
#include "proto/traffic.h"

#include <stdatomic.h>

#define CSTE_WORK_MAX_DST CSTE_CONVERT_MAX_DST
/* Largest number of rows in `in`, and in `out`. */
#define CSTE_WORK_MAX_ROWS CST_ROW_COUNT
#define CSTE_WORK_MAX_USES                                                                         \
    (CST_TILE_MAX_SRC + CSTE_WORK_MAX_DST + 2 * CSTE_WORK_MAX_ROWS + CSTE_CHUNK_N_ROWS + 2)

/* Data that all commands share. Only the loop thread uses it, except for progress, doing and the
 * budget. */
struct cste_work_context {
    struct cste_device *device;         /* Device; borrowed. */
    struct cste_segments *segments;     /* Segments; borrowed. */
    struct cst_undo_slot *slots;        /* Undo slots, one for each thread of the team; borrowed. */
    struct cste_mailbox *box;           /* Mailbox for the mails of finished tasks; borrowed. */
    unsigned n_threads;                 /* Number of threads of the team. */
    struct cste_bandwidth_share budget; /* Memory bandwidth, divided between team and lanes. */
    /* Slot in which this engine enters its copies over the link, for the engines of nodes. NULL:
     * the copies are not entered. */
    struct cst_traffic *traffic;
    atomic_ulong progress; /* Number of pieces done so far. */
    /* Per thread of the device: the ticket of the command of which it does a piece; 0: none. NULL:
     * nobody asks. Owned. */
    _Atomic uint64_t *doing;
    unsigned n_doing;    /* Number of threads in doing. */
    uint64_t commands;   /* Number of commands completed so far, with any status. */
    uint64_t copy_bytes; /* Bytes copied by COPY. */
    /* The part of copy_bytes that went from the host to the device, and from the device to the
     * host. */
    uint64_t up_bytes, down_bytes;
    uint64_t update_elems; /* UPDATE: elements of the tiles that were done. */
    uint64_t reduce_elems; /* REDUCE: elements of the tiles that were done. */
    /* UPDATE: bytes of rows that kernels read plus bytes that they wrote (tile.h). */
    uint64_t update_bytes;
    /* REDUCE: bytes of rows that kernels read plus bytes that they wrote (tile.h). */
    uint64_t reduce_bytes;
    /* UPDATE by Muon: floating-point operations of its products, and the time spent on them. */
    double product_flops;
    uint64_t product_ns;
    /* Time spent on all copies, on copies up and down, on updates and on reductions. */
    struct cst_busy_time copying, copying_up, copying_down, updating, reducing;
};

/* A row that is not at the place that the table names. */
struct cste_work_row {
    uint32_t row; /* enum cst_row. */
    struct cst_place place;
};

/* A command of the engine. */
struct cste_work {
    struct cst_ticket ticket; /* Number of the command and its dependencies. */
    struct cste_task task;    /* The pieces of the command. */
    struct cste_mail mail;    /* Posted when task is done. */
    struct cste_work *next;   /* Next command in the engine's list of held commands. */
    uint64_t sequence;        /* Number in order of submission, from 1. */
    /* Neighbours in the engine's list of commands, in order of submission. */
    struct cste_work *older, *younger;
    struct cste_work_context *context; /* Shared data; borrowed. */
    Engine__CommandKind kind;
    unsigned class;              /* Priority class of the task. */
    bool newest_first;           /* As in struct cste_task. */
    uint64_t bytes;              /* COPY, FILL: number of bytes. */
    bool sums;                   /* COPY: the result is the checksum of the bytes. */
    atomic_ullong sum;           /* The same: that of the pieces done so far. */
    uint32_t table;              /* REDUCE, NORM, UPDATE: segment id of the table. */
    uint32_t chunk_index;        /* REDUCE, UPDATE: index of the chunk. */
    uint64_t mark;               /* REDUCE, UPDATE: mark. */
    bool accumulate;             /* REDUCE: add to the grad row. */
    bool partials;               /* REDUCE: the sources are fp32. */
    struct cst_tile_hyper hyper; /* UPDATE: hyper-parameters. */
    /* UPDATE: rows that are read or written at other places than the table names. */
    struct cste_work_row in[CSTE_WORK_MAX_ROWS], out[CSTE_WORK_MAX_ROWS];
    uint32_t n_in, n_out;
    struct cst_place src_places[CST_TILE_MAX_SRC];
    uint32_t n_src;
    struct cst_place dst_places[CSTE_WORK_MAX_DST];
    uint32_t n_dst;
    struct cste_addr src, dst;          /* COPY, FILL: resolved places. */
    struct cste_device_convert convert; /* A conversion, with resolved places. */
    /* REDUCE, UPDATE: resolved places of the contributions. */
    struct cste_addr contributions[CST_TILE_MAX_SRC];
    struct cst_table_header *header; /* NORM: header of the table; resolved. */
    struct cste_chunk chunk;         /* REDUCE, UPDATE: the chunk; resolved. */
    /* UPDATE: resolved by prepare, except for guard. */
    struct cste_device_update update;
    /* UPDATE by Muon: resolved scratch, present batch, and its phase (work_muon.c). */
    struct cste_addr scratch;
    struct cst_muon_batch batch;
    unsigned phase;
    /* UPDATE by Muon: when the products of the batch began; operations and time of all products. */
    uint64_t products_began_ns;
    double product_flops;
    uint64_t product_ns;
    /* The chunk receives the mark at the end; resolved. */
    bool marks;
    uint64_t grain;                                /* Bytes, elements or tiles in a piece. */
    struct cste_segment *uses[CSTE_WORK_MAX_USES]; /* Segments held. */
    uint32_t n_uses;
    _Atomic uint64_t done_elems; /* REDUCE, UPDATE: elements of the tiles that were done. */
    /* REDUCE, UPDATE: bytes of rows that kernels read plus bytes that they wrote. */
    _Atomic uint64_t done_bytes;
    struct cste_thread_pool *pool; /* Where the work was submitted; borrowed. */
    /* Work of several turns: monotonic time when the first one began. Otherwise 0. */
    uint64_t began_ns;
    uint64_t ended_ns;  /* Monotonic time after the last piece. */
    atomic_bool failed; /* A piece has failed. The remaining pieces do nothing. */
    int status;         /* Result. While pieces run, only the thread that set failed writes it. */
    double value;       /* NORM: the sum. COPY with sums: the checksum. */
    struct cst_err err; /* Message text if status is not 0. */
    struct cst_ticket_edge edges[]; /* For the ticket. */
};

/* Create the work of @command and copy its content. An error in the command does not fail the call:
 * it is stored in work->status and work->err, and cste_work_prepare returns it. CST_ENOMEM: no work
 * was created. */
int cste_work_open(struct cste_work **out, struct cste_work_context *context,
                   const Engine__Command *command, struct cst_err *err);

/* Give the held segments back and free @work. Its ticket is done and its task is over. */
void cste_work_close(struct cste_work *work);

/* Check @work against segments and table, and hold the segments. CST_OK: submit the work; if
 * job.n_pieces is 0, it is complete already. Otherwise status and text are in work->status and
 * work->err. */
int cste_work_prepare(struct cste_work *work);

/* Submit the prepared @work to @pool: the team, or the thread pool of its lane. Its mail is posted
 * at the end. */
void cste_work_submit(struct cste_work *work, struct cste_thread_pool *pool);

/* Returns whether @work runs on the compute team. Otherwise it runs on lanes. */
bool cste_work_is_compute(const struct cste_work *work);

/* Returns the lane of prepared @work that runs on lanes. */
enum cste_device_lane cste_work_lane(const struct cste_work *work);

/* Add the ended @work to the counters of the context. */
void cste_work_count(const struct cste_work *work);

#endif
