/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of one sequence and head. It computes blocks of QUERIES x KEYS scores with the
 * online softmax of Dao et al., FlashAttention (2022): each query has a running maximum and sum,
 * and its output is rescaled when the maximum grows. Thus no context x context matrix is stored.
 * The backward pass recomputes the scores from the log of the sum. The file is compiled once per
 * instruction set, see simd.h. */
#include "client/gpt/simd.h"

#include <math.h>

#define QUERIES 32 /* rows of a block of scores */
#define KEYS 64    /* columns of a block of scores */
#define HALF 32    /* columns that are computed where the other half of a block is masked */

/* One tile of the products below: c (rows x columns x VL) = or += a b. Element (i, k) of a is a[i *
 * a_row + k * a_col]. */
INLINE void tile(const size_t rows, const size_t columns, size_t depth, const float *a,
                 size_t a_row, size_t a_col, const float *b, size_t b_row, float *c, size_t c_row,
                 bool add)
{
    vf s[8][4];

    UNROLL for (size_t i = 0; i < rows; i++)
    {
        UNROLL for (size_t j = 0; j < columns; j++)
        {
            s[i][j] = add ? load(c + i * c_row + j * VL) : (vf){0};
        }
    }
    for (size_t k = 0; k < depth; k++) {
        vf bk[4];

        UNROLL for (size_t j = 0; j < columns; j++)
        {
            bk[j] = load(b + k * b_row + j * VL);
        }
        UNROLL for (size_t i = 0; i < rows; i++)
        {
            vf ai = splat(a[i * a_row + k * a_col]);

            UNROLL for (size_t j = 0; j < columns; j++)
            {
                s[i][j] = fma_(ai, bk[j], s[i][j]);
            }
        }
    }
    UNROLL for (size_t i = 0; i < rows; i++)
    {
        UNROLL for (size_t j = 0; j < columns; j++)
        {
            store(c + i * c_row + j * VL, s[i][j]);
        }
    }
}

/* c (rows x n) = or += a (rows x depth) b (depth x n). n is a multiple of VL. */
INLINE void product(const size_t columns, size_t rows, size_t n, size_t depth, const float *a,
                    size_t a_row, size_t a_col, const float *b, size_t b_row, float *c,
                    size_t c_row, bool add)
{
    size_t i = 0;

    for (; i + 4 <= rows; i += 4) {
        for (size_t j = 0; j < n; j += columns * VL) {
            tile(4, columns, depth, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j,
                 c_row, add);
        }
    }
    for (; i < rows; i++) {
        for (size_t j = 0; j < n; j += columns * VL) {
            tile(1, columns, depth, a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j,
                 c_row, add);
        }
    }
}

static void multiply(size_t rows, size_t n, size_t depth, const float *a, size_t a_row,
                     size_t a_col, const float *b, size_t b_row, float *c, size_t c_row, bool add)
{
    if (n % (TILE_COLUMNS * VL) == 0) {
        product(TILE_COLUMNS, rows, n, depth, a, a_row, a_col, b, b_row, c, c_row, add);
    } else if (n % (2 * VL) == 0) {
        product(2, rows, n, depth, a, a_row, a_col, b, b_row, c, c_row, add);
    } else {
        product(1, rows, n, depth, a, a_row, a_col, b, b_row, c, c_row, add);
    }
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t padded(size_t context)
{
    return (context + KEYS - 1) / KEYS * KEYS;
}

/* Transpose the rows of @src (stride @src_row) into out (head_dim x padded context), with zeros in
 * the padding. It takes VL rows at a time, so that the rows stay in the nearest cache and out is
 * written in whole vectors. */
static void transpose(const struct gpt_attention_shape *shape, const float *src, size_t src_row,
                      float *out)
{
    const size_t context = shape->context, columns = padded(context);
    size_t t0 = 0;

    for (; t0 + VL <= context; t0 += VL, src += VL * src_row) {
        for (size_t c = 0; c < shape->head_dim; c++) {
            for (size_t t = 0; t < VL; t++) {
                out[c * columns + t0 + t] = src[t * src_row + c];
            }
        }
    }
    for (size_t c = 0; c < shape->head_dim; c++) {
        memset(out + c * columns + t0, 0, (columns - t0) * sizeof *out);
        for (size_t t = t0; t < context; t++) {
            out[c * columns + t] = src[(t - t0) * src_row + c];
        }
    }
}

/* Number of columns to compute of a block of scores in which no query sees more than @n keys. */
static size_t computed(size_t n)
{
    return n <= HALF ? HALF : KEYS;
}

/* Add one row of @columns scores, of which the first @n are visible, to the running maximum and
 * sum. The scores are replaced by exponentials relative to the new maximum. Returns the factor that
 * rescales sums from the old to the new maximum. */
INLINE float fold(float *s, size_t columns, size_t n, float scale, float *most, float *sum)
{
    vf top = splat(*most), total = {0};
    float factor, next;

    for (size_t j = 0; j < columns; j += VL) {
        vf v = load(s + j) * scale;

        store(s + j, v);
    }
    /* Exponentials of masked scores are 0. */
    for (size_t j = n; j < columns; j++) {
        s[j] = -1e30f;
    }
    for (size_t j = 0; j < columns; j += VL) {
        top = max_(top, load(s + j));
    }
    next = max_lanes(top);
    for (size_t j = 0; j < columns; j += VL) {
        vf p = exp_(load(s + j) - next);

        store(s + j, p);
        total += p;
    }
    factor = exp_(splat(*most - next))[0];
    *sum = *sum * factor + sum_lanes(total);
    *most = next;
    return factor;
}

void GPT_ISA(gpt_attention)(const struct gpt_attention_shape *shape, size_t seq, size_t head,
                            const float *qkv, void *out, bool bf16, float *lse, float *scratch);
void GPT_ISA(gpt_attention_backward)(const struct gpt_attention_shape *shape, size_t seq,
                                     size_t head, const float *qkv, const void *out, bool bf16,
                                     const float *lse, const float *dout, float *dqkv,
                                     float *scratch);

void GPT_ISA(gpt_attention)(const struct gpt_attention_shape *shape, size_t seq, size_t head,
                            const float *qkv, void *out, bool bf16, float *lse, float *scratch)
{
    const size_t context = shape->context, dim = shape->head_dim, width = shape->n_heads * dim;
    const size_t row = 3 * width, columns = padded(context);
    const float scale = 1.0f / sqrtf((float)dim);
    const float *q = qkv + seq * context * row + head * dim;
    const float *k = q + width, *v = k + width;
    float *kt = scratch, *s = kt + dim * columns, *o = s + QUERIES * KEYS;

    lse += (seq * shape->n_heads + head) * context;
    transpose(shape, k, row, kt);
    for (size_t i0 = 0; i0 < context; i0 += QUERIES) {
        const size_t n_i = min_size(QUERIES, context - i0);
        float most[QUERIES], sum[QUERIES] = {0};

        for (size_t i = 0; i < n_i; i++) {
            most[i] = -1e30f;
        }
        memset(o, 0, n_i * dim * sizeof *o);
        for (size_t j0 = 0; j0 < i0 + n_i; j0 += KEYS) {
            const size_t n_j = min_size(KEYS, i0 + n_i - j0), n_k = computed(n_j);

            multiply(n_i, n_k, dim, q + i0 * row, row, 1, kt + j0, columns, s, KEYS, false);
            for (size_t i = 0; i < n_i; i++) {
                const size_t seen = i0 + i + 1 > j0 ? min_size(KEYS, i0 + i + 1 - j0) : 0;
                const float factor = fold(s + i * KEYS, n_k, seen, scale, &most[i], &sum[i]);

                for (size_t c = 0; c < dim; c += VL) {
                    store(o + i * dim + c, load(o + i * dim + c) * factor);
                }
            }
            multiply(n_i, dim, n_j, s, KEYS, 1, v + j0 * row, row, o, dim, true);
        }
        for (size_t i = 0; i < n_i; i++) {
            const size_t at = (seq * context + i0 + i) * width + head * dim;

            for (size_t c = 0; c < dim; c += VL) {
                store_operand(out, at + c, load(o + i * dim + c) / sum[i], bf16);
            }
            lse[i0 + i] = most[i] + logf(sum[i]);
        }
    }
}

/* Replace scores in s by probabilities, and gradients of probabilities in dp by scaled gradients of
 * scores. Only the first @seen of @columns are visible to the query; the others become 0. */
INLINE void scores_backward(float *s, float *dp, size_t columns, size_t seen, float scale,
                            float lse, float dot)
{
    for (size_t j = 0; j < columns; j += VL) {
        vf p = exp_(fma_(load(s + j), splat(scale), splat(-lse)));

        store(s + j, p);
        store(dp + j, p * (load(dp + j) - dot) * scale);
    }
    for (size_t j = seen; j < columns; j++) {
        s[j] = 0.0f;
        dp[j] = 0.0f;
    }
}

/* p = exp(s - lse), dp = do v^T, ds = p (dp - do . o), dq = ds k, dk = ds^T q, dv = p^T do. */
void GPT_ISA(gpt_attention_backward)(const struct gpt_attention_shape *shape, size_t seq,
                                     size_t head, const float *qkv, const void *out, bool bf16,
                                     const float *lse, const float *dout, float *dqkv,
                                     float *scratch)
{
    const size_t context = shape->context, dim = shape->head_dim, width = shape->n_heads * dim;
    const size_t row = 3 * width, columns = padded(context);
    const size_t first = seq * context, column = head * dim;
    const float scale = 1.0f / sqrtf((float)dim);
    const float *q = qkv + first * row + column, *k = q + width, *v = k + width;
    float *dq = dqkv + first * row + column, *dk = dq + width, *dv = dk + width;
    float *kt = scratch, *vt = kt + dim * columns, *s = vt + dim * columns;
    float *dp = s + QUERIES * KEYS;

    lse += (seq * shape->n_heads + head) * context;
    dout += first * width + column;
    transpose(shape, k, row, kt);
    transpose(shape, v, row, vt);
    for (size_t t = 0; t < context; t++) {
        memset(dq + t * row, 0, dim * sizeof *dq);
        memset(dk + t * row, 0, dim * sizeof *dk);
        memset(dv + t * row, 0, dim * sizeof *dv);
    }
    for (size_t i0 = 0; i0 < context; i0 += QUERIES) {
        const size_t n_i = min_size(QUERIES, context - i0);
        float dot[QUERIES];

        for (size_t i = 0; i < n_i; i++) {
            vf sum = {0};

            for (size_t c = 0; c < dim; c += VL) {
                sum = fma_(load(dout + (i0 + i) * width + c),
                           load_operand(out, (first + i0 + i) * width + column + c, bf16), sum);
            }
            dot[i] = sum_lanes(sum);
        }
        for (size_t j0 = 0; j0 < i0 + n_i; j0 += KEYS) {
            const size_t n_j = min_size(KEYS, i0 + n_i - j0), n_k = computed(n_j);

            multiply(n_i, n_k, dim, q + i0 * row, row, 1, kt + j0, columns, s, KEYS, false);
            multiply(n_i, n_k, dim, dout + i0 * width, width, 1, vt + j0, columns, dp, KEYS, false);
            for (size_t i = 0; i < n_i; i++) {
                const size_t seen = i0 + i + 1 > j0 ? min_size(KEYS, i0 + i + 1 - j0) : 0;

                scores_backward(s + i * KEYS, dp + i * KEYS, n_k, seen, scale, lse[i0 + i], dot[i]);
            }
            multiply(n_i, dim, n_j, dp, KEYS, 1, k + j0 * row, row, dq + i0 * row, row, true);
            multiply(n_j, dim, n_i, dp, 1, KEYS, q + i0 * row, row, dk + j0 * row, row, true);
            multiply(n_j, dim, n_i, s, 1, KEYS, dout + i0 * width, width, dv + j0 * row, row, true);
        }
    }
}
