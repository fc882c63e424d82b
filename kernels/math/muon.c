/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/muon.h"

#include <math.h>
#include <stdatomic.h>

_Static_assert(CST_MUON_TILE == CST_PRODUCT_TILE, "a piece of work makes one tile of a product");

/* Coefficients of an iteration, and the smallest norm (torch.optim.Muon). */
#define A 3.4445f
#define B (-4.7750f)
#define C 2.0315f
#define EPS 1e-7f

/* -- batches ---------------------------------------------------------------------------------- */

static struct cst_muon_sizes sizes_of(const struct cst_table_span *span)
{
    return cst_muon_sizes(span->n_elems, span->rows, span->columns);
}

bool cst_muon_check(struct cst_table_header *table, const struct cst_table_chunk *chunk)
{
    const struct cst_table_span *spans = cst_table_spans(table) + chunk->first_span;

    for (uint32_t i = 0; i < chunk->n_spans; i++) {
        uint64_t matrix = (uint64_t)spans[i].rows * spans[i].columns;

        if (matrix == 0 || spans[i].n_elems == 0 || spans[i].n_elems % matrix != 0 ||
            chunk->scratch_bytes < sizeof(struct cst_muon_header) ||
            sizes_of(&spans[i]).total_bytes >
                chunk->scratch_bytes - sizeof(struct cst_muon_header)) {
            return false;
        }
    }
    return true;
}

void cst_muon_batch_at(struct cst_muon_batch *batch, struct cst_table_header *table,
                       const struct cst_table_chunk *chunk, uint32_t first_span,
                       uint64_t first_tile, void *scratch)
{
    uint64_t left = chunk->scratch_bytes - sizeof(struct cst_muon_header);

    *batch =
        (struct cst_muon_batch){.spans = cst_table_spans(table) + chunk->first_span + first_span,
                                .first_span = first_span,
                                .first_tile = first_tile,
                                .scratch = scratch};
    while (first_span + batch->n_spans < chunk->n_spans) {
        const struct cst_table_span *span = &batch->spans[batch->n_spans];
        uint64_t bytes = sizes_of(span).total_bytes;

        if (bytes > left) {
            break;
        }
        left -= bytes;
        batch->n_tiles += cst_table_n_tiles(span->n_elems);
        batch->n_spans++;
    }
}

static struct cst_muon_header *header_of(const struct cst_muon_batch *batch)
{
    return batch->scratch;
}

/* Store @mark after all earlier stores and before all later ones. A kill acts between two
 * instructions like a signal, but other threads of the engine have stored values, too. */
static void store_mark(const struct cst_muon_batch *batch, uint64_t mark)
{
    atomic_thread_fence(memory_order_seq_cst);
    __atomic_store_n(&header_of(batch)->mark, mark, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_seq_cst);
}

bool cst_muon_is_complete(const struct cst_muon_batch *batch, uint32_t chunk, uint64_t mark)
{
    const struct cst_muon_header *h = header_of(batch);

    return h->mark == mark && h->chunk == chunk && h->batch == batch->first_span;
}

void cst_muon_set_complete(const struct cst_muon_batch *batch, uint32_t chunk, uint64_t mark)
{
    header_of(batch)->chunk = chunk;
    header_of(batch)->batch = batch->first_span;
    store_mark(batch, mark);
}

void cst_muon_clear(const struct cst_muon_batch *batch)
{
    store_mark(batch, CST_MARK_NONE);
}

/* -- places ----------------------------------------------------------------------------------- */

/* The parts of one matrix in the scratch. */
struct matrix {
    uint32_t rows, columns;
    uint16_t *x[2]; /* The two arrays of values. */
    uint16_t *gram, *polynomial;
    double *sums; /* Partial sums of squares. */
    uint64_t n_sums;
};

static char *span_memory(const struct cst_muon_batch *batch, uint32_t span)
{
    char *at = (char *)batch->scratch + sizeof(struct cst_muon_header);

    for (uint32_t i = 0; i < span; i++) {
        at += sizes_of(&batch->spans[i]).total_bytes;
    }
    return at;
}

static struct matrix matrix_at(const struct cst_muon_batch *batch, uint32_t span, uint64_t number)
{
    const struct cst_table_span *s = &batch->spans[span];
    struct cst_muon_sizes sizes = sizes_of(s);
    char *memory = span_memory(batch, span);
    char *grams = memory + 2 * sizes.values_bytes;
    char *sums = grams + 2 * sizes.n_matrices * sizes.gram_bytes;
    uint64_t first = number * s->rows * s->columns;
    struct matrix m = {.rows = s->rows, .columns = s->columns, .n_sums = sizes.n_sums};

    m.x[0] = (uint16_t *)(void *)memory + first;
    m.x[1] = (uint16_t *)(void *)(memory + sizes.values_bytes) + first;
    m.gram = (uint16_t *)(void *)(grams + 2 * number * sizes.gram_bytes);
    m.polynomial = (uint16_t *)(void *)(grams + (2 * number + 1) * sizes.gram_bytes);
    m.sums = (double *)(void *)sums + number * sizes.n_sums;
    return m;
}

uint16_t *cst_muon_values(const struct cst_muon_batch *batch, uint32_t span, bool orthogonal)
{
    return matrix_at(batch, span, 0).x[orthogonal ? CST_MUON_ITERATIONS % 2 : 0];
}

/* -- norm ------------------------------------------------------------------------------------- */

/* Set *first and *n to the elements of @m whose squares are sum number @sum. */
static void sum_range(const struct matrix *m, uint64_t sum, uint64_t *first, uint64_t *n)
{
    uint64_t all = (uint64_t)m->rows * m->columns;

    *first = sum * CST_MUON_SUM_ELEMS;
    *n = all - *first < CST_MUON_SUM_ELEMS ? all - *first : CST_MUON_SUM_ELEMS;
}

static void sum_squares(const struct matrix *m, uint64_t sum)
{
    uint64_t first, n;
    double total = 0;

    sum_range(m, sum, &first, &n);
    for (uint64_t i = first; i < first + n; i++) {
        double x = (double)cst_bf16_to_fp32(m->x[0][i]);

        total += x * x; /* The square of a bf16 value is exact. */
    }
    m->sums[sum] = total;
}

static void scale(const struct matrix *m, uint64_t sum)
{
    double total = 0;
    uint64_t first, n;
    float norm;

    for (uint64_t i = 0; i < m->n_sums; i++) {
        total += m->sums[i];
    }
    norm = cst_bf16_to_fp32(cst_fp32_to_bf16((float)sqrt(total)));
    norm = norm < EPS ? EPS : norm;
    sum_range(m, sum, &first, &n);
    for (uint64_t i = first; i < first + n; i++) {
        m->x[0][i] = cst_fp32_to_bf16(cst_bf16_to_fp32(m->x[0][i]) / norm);
    }
}

/* -- products --------------------------------------------------------------------------------- */

static uint32_t side_of(uint32_t rows, uint32_t columns)
{
    return rows < columns ? rows : columns;
}

static uint32_t tile_elems(uint64_t n, uint64_t tile)
{
    uint64_t left = n - tile * CST_PRODUCT_TILE;

    return left < CST_PRODUCT_TILE ? (uint32_t)left : CST_PRODUCT_TILE;
}

/* Returns @m from row @row and column @column on. */
static struct cst_product_operand from(struct cst_product_operand m, uint64_t row, uint64_t column)
{
    m.at += row * m.row + column * m.column;
    return m;
}

/* Make the tile (@i, @j) of @out = alpha a b + beta add. All are matrices whose rows have
 * p->stride elements, and p has factors and whole operands. */
static void make_tile(struct cst_product p, const struct cst_kernels *kernels, uint64_t rows,
                      uint64_t columns, uint64_t i, uint64_t j, struct cst_product_space *space)
{
    uint64_t row = i * CST_PRODUCT_TILE, column = j * CST_PRODUCT_TILE;

    p.rows = tile_elems(rows, i);
    p.columns = tile_elems(columns, j);
    p.a = from(p.a, row, 0);
    p.b = from(p.b, 0, column);
    p.add = p.add == NULL ? NULL : p.add + row * p.stride + column;
    p.out += row * p.stride + column;
    kernels->product(&p, space);
}

/* Copy the tile (@i, @j) of the symmetric matrix @m to its place on the other side of the
 * diagonal. */
static void mirror(uint16_t *m, uint64_t side, uint64_t i, uint64_t j)
{
    uint64_t row = i * CST_PRODUCT_TILE, column = j * CST_PRODUCT_TILE;
    uint32_t n_rows = tile_elems(side, i), n_columns = tile_elems(side, j);

    for (uint64_t r = row; r < row + n_rows; r++) {
        for (uint64_t c = column; c < column + n_columns; c++) {
            m[c * side + r] = m[r * side + c];
        }
    }
}

/* Make tile number @tile of those on and below the diagonal. */
static void make_symmetric(struct cst_product p, const struct cst_kernels *kernels, uint64_t side,
                           uint64_t tile, struct cst_product_space *space)
{
    uint64_t i = 0;

    while (tile > i) {
        tile -= ++i;
    }
    make_tile(p, kernels, side, side, i, tile, space);
    if (i != tile) {
        mirror(p.out, side, i, tile);
    }
}

/* Make one tile of X X^T or X^T X. */
static void make_gram(const struct matrix *m, const struct cst_kernels *kernels, const uint16_t *x,
                      uint64_t tile, struct cst_product_space *space)
{
    struct cst_product_operand as_stored = {.at = x, .row = m->columns, .column = 1};
    struct cst_product_operand turned = {.at = x, .row = 1, .column = m->columns};
    bool wide = m->rows <= m->columns;
    uint64_t side = side_of(m->rows, m->columns);

    make_symmetric((struct cst_product){.a = wide ? as_stored : turned,
                                        .b = wide ? turned : as_stored,
                                        .depth = wide ? m->columns : m->rows,
                                        .alpha = 1,
                                        .out = m->gram,
                                        .stride = side},
                   kernels, side, tile, space);
}

/* Make one tile of the polynomial. */
static void make_polynomial(const struct matrix *m, const struct cst_kernels *kernels,
                            uint64_t tile, struct cst_product_space *space)
{
    uint64_t side = side_of(m->rows, m->columns);
    struct cst_product_operand gram = {.at = m->gram, .row = side, .column = 1};

    make_symmetric((struct cst_product){.a = gram,
                                        .b = gram,
                                        .depth = side,
                                        .alpha = C,
                                        .beta = B,
                                        .add = m->gram,
                                        .out = m->polynomial,
                                        .stride = side},
                   kernels, side, tile, space);
}

/* Make one tile of the next X. */
static void make_next(const struct matrix *m, const struct cst_kernels *kernels, const uint16_t *x,
                      uint16_t *next, uint64_t tile, struct cst_product_space *space)
{
    uint64_t side = side_of(m->rows, m->columns), across = cst_muon_tiles(m->columns);
    struct cst_product_operand t = {.at = m->polynomial, .row = side, .column = 1};
    struct cst_product_operand values = {.at = x, .row = m->columns, .column = 1};
    bool wide = m->rows <= m->columns;

    make_tile((struct cst_product){.a = wide ? t : values,
                                   .b = wide ? values : t,
                                   .depth = side,
                                   .alpha = 1,
                                   .beta = A,
                                   .add = x,
                                   .out = next,
                                   .stride = m->columns},
              kernels, m->rows, m->columns, tile / across, tile % across, space);
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* Returns the number of pieces of one matrix of @span. */
static uint64_t matrix_pieces(const struct cst_table_span *span, unsigned stage)
{
    unsigned product = (stage - CST_MUON_ITERATE) % CST_MUON_PRODUCTS;

    return stage < CST_MUON_ITERATE
               ? sizes_of(span).n_sums
               : cst_muon_product_tiles((enum cst_muon_product)product, span->rows, span->columns);
}

uint64_t cst_muon_pieces(const struct cst_muon_batch *batch, unsigned stage)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < batch->n_spans; i++) {
        n += sizes_of(&batch->spans[i]).n_matrices * matrix_pieces(&batch->spans[i], stage);
    }
    return n;
}

static void do_piece(const struct matrix *m, const struct cst_kernels *kernels, unsigned stage,
                     uint64_t piece, struct cst_product_space *space)
{
    unsigned step = stage - CST_MUON_ITERATE;
    /* The array that the iteration reads. */
    unsigned now = step / CST_MUON_PRODUCTS % 2;

    if (stage == CST_MUON_SUMS) {
        sum_squares(m, piece);
    } else if (stage == CST_MUON_SCALE) {
        scale(m, piece);
    } else if (step % CST_MUON_PRODUCTS == CST_MUON_GRAM) {
        make_gram(m, kernels, m->x[now], piece, space);
    } else if (step % CST_MUON_PRODUCTS == CST_MUON_POLYNOMIAL) {
        make_polynomial(m, kernels, piece, space);
    } else {
        make_next(m, kernels, m->x[now], m->x[1 - now], piece, space);
    }
}

void cst_muon_piece(const struct cst_muon_batch *batch, const struct cst_kernels *kernels,
                    unsigned stage, uint64_t piece, struct cst_product_space *space)
{
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        uint64_t each = matrix_pieces(&batch->spans[i], stage);
        uint64_t n = sizes_of(&batch->spans[i]).n_matrices * each;

        if (piece < n) {
            struct matrix m = matrix_at(batch, i, piece / each);

            do_piece(&m, kernels, stage, piece % each, space);
            return;
        }
        piece -= n;
    }
}
