/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/tiny_job.h"

#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "kernels/math/undo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROW_ALIGN 4096 /* bytes */
#define N_BLOCKS 4
#define N_ROWS (CST_ROW_COUNT + 1) /* includes the second weight row */

uint64_t tiny_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

bool tiny_job_has(const struct tiny_job *job, enum cst_row row)
{
    switch ((int)row) {
    case CST_ROW_MOMENT + 1:
        return cst_optimizer_n_moments(job->states.optimizer) == 2;
    case CST_ROW_WEIGHT_OTHER:
        return job->states.two_weights;
    default:
        return true;
    }
}

static uint64_t row_bytes(const struct tiny_job *job, int row, uint64_t n_elems)
{
    const struct cst_table_header header = {.grad_bytes = job->states.grad_bytes,
                                            .moments = job->states.moments};

    return tiny_job_has(job, (enum cst_row)row)
               ? cst_table_row_bytes(&header, CST_BF16, row, n_elems)
               : 0;
}

uint64_t tiny_job_row_bytes(const struct tiny_job *job, unsigned chunk, enum cst_row row)
{
    return row_bytes(job, (int)row, job->n_elems[chunk]);
}

/* Write three tensors, each at a multiple of 64 and with padding before it. The last one has 5
 * elements. */
static void write_spans(struct cst_table_span *spans, uint64_t n_elems, uint64_t *n_tiles)
{
    uint64_t odd = 4095, tiny = 5, third = (n_elems - tiny) / 64 * 64;
    uint64_t second = (third - odd - 64) / 64 * 64;
    uint64_t starts[TINY_SPANS] = {0, second, third};
    uint64_t sizes[TINY_SPANS] = {second - 64, odd, tiny};

    for (int i = 0; i < TINY_SPANS; i++) {
        spans[i] = (struct cst_table_span){.start = starts[i],
                                           .n_elems = sizes[i],
                                           .first_tile = *n_tiles,
                                           .lr_scale = i == 1 ? 0.5f : 1.0f,
                                           .decay_scale = i == 2 ? 0.0f : 1.0f};
        *n_tiles += cst_table_n_tiles(sizes[i]);
    }
}

static void write_chunks(struct tiny_job *job)
{
    struct cst_table_chunk *chunks = cst_table_chunks(job->table);
    uint64_t at = 0, n_tiles = 0;

    for (unsigned c = 0; c < job->n_chunks; c++) {
        chunks[c] = (struct cst_table_chunk){
            .n_elems = job->n_elems[c], .first_span = c * TINY_SPANS, .n_spans = TINY_SPANS};
        for (int row = 0; row < N_ROWS; row++) {
            struct cst_place *place =
                row == CST_ROW_WEIGHT_OTHER ? &chunks[c].other_weight : &chunks[c].rows[row];

            if (tiny_job_has(job, (enum cst_row)row)) {
                *place = (struct cst_place){.segment = job->ids[TINY_ARENA], .offset = at};
            }
            at += align_up(row_bytes(job, row, job->n_elems[c]));
        }
        write_spans(cst_table_spans(job->table) + c * TINY_SPANS, job->n_elems[c], &n_tiles);
    }
}

void tiny_job_open_as(struct tiny_job *job, const struct tiny_states *states, unsigned n_chunks,
                      const uint64_t *n_elems, unsigned n_slots, uint64_t seed)
{
    struct cst_table_header header;
    uint64_t n_tiles = 0;

    *job = (struct tiny_job){.n_chunks = n_chunks, .states = *states, .ids = {11, 12, 13, 14}};
    job->states.grad_bytes = states->grad_bytes == 4 ? 4 : 2;
    for (unsigned c = 0; c < n_chunks; c++) {
        struct cst_table_span spans[TINY_SPANS];

        job->n_elems[c] = n_elems[c];
        job->block[c] = job->bytes[TINY_POOL];
        for (int row = 0; row < N_ROWS; row++) {
            job->bytes[TINY_ARENA] += align_up(row_bytes(job, row, n_elems[c]));
        }
        job->bytes[TINY_POOL] += N_BLOCKS * align_up(n_elems[c] * 2);
        write_spans(spans, n_elems[c], &n_tiles);
    }
    job->bytes[TINY_ARENA] *= states->reservation ? 3 : 1;
    cst_table_size(&header, n_chunks, n_chunks * TINY_SPANS, n_tiles);
    job->bytes[TINY_TABLE] = header.total_bytes;
    job->bytes[TINY_UNDO] = n_slots * sizeof(struct cst_undo_slot);
    for (int i = 0; i < TINY_SEGMENTS; i++) {
        job->fds[i] = engine_proc_memfd(job->bytes[i], &job->base[i]);
    }
    job->table = job->base[TINY_TABLE];
    *job->table = header;
    job->table->grad_bytes = job->states.grad_bytes;
    job->table->optimizer = states->optimizer;
    job->table->moments = states->moments;
    job->table->rounding = states->rounding;
    job->table->seed = seed;
    tiny_job_fill(job, seed);
}

void tiny_job_open(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                   unsigned n_slots, uint64_t seed)
{
    tiny_job_open_as(job, &(struct tiny_states){0}, n_chunks, n_elems, n_slots, seed);
}

void tiny_job_open_wide(struct tiny_job *job, unsigned n_chunks, const uint64_t *n_elems,
                        unsigned n_slots, uint64_t seed)
{
    tiny_job_open_as(job, &(struct tiny_states){.grad_bytes = 4}, n_chunks, n_elems, n_slots, seed);
}

void tiny_job_close(struct tiny_job *job)
{
    for (int i = 0; i < TINY_SEGMENTS; i++) {
        (void)munmap(job->base[i], i == TINY_POOL && job->on_gpu && job->gpu_bytes > 0
                                       ? job->gpu_bytes
                                       : job->bytes[i]);
        (void)close(job->fds[i]);
    }
}

/* Fill a row with small numbers of both signs, as bf16 if @bf16. */
static void fill_row(void *at, uint64_t n, bool bf16, uint64_t *state)
{
    for (uint64_t i = 0; i < n; i++) {
        float f = ((float)(tiny_random(state) >> 40) - 8388608.0f) * 0x1p-27f;

        if (bf16) {
            ((uint16_t *)at)[i] = cst_fp32_to_bf16(f);
        } else {
            ((float *)at)[i] = f;
        }
    }
}

static void *address(const struct tiny_job *job, enum tiny_segment segment, uint64_t offset)
{
    return (char *)job->base[segment] + offset;
}

/* Fill a row of moments with small numbers in the job's format. Those of exp_avg_sq are
 * positive. */
static void fill_moments(struct tiny_job *job, unsigned chunk, unsigned which, uint64_t *state)
{
    uint64_t n = job->n_elems[chunk];
    uint8_t *at = address(job, TINY_ARENA,
                          tiny_job_row(job, chunk, (enum cst_row)(CST_ROW_MOMENT + which)).offset);
    struct cst_update_moment row = {
        .values = at, .exponents = job->states.moments == CST_MOMENTS_MX8 ? at + n : NULL};
    float *values = malloc(n * sizeof *values);

    if (values == NULL) {
        abort();
    }
    fill_row(values, n, false, state);
    for (uint64_t i = 0; which == 1 && i < n; i++) {
        values[i] *= values[i];
    }
    cst_moments_encode(job->states.moments, which, 0, n, values, &row);
    free(values);
}

static void fill_rows(struct tiny_job *job, unsigned chunk, uint64_t *state)
{
    for (int row = 0; row < N_ROWS; row++) {
        bool bf16 = row != CST_ROW_MASTER && (row != CST_ROW_GRAD || job->states.grad_bytes == 2);

        if (!tiny_job_has(job, (enum cst_row)row)) {
            continue;
        }
        if (row == CST_ROW_MOMENT || row == CST_ROW_MOMENT + 1) {
            fill_moments(job, chunk, (unsigned)(row - CST_ROW_MOMENT), state);
        } else {
            fill_row(address(job, TINY_ARENA, tiny_job_row(job, chunk, (enum cst_row)row).offset),
                     job->n_elems[chunk], bf16, state);
        }
    }
}

void tiny_job_fill(struct tiny_job *job, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;

    memset(cst_table_tiles(job->table), 0, job->table->n_tiles * sizeof(struct cst_table_tile));
    memset(job->base[TINY_UNDO], 0, job->bytes[TINY_UNDO]);
    write_chunks(job);
    for (unsigned c = 0; c < job->n_chunks; c++) {
        fill_rows(job, c, &state);
        for (unsigned b = 0; b < N_BLOCKS; b++) {
            fill_row(address(job, TINY_POOL, tiny_job_block(job, c, b).offset), job->n_elems[c],
                     true, &state);
        }
    }
}

void tiny_job_use_gpu(struct tiny_job *job)
{
    job->on_gpu = true;
}

/* Let the first engine allocate the pool, and fill it. */
static void make_pool(struct tiny_job *job, struct engine_proc *proc)
{
    struct engine_segment_done done;
    void *base;

    job->gpu_bytes =
        (job->bytes[TINY_POOL] + proc->granularity - 1) / proc->granularity * proc->granularity;
    done = engine_proc_add_device(proc, job->ids[TINY_POOL], -1, job->gpu_bytes);
    if (done.status != 0 || done.fd < 0) {
        fprintf(stderr, "tiny_job: %s\n", done.text);
        abort();
    }
    base = mmap(NULL, job->gpu_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, done.fd, 0);
    if (base == MAP_FAILED) {
        perror("tiny_job: mapping what a GPU's handle stands for");
        abort();
    }
    memcpy(base, job->base[TINY_POOL], job->bytes[TINY_POOL]);
    (void)munmap(job->base[TINY_POOL], job->bytes[TINY_POOL]);
    (void)close(job->fds[TINY_POOL]);
    job->base[TINY_POOL] = base;
    job->fds[TINY_POOL] = done.fd;
}

static void add_pool(struct tiny_job *job, struct engine_proc *proc)
{
    struct engine_segment_done done;

    if (job->gpu_bytes == 0) {
        make_pool(job, proc);
        return;
    }
    done = engine_proc_add_device(proc, job->ids[TINY_POOL], job->fds[TINY_POOL], job->gpu_bytes);
    if (done.status != 0) {
        fprintf(stderr, "tiny_job: %s\n", done.text);
        abort();
    }
}

void tiny_job_start(struct tiny_job *job, struct engine_proc *proc, uint32_t threads,
                    uint32_t copy_threads, unsigned order)
{
    engine_proc_open(proc, threads, copy_threads, job->ids[TINY_UNDO], job->fds[TINY_UNDO],
                     job->bytes[TINY_UNDO]);
    for (unsigned i = 0; i < TINY_UNDO; i++) {
        unsigned s = (i + order) % TINY_UNDO;

        if (s == TINY_POOL && job->on_gpu) {
            add_pool(job, proc);
            continue;
        }
        engine_proc_must_add(proc, job->ids[s], job->fds[s], job->bytes[s]);
    }
}

struct cst_place tiny_job_row(const struct tiny_job *job, unsigned chunk, enum cst_row row)
{
    const struct cst_table_chunk *entry = &cst_table_chunks(job->table)[chunk];

    return (int)row == CST_ROW_WEIGHT_OTHER ? entry->other_weight : entry->rows[row];
}

struct cst_place tiny_job_reservation(const struct tiny_job *job, unsigned chunk, enum cst_row row,
                                      bool written)
{
    struct cst_place place = tiny_job_row(job, chunk, row);

    place.offset += job->bytes[TINY_ARENA] / 3 * (written ? 2 : 1);
    return place;
}

struct cst_place tiny_job_block(const struct tiny_job *job, unsigned chunk, unsigned block)
{
    return (struct cst_place){.segment = job->ids[TINY_POOL],
                              .offset =
                                  job->block[chunk] + block * align_up(job->n_elems[chunk] * 2)};
}

struct engine_command tiny_job_reduce(const struct tiny_job *job, unsigned chunk, uint64_t mark)
{
    struct engine_command command = {.kind = ENGINE__COMMAND_KIND__REDUCE,
                                     .table = job->ids[TINY_TABLE],
                                     .chunk = chunk,
                                     .mark = mark};

    if (job->states.grad_bytes == 2) {
        command.src[command.n_src++] = tiny_job_row(job, chunk, CST_ROW_GRAD);
    }
    command.src[command.n_src++] = tiny_job_block(job, chunk, 0);
    command.src[command.n_src++] = tiny_job_block(job, chunk, 1);
    return command;
}

struct engine_command tiny_job_update(const struct tiny_job *job, unsigned chunk, uint64_t mark)
{
    return (struct engine_command){.kind = ENGINE__COMMAND_KIND__UPDATE,
                                   .table = job->ids[TINY_TABLE],
                                   .chunk = chunk,
                                   .mark = mark,
                                   .lr = 1e-3f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .weight_decay = 0.1f,
                                   .grad_scale = 0.75f};
}

/* Print the first byte that differs. */
static void tell_difference(const struct tiny_job *a, const struct tiny_job *b, int segment)
{
    const uint8_t *x = a->base[segment], *y = b->base[segment];
    uint64_t at = 0, n = 0;

    for (uint64_t i = a->bytes[segment]; i > 0; i--) {
        if (x[i - 1] != y[i - 1]) {
            at = i - 1;
            n++;
        }
    }
    printf("segment %d: %llu bytes differ, the first at %llu of %llu\n", segment,
           (unsigned long long)n, (unsigned long long)at, (unsigned long long)a->bytes[segment]);
    for (unsigned c = 0; segment == TINY_ARENA && c < a->n_chunks; c++) {
        for (int row = 0; row < N_ROWS; row++) {
            uint64_t from = tiny_job_row(a, c, (enum cst_row)row).offset;

            if (at >= from && at < from + row_bytes(a, row, a->n_elems[c])) {
                printf("byte %llu of chunk %u, row %d\n", (unsigned long long)(at - from), c, row);
            }
        }
    }
}

bool tiny_job_same(const struct tiny_job *a, const struct tiny_job *b)
{
    for (int i = 0; i < TINY_UNDO; i++) {
        if (a->bytes[i] != b->bytes[i]) {
            return false;
        }
        if (memcmp(a->base[i], b->base[i], a->bytes[i]) != 0) {
            tell_difference(a, b, i);
            return false;
        }
    }
    return true;
}
