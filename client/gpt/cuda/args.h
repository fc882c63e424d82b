/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and types shared by the worker's CUDA kernels and the code that launches them. The file
 * is for C, for CUDA and for C++ without CUDA's headers. Sizes of strips are part of the numerics,
 * because they fix the order of sums. They depend only on the shape. */
#ifndef GPT_CUDA_ARGS_H
#define GPT_CUDA_ARGS_H

#include <stdint.h>

#define GPT_CUDA_VOCAB 256 /* equal to GPT_VOCAB */

#define GPT_CUDA_THREADS 256    /* threads of a block of the elementwise kernels */
#define GPT_CUDA_MAX_WIDTH 8192 /* widest row of a block, eight elements per thread */
/* Most strips of rows in a norm's backward pass: four per SM. */
#define GPT_CUDA_NORM_STRIPS 512
#define GPT_CUDA_NORM_ROWS 4  /* fewest rows of a strip in a norm's backward pass */
#define GPT_CUDA_BIAS_ROWS 64 /* rows of a strip of a bias's gradient */
/* Columns that a block sums for a bias's gradient: 32 threads of 8. */
#define GPT_CUDA_BIAS_COLUMNS 256
#define GPT_CUDA_BIAS_LANES 8   /* threads per column for a bias's gradient */
#define GPT_CUDA_SUM_COLUMNS 32 /* columns of a block that adds up strips */
#define GPT_CUDA_SUM_LANES 16   /* threads per column that adds up strips */
#define GPT_CUDA_LOSS_ROWS 8    /* rows of a block of the loss, one warp each */
/* Threads of a block of the embedding's gradient, four columns each. */
#define GPT_CUDA_TOKEN_THREADS 64
#define GPT_CUDA_CHOOSE_ROWS 8     /* rows of a block of the router, one warp each */
#define GPT_CUDA_ROUTE_THREADS 128 /* threads per row in the router's backward pass */
/* Equal to GPT_MAX_EXPERTS: 32 for each lane of a warp. */
#define GPT_CUDA_MAX_EXPERTS 1024
/* Rows of an expert are padded with zeros to a multiple of this number. */
#define GPT_CUDA_EXPERT_ROWS 32
#define GPT_CUDA_NO_ROW UINT32_MAX /* in place of a choice: a padding row of zeros */
/* in place of a choice: a row that comes from another rank */
#define GPT_CUDA_OTHERS_ROW (UINT32_MAX - 1)
/* Rows and columns of c that a block of the plain product computes. */
#define GPT_CUDA_TILE 64
/* Elements of k that a block of the plain product loads at a time. */
#define GPT_CUDA_TILE_DEPTH 16

/* c (m x n) = scale a b [+ bias] [+ c], row-major. Sums are in fp32, in the order of k. */
struct gpt_cuda_product {
    const uint16_t *a;    /* m x k bf16; k x m where turn_a */
    const uint16_t *b;    /* k x n bf16; n x k where turn_b */
    const uint16_t *bias; /* n elements, added to each row; 0: none */
    void *c;              /* m x n, bf16 or fp32 */
    uint32_t m, n, k;
    uint32_t turn_a, turn_b; /* operand is stored transposed: 0 or 1 */
    uint32_t fp32;           /* 1: c is fp32; 0: bf16 */
    uint32_t accumulate;     /* 1: add the product to c */
    float scale;             /* factor on a b */
};

#endif
