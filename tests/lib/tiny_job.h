/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a small job without a daemon: arena, table, pool and undo segment, filled from a
 * seed, and commands that use them. A bf16 grad row is also the first contribution to its own sum,
 * so a reduction that is repeated or torn changes the bits. */
#ifndef CST_TINY_JOB_H
#define CST_TINY_JOB_H

#include "tests/lib/engine_proc.h"

#include "proto/table.h"

#define TINY_MAX_CHUNKS 8
/* Per chunk: a long tensor, one with an odd length and a tiny one, with padding between them. */
#define TINY_SPANS 3

/* The kind of the job's states. Zeroed: AdamW, fp32 moments, bf16 gradients. */
struct tiny_states {
    unsigned grad_bytes; /* bytes of a gradient's element, 2 or 4; 0: 2 */
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool two_weights; /* chunks have a second weight row */
    /* After its rows, the arena has two further places for each row: one to read it and one to
     * write it. */
    bool reservation;
};

/* Indices of the job's segments. */
enum tiny_segment { TINY_ARENA, TINY_TABLE, TINY_POOL, TINY_UNDO, TINY_SEGMENTS };

/* A job and its memory. */
struct tiny_job {
    unsigned n_chunks;
    uint64_t n_elems[TINY_MAX_CHUNKS]; /* elements of each chunk */
    /* Offset in the pool of each chunk's blocks: two contributions, then two copies of the
     * weights. */
    uint64_t block[TINY_MAX_CHUNKS];
    int fds[TINY_SEGMENTS];        /* descriptors of the segments; owned */
    void *base[TINY_SEGMENTS];     /* the segments, mapped */
    uint64_t bytes[TINY_SEGMENTS]; /* lengths of the segments */
    uint32_t ids[TINY_SEGMENTS];   /* segment ids */
    bool on_gpu;                   /* the pool is memory of a GPU (tiny_job_use_gpu) */
    uint64_t gpu_bytes;            /* size of the GPU's pool, a multiple of the granularity */
    struct tiny_states states; /* the states given to tiny_job_open_as, with grad_bytes 2 or 4 */
    struct cst_table_header *table; /* equal to base[TINY_TABLE] */
};

/* Make a job of @n_chunks chunks, of @n_elems elements each (at least 8192), and space for @n_slots
 * undo slots. The contents depend on @seed. Close it with tiny_job_close. */
void tiny_job_open(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                   unsigned n_slots, uint64_t seed);

/* Like tiny_job_open, with fp32 grad rows, as jobs with micro-batches have. */
void tiny_job_open_wide(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                        unsigned n_slots, uint64_t seed);

/* Like tiny_job_open, with @states. If the moments are MX8, @n_elems must be multiples of 64. */
void tiny_job_open_as(struct tiny_job *job, const struct tiny_states *states, unsigned n_chunks,
                      const uint64_t *n_elems, unsigned n_slots, uint64_t seed);
void tiny_job_close(struct tiny_job *job);

/* Let the pool be memory of the engine's GPU from the next start on. The first engine allocates it,
 * and the pool's present content is copied to it. The processor must be able to access the GPU's
 * memory, as with tests/lib/fakecuda. */
void tiny_job_use_gpu(struct tiny_job *job);

/* Fill arena and pool from @seed, and clear marks, sums and undo slots. */
void tiny_job_fill(struct tiny_job *job, uint64_t seed);

/* Start an engine and send it SETUP and all segments, in an order that depends on @order. */
void tiny_job_start(struct tiny_job *job, struct engine_proc *proc, uint32_t threads,
                    uint32_t copy_threads, unsigned order);

/* Place of a row in the arena. @row may be CST_ROW_WEIGHT_OTHER. */
struct cst_place tiny_job_row(const struct tiny_job *job, unsigned chunk, enum cst_row row);

/* With states.reservation: the other place of the row that is read or (@written) written. */
struct cst_place tiny_job_reservation(const struct tiny_job *job, unsigned chunk, enum cst_row row,
                                      bool written);

/* True if the job's chunks have @row. */
bool tiny_job_has(const struct tiny_job *job, enum cst_row row);
/* Bytes of @row of @chunk. */
uint64_t tiny_job_row_bytes(const struct tiny_job *job, unsigned chunk, enum cst_row row);
/* Place of block number @block (0 to 3) of @chunk in the pool. */
struct cst_place tiny_job_block(const struct tiny_job *job, unsigned chunk, unsigned block);

/* REDUCE of @chunk. A bf16 grad row is summed with blocks 0 and 1; an fp32 grad row receives the
 * sum of the blocks. */
struct engine_command tiny_job_reduce(const struct tiny_job *job, unsigned chunk, uint64_t mark);
/* UPDATE of @chunk in step @mark. */
struct engine_command tiny_job_update(const struct tiny_job *job, unsigned chunk, uint64_t mark);

/* True if arena, table and pool of the two jobs have the same bytes. Prints the first
 * difference. */
bool tiny_job_same(const struct tiny_job *a, const struct tiny_job *b);

/* The next number of an xorshift* generator. It is never 0 if *@state is not 0. */
uint64_t tiny_random(uint64_t *state);

#endif
