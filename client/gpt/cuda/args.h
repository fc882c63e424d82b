/* SPDX-License-Identifier: Apache-2.0 */
/* What the worker's CUDA kernels and those who launch them agree on. For C, for CUDA and for C++
 * without CUDA's headers. Sizes of strips are part of the numerics: they fix the order of sums, so
 * they depend on nothing but the shape. */
#ifndef GPT_CUDA_ARGS_H
#define GPT_CUDA_ARGS_H

#include <stdint.h>

#define GPT_CUDA_VOCAB 256 /* GPT_VOCAB */

#define GPT_CUDA_THREADS 256       /* of a block of the elementwise kernels */
#define GPT_CUDA_MAX_WIDTH 8192    /* elements of a row that a block takes, eight to a thread */
#define GPT_CUDA_NORM_STRIPS 512   /* of the rows, at most, on a norm's way back: four per SM */
#define GPT_CUDA_NORM_ROWS 4       /* of a strip there, at least */
#define GPT_CUDA_BIAS_ROWS 64      /* rows of a strip of a bias's gradient */
#define GPT_CUDA_BIAS_COLUMNS 256  /* that a block adds up: 32 threads of 8 */
#define GPT_CUDA_BIAS_LANES 8      /* threads per column there */
#define GPT_CUDA_SUM_COLUMNS 32    /* of a block that adds strips up */
#define GPT_CUDA_SUM_LANES 16      /* threads per column there */
#define GPT_CUDA_LOSS_ROWS 8       /* of a block: a warp each */
#define GPT_CUDA_TOKEN_THREADS 64  /* of a block of the embedding's gradient, four columns each */
#define GPT_CUDA_CHOOSE_ROWS 8     /* of a block of the router: a warp each */
#define GPT_CUDA_ROUTE_THREADS 128 /* per row, on the router's way back */
#define GPT_CUDA_MAX_EXPERTS 1024  /* GPT_MAX_EXPERTS: 32 for each lane of a warp */
#define GPT_CUDA_EXPERT_ROWS 32    /* rows of an expert are made up to a multiple, with zeros */
#define GPT_CUDA_NO_ROW UINT32_MAX /* in place of a choice: zeros */
#define GPT_CUDA_OTHERS_ROW (UINT32_MAX - 1) /* in place of a choice: comes from another rank */
#define GPT_CUDA_TILE 64       /* rows and columns of c that a block of the plain product makes */
#define GPT_CUDA_TILE_DEPTH 16 /* of k at a time */

/* c (m x n) = scale a b [+ bias] [+ c], row-major; sums in fp32 in the order of k. */
struct gpt_cuda_product {
    const uint16_t *a;    /* m x k bf16, or k x m where turn_a */
    const uint16_t *b;    /* k x n bf16, or n x k where turn_b */
    const uint16_t *bias; /* n, added to each row; 0: none */
    void *c;              /* m x n */
    uint32_t m, n, k;
    uint32_t turn_a, turn_b; /* 0 or 1 */
    uint32_t fp32;           /* c is fp32; else bf16 */
    uint32_t accumulate;     /* add to what c holds */
    float scale;             /* of a b */
};

#endif
