/* SPDX-License-Identifier: Apache-2.0 */
/* Products of the stand-in for cuBLASLt, on memory that the processor can access. */
#ifndef FAKECUBLAS_PRODUCT_H
#define FAKECUBLAS_PRODUCT_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* D = alpha op(A) op(B) + beta C, with an epilogue, as cublasLtMatmul has it: column-major, D in
 * place of C. A and B are bf16. */
struct product {
    float alpha, beta;
    const uint16_t *a, *b; /* op(A) is m x k, op(B) k x n */
    size_t lda, ldb, ldd;  /* in elements */
    bool turn_a, turn_b;
    void *d;
    bool fp32; /* d is fp32, else bf16 */
    size_t m, n, k;
    cublasLtEpilogue_t epilogue;
    const uint16_t *bias; /* m elements */
    uint16_t *aux;        /* m x n, column-major */
    size_t ld_aux;
};

/* Compute @p. */
void product_run(const struct product *p);

#endif
