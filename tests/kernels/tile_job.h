/* SPDX-License-Identifier: Apache-2.0 */
/* A small job of one chunk for the tests of tile loops and undo slots, in memory that a child can
 * share. */
#ifndef CST_TESTS_TILE_JOB_H
#define CST_TESTS_TILE_JOB_H

#include "kernels/math/split.h"
#include "kernels/math/tile.h"
#include "tests/kernels/hostile.h"

#define N_SPANS 5
#define CHUNK_ELEMS 30000
#define N_SRC 3

/* Starts of the spans, which are one tensor each, with padding between them. The first one is a
 * part of a tile, and the last but one is empty. */
static const uint64_t span_start[N_SPANS] = {0, 128, 8448, 20000, 20032};
static const uint64_t span_elems[N_SPANS] = {100, 8192, 11003, 0, 9001};

/* A job of one chunk in memory that children share, with an undo slot for each of two threads. */
struct job {
    struct cst_tile_work work;
    struct cst_undo_slot *undo; /* two slots */
    /* Contributions, of fp32 tensors in fp32; src[0] is the grad row. */
    uint16_t *src[N_SRC];
    _Atomic uint64_t *step; /* the current step, from 1 */
    char *shared;           /* start of the mapping */
    size_t bytes;           /* size of the mapping */
};

/* The moments of @rows as fp32. */
static inline float *exp_avg(const struct cst_rows *rows)
{
    return rows->moments[0].values;
}

static inline float *exp_avg_sq(const struct cst_rows *rows)
{
    return rows->moments[1].values;
}

/* The row of master weights in either format, and its bytes. */
static inline void *master_row(const struct cst_rows *rows)
{
    return rows->master != NULL ? (void *)rows->master : (void *)rows->remainder;
}

static inline size_t master_bytes(const struct cst_rows *rows, size_t n)
{
    return n * (rows->master != NULL ? sizeof *rows->master : sizeof *rows->remainder);
}

static inline void *take(char **at, size_t bytes)
{
    char *p = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

static inline void fill_table(struct cst_table_header *table)
{
    struct cst_table_chunk *chunk = cst_table_chunks(table);
    struct cst_table_span *spans = cst_table_spans(table);
    uint64_t first_tile = 0;

    *chunk = (struct cst_table_chunk){.n_elems = CHUNK_ELEMS, .n_spans = N_SPANS};
    for (int i = 0; i < N_SPANS; i++) {
        spans[i] = (struct cst_table_span){
            .start = span_start[i],
            .n_elems = span_elems[i],
            .first_tile = first_tile,
            .lr_scale = i == 1 ? 0.5f : 1.0f,
            .decay_scale = i == 2 ? 0.0f : 1.0f,
        };
        first_tile += cst_table_n_tiles(span_elems[i]);
    }
}

/* Open a job with fp32 moments. Close it with job_close. */
static inline void job_open(struct job *job, const char *isa)
{
    struct cst_table_header header;
    uint64_t n_tiles = 0;
    uint64_t state = hostile_seed();
    struct cst_rows *rows = &job->work.rows;
    char *at;

    for (int i = 0; i < N_SPANS; i++) {
        n_tiles += cst_table_n_tiles(span_elems[i]);
    }
    cst_table_size(&header, 1, N_SPANS, n_tiles);
    job->bytes = header.total_bytes + 2 * sizeof *job->undo + CHUNK_ELEMS * 40 + 4096;
    job->shared = mmap(NULL, job->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(job->shared, MAP_FAILED);
    at = job->shared;
    job->work = (struct cst_tile_work){.kernels = cst_kernels_get(isa), .table_id = 7, .mark = 1};
    ck_assert_ptr_nonnull(job->work.kernels);
    job->work.table = take(&at, header.total_bytes);
    *job->work.table = header;
    fill_table(job->work.table);
    job->undo = take(&at, 2 * sizeof *job->undo);
    job->step = take(&at, sizeof *job->step);
    atomic_store(job->step, 1);
    rows->weight = take(&at, CHUNK_ELEMS * sizeof *rows->weight);
    rows->grad = take(&at, CHUNK_ELEMS * sizeof *rows->grad);
    rows->master = take(&at, CHUNK_ELEMS * sizeof *rows->master);
    rows->moments[0].values = take(&at, CHUNK_ELEMS * sizeof(float));
    rows->moments[1].values = take(&at, CHUNK_ELEMS * sizeof(float));
    job->src[0] = rows->grad;
    job->src[1] = take(&at, CHUNK_ELEMS * sizeof *job->src[1]);
    job->src[2] = take(&at, CHUNK_ELEMS * sizeof *job->src[2]);
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        for (int r = 0; r < N_SRC; r++) {
            job->src[r][i] = cst_fp32_to_bf16(hostile_unit(&state));
        }
        rows->master[i] = hostile_unit(&state);
        exp_avg(rows)[i] = exp_avg_sq(rows)[i] = 0.0f;
        rows->weight[i] = (uint16_t)i;
    }
}

/* Like job_open, with an fp32 grad row with random contents. The bf16 row stays a contribution. */
static inline void job_open_wide(struct job *job, const char *isa)
{
    uint64_t state = hostile_seed() + 7;
    struct cst_rows *rows = &job->work.rows;

    job_open(job, isa);
    job->work.table->grad_bytes = sizeof *rows->grad_f32;
    rows->grad_f32 = (float *)(void *)(job->shared + job->bytes) - CHUNK_ELEMS;
    ck_assert((char *)rows->grad_f32 >= (char *)(job->src[2] + CHUNK_ELEMS));
    rows->grad = NULL;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        rows->grad_f32[i] = hostile_unit(&state);
    }
}

/* The states of a job, and the form of its updates. */
struct job_way {
    const char *name;
    enum cst_optimizer optimizer;
    enum cst_moments moments;
    enum cst_rounding rounding;
    bool wide;  /* gradients are fp32 */
    bool fused; /* the update sums the contributions: there is no grad row */
    bool over;  /* weights are written to the gradient's place */
    bool split; /* masters are split */
    bool fp32;  /* the tensors are fp32; so are their gradients */
    /* The weights that are read, as (a part of) the master weights, are in another row than the one
     * that is written. */
    bool other;
};

static const struct job_way job_ways[] = {
    {.name = "adamw"},
    {.name = "adamw, fp32 gradients", .wide = true},
    {.name = "adamw, weights over gradients", .over = true},
    {.name = "adamw, sums in the update", .fused = true},
    {.name = "adamw, fp32 sums in the update", .fused = true, .wide = true},
    {.name = "adam, mx8, sums in the update",
     .optimizer = CST_OPTIMIZER_ADAM,
     .moments = CST_MOMENTS_MX8,
     .fused = true},
    {.name = "adamw, mx8, weights over gradients", .moments = CST_MOMENTS_MX8, .over = true},
    {.name = "adamw, bf16", .moments = CST_MOMENTS_BF16},
    {.name = "adamw, bf16 to nearest",
     .moments = CST_MOMENTS_BF16,
     .rounding = CST_ROUNDING_NEAREST},
    {.name = "lion, mx8, fp32 gradients",
     .optimizer = CST_OPTIMIZER_LION,
     .moments = CST_MOMENTS_MX8,
     .wide = true},
    {.name = "sgd, bf16, sums in the update",
     .optimizer = CST_OPTIMIZER_SGD,
     .moments = CST_MOMENTS_BF16,
     .fused = true},
    {.name = "adamw, split masters", .split = true},
    {.name = "lion, mx8, split masters, two rows of weights, sums in the update",
     .optimizer = CST_OPTIMIZER_LION,
     .moments = CST_MOMENTS_MX8,
     .fused = true,
     .split = true,
     .other = true},
    {.name = "adamw, fp32 tensors", .wide = true, .fp32 = true},
    {.name = "lion, bf16, fp32 tensors, two rows of weights",
     .optimizer = CST_OPTIMIZER_LION,
     .moments = CST_MOMENTS_BF16,
     .wide = true,
     .fp32 = true,
     .other = true},
};

#define N_WAYS ((int)(sizeof job_ways / sizeof job_ways[0]))

/* Split the master weights. The remainders take the first half of the master row, and the second
 * half is the other row of weights. */
static inline void split_masters(struct job *job, bool other)
{
    struct cst_rows *rows = &job->work.rows;
    float *masters = malloc(CHUNK_ELEMS * sizeof *masters);
    uint16_t *weights;

    memcpy(masters, rows->master, CHUNK_ELEMS * sizeof *masters);
    job->work.table->masters = CST_MASTERS_SPLIT;
    rows->remainder = (int16_t *)(void *)rows->master;
    weights = other ? (uint16_t *)rows->remainder + CHUNK_ELEMS : rows->weight;
    rows->weight_in = weights;
    rows->master = NULL;
    for (size_t i = 0; i < CHUNK_ELEMS; i++) {
        cst_split_cut(masters[i], &weights[i], &rows->remainder[i]);
    }
    free(masters);
}

/* Make the tensors fp32. Their contributions, and the other row of weights, are in the memory
 * before the fp32 grad row. */
static inline void make_fp32(struct job *job, bool other)
{
    uint64_t state = hostile_seed() + 11;
    struct cst_rows *rows = &job->work.rows;
    char *at = (char *)(job->src[2] + CHUNK_ELEMS);
    float *src[N_SRC] = {rows->grad_f32};

    at += (64 - (uintptr_t)at % 64) % 64;
    cst_table_chunks(job->work.table)->dtype = CST_FP32;
    rows->weight = NULL;
    rows->master_in = rows->master;
    if (other) {
        rows->master = take(&at, CHUNK_ELEMS * sizeof *rows->master);
    }
    for (int r = 1; r < N_SRC; r++) {
        src[r] = take(&at, CHUNK_ELEMS * sizeof *src[r]);
        for (size_t i = 0; i < CHUNK_ELEMS; i++) {
            src[r][i] = hostile_unit(&state);
        }
    }
    ck_assert(at <= (char *)rows->grad_f32);
    for (int r = 0; r < N_SRC; r++) {
        job->src[r] = (uint16_t *)(void *)src[r];
    }
}

static inline void job_open_way(struct job *job, const char *isa, const struct job_way *way)
{
    struct cst_rows *rows = &job->work.rows;

    if (way->wide) {
        job_open_wide(job, isa);
    } else {
        job_open(job, isa);
    }
    job->work.table->optimizer = way->optimizer;
    job->work.table->moments = way->moments;
    job->work.table->rounding = way->rounding;
    job->work.table->seed = 1234567890123;
    for (int k = 0; k < 2 && way->moments == CST_MOMENTS_MX8; k++) {
        rows->moments[k].exponents = (uint8_t *)rows->moments[k].values + CHUNK_ELEMS;
    }
    if (way->fused) {
        job->work.n_src = N_SRC;
        job->work.src = (const uint16_t *const *)(const void *)job->src;
        rows->grad = NULL;
        rows->grad_f32 = NULL;
    }
    if (way->over) {
        rows->weight = rows->grad;
    }
    if (way->split) {
        split_masters(job, way->other);
    }
    if (way->fp32) {
        make_fp32(job, way->other);
    }
}

static inline void job_close(struct job *job)
{
    ck_assert_int_eq(munmap(job->shared, job->bytes), 0);
}

static const struct cst_tile_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5f};

static inline struct cst_tile_done reduce_all(struct job *job, struct cst_undo_slot *undo)
{
    return cst_tile_reduce_range(&job->work, N_SRC, (const void *const *)(const void *)job->src, 0,
                                 UINT64_MAX, undo);
}

static inline uint64_t n_elems_all(void)
{
    uint64_t n = 0;

    for (int i = 0; i < N_SPANS; i++) {
        n += span_elems[i];
    }
    return n;
}

/* Check that rows and tables of the two jobs are equal. */
static inline void assert_same(const struct job *got, const struct job *want)
{
    const struct cst_rows *a = &got->work.rows;
    const struct cst_rows *b = &want->work.rows;

    ck_assert_mem_eq(got->src[0], want->src[0], CHUNK_ELEMS * sizeof *got->src[0]);
    if (a->grad_f32 != NULL) {
        ck_assert_mem_eq(a->grad_f32, b->grad_f32, CHUNK_ELEMS * sizeof *a->grad_f32);
    }
    if (a->weight != NULL) {
        ck_assert_mem_eq(a->weight, b->weight, CHUNK_ELEMS * sizeof *a->weight);
    }
    if (a->master_in != NULL) {
        ck_assert_mem_eq(a->master_in, b->master_in, CHUNK_ELEMS * sizeof *a->master_in);
    }
    ck_assert_mem_eq(master_row(a), master_row(b), master_bytes(a, CHUNK_ELEMS));
    ck_assert_mem_eq(exp_avg(a), exp_avg(b), CHUNK_ELEMS * sizeof(float));
    ck_assert_mem_eq(exp_avg_sq(a), exp_avg_sq(b), CHUNK_ELEMS * sizeof(float));
    ck_assert_mem_eq(got->work.table, want->work.table, got->work.table->total_bytes);
}

#endif
