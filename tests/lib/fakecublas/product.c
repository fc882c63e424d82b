/* SPDX-License-Identifier: Apache-2.0 */
#if __has_include(<cublasLt.h>)

#include "tests/lib/fakecublas/product.h"

#include "kernels/math/cast.h"

#include <math.h>

static float sum(const struct product *p, size_t i, size_t j)
{
    float total = 0;

    for (size_t l = 0; l < p->k; l++) {
        const uint16_t x = p->turn_a ? p->a[i * p->lda + l] : p->a[l * p->lda + i];
        const uint16_t y = p->turn_b ? p->b[l * p->ldb + j] : p->b[j * p->ldb + l];

        total = fmaf(cst_bf16_to_fp32(x), cst_bf16_to_fp32(y), total);
    }
    return total;
}

/* The tanh form of GELU, and its derivative. */
static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));

    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 0.134145f * x * x);
}

static float finish(const struct product *p, size_t i, size_t j, float x)
{
    uint16_t *aux = p->aux != NULL ? &p->aux[j * p->ld_aux + i] : NULL;

    if (p->epilogue == CUBLASLT_EPILOGUE_BIAS || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        x += cst_bf16_to_fp32(p->bias[i]);
    }
    if (p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        *aux = cst_fp32_to_bf16(x);
        x = gelu(x);
    } else if (p->epilogue == CUBLASLT_EPILOGUE_DGELU) {
        x *= gelu_slope(cst_bf16_to_fp32(*aux));
    }
    return x;
}

static void element(const struct product *p, size_t i, size_t j)
{
    const size_t at = j * p->ldd + i;
    float x = p->alpha * sum(p, i, j);

    if (p->beta != 0) {
        x += p->beta * (p->fp32 ? ((float *)p->d)[at] : cst_bf16_to_fp32(((uint16_t *)p->d)[at]));
    }
    x = finish(p, i, j, x);
    if (p->fp32) {
        ((float *)p->d)[at] = x;
    } else {
        ((uint16_t *)p->d)[at] = cst_fp32_to_bf16(x);
    }
}

void product_run(const struct product *p)
{
    for (size_t j = 0; j < p->n; j++) {
        for (size_t i = 0; i < p->m; i++) {
            element(p, i, j);
        }
    }
}

#endif
