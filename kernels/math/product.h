/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 matrices, for Muon (kernels/math/muon.h), and the directions from which they
 * begin. A product is made tile by tile, and the tiles are independent of each other. All variants
 * (reference, AVX2, AVX-512, NEON) produce the same bits, whatever the number of threads. Each
 * element of a product is
 *
 *   s = 0; for k = 0, 1, ...: s = fma(a[i][k], b[k][j], s)      in fp32
 *   result = bf16(fma(alpha, s, beta * add[i][j]))              to nearest even
 */
#ifndef CST_PRODUCT_H
#define CST_PRODUCT_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

struct cst_update_scalars; /* Defined in kernels/math/update.h. */

#define CST_PRODUCT_TILE 256   /* Most rows and columns of a tile of the result. */
#define CST_PRODUCT_DEPTH 256  /* Elements of k that are processed together. */
#define CST_PRODUCT_ROWS 6     /* Rows of a tile that are kept in registers together. */
#define CST_PRODUCT_PADDED 258 /* CST_PRODUCT_TILE in multiples of CST_PRODUCT_ROWS. */

/* A bf16 matrix: element [i][j] is at[i * row + j * column]. Also a matrix that is stored
 * transposed. */
struct cst_product_operand {
    const uint16_t *at;
    uint64_t row, column;
};

/* One tile of a product: a times b, of which a has @rows rows and b has @columns columns, at most
 * CST_PRODUCT_TILE each. */
struct cst_product {
    struct cst_product_operand a, b;
    uint32_t rows, columns;
    uint64_t depth;    /* Columns of a and rows of b. */
    float alpha, beta; /* Factors. */
    /* The matrix that is added: element [i][j] is add[i * stride + j]. NULL: nothing is added. */
    const uint16_t *add;
    uint16_t *out; /* The result: element [i][j] is out[i * stride + j]. Is not an operand. */
    uint64_t stride;
};

/* Memory for a tile, of one thread. */
struct cst_product_space {
    alignas(64) float a[CST_PRODUCT_PADDED * CST_PRODUCT_DEPTH];
    alignas(64) float b[CST_PRODUCT_TILE * CST_PRODUCT_DEPTH];
    alignas(64) float sums[CST_PRODUCT_PADDED * CST_PRODUCT_TILE];
};

/* Make one tile. @space is this thread's; its contents do not matter. Does not allocate. */
typedef void (*cst_product_fn)(const struct cst_product *product, struct cst_product_space *space);

/* Compute the Nesterov directions of @n elements as torch.optim.Muon does, and round them to bf16:
 *
 *   g = fp32(grad) * grad_scale
 *   m' = fma(1 - beta1, g - m, m)
 *   out = bf16(fma(-(1 - beta1), m' - g, m'))                   to nearest even
 *
 * @m has the momentum as fp32. One of @bf16 and @fp32 is the gradient, and the other one is NULL.
 * All four arrays have whole groups of CST_UPDATE_GROUP elements, of which those beyond @n do not
 * matter. Any thread. */
typedef void (*cst_direction_fn)(size_t n, const struct cst_update_scalars *scalars,
                                 const uint16_t *bf16, const float *fp32, const float *m,
                                 uint16_t *out);

void cst_direction_ref(size_t n, const struct cst_update_scalars *scalars, const uint16_t *bf16,
                       const float *fp32, const float *m, uint16_t *out);
void cst_direction_avx2(size_t n, const struct cst_update_scalars *scalars, const uint16_t *bf16,
                        const float *fp32, const float *m, uint16_t *out);
void cst_direction_avx512(size_t n, const struct cst_update_scalars *scalars, const uint16_t *bf16,
                          const float *fp32, const float *m, uint16_t *out);
void cst_direction_neon(size_t n, const struct cst_update_scalars *scalars, const uint16_t *bf16,
                        const float *fp32, const float *m, uint16_t *out);

void cst_product_ref(const struct cst_product *product, struct cst_product_space *space);
void cst_product_avx2(const struct cst_product *product, struct cst_product_space *space);
void cst_product_avx512(const struct cst_product *product, struct cst_product_space *space);
void cst_product_neon(const struct cst_product *product, struct cst_product_space *space);

#endif
