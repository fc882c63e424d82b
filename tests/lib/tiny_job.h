/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a small job, without a daemon: arena, table, pool and undo segment, filled from a
 * seed, and commands on them. The grad row is its own first contribution, so that a reduction done
 * twice, or torn, shows in the bits. */
#ifndef CST_TINY_JOB_H
#define CST_TINY_JOB_H

#include "tests/lib/engine_proc.h"

#include "proto/table.h"

#define TINY_MAX_CHUNKS 8
#define TINY_SPANS 3 /* per chunk: a long tensor, an odd one, a tiny one; padding between */

/* What its states are. Zeroed: AdamW, fp32 moments, bf16 gradients. */
struct tiny_states {
    unsigned grad_bytes; /* 0: 2 */
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool two_weights; /* a second weight row */
    bool room; /* behind the arena's rows, room to read each elsewhere and to write it there */
};

enum tiny_segment { TINY_ARENA, TINY_TABLE, TINY_POOL, TINY_UNDO, TINY_SEGMENTS };

struct tiny_job {
    unsigned n_chunks;
    uint64_t n_elems[TINY_MAX_CHUNKS]; /* of each chunk */
    uint64_t block[TINY_MAX_CHUNKS];   /* offset in the pool of its blocks: two contributions, two
                                          copies of the weights */
    int fds[TINY_SEGMENTS];            /* owned */
    void *base[TINY_SEGMENTS];         /* mapped */
    uint64_t bytes[TINY_SEGMENTS];     /* length */
    uint32_t ids[TINY_SEGMENTS];       /* segment ids */
    bool on_gpu;                       /* the pool is a GPU's memory (tiny_job_use_gpu) */
    uint64_t gpu_bytes;                /* of that, a multiple of its granularity */
    struct tiny_states states;         /* as given; grad_bytes is 2 or 4 */
    struct cst_table_header *table;    /* = base[TINY_TABLE] */
};

/* A job of @n_chunks chunks of @n_elems elements each (at least 8192), room for @n_slots undo
 * slots; contents from @seed. */
void tiny_job_open(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                   unsigned n_slots, uint64_t seed);

/* The same with fp32 grad rows: one that has micro-batches. */
void tiny_job_open_wide(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                        unsigned n_slots, uint64_t seed);

/* The same with @states, and, where the moments are MX8, @n_elems multiples of 64. */
void tiny_job_open_as(struct tiny_job *job, const struct tiny_states *states, unsigned n_chunks,
                      const uint64_t *n_elems, unsigned n_slots, uint64_t seed);
void tiny_job_close(struct tiny_job *job);

/* From the next start on the pool is memory of the engine's GPU, which the first engine makes; it
 * holds what the pool holds now. The GPU's memory must be the processor's too: tests/lib/fakecuda.
 */
void tiny_job_use_gpu(struct tiny_job *job);

/* Fill arena and pool from @seed, clear marks, sums and undo slots. */
void tiny_job_fill(struct tiny_job *job, uint64_t seed);

/* Start an engine on it: SETUP, then all segments, in an order that depends on @order. */
void tiny_job_start(struct tiny_job *job, struct engine_proc *proc, uint32_t threads,
                    uint32_t copy_threads, unsigned order);

/* CST_ROW_WEIGHT_OTHER too. */
struct cst_place tiny_job_row(const struct tiny_job *job, unsigned chunk, enum cst_row row);

/* With room: where that row lies elsewhere, to be read or written. */
struct cst_place tiny_job_room(const struct tiny_job *job, unsigned chunk, enum cst_row row,
                               bool written);

/* Have the job's chunks that row? */
bool tiny_job_has(const struct tiny_job *job, enum cst_row row);
uint64_t tiny_job_row_bytes(const struct tiny_job *job, unsigned chunk, enum cst_row row);
struct cst_place tiny_job_block(const struct tiny_job *job, unsigned chunk, unsigned block);

/* REDUCE of @chunk: its grad row and blocks 0 and 1; if the row is fp32, those blocks alone,
 * stored. */
struct engine_command tiny_job_reduce(const struct tiny_job *job, unsigned chunk, uint64_t mark);
struct engine_command tiny_job_update(const struct tiny_job *job, unsigned chunk, uint64_t mark);

/* Do arena, table and pool of the two hold the same bytes? Where they do not is printed. */
bool tiny_job_same(const struct tiny_job *a, const struct tiny_job *b);

/* xorshift*; never 0 for a state that is not 0. */
uint64_t tiny_random(uint64_t *state);

#endif
