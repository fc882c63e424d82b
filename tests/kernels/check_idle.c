/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tensors that have no gradient in a step: their states stay, in place and out of place,
 * others count the steps that they have made, and the norm leaves them out. */
#include "kernels/math/norm.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/kernels/tile_job.h"

enum { MARK = 9, IDLE = 1, LATE = 4, MISSED = 6 };

/* Replace the table of @job by one that counts the steps of each span. In the step MARK, span IDLE
 * has no gradient, and span LATE has missed MISSED steps before. */
static void count_steps(struct job *job)
{
    const struct cst_table_header *old = job->work.table;
    struct cst_table_header header = *old, *table;

    cst_table_add_steps(&header);
    table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(table);
    memcpy(table, old, old->total_bytes);
    *table = header;
    for (uint64_t i = 0; i < N_SPANS; i++) {
        *cst_table_steps(table, i, MARK) = (struct cst_table_steps){.missed = i == LATE   ? MISSED
                                                                              : i == IDLE ? 1
                                                                                          : 0,
                                                                    .last = i == IDLE ? 3 : MARK};
        /* Those up to the step before are in another place. */
        *cst_table_steps(table, i, MARK - 1) = (struct cst_table_steps){.missed = 77, .last = 77};
    }
    job->work.table = table;
    job->work.mark = MARK;
}

static void update(struct job *job, bool undo)
{
    (void)reduce_all(job, NULL);
    (void)cst_tile_update_range(&job->work, &hyper, 0, UINT64_MAX, undo ? &job->undo[0] : NULL);
}

/* Check that @got has the states of @old in span @i, and else those of @want. */
static void compare(const struct job *got, const struct job *old, const struct job *want, int i)
{
    const struct cst_rows *a = &got->work.rows, *b = &(i == IDLE ? old : want)->work.rows;
    uint64_t at = span_start[i], bytes = span_elems[i] * sizeof(float);

    ck_assert_mem_eq(a->master + at, b->master + at, bytes);
    ck_assert_mem_eq(exp_avg(a) + at, exp_avg(b) + at, bytes);
    ck_assert_mem_eq(exp_avg_sq(a) + at, exp_avg_sq(b) + at, bytes);
    for (uint64_t k = 0; k < span_elems[i] && i != IDLE; k++) {
        ck_assert_uint_eq(a->weight[at + k], b->weight[at + k]);
    }
    for (uint64_t k = 0; k < span_elems[i] && i == IDLE; k++) {
        ck_assert_uint_eq(a->weight[at + k], cst_fp32_to_bf16(a->master[at + k]));
    }
}

/* One span stays, one has made fewer steps, and the others are as without counts. Tiles of all of
 * them are done, and the command may be repeated. */
START_TEST(in_place)
{
    unsigned n;
    const struct cst_kernels *kernels = cst_kernels_all(&n);

    for (unsigned k = 0; k < n; k++) {
        struct job got, old, want, late;

        if (!kernels[k].usable()) {
            continue;
        }
        job_open(&got, kernels[k].isa);
        job_open(&old, "ref");
        job_open(&want, "ref");
        job_open(&late, "ref");
        count_steps(&got);
        want.work.mark = MARK;
        late.work.mark = MARK - MISSED;
        update(&got, k % 2 == 0);
        update(&want, false);
        update(&late, false);
        for (int i = 0; i < N_SPANS; i++) {
            compare(&got, &old, i == LATE ? &late : &want, i);
        }
        for (uint64_t i = 0; i < got.work.table->n_tiles; i++) {
            ck_assert_uint_eq(cst_table_tiles(got.work.table)[i].update_mark, MARK);
        }
        ck_assert_uint_eq(cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL).n_elems, 0);
        free(got.work.table);
        job_close(&got);
        job_close(&old);
        job_close(&want);
        job_close(&late);
    }
}
END_TEST

/* Out of place, the states of the idle span are copied. */
START_TEST(elsewhere)
{
    struct job got, old;
    struct cst_rows out;

    job_open(&got, NULL);
    job_open(&old, "ref");
    count_steps(&got);
    (void)reduce_all(&got, NULL);
    out = got.work.rows;
    out.master = calloc(CHUNK_ELEMS, sizeof *out.master);
    out.weight = calloc(CHUNK_ELEMS, sizeof *out.weight);
    for (int k = 0; k < 2; k++) {
        out.moments[k].values = calloc(CHUNK_ELEMS, sizeof(float));
    }
    got.work.out = out;
    got.work.elsewhere = true;
    (void)cst_tile_update_range(&got.work, &hyper, 0, UINT64_MAX, NULL);
    got.work.rows = out;
    compare(&got, &old, NULL, IDLE);
    free(out.master);
    free(out.weight);
    free(out.moments[0].values);
    free(out.moments[1].values);
    free(got.work.table);
    job_close(&got);
    job_close(&old);
}
END_TEST

/* Gradients of the idle span that were summed all the same add nothing to the norm. */
START_TEST(norm)
{
    struct job job;
    double sum = 0;

    job_open(&job, NULL);
    count_steps(&job);
    (void)reduce_all(&job, NULL);
    for (int i = 0; i < N_SPANS; i++) {
        const struct cst_table_span *span = &cst_table_spans(job.work.table)[i];

        for (uint64_t k = 0; i != IDLE && k < cst_table_n_tiles(span->n_elems); k++) {
            sum += cst_table_tiles(job.work.table)[span->first_tile + k].sum_squares;
        }
    }
    cst_table_tiles(job.work.table)[cst_table_spans(job.work.table)[IDLE].first_tile].sum_squares =
        HUGE_VAL;
    for (int again = 0; again < 2; again++) {
        ck_assert(cst_norm_of_step(job.work.table, MARK) == sum);
    }
    free(job.work.table);
    job_close(&job);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("idle");
    TCase *tc = suite_case(s, "idle", NULL, NULL);

    tcase_add_test(tc, in_place);
    tcase_add_test(tc, elsewhere);
    tcase_add_test(tc, norm);
    return suite_run(s);
}
