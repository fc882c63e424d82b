/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 matrices and the orthogonalisation of Muon, against double precision and on all
 * instruction sets; updates of fp32 tensors by Muon, against those of bf16 tensors. */
#include "kernels/math/tile.h"
#include "tests/kernels/hostile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -- products --------------------------------------------------------------------------------- */

static uint16_t *random_bf16(size_t n, uint64_t *state)
{
    uint16_t *m = malloc(n * sizeof *m);

    ck_assert_ptr_nonnull(m);
    for (size_t i = 0; i < n; i++) {
        double x = (double)(hostile_next(state) >> 11) * 0x1p-52 - 1;

        m[i] = cst_fp32_to_bf16((float)x);
    }
    return m;
}

static double at(const struct cst_product_operand *m, uint64_t i, uint64_t j)
{
    return (double)cst_bf16_to_fp32(m->at[i * m->row + j * m->column]);
}

/* Check an element of the result. An error of fp32 in each of the additions, and one of bf16 at the
 * end. */
static void check_element(const struct cst_product *p, uint64_t i, uint64_t j)
{
    double sum = 0, sizes = 0, want, got = (double)cst_bf16_to_fp32(p->out[i * p->stride + j]);

    for (uint64_t k = 0; k < p->depth; k++) {
        double x = at(&p->a, i, k) * at(&p->b, k, j);

        sum += x;
        sizes += fabs(x);
    }
    want = (double)p->alpha * sum;
    sizes = fabs((double)p->alpha) * sizes;
    if (p->add != NULL) {
        double x = (double)p->beta * (double)cst_bf16_to_fp32(p->add[i * p->stride + j]);

        want += x;
        sizes += fabs(x);
    }
    if (fabs(got - want) > 0x1p-8 * fabs(want) + 0x1p-24 * sizes * (double)(p->depth + 2)) {
        ck_abort_msg("element %llu, %llu is %g, not %g", (unsigned long long)i,
                     (unsigned long long)j, got, want);
    }
}

/* Make @p with all instruction sets, and compare the bits. */
static void make_product(struct cst_product *p, struct cst_product_space *space)
{
    size_t bytes = p->rows * p->stride * sizeof *p->out;
    uint16_t *first = calloc(1, bytes), *other = calloc(1, bytes);
    unsigned n_rows;
    const struct cst_kernels *rows = cst_kernels_all(&n_rows);

    ck_assert(first != NULL && other != NULL);
    for (unsigned i = 0; i < n_rows; i++) {
        if (rows[i].usable()) {
            p->out = i == 0 ? first : other;
            memset(space, 0xff, sizeof *space);
            rows[i].product(p, space);
            ck_assert_msg(memcmp(first, p->out, bytes) == 0, "%s differs", rows[i].isa);
        }
    }
    p->out = first;
    free(other);
}

/* Products of all kinds of shapes are those of double precision within the errors of their formats,
 * and have the same bits on all instruction sets. */
START_TEST(test_products)
{
    static const uint32_t sizes[][3] = {{1, 1, 1},      {2, 3, 5},       {6, 32, 256}, {7, 33, 257},
                                        {256, 256, 40}, {255, 130, 300}, {64, 17, 600}};
    struct cst_product_space *space = aligned_alloc(64, sizeof *space);
    uint64_t state = hostile_seed();

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        uint16_t *a = random_bf16((size_t)m * k, &state), *b = random_bf16((size_t)k * n, &state);
        uint16_t *add = random_bf16((size_t)m * n, &state);

        for (int turned = 0; turned < 4; turned++) {
            struct cst_product p = {
                .a = {a, turned & 1 ? 1 : k, turned & 1 ? m : 1},
                .b = {b, turned & 2 ? 1 : n, turned & 2 ? k : 1},
                .rows = m,
                .columns = n,
                .depth = k,
                .alpha = turned == 1 ? 1.0f : 2.0315f,
                .beta = -4.775f,
                .add = turned == 1 ? NULL : add,
                .stride = n,
            };

            make_product(&p, space);
            for (uint64_t i = 0; i < m; i += 1 + m / 13) {
                for (uint64_t j = 0; j < n; j += 1 + n / 11) {
                    check_element(&p, i, j);
                }
            }
            free(p.out);
        }
        free(a);
        free(b);
        free(add);
    }
    free(space);
}
END_TEST

/* Directions have the same bits on all instruction sets, and are those of the formula. */
START_TEST(test_directions)
{
    enum { N = 4 * CST_UPDATE_GROUP };
    struct cst_update_scalars scalars;
    uint64_t state = hostile_seed();
    uint16_t grad[N], first[N], other[N];
    float m[N], wide[N];
    unsigned n_rows;
    const struct cst_kernels *rows = cst_kernels_all(&n_rows);

    cst_update_prepare_muon(&scalars, 0.01, 0.1, 0.5f, 8, 16);
    ck_assert_float_eq_tol(scalars.step_size, 0.01f * 0.2f * 4, 1e-9f);
    for (size_t i = 0; i < N; i++) {
        grad[i] = cst_fp32_to_bf16((float)(hostile_next(&state) % 2000) / 1000 - 1);
        wide[i] = cst_bf16_to_fp32(grad[i]);
        m[i] = (float)(hostile_next(&state) % 2000) / 1000 - 1;
    }
    for (unsigned r = 0; r < n_rows; r++) {
        if (!rows[r].usable()) {
            continue;
        }
        rows[r].direction(N, &scalars, grad, NULL, m, r == 0 ? first : other);
        ck_assert(r == 0 || memcmp(first, other, sizeof first) == 0);
        rows[r].direction(N, &scalars, NULL, wide, m, other);
        ck_assert(memcmp(first, other, sizeof first) == 0);
    }
    for (size_t i = 0; i < N; i++) {
        double g = 0.5 * (double)wide[i], buf = (double)m[i] + 0.05 * (g - (double)m[i]);
        double want = g + 0.95 * (buf - g); /* grad.lerp(buf, 0.95) */

        ck_assert_double_eq_tol((double)cst_bf16_to_fp32(first[i]), want,
                                fabs(want) * 0x1p-8 + 1e-6);
    }
}
END_TEST

/* -- orthogonalisation ------------------------------------------------------------------------ */

/* A table of one chunk with a stack of matrices, and its scratch. */
struct stack {
    struct cst_table_header *table;
    struct cst_table_chunk *chunk;
    struct cst_muon_batch batch;
    uint64_t matrix; /* Elements of a matrix. */
};

static struct stack stack_open(uint32_t n, uint32_t rows, uint32_t columns, uint64_t *state)
{
    struct stack s = {.matrix = (uint64_t)rows * columns};
    struct cst_table_header header;
    uint64_t n_elems = n * s.matrix;
    uint16_t *values;
    void *scratch;

    cst_table_size(&header, 1, 1, cst_table_n_tiles(n_elems));
    s.table = calloc(1, header.total_bytes);
    ck_assert_ptr_nonnull(s.table);
    *s.table = header;
    s.table->optimizer = CST_OPTIMIZER_MUON;
    s.chunk = cst_table_chunks(s.table);
    s.chunk->n_elems = n_elems;
    s.chunk->n_spans = 1;
    s.chunk->scratch.segment = 1;
    s.chunk->scratch_bytes =
        sizeof(struct cst_muon_header) + cst_muon_sizes(n_elems, rows, columns).total_bytes;
    *cst_table_spans(s.table) = (struct cst_table_span){
        .n_elems = n_elems, .rows = rows, .columns = columns, .lr_scale = 1, .decay_scale = 1};
    scratch = aligned_alloc(64, s.chunk->scratch_bytes);
    ck_assert_ptr_nonnull(scratch);
    ck_assert(cst_muon_check(s.table, s.chunk));
    cst_muon_batch_at(&s.batch, s.table, s.chunk, 0, 0, scratch);
    ck_assert_uint_eq(s.batch.n_spans, 1);
    cst_muon_clear(&s.batch);
    values = random_bf16(n_elems, state);
    memcpy(cst_muon_values(&s.batch, 0, false), values, n_elems * sizeof *values);
    free(values);
    return s;
}

static void stack_close(struct stack *s)
{
    free(s->batch.scratch);
    free(s->table);
}

static void orthogonalise(struct stack *s, const struct cst_kernels *kernels)
{
    struct cst_product_space *space = aligned_alloc(64, sizeof *space);

    for (unsigned phase = CST_MUON_SUMS; phase < CST_MUON_PHASES; phase++) {
        /* The pieces of a phase are independent, so any order will do. */
        for (uint64_t i = cst_muon_pieces(&s->batch, phase); i-- > 0;) {
            cst_muon_piece(&s->batch, kernels, phase, i, space);
        }
    }
    free(space);
}

/* out = a b, or a b^T, in double; a is m x k. */
static void times(const double *a, const double *b, bool turned, double *out, size_t m, size_t n,
                  size_t k)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = 0;

            for (size_t l = 0; l < k; l++) {
                sum += a[i * k + l] * (turned ? b[j * k + l] : b[l * n + j]);
            }
            out[i * n + j] = sum;
        }
    }
}

/* zeropower_via_newtonschulz of torch.optim.Muon in double. @x has at most as many rows as
 * columns. */
static void reference(double *x, size_t rows, size_t columns)
{
    double *gram = malloc(rows * rows * sizeof *gram), *square = malloc(rows * rows * sizeof *gram);
    double *next = malloc(rows * columns * sizeof *next), norm = 0;

    for (size_t i = 0; i < rows * columns; i++) {
        norm += x[i] * x[i];
    }
    for (size_t i = 0; i < rows * columns; i++) {
        x[i] /= sqrt(norm);
    }
    for (int step = 0; step < 5; step++) {
        times(x, x, true, gram, rows, rows, columns);
        times(gram, gram, false, square, rows, rows, rows);
        for (size_t i = 0; i < rows * rows; i++) {
            gram[i] = -4.7750 * gram[i] + 2.0315 * square[i];
        }
        times(gram, x, false, next, rows, columns, rows);
        for (size_t i = 0; i < rows * columns; i++) {
            x[i] = 3.4445 * x[i] + next[i];
        }
    }
    free(gram);
    free(square);
    free(next);
}

/* Compare matrix number @number of the stack with the reference: the error relative to the norm is
 * that of bf16 with its amplification by the iterations. */
static void compare(struct stack *s, const uint16_t *before, uint64_t number)
{
    const struct cst_table_span *span = s->batch.spans;
    size_t rows = span->rows, columns = span->columns;
    bool tall = rows > columns;
    size_t r = tall ? columns : rows, c = tall ? rows : columns;
    const uint16_t *got = cst_muon_values(&s->batch, 0, true) + number * s->matrix;
    double *x = malloc(s->matrix * sizeof *x), error = 0, norm = 0;

    for (size_t i = 0; i < r; i++) {
        for (size_t j = 0; j < c; j++) {
            size_t from = tall ? j * columns + i : i * columns + j;

            x[i * c + j] = (double)cst_bf16_to_fp32(before[number * s->matrix + from]);
        }
    }
    reference(x, r, c);
    for (size_t i = 0; i < r; i++) {
        for (size_t j = 0; j < c; j++) {
            double y = (double)cst_bf16_to_fp32(got[tall ? j * columns + i : i * columns + j]);

            error += (y - x[i * c + j]) * (y - x[i * c + j]);
            norm += x[i * c + j] * x[i * c + j];
        }
    }
    free(x);
    /* All singular values are between 0.6 and 1.3, so that the norm is about that of r ones. */
    ck_assert_double_gt(norm, 0.3 * (double)r);
    ck_assert_double_lt(norm, 1.7 * (double)r);
    ck_assert_msg(sqrt(error / norm) < 0.02, "%zu x %zu: relative error %g", rows, columns,
                  sqrt(error / norm));
}

/* Matrices that are wide, tall, square, larger than a tile, or in a stack become what the iteration
 * in double makes of them, with the same bits on all instruction sets. */
START_TEST(test_orthogonal)
{
    static const uint32_t shapes[][3] = {{1, 40, 100}, {1, 100, 40},  {1, 64, 64},
                                         {3, 17, 33},  {1, 300, 270}, {1, 2, 5000}};
    uint64_t state = hostile_seed();
    unsigned n_rows;
    const struct cst_kernels *isa = cst_kernels_all(&n_rows);

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct stack s = stack_open(shapes[i][0], shapes[i][1], shapes[i][2], &state);
        size_t bytes = s.chunk->n_elems * sizeof(uint16_t);
        uint16_t *before = malloc(bytes), *first = malloc(bytes);

        memcpy(before, cst_muon_values(&s.batch, 0, false), bytes);
        for (unsigned r = 0; r < n_rows; r++) {
            if (isa[r].usable()) {
                memcpy(cst_muon_values(&s.batch, 0, false), before, bytes);
                orthogonalise(&s, &isa[r]);
                if (r == 0) {
                    memcpy(first, cst_muon_values(&s.batch, 0, true), bytes);
                }
                ck_assert_msg(memcmp(first, cst_muon_values(&s.batch, 0, true), bytes) == 0,
                              "%s differs", isa[r].isa);
            }
        }
        for (uint64_t k = 0; k < shapes[i][0]; k++) {
            compare(&s, before, k);
        }
        free(before);
        free(first);
        stack_close(&s);
    }
}
END_TEST

/* A matrix without gradients stays zero. The norm has a lower limit. */
START_TEST(test_zeros)
{
    uint64_t state = hostile_seed();
    struct stack s = stack_open(1, 20, 30, &state);

    memset(cst_muon_values(&s.batch, 0, false), 0, s.matrix * sizeof(uint16_t));
    orthogonalise(&s, cst_kernels_get(NULL));
    for (uint64_t i = 0; i < s.matrix; i++) {
        ck_assert_uint_eq(cst_muon_values(&s.batch, 0, true)[i] & 0x7fffu, 0);
    }
    stack_close(&s);
}
END_TEST

/* -- fp32 tensors ----------------------------------------------------------------------------- */

/* A matrix of 37 x 130: two tiles, of which the second one ends within a group. */
enum { UPDATE_ROWS = 37, UPDATE_COLUMNS = 130, UPDATE_ELEMS = UPDATE_ROWS * UPDATE_COLUMNS };

struct update_states {
    alignas(64) float grad[UPDATE_ELEMS];
    alignas(64) float master[UPDATE_ELEMS];
    alignas(64) float other[UPDATE_ELEMS]; /* Second row of weights of fp32 tensors. */
    alignas(64) float exp_avg[UPDATE_ELEMS];
    alignas(64) uint16_t weight[UPDATE_ELEMS]; /* bf16 tensors only. */
};

static struct update_states *random_states(uint64_t *state)
{
    struct update_states *states = aligned_alloc(64, sizeof *states);

    ck_assert_ptr_nonnull(states);
    memset(states, 0, sizeof *states);
    for (size_t i = 0; i < UPDATE_ELEMS; i++) {
        states->grad[i] = hostile_unit(state);
        states->master[i] = hostile_unit(state);
        states->exp_avg[i] = hostile_unit(state);
    }
    return states;
}

/* Update @states, which are those of a tensor of @dtype. */
static void update_by_muon(struct update_states *states, const struct cst_kernels *kernels,
                           enum cst_dtype dtype, bool other, uint64_t *state)
{
    const struct cst_tile_hyper hyper = {.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.5f};
    struct stack s = stack_open(1, UPDATE_ROWS, UPDATE_COLUMNS, state);
    struct cst_tile_work work = {
        .kernels = kernels,
        .table = s.table,
        .mark = 1,
        .batch = &s.batch,
        .rows = {.grad_f32 = states->grad, .moments[0].values = states->exp_avg}};
    static struct cst_undo_slot undo; /* EMPTY before and after an update. */
    struct cst_tile_done done;

    s.table->grad_bytes = sizeof(float);
    s.chunk->dtype = dtype;
    if (dtype == CST_FP32) {
        work.rows.master_in = states->master;
        work.rows.master = other ? states->other : states->master;
    } else {
        work.rows.master = states->master;
        work.rows.weight = states->weight;
    }
    done = cst_tile_direct_range(&work, &hyper, 0, s.batch.n_tiles);
    ck_assert_uint_eq(done.bytes, UPDATE_ELEMS * (4 + 4 + 2)); /* Gradient, momentum, direction. */
    orthogonalise(&s, kernels);
    done = cst_tile_update_range(&work, &hyper, 0, s.batch.n_tiles, &undo);
    ck_assert_uint_eq(done.n_elems, UPDATE_ELEMS);
    stack_close(&s);
}

/* The weights of an fp32 tensor become what the master weights of a bf16 tensor become, also in
 * another row than the one that was read, and on all instruction sets. */
START_TEST(test_fp32_tensors)
{
    const struct cst_kernels *kernels = hostile_row(_i);
    uint64_t state = hostile_seed();
    struct update_states *before = random_states(&state);
    struct update_states *want = aligned_alloc(64, sizeof *want),
                         *got = aligned_alloc(64, sizeof *got);

    ck_assert(want != NULL && got != NULL);
    *want = *before;
    update_by_muon(want, cst_kernels_get("ref"), CST_BF16, false, &state);
    for (size_t i = 0; i < UPDATE_ELEMS; i++) {
        ck_assert(want->master[i] != before->master[i]);
    }
    for (int other = 0; other < 2 && kernels != NULL; other++) {
        *got = *before;
        update_by_muon(got, kernels, CST_FP32, other == 1, &state);
        ck_assert_mem_eq(other == 1 ? got->other : got->master, want->master, sizeof want->master);
        ck_assert_mem_eq(got->exp_avg, want->exp_avg, sizeof want->exp_avg);
        ck_assert(other == 0 || memcmp(got->master, before->master, sizeof before->master) == 0);
    }
    free(before);
    free(want);
    free(got);
}
END_TEST

/* -- scratches -------------------------------------------------------------------------------- */

/* The header of a scratch tells for which batch, chunk and update the directions are complete. */
START_TEST(test_header)
{
    uint64_t state = hostile_seed();
    struct stack s = stack_open(1, 4, 6, &state);

    ck_assert(!cst_muon_is_complete(&s.batch, 0, 3));
    cst_muon_set_complete(&s.batch, 0, 3);
    ck_assert(cst_muon_is_complete(&s.batch, 0, 3));
    ck_assert(!cst_muon_is_complete(&s.batch, 1, 3) && !cst_muon_is_complete(&s.batch, 0, 4));
    s.batch.first_span = 1;
    ck_assert(!cst_muon_is_complete(&s.batch, 0, 3));
    cst_muon_clear(&s.batch);
    s.batch.first_span = 0;
    ck_assert(!cst_muon_is_complete(&s.batch, 0, 3));
    stack_close(&s);
}
END_TEST

/* A chunk whose tensors are no matrices, or do not fit in the scratch, is refused. */
START_TEST(test_wrong)
{
    uint64_t state = hostile_seed();
    struct stack s = stack_open(1, 4, 6, &state);
    struct cst_table_span *span = cst_table_spans(s.table);

    span->columns = 7;
    ck_assert(!cst_muon_check(s.table, s.chunk));
    span->columns = 0;
    ck_assert(!cst_muon_check(s.table, s.chunk));
    span->columns = 6;
    s.chunk->scratch_bytes--;
    ck_assert(!cst_muon_check(s.table, s.chunk));
    s.chunk->scratch_bytes = 1;
    ck_assert(!cst_muon_check(s.table, s.chunk));
    stack_close(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("muon");
    TCase *tcase = suite_case(suite, "muon", NULL, NULL);

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, test_products);
    tcase_add_test(tcase, test_directions);
    tcase_add_test(tcase, test_orthogonal);
    tcase_add_test(tcase, test_zeros);
    tcase_add_loop_test(tcase, test_fp32_tensors, 0, hostile_n_rows());
    tcase_add_test(tcase, test_header);
    tcase_add_test(tcase, test_wrong);
    return hostile_main(suite);
}
