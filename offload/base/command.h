/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the core to engines. The core fills them in; the drivers (daemon/job/core_driver,
 * tests/sim and the planner) give them to engines. core.h says which engine executes a command. */
#ifndef CST_CORE_COMMAND_H
#define CST_CORE_COMMAND_H

#include "offload/layout/layout.h"

/* The hyper-parameters of a step, as its ranks gave them. */
struct cst_hyper {
    double lr, beta1, beta2, eps, weight_decay;
    double clip_norm;  /* Maximum norm of the gradients; 0: no clipping. */
    double grad_scale; /* Factor for all gradients; 1 leaves them as they are. */
    /* Digest of the factors of parameter groups, which core.factors and the job table have; 0: they
     * are all 1. */
    uint64_t factors;
};

enum cst_command_kind {
    CST_COMMAND_COPY = 1, /* The numbers are those in proto/engine.proto. */
    CST_COMMAND_REDUCE = 2,
    CST_COMMAND_NORM = 3,
    CST_COMMAND_UPDATE = 4,
    CST_COMMAND_FILL = 5,
    CST_COMMAND_SET_MASTER = 7, /* Values to master weights, weights, and moments of 0. */
    CST_COMMAND_ROUND = 8,      /* fp32 values to bf16. */
    CST_COMMAND_ENCODE = 9,     /* fp32 values to a moments row. */
    CST_COMMAND_DECODE = 10,    /* A moments row to fp32 values. */
    CST_COMMAND_JOIN = 11,  /* Weights and remainders, which are split master weights, to fp32. */
    CST_COMMAND_FLUSH = 12, /* Of the daemon, not of the core (daemon/job/durable.c). */
};

/* True if @kind converts elements from one format to another. */
static inline bool cst_command_converts(enum cst_command_kind kind)
{
    return kind >= CST_COMMAND_SET_MASTER && kind <= CST_COMMAND_JOIN;
}

enum cst_priority { CST_PRIORITY_DEMAND = 0, CST_PRIORITY_PREFETCH = 1, CST_PRIORITY_EVICTION = 2 };

#define CST_CORE_MAX_WORLD CST_SET_MAX
#define CST_COMMAND_MAX_SRC CST_LAYOUT_MAX_ADDENDS
#define CST_COMMAND_MAX_AFTER 16
#define CST_COMMAND_MAX_ROWS CST_ROW_COUNT
#define CST_COMMAND_MAX_DST (2 + CST_MAX_MOMENTS) /* Destinations of a SET_MASTER. */
#define CST_COMMAND_MAX_REPLACES 4

struct cst_command_row {
    enum cst_row row;
    struct cst_place place;
};

struct cst_command {
    enum cst_command_kind kind;
    enum cst_priority priority;
    /* Queue the command before the commands of its priority that its engine has received earlier
     * and not begun. */
    bool newest_first;
    uint64_t ticket;
    uint64_t after[CST_COMMAND_MAX_AFTER]; /* Tickets, of any engine, that must complete first. */
    uint32_t n_after;
    /* Hold the command until the daemon has seen the completions of all of `after`, even those of
     * the same engine. Reason: this command overwrites what they would read again after an engine
     * restart; or it must fail if they failed, which a restarted engine does not remember. */
    bool after_ack;
    /* A failure of this command does not cancel the commands that wait for it. These go on, or wait
     * for a command that has come `replaces`. Therefore even commands of the same engine that wait
     * for it are sent only after the driver has seen its completion. */
    bool may_fail;
    /* Tickets in flight of commands that have failed or will fail, and that this command replaces:
     * what waits for one of these tickets waits for this command instead. */
    uint64_t replaces[CST_COMMAND_MAX_REPLACES];
    uint32_t n_replaces;
    /* The command cannot begin yet, because the core does not know its sources: the core repeats
     * it, with the same ticket and without this flag, or recalls it (CST_ACT_RECALL, which must
     * then be followed). What waits for the ticket waits. */
    bool promised;
    /* The command reads or writes a staging segment, which may be gone once the request is
     * answered. */
    bool io;
    /* The engine that executes the command: that of a chunk's node, of a pool or of a device
     * reservation. */
    uint32_t node;
    /* COPY and conversions: one source; JOIN: weights and remainders. REDUCE and an UPDATE that
     * also makes the sum: contributions in rank order. */
    struct cst_place src[CST_COMMAND_MAX_SRC];
    uint32_t n_src;
    /* SET_MASTER: master, weight (not of an fp32 tensor, whose weights are the master weights), and
     * the moments unless they stay. A staged update by Muon: its scratch. REDUCE: none, or the row
     * of a partial. Otherwise one destination. */
    struct cst_place dst[CST_COMMAND_MAX_DST];
    uint32_t n_dst;
    uint64_t bytes; /* COPY, FILL: number of bytes. */
    bool sums; /* COPY: the completion's value is the checksum of the bytes (proto/row_sum.h). */
    uint64_t n_elems; /* Conversions: number of elements. */
    uint32_t table;   /* REDUCE, NORM, UPDATE: segment id of the job table. */
    uint32_t chunk;   /* All but NORM. Engines are told the chunk with REDUCE and UPDATE only. */
    uint64_t mark;    /* REDUCE: number of the reduction. UPDATE, NORM: Adam step t, from 1. */
    /* REDUCE into an fp32 row: add the sources in order to the contents of the row. */
    bool accumulate;
    /* REDUCE: one destination, the row of a partial; none: the grad row of the chunk. */
    bool partials; /* REDUCE into an fp32 row: the sources are fp32, not of the chunk's type. */
    /* UPDATE: rows to read that are not where the table says; as in engine.proto. */
    struct cst_command_row in[CST_COMMAND_MAX_ROWS];
    /* UPDATE: rows to write that are not where the table says; as in engine.proto. */
    struct cst_command_row out[CST_COMMAND_MAX_ROWS];
    uint32_t n_in, n_out;
    bool guard; /* UPDATE: tiles beyond proto/grad_limit.h keep their states; as in engine.proto. */
    enum cst_row row; /* ENCODE, DECODE: the moments row. */
    /* SET_MASTER, and ROUND with `split`: the elements at src[0] are bf16, not fp32. */
    bool from_bf16;
    /* SET_MASTER: the master weights are split, and dst[0] has remainders. ROUND: dst[0] has the
     * weights of split masters, whose remainders are on other machines. */
    bool split;
    bool fp32; /* SET_MASTER of an fp32 tensor: dst[0] has its weights. */
    /* ENCODE, DECODE, SET_MASTER: format of the moments. */
    enum cst_moments moments;
    /* The same: first element and number of elements of the moments row. Both 0: clear n_elems
     * elements of fp32 moments rows, which begin at dst[2] and following. */
    uint64_t first, row_elems;
    struct cst_hyper hyper; /* UPDATE; grad_scale includes the clip factor and is a float. */
};

#endif
