/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of kernels/engine/segments and kernels/engine/chunk: the memory that a place refers to, and
 * invalid tables. */
#include "kernels/engine/chunk.h"
#include "tests/lib/suite.h"
#include "tests/lib/tiny_job.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct cste_segments segments;
static char memory[4096];

static struct cste_segment make(uint32_t id, uint64_t bytes)
{
    return (struct cste_segment){
        .id = id, .state = CSTE_SEGMENT_READY, .mem = {.base = memory, .bytes = bytes}};
}

static int find(uint32_t id, uint64_t offset, uint64_t bytes, uint64_t align)
{
    struct cste_segment *segment;
    struct cst_err err;

    return cste_segments_find(&segments, (struct cst_place){.segment = id, .offset = offset}, bytes,
                              align, "place", &segment, &err);
}

/* -- segments ------------------------------------------------------------------------------- */

/* Segments are found by id, whatever the order in which they are added and dropped. */
START_TEST(test_set)
{
    struct cste_segment s[40];
    struct cst_err err;

    cste_segments_init(&segments);
    for (unsigned i = 0; i < 40; i++) {
        s[i] = make(1 + i * 17 % 40, 1);
        ck_assert_int_eq(cste_segments_add(&segments, &s[i], &err), CST_OK);
    }
    for (unsigned i = 0; i < 40; i++) {
        ck_assert_ptr_eq(cste_segments_get(&segments, s[i].id), &s[i]);
    }
    for (unsigned i = 0; i < 40; i += 2) {
        cste_segments_remove(&segments, &s[i]);
    }
    for (unsigned i = 0; i < 40; i++) {
        ck_assert_ptr_eq(cste_segments_get(&segments, s[i].id), i % 2 == 0 ? NULL : &s[i]);
    }
    ck_assert_uint_eq(segments.n, 20);
    ck_assert_ptr_null(cste_segments_get(&segments, 41));
    cste_segments_close(&segments);
}
END_TEST

/* Id 0, and an id that is in use, are refused. */
START_TEST(test_bad_ids)
{
    struct cste_segment zero = make(0, 1), a = make(5, 1), b = make(5, 1);
    struct cst_err err;

    cste_segments_init(&segments);
    ck_assert_int_eq(cste_segments_add(&segments, &zero, &err), CST_EINVAL);
    ck_assert_int_eq(cste_segments_add(&segments, &a, &err), CST_OK);
    ck_assert_int_eq(cste_segments_add(&segments, &b, &err), CST_EEXIST);
    ck_assert_ptr_eq(cste_segments_get(&segments, 5), &a);
    cste_segments_close(&segments);
}
END_TEST

/* A place is found only if all of it lies in a READY segment at an aligned offset. */
START_TEST(test_find)
{
    struct cste_segment s = make(3, 1000);
    struct cst_err err;

    cste_segments_init(&segments);
    ck_assert_int_eq(cste_segments_add(&segments, &s, &err), CST_OK);
    ck_assert_int_eq(find(3, 0, 1000, 4), CST_OK);
    ck_assert_int_eq(find(3, 1000, 0, 4), CST_OK);
    ck_assert_int_eq(find(3, 996, 4, 4), CST_OK);
    ck_assert_int_eq(find(3, 996, 5, 4), CST_EINVAL);
    ck_assert_int_eq(find(3, 0, 1001, 4), CST_EINVAL);
    ck_assert_int_eq(find(3, 1001, 0, 1), CST_EINVAL);
    ck_assert_int_eq(find(3, 998, 2, 4), CST_EINVAL);
    ck_assert_int_eq(find(3, UINT64_MAX, 2, 1), CST_EINVAL);
    ck_assert_int_eq(find(3, 8, UINT64_MAX - 7, 1), CST_EINVAL);
    ck_assert_int_eq(find(4, 0, 1, 1), CST_ENOTFOUND);
    ck_assert_int_eq(find(0, 0, 1, 1), CST_ENOTFOUND);
    s.state = CSTE_SEGMENT_ADDING;
    ck_assert_int_eq(find(3, 0, 1, 1), CST_ENOTFOUND);
    s.state = CSTE_SEGMENT_DROPPING;
    ck_assert_int_eq(find(3, 0, 1, 1), CST_ENOTFOUND);
    cste_segments_close(&segments);
}
END_TEST

/* Only a memfd that is sealed against shrinking and growing, and has the given length, is
 * accepted. */
START_TEST(test_check_fd)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING), ends[2];
    FILE *file = tmpfile();
    struct cst_err err;

    ck_assert_int_eq(ftruncate(fd, 8192), 0);
    ck_assert_int_eq(cste_segments_check_fd(fd, 8192, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "seals"));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    ck_assert_int_eq(cste_segments_check_fd(fd, 8192, &err), CST_EINVAL);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    ck_assert_int_eq(cste_segments_check_fd(fd, 8192, &err), CST_OK);
    ck_assert_int_eq(cste_segments_check_fd(fd, 8193, &err), CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "8193"));
    ck_assert_int_eq(cste_segments_check_fd(fd, 0, &err), CST_EINVAL);
    ck_assert_int_eq(ftruncate(fileno(file), 8192), 0);
    ck_assert_int_eq(cste_segments_check_fd(fileno(file), 8192, &err), CST_EINVAL);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(cste_segments_check_fd(ends[0], 1, &err), CST_EINVAL);
    ck_assert_int_eq(cste_segments_check_fd(-1, 1, &err), CST_EINVAL);
}
END_TEST

/* -- chunks --------------------------------------------------------------------------------- */

#define N_CHUNKS 3

static struct tiny_job job;
static struct cste_segment arena, table;
static char *table_copy;               /* the valid table */
static struct cst_table_header *lying; /* a copy of the table that ends at an inaccessible page */

static void set_up_chunks(void)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n_elems[N_CHUNKS] = {9000, 8192, 50000}, room;
    struct cst_err err;
    char *base;

    tiny_job_open(&job, N_CHUNKS, n_elems, 1, 1);
    room = (job.bytes[TINY_TABLE] + page - 1) / page * page;
    base = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    ck_assert_int_eq(mprotect(base + room, page, PROT_NONE), 0);
    lying = (void *)(base + room - job.bytes[TINY_TABLE]);
    table_copy = job.base[TINY_TABLE];
    memcpy(lying, table_copy, job.bytes[TINY_TABLE]);
    arena = (struct cste_segment){
        .id = job.ids[TINY_ARENA],
        .state = CSTE_SEGMENT_READY,
        .mem = {.base = job.base[TINY_ARENA], .bytes = job.bytes[TINY_ARENA]}};
    table = (struct cste_segment){.id = job.ids[TINY_TABLE],
                                  .state = CSTE_SEGMENT_READY,
                                  .mem = {.base = lying, .bytes = job.bytes[TINY_TABLE]}};
    cste_segments_init(&segments);
    ck_assert_int_eq(cste_segments_add(&segments, &arena, &err), CST_OK);
    ck_assert_int_eq(cste_segments_add(&segments, &table, &err), CST_OK);
}

static void tear_down_chunks(void)
{
    cste_segments_close(&segments);
    tiny_job_close(&job);
}

static int find_chunk(uint32_t index, struct cste_chunk *out)
{
    struct cst_err err;

    return cste_chunk_find(&segments, job.ids[TINY_TABLE], index, CSTE_CHUNK_ROWS_ALL, out, &err);
}

/* A chunk's rows are where the table says, its tiles are counted, and its segments are listed. */
START_TEST(test_chunk)
{
    struct cste_chunk chunk;

    ck_assert_int_eq(find_chunk(2, &chunk), CST_OK);
    ck_assert_uint_eq(chunk.n_elems, 50000);
    ck_assert_ptr_eq(chunk.work.rows.moments[0].values,
                     (char *)job.base[TINY_ARENA] + tiny_job_row(&job, 2, CST_ROW_MOMENT).offset);
    ck_assert_uint_eq(chunk.n_tiles, cst_tile_count(&chunk.work));
    ck_assert_uint_eq(chunk.n_segments, 1 + CST_ROW_COUNT);
    ck_assert_ptr_eq(chunk.segments[0], &table);
    ck_assert_ptr_eq(chunk.segments[5], &arena);
}
END_TEST

/* With fp32 gradients in the header, a grad row has twice the length. */
START_TEST(test_wide)
{
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cste_chunk chunk;

    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    ck_assert_ptr_nonnull(chunk.work.rows.grad);
    ck_assert_ptr_null(chunk.work.rows.grad_f32);
    lying->grad_bytes = 4;
    c->rows[CST_ROW_GRAD].offset = job.bytes[TINY_ARENA] - c->n_elems * 4;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    ck_assert_ptr_null(chunk.work.rows.grad);
    ck_assert_ptr_eq(chunk.work.rows.grad_f32,
                     (char *)job.base[TINY_ARENA] + c->rows[CST_ROW_GRAD].offset);
    c->rows[CST_ROW_GRAD].offset += 4;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
}
END_TEST

/* An optimizer with one moment has no exp_avg_sq row, and none is required. */
START_TEST(test_one_moment)
{
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cste_chunk chunk;

    lying->optimizer = CST_OPTIMIZER_LION;
    c->rows[CST_ROW_MOMENT + 1] = (struct cst_place){.segment = CST_PLACE_NONE};
    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    ck_assert_ptr_null(chunk.rows[CST_ROW_MOMENT + 1].mem);
    lying->optimizer = CST_OPTIMIZER_ADAM;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
}
END_TEST

/* Rows of moments have the bytes of their format: MX8 has one code per element and, after the
 * chunk's codes, one exponent per block. A table is refused unless chunk and spans begin and end at
 * blocks. */
START_TEST(test_moments)
{
    static const uint64_t bytes[CST_MOMENTS_COUNT] = {8192 * 4, 8192 * 2, 8192 + 8192 / 32};
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cst_table_span *spans = &cst_table_spans(lying)[c->first_span];
    struct cste_chunk chunk;

    for (uint32_t m = 0; m < CST_MOMENTS_COUNT; m++) {
        lying->moments = m;
        c->n_spans = m == CST_MOMENTS_MX8 ? 1 : TINY_SPANS;
        c->rows[CST_ROW_MOMENT].offset = job.bytes[TINY_ARENA] - bytes[m];
        ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
        c->rows[CST_ROW_MOMENT].offset += 4;
        ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
        c->rows[CST_ROW_MOMENT].offset = job.bytes[TINY_ARENA] - bytes[m];
    }
    spans[0].start = 16;
    spans[0].n_elems = 32;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
    spans[0].start = 32;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    c->n_elems -= 16;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
}
END_TEST

/* The second weight row is found if there is one, and is not required otherwise. */
START_TEST(test_second_weight)
{
    const unsigned both = CSTE_CHUNK_ROW(CST_ROW_WEIGHT) | CSTE_CHUNK_ROW(CST_ROW_WEIGHT_OTHER);
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cste_chunk chunk;
    struct cst_err err;

    ck_assert_int_eq(cste_chunk_find(&segments, job.ids[TINY_TABLE], 1, both, &chunk, &err),
                     CST_OK);
    ck_assert_ptr_null(chunk.rows[CST_ROW_WEIGHT_OTHER].mem);
    c->other_weight = (struct cst_place){.segment = job.ids[TINY_ARENA],
                                         .offset = job.bytes[TINY_ARENA] - c->n_elems * 2};
    ck_assert_int_eq(cste_chunk_find(&segments, job.ids[TINY_TABLE], 1, both, &chunk, &err),
                     CST_OK);
    ck_assert_ptr_eq(chunk.rows[CST_ROW_WEIGHT_OTHER].mem, &arena.mem);
    ck_assert_uint_eq(chunk.rows[CST_ROW_WEIGHT_OTHER].offset, c->other_weight.offset);
    c->other_weight.offset += 2;
    ck_assert_int_eq(cste_chunk_find(&segments, job.ids[TINY_TABLE], 1, both, &chunk, &err),
                     CST_EINVAL);
}
END_TEST

/* Rows that overlap are refused by name. A bf16 grad row may be the weight row. */
START_TEST(test_overlap)
{
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cste_chunk chunk;
    struct cst_err err;

    c->rows[CST_ROW_GRAD] = c->rows[CST_ROW_WEIGHT];
    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    ck_assert_ptr_eq(chunk.work.rows.grad, chunk.work.rows.weight);
    c->rows[CST_ROW_GRAD].offset += 2;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
    c->rows[CST_ROW_GRAD].offset -= 2;
    lying->grad_bytes = 4;
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
    memcpy(lying, table_copy, job.bytes[TINY_TABLE]);
    c->rows[CST_ROW_MOMENT].offset = c->rows[CST_ROW_MASTER].offset + c->n_elems * 4 - 4;
    ck_assert_int_eq(
        cste_chunk_find(&segments, job.ids[TINY_TABLE], 1, CSTE_CHUNK_ROWS_ALL, &chunk, &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "master row"));
    ck_assert_ptr_nonnull(strstr(err.text, "exp_avg row"));
}
END_TEST

/* A frozen chunk has only its weights, and a request for another row is an error. */
START_TEST(test_frozen)
{
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cste_chunk chunk;
    struct cst_err err;

    c->n_spans = 0;
    for (int row = CST_ROW_GRAD; row < CST_ROW_COUNT; row++) {
        c->rows[row] = (struct cst_place){.segment = CST_PLACE_NONE};
    }
    ck_assert_int_eq(cste_chunk_find(&segments, job.ids[TINY_TABLE], 1,
                                     CSTE_CHUNK_ROW(CST_ROW_WEIGHT), &chunk, &err),
                     CST_OK);
    ck_assert_uint_eq(chunk.n_tiles, 0);
    ck_assert_int_eq(
        cste_chunk_find(&segments, job.ids[TINY_TABLE], 1, CSTE_CHUNK_ROWS_REDUCE, &chunk, &err),
        CST_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "chunk 1 is frozen: it has no grad row"));
    ck_assert_int_eq(find_chunk(1, &chunk), CST_EINVAL);
}
END_TEST

/* An unknown chunk, an unknown table, and a segment that is no table are refused. */
START_TEST(test_no_chunk)
{
    struct cste_chunk chunk;
    struct cst_err err;

    ck_assert_int_eq(find_chunk(N_CHUNKS, &chunk), CST_EINVAL);
    ck_assert_int_eq(cste_chunk_find(&segments, 99, 0, 0, &chunk, &err), CST_ENOTFOUND);
    ck_assert_int_eq(cste_chunk_find(&segments, arena.id, 0, 0, &chunk, &err), CST_EINVAL);
    table.mem.bytes = sizeof(struct cst_table_header) - 1;
    ck_assert_int_eq(find_chunk(0, &chunk), CST_EINVAL);
}
END_TEST

/* Every single number that points out of the table or of a segment is detected. */
START_TEST(test_lies)
{
    struct cst_table_chunk *c = &cst_table_chunks(lying)[1];
    struct cst_table_span *s = &cst_table_spans(lying)[c->first_span + 1];
    struct cste_chunk chunk;
    const struct {
        void *at;
        size_t size;
        uint64_t value;
    } lies[] = {
        {&lying->magic, 8, 1},
        {&lying->n_chunks, 4, UINT32_MAX},
        {&lying->n_spans, 4, UINT32_MAX},
        {&lying->n_tiles, 8, UINT64_MAX},
        {&lying->n_tiles, 8, lying->n_tiles + 1 + 64 / sizeof(struct cst_table_tile)},
        {&lying->chunks_bytes, 8, 0},
        {&lying->chunks_bytes, 8, lying->chunks_bytes + 8},
        {&lying->spans_bytes, 8, UINT64_MAX - 63},
        {&lying->tiles_bytes, 8, lying->total_bytes},
        {&lying->total_bytes, 8, lying->total_bytes + 64},
        {&lying->grad_bytes, 4, 3},
        {&lying->optimizer, 4, CST_OPTIMIZER_COUNT},
        {&lying->moments, 4, CST_MOMENTS_COUNT},
        {&lying->rounding, 4, CST_ROUNDING_COUNT},
        {&c->rows[1].offset, 8, c->rows[0].offset + 2},
        {&c->n_elems, 8, UINT64_MAX},
        {&c->n_elems, 8, CSTE_CHUNK_MAX_ELEMS},
        {&c->first_span, 4, UINT32_MAX},
        {&c->n_spans, 4, lying->n_spans},
        {&c->rows[2].segment, 4, 77},
        {&c->rows[2].offset, 8, job.bytes[TINY_ARENA] - 4},
        {&c->rows[2].offset, 8, 2},
        {&c->rows[4].offset, 8, UINT64_MAX - 3},
        {&s->start, 8, 0},
        {&s->start, 8, UINT64_MAX},
        {&s->n_elems, 8, c->n_elems},
        {&s->n_elems, 8, UINT64_MAX},
        {&s->first_tile, 8, lying->n_tiles},
        {&s->first_tile, 8, UINT64_MAX},
    };

    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        memcpy(lies[i].at, &lies[i].value, lies[i].size);
        ck_assert_msg(find_chunk(1, &chunk) != CST_OK, "lie %zu was believed", i);
        memcpy(lying, table_copy, job.bytes[TINY_TABLE]);
    }
    ck_assert_int_eq(find_chunk(1, &chunk), CST_OK);
}
END_TEST

/* Reading a table with random bytes never leaves it, and an accepted chunk can be traversed without
 * leaving the table. */
START_TEST(test_fuzz)
{
    const char *env = getenv("CST_SEED");
    uint64_t seed = env != NULL ? strtoull(env, NULL, 0) : (uint64_t)time(NULL),
             random = seed * 2 + 1;
    uint64_t n_bytes = lying->tiles_bytes;
    struct cste_chunk chunk;
    unsigned n_ok = 0;

    printf("seed: CST_SEED=%llu\n", (unsigned long long)seed);
    for (int round = 0; round < 20000; round++) {
        for (uint64_t k = tiny_random(&random) % 4; k > 0; k--) {
            /* Write a large or small number over one number or across two. */
            uint64_t at = tiny_random(&random) % (n_bytes - 8), value = tiny_random(&random);

            at = value % 3 == 0 ? at : at / 8 * 8;
            value >>= tiny_random(&random) % 64;
            memcpy((char *)lying + at, &value, 8);
        }
        if (find_chunk((uint32_t)round % N_CHUNKS, &chunk) == CST_OK) {
            const volatile struct cst_table_tile *tiles = cst_table_tiles(lying);
            const struct cst_table_span *spans = cst_table_spans(lying) + chunk.entry->first_span;
            const volatile char *grad = chunk.work.rows.grad != NULL
                                            ? (const volatile char *)chunk.work.rows.grad
                                            : (const volatile char *)chunk.work.rows.grad_f32;
            size_t elem_bytes = chunk.work.rows.grad != NULL ? 2 : 4;

            for (uint32_t i = 0; i < chunk.entry->n_spans; i++) {
                uint64_t n = cst_table_n_tiles(spans[i].n_elems);

                if (n > 0) {
                    (void)tiles[spans[i].first_tile].update_mark;
                    (void)tiles[spans[i].first_tile + n - 1].update_mark;
                    (void)grad[(spans[i].start + spans[i].n_elems) * elem_bytes - 1];
                }
            }
            n_ok++;
        }
        memcpy(lying, table_copy, job.bytes[TINY_TABLE]);
    }
    ck_assert_uint_gt(n_ok, 0);
    ck_assert_uint_lt(n_ok, 20000);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("segments");
    TCase *set = suite_case(suite, "segments", NULL, NULL);
    TCase *chunks = suite_case(suite, "chunks", set_up_chunks, tear_down_chunks);

    tcase_add_test(set, test_set);
    tcase_add_test(set, test_bad_ids);
    tcase_add_test(set, test_find);
    tcase_add_test(set, test_check_fd);
    tcase_add_test(chunks, test_chunk);
    tcase_add_test(chunks, test_wide);
    tcase_add_test(chunks, test_one_moment);
    tcase_add_test(chunks, test_moments);
    tcase_add_test(chunks, test_second_weight);
    tcase_add_test(chunks, test_overlap);
    tcase_add_test(chunks, test_frozen);
    tcase_add_test(chunks, test_no_chunk);
    tcase_add_test(chunks, test_lies);
    tcase_add_test(chunks, test_fuzz);
    return suite_run(suite);
}
