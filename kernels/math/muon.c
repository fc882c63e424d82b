/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/muon.h"

#include <math.h>
#include <stdatomic.h>

_Static_assert(CST_MUON_TILE == CST_PRODUCT_TILE, "a piece of work makes one tile of a product");

/* Coefficients of an iteration (torch.optim.Muon). */
#define A 3.4445f
#define B (-4.7750f)
#define C 2.0315f

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

void cst_muon_norm_of(const struct cst_muon_batch *batch, uint32_t span, struct cst_muon_norm *norm)
{
    struct matrix m = matrix_at(batch, span, 0);

    *norm = (struct cst_muon_norm){.values = m.x[0],
                                   .sums = m.sums,
                                   .n_elems = (uint64_t)m.rows * m.columns,
                                   .n_sums = m.n_sums,
                                   .n_matrices = sizes_of(&batch->spans[span]).n_matrices};
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
    norm = norm < CST_MUON_LEAST_NORM ? CST_MUON_LEAST_NORM : norm;
    sum_range(m, sum, &first, &n);
    for (uint64_t i = first; i < first + n; i++) {
        float x = cst_bf16_to_fp32(m->x[0][i]) / norm;

        m->x[0][i] = isnan(x) ? CST_UPDATE_NAN >> 16 : cst_fp32_to_bf16(x);
    }
}

/* -- products --------------------------------------------------------------------------------- */

/* Describe the products of the first matrix of @span. */
static struct cst_muon_work describe(const struct cst_muon_batch *batch, uint32_t span,
                                     enum cst_muon_product product, unsigned now)
{
    struct cst_muon_sizes sizes = sizes_of(&batch->spans[span]);
    struct matrix m = matrix_at(batch, span, 0);
    uint64_t side = m.rows < m.columns ? m.rows : m.columns;
    uint64_t values = (uint64_t)m.rows * m.columns, grams = sizes.gram_bytes; /* Two Grams each. */
    struct cst_product_operand x = {.at = m.x[now], .row = m.columns, .column = 1};
    struct cst_product_operand turned = {.at = m.x[now], .row = 1, .column = m.columns};
    struct cst_product_operand gram = {.at = m.gram, .row = side, .column = 1};
    struct cst_product_operand t = {.at = m.polynomial, .row = side, .column = 1};
    struct cst_muon_work w = {.n_matrices = sizes.n_matrices,
                              .tiles = cst_muon_product_tiles(product, m.rows, m.columns),
                              .symmetric = product != CST_MUON_NEXT,
                              .a_step = grams,
                              .b_step = grams,
                              .out_step = product == CST_MUON_NEXT ? values : grams};
    bool wide = m.rows <= m.columns;

    w.rows = w.columns = side;
    if (product == CST_MUON_GRAM) {
        w.whole = (struct cst_product){.a = wide ? x : turned,
                                       .b = wide ? turned : x,
                                       .depth = wide ? m.columns : m.rows,
                                       .alpha = 1,
                                       .out = m.gram};
        w.a_step = w.b_step = values;
    } else if (product == CST_MUON_POLYNOMIAL) {
        w.whole = (struct cst_product){.a = gram,
                                       .b = gram,
                                       .depth = side,
                                       .alpha = C,
                                       .beta = B,
                                       .add = m.gram,
                                       .out = m.polynomial};
    } else {
        w.whole = (struct cst_product){.a = wide ? t : x,
                                       .b = wide ? x : t,
                                       .depth = side,
                                       .alpha = 1,
                                       .beta = A,
                                       .add = m.x[now],
                                       .out = m.x[1 - now]};
        w.a_step = wide ? grams : values;
        w.b_step = wide ? values : grams;
        w.rows = m.rows;
        w.columns = m.columns;
    }
    w.whole.stride = w.columns;
    return w;
}

struct cst_muon_work cst_muon_work_of(const struct cst_muon_batch *batch, uint32_t span,
                                      unsigned phase)
{
    unsigned step = phase - CST_MUON_ITERATE;

    return describe(batch, span, (enum cst_muon_product)(step % CST_MUON_PRODUCTS),
                    step / CST_MUON_PRODUCTS % 2);
}

static uint32_t tile_elems(uint64_t n, uint64_t tile)
{
    uint64_t left = n - tile * CST_PRODUCT_TILE;

    return left < CST_PRODUCT_TILE ? (uint32_t)left : CST_PRODUCT_TILE;
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

/* Set (*i, *j) to the place of tile number @tile. Tiles of a symmetric product are those on and
 * below the diagonal. */
static void place_of(const struct cst_muon_work *w, uint64_t tile, uint64_t *i, uint64_t *j)
{
    uint64_t across = (w->columns + CST_PRODUCT_TILE - 1) / CST_PRODUCT_TILE;

    *i = w->symmetric ? 0 : tile / across;
    *j = w->symmetric ? tile : tile % across;
    while (w->symmetric && *j > *i) {
        *j -= ++*i;
    }
}

/* Make tile number @tile of the product of matrix number @matrix. */
static void make_tile(const struct cst_muon_work *w, const struct cst_kernels *kernels,
                      uint64_t matrix, uint64_t tile, struct cst_product_space *space)
{
    struct cst_product p = w->whole;
    uint64_t i, j, row, column;
    uint16_t *out = p.out + matrix * w->out_step;

    place_of(w, tile, &i, &j);
    row = i * CST_PRODUCT_TILE;
    column = j * CST_PRODUCT_TILE;
    p.rows = tile_elems(w->rows, i);
    p.columns = tile_elems(w->columns, j);
    p.a.at += matrix * w->a_step + row * p.a.row;
    p.b.at += matrix * w->b_step + column * p.b.column;
    p.add = p.add == NULL ? NULL : p.add + matrix * w->out_step + row * p.stride + column;
    p.out = out + row * p.stride + column;
    kernels->product(&p, space);
    if (w->symmetric && i != j) {
        mirror(out, w->rows, i, j);
    }
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* Returns the number of pieces of one matrix of @span. */
static uint64_t matrix_pieces(const struct cst_table_span *span, unsigned phase)
{
    unsigned product = (phase - CST_MUON_ITERATE) % CST_MUON_PRODUCTS;

    return phase < CST_MUON_ITERATE
               ? sizes_of(span).n_sums
               : cst_muon_product_tiles((enum cst_muon_product)product, span->rows, span->columns);
}

uint64_t cst_muon_span_pieces(const struct cst_muon_batch *batch, uint32_t span, unsigned phase)
{
    const struct cst_table_span *of = &batch->spans[span];

    return sizes_of(of).n_matrices * matrix_pieces(of, phase);
}

uint64_t cst_muon_pieces(const struct cst_muon_batch *batch, unsigned phase)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < batch->n_spans; i++) {
        n += cst_muon_span_pieces(batch, i, phase);
    }
    return n;
}

void cst_muon_piece(const struct cst_muon_batch *batch, const struct cst_kernels *kernels,
                    unsigned phase, uint64_t piece, struct cst_product_space *space)
{
    for (uint32_t i = 0; i < batch->n_spans; i++) {
        uint64_t each = matrix_pieces(&batch->spans[i], phase);
        uint64_t n = cst_muon_span_pieces(batch, i, phase);

        if (piece >= n) {
            piece -= n;
            continue;
        }
        if (phase >= CST_MUON_ITERATE) {
            struct cst_muon_work w = cst_muon_work_of(batch, i, phase);

            make_tile(&w, kernels, piece / each, piece % each, space);
        } else {
            struct matrix m = matrix_at(batch, i, piece / each);

            (phase == CST_MUON_SUMS ? sum_squares : scale)(&m, piece % each);
        }
        return;
    }
}
