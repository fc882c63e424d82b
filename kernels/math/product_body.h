/* SPDX-License-Identifier: Apache-2.0 */
/* Products and directions over vectors (kernels/math/product.h). Included once, after one of
 * kernels/math/vec_*.h, with ISA defined as the suffix of the function. Private to kernels/.
 *
 * Both operands are expanded to fp32 and packed, CST_PRODUCT_DEPTH elements of k at a time, so that
 * the innermost loop reads them in order:
 *
 *   a   panels of CST_PRODUCT_ROWS rows       for each k: the panel's elements, one after the other
 *   b   panels of two vectors of columns      for each k: the panel's elements, one after the other
 *
 * A panel that is not full is filled up with zeros. */
#include "kernels/math/cast.h"
#include "kernels/math/product.h"
#include "kernels/math/rounding.h"

#include <string.h>

#define MUON_NAME_OF(function, isa) cst_##function##_##isa
#define MUON_NAME_FOR(function, isa) MUON_NAME_OF(function, isa)
#define MUON_NAME(function) MUON_NAME_FOR(function, ISA)

#define PANEL_COLUMNS (2 * CST_VEC_LANES)

_Static_assert(CST_PRODUCT_PADDED % CST_PRODUCT_ROWS == 0 &&
                   CST_PRODUCT_PADDED >= CST_PRODUCT_TILE &&
                   CST_PRODUCT_TILE % PANEL_COLUMNS == 0 &&
                   CST_PRODUCT_TILE % CST_UPDATE_GROUP == 0,
               "panels of a tile");

/* Pack @n lines (rows of a, columns of b) of @depth elements into panels of @wide lines. The
 * elements of a line are @step apart, and lines are @line apart. */
CST_INLINE void pack(float *to, uint32_t wide, const uint16_t *from, uint64_t line, uint64_t step,
                     uint32_t n, uint32_t depth)
{
    for (uint32_t first = 0; first < n; first += wide) {
        uint32_t filled = n - first < wide ? n - first : wide;
        float *panel = to + (size_t)first * CST_PRODUCT_DEPTH;

        if (filled < wide) {
            memset(panel, 0, (size_t)depth * wide * sizeof *panel);
        }
        /* The inner loop reads neighbours. */
        if (line == 1) {
            for (uint32_t k = 0; k < depth; k++) {
                for (uint32_t i = 0; i < filled; i++) {
                    panel[k * wide + i] = cst_bf16_to_fp32(from[first + i + k * step]);
                }
            }
            continue;
        }
        for (uint32_t i = 0; i < filled; i++) {
            for (uint32_t k = 0; k < depth; k++) {
                panel[k * wide + i] = cst_bf16_to_fp32(from[(first + i) * line + k * step]);
            }
        }
    }
}

/* Add the product of two panels to @sums. */
CST_INLINE void multiply_panels(const float *a, const float *b, uint32_t depth, float *sums)
{
    struct cst_vec s[CST_PRODUCT_ROWS][2];

#pragma GCC unroll 6
    for (int i = 0; i < CST_PRODUCT_ROWS; i++) {
        s[i][0] = cst_vec_load(sums + i * CST_PRODUCT_TILE);
        s[i][1] = cst_vec_load(sums + i * CST_PRODUCT_TILE + CST_VEC_LANES);
    }
    for (uint32_t k = 0; k < depth; k++) {
        struct cst_vec b0 = cst_vec_load(b + (size_t)k * PANEL_COLUMNS);
        struct cst_vec b1 = cst_vec_load(b + (size_t)k * PANEL_COLUMNS + CST_VEC_LANES);

#pragma GCC unroll 6
        for (int i = 0; i < CST_PRODUCT_ROWS; i++) {
            struct cst_vec x = cst_vec_set(a[k * CST_PRODUCT_ROWS + (uint32_t)i]);

            s[i][0] = cst_vec_fma(x, b0, s[i][0]);
            s[i][1] = cst_vec_fma(x, b1, s[i][1]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < CST_PRODUCT_ROWS; i++) {
        cst_vec_store(sums + i * CST_PRODUCT_TILE, s[i][0]);
        cst_vec_store(sums + i * CST_PRODUCT_TILE + CST_VEC_LANES, s[i][1]);
    }
}

/* bf16, to nearest even. Any NaN becomes CST_UPDATE_NAN. */
CST_INLINE struct cst_vec_bits round_any(struct cst_vec x)
{
    const struct cst_vec nan = cst_vec_from_bits(cst_vec_set_bits(CST_UPDATE_NAN));

    return cst_round_bf16(cst_vec_if_nan(x, nan, x));
}

/* Round one group of sums. @add has a whole group, or is NULL. */
CST_INLINE void finish_group(const struct cst_product *p, const float *sums, const uint16_t *add,
                             uint16_t *out)
{
    struct cst_vec alpha = cst_vec_set(p->alpha), beta = cst_vec_set(p->beta);
    struct cst_vec_bits bits[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        int at = j * CST_VEC_LANES;
        struct cst_vec x = cst_vec_load(sums + at);
        struct cst_vec y =
            add == NULL ? cst_vec_set(0.0f) : cst_vec_mul(beta, cst_vec_load_bf16(add + at));

        x = cst_vec_fma(alpha, x, y);
        bits[j] = round_any(x);
    }
    cst_vec_store_upper(out, CST_VEC_GROUP, bits, false);
}

/* Round row @i of the tile. */
CST_INLINE void finish_row(const struct cst_product *p, const float *sums, uint32_t i)
{
    const uint16_t *add = p->add == NULL ? NULL : p->add + i * p->stride;
    uint16_t *out = p->out + i * p->stride;
    uint32_t j = 0;

    for (; j + CST_UPDATE_GROUP <= p->columns; j += CST_UPDATE_GROUP) {
        finish_group(p, sums + j, add == NULL ? NULL : add + j, out + j);
    }
    if (j < p->columns) {
        uint16_t padded[CST_UPDATE_GROUP] = {0}, result[CST_UPDATE_GROUP];

        if (add != NULL) {
            memcpy(padded, add + j, (p->columns - j) * sizeof *add);
        }
        finish_group(p, sums + j, padded, result);
        memcpy(out + j, result, (p->columns - j) * sizeof *out);
    }
}

void MUON_NAME(product)(const struct cst_product *p, struct cst_product_space *space)
{
    memset(space->sums, 0, sizeof space->sums);
    for (uint64_t k = 0; k < p->depth; k += CST_PRODUCT_DEPTH) {
        uint64_t left = p->depth - k;
        uint32_t depth = left < CST_PRODUCT_DEPTH ? (uint32_t)left : CST_PRODUCT_DEPTH;

        pack(space->a, CST_PRODUCT_ROWS, p->a.at + k * p->a.column, p->a.row, p->a.column, p->rows,
             depth);
        pack(space->b, PANEL_COLUMNS, p->b.at + k * p->b.row, p->b.column, p->b.row, p->columns,
             depth);
        for (uint32_t j = 0; j < p->columns; j += PANEL_COLUMNS) {
            for (uint32_t i = 0; i < p->rows; i += CST_PRODUCT_ROWS) {
                multiply_panels(space->a + (size_t)i * CST_PRODUCT_DEPTH,
                                space->b + (size_t)j * CST_PRODUCT_DEPTH, depth,
                                space->sums + (size_t)i * CST_PRODUCT_TILE + j);
            }
        }
    }
    for (uint32_t i = 0; i < p->rows; i++) {
        finish_row(p, space->sums + (size_t)i * CST_PRODUCT_TILE, i);
    }
}

void MUON_NAME(direction)(size_t n, const struct cst_update_scalars *scalars, const uint16_t *bf16,
                          const float *fp32, const float *m, uint16_t *out)
{
    struct cst_vec scale = cst_vec_set(scalars->grad_scale);
    struct cst_vec rest = cst_vec_set(scalars->one_minus_beta1);

    for (size_t i = 0; i < n; i += CST_UPDATE_GROUP) {
        struct cst_vec_bits bits[CST_VEC_GROUP];

        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            size_t at = i + (size_t)(j * CST_VEC_LANES);
            struct cst_vec g =
                bf16 != NULL ? cst_vec_load_bf16(bf16 + at) : cst_vec_load(fp32 + at);
            struct cst_vec old = cst_vec_load(m + at), new;

            g = cst_vec_mul(g, scale);
            new = cst_vec_fma(rest, cst_vec_sub(g, old), old);
            bits[j] = round_any(cst_vec_fnma(rest, cst_vec_sub(new, g), new));
        }
        cst_vec_store_upper(out + i, CST_VEC_GROUP, bits, false);
    }
}
