/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sums into fp32 rows by a GPU's engine process, on tests/lib/fakecuda. */
#include "tests/lib/engine_rig.h"
#include "tests/lib/fake_gpu.h"

#include "kernels/math/accumulate.h"
#include "kernels/math/undo.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOST 60 /* id of a segment of host memory next to the job's segments */
#define BORDER (256u << 20)

static uint64_t seed, random_state;

static void randomise(void *to, uint64_t bytes)
{
    uint8_t *b = to;

    for (uint64_t i = 0; i < bytes; i++) {
        b[i] = (uint8_t)(tiny_random(&random_state) >> 33);
    }
}

static void set_up_wide(void)
{
    random_state = seed * 2 + 1;
    engine_proc_use(FAKE_GPU_ENGINE, fake_gpu_uuid(0));
    engine_rig_setup_wide(true);
}

static const struct {
    unsigned n;
    bool on_host[5]; /* the contribution is in host memory; false: on the GPU */
} mixes[] = {
    {0, {0}},
    {1, {false}},
    {2, {false, false}},
    {3, {false, false, false}}, /* these two are summed on the GPU */
    {5, {false, false, false, false, false}},
    {3, {true, false, false}},
    {1, {true}},
};

#define N_MIXES (sizeof mixes / sizeof mixes[0])

/* The reduction with the sources @mix. @grad and @tiles receive the expected row and tiles. */
static struct engine_command wide_reduce(unsigned chunk, unsigned mix, bool accumulate,
                                         uint64_t mark, float *grad, struct cst_table_tile *tiles)
{
    const struct cst_table_span *spans =
        cst_table_spans(job.table) + cst_table_chunks(job.table)[chunk].first_span;
    struct engine_command command = tiny_job_reduce(&job, chunk, mark);

    command.accumulate = accumulate;
    command.n_src = mixes[mix].n;
    for (unsigned i = 0; i < command.n_src; i++) {
        command.src[i] = mixes[mix].on_host[i] ? tiny_job_row(&job, chunk, CST_ROW_MASTER)
                                               : tiny_job_block(&job, chunk, i % 4);
    }
    for (unsigned s = 0; s < TINY_SPANS; s++) {
        for (uint64_t i = 0; i < spans[s].n_elems; i += CST_TILE_ELEMS) {
            uint64_t n = spans[s].n_elems - i, first = spans[s].start + i;
            struct cst_table_tile *tile = &tiles[spans[s].first_tile + i / CST_TILE_ELEMS];
            const uint16_t *src[5];

            for (unsigned k = 0; k < command.n_src; k++) {
                src[k] = (const uint16_t *)engine_rig_at(command.src[k]) + first;
            }
            n = n < CST_TILE_ELEMS ? n : CST_TILE_ELEMS;
            tile->sum_squares = cst_accumulate_ref(n, command.n_src, src, accumulate, grad + first);
            tile->reduce_mark = (uint32_t)mark;
        }
    }
    return command;
}

/* Sums of contributions in any memory, stored and added, have the reference's bits. A command that
 * is issued again adds nothing. */
START_TEST(test_wide_reduce)
{
    struct cst_table_tile *tiles = malloc(job.table->n_tiles * sizeof *tiles);
    float *grad = malloc(BIG_ELEMS * sizeof *grad);

    ck_assert(tiles != NULL && grad != NULL);
    for (unsigned c = 0; c < N_CHUNKS; c++) {
        float *row = engine_rig_at(tiny_job_row(&job, c, CST_ROW_GRAD));

        randomise(engine_rig_at(tiny_job_row(&job, c, CST_ROW_MASTER)), job.n_elems[c] * 2);
        for (unsigned b = 0; b < 4; b++) {
            randomise(engine_rig_at(tiny_job_block(&job, c, b)), job.n_elems[c] * 2);
        }
        memcpy(grad, row, job.n_elems[c] * sizeof *grad);
        memcpy(tiles, cst_table_tiles(job.table), job.table->n_tiles * sizeof *tiles);
        for (uint64_t m = 1; m <= 3; m++) {
            struct engine_command reduce = wide_reduce(c, (unsigned)_i, m > 1, m, grad, tiles);

            engine_rig_must(reduce);
            engine_rig_must(reduce);
            ck_assert_msg(memcmp(grad, row, job.n_elems[c] * sizeof *grad) == 0,
                          "seed %" PRIu64 ", chunk %u, micro-batch %" PRIu64, seed, c, m);
            ck_assert_int_eq(
                memcmp(cst_table_tiles(job.table), tiles, job.table->n_tiles * sizeof *tiles), 0);
        }
    }
    for (unsigned i = 0; i < N_SLOTS; i++) {
        ck_assert(!cst_undo_holds((struct cst_undo_slot *)job.base[TINY_UNDO] + i));
    }
    free(tiles);
    free(grad);
}
END_TEST

/* A row across the border of two registrations of its segment is summed. */
START_TEST(test_wide_border)
{
    struct cst_place *place = &cst_table_chunks(job.table)[BIG].rows[CST_ROW_GRAD];
    uint64_t bytes = 2 * (uint64_t)BORDER, at = BORDER - (uint64_t)BIG_ELEMS / 2 * 4;
    struct cst_table_tile *tiles = calloc(job.table->n_tiles, sizeof *tiles);
    float *grad = malloc(BIG_ELEMS * sizeof *grad);
    uint8_t *base;
    int fd = engine_proc_memfd(bytes, (void **)&base);

    ck_assert(tiles != NULL && grad != NULL);
    ck_assert_int_eq(engine_proc_add(&proc, HOST, fd, bytes, -1, false, true).status, CST_OK);
    randomise(base + at, BIG_ELEMS * 4);
    memcpy(grad, base + at, BIG_ELEMS * 4);
    *place = (struct cst_place){.segment = HOST, .offset = at};
    engine_rig_must(wide_reduce(BIG, (unsigned)_i, true, 1, grad, tiles));
    ck_assert_int_eq(memcmp(base + at, grad, BIG_ELEMS * 4), 0);
    free(tiles);
    free(grad);
}
END_TEST

int main(int argc, char **argv)
{
    const char *text = getenv("CST_FAKECUDA_SEED");
    Suite *suite = suite_create("cuda_engine_wide");
    TCase *wide = suite_case(suite, "wide", set_up_wide, engine_rig_teardown);

    (void)argc;
    seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    fake_gpu_use(argv);
    printf("seed: CST_FAKECUDA_SEED=%" PRIu64 "\n", seed);
    suite_add_loop(wide, test_wide_reduce, 0, N_MIXES);
    suite_add_loop(wide, test_wide_border, 2, 4);
    return suite_run(suite);
}
