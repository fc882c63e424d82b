// SPDX-License-Identifier: Apache-2.0
/* out = softmax(q k^T / sqrt(dim), causal) v of 16 M WARPS queries. The keys are taken in ascending
 * order, KEYS at a time, with a running maximum and sum (Dao, FlashAttention-2, 2023). Every query
 * sees key 0, so that its maximum is finite from the first step on. */
#ifndef GPT_CUDA_ATTENTION_FORWARD_CUH
#define GPT_CUDA_ATTENTION_FORWARD_CUH

#include "client/gpt/cuda/attention.cuh"

namespace attention
{

/* For each row of the accumulators: the maximum of the raw scores, and this thread's share of the
 * sum of exponentials relative to the maximum. */
template <int M> struct running {
    float most[M][2];
    float sum[M][2];
};

/* Set the scores of keys later than the query to -infinity. The scores are those of queries from
 * @row0 on and keys from @key0 on. */
template <int M, int N>
static __device__ __forceinline__ void mask(float (&s)[M][N][4], uint32_t row0, uint32_t key0)
{
    const diagonal d(row0, key0);

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (d.above(m, n, e)) {
                    s[m][n][e] = -INFINITY;
                }
            }
        }
    }
}

/* Turn the scores into exponentials relative to the new maximum, and rescale the earlier sums to
 * the new maximum. */
template <int M, int N, int D>
static __device__ __forceinline__ void fold(float (&s)[M][N][4], running<M> &r, float (&o)[M][D][4],
                                            float scale_log2)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = r.most[m][h];
            float factor, shift;

#pragma unroll
            for (int n = 0; n < N; n++) {
                most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            factor = exp2_fast((r.most[m][h] - most) * scale_log2);
            shift = -most * scale_log2;
            r.most[m][h] = most;
            r.sum[m][h] *= factor;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    s[m][n][e] = exp2_fast(__fmaf_rn(s[m][n][e], scale_log2, shift));
                    r.sum[m][h] += s[m][n][e];
                }
            }
#pragma unroll
            for (int d = 0; d < D; d++) {
                o[m][d][2 * h] *= factor;
                o[m][d][2 * h + 1] *= factor;
            }
        }
    }
}

/* Add up the sums of the four threads of a row. Write lse of the rows below @whole, and write
 * 1 / sum to @scale. */
template <int M>
static __device__ __forceinline__ void finish(running<M> &r, float (&scale)[M][2], float *lse,
                                              uint32_t whole, float scale_log2)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t row = row_of(m, 2 * h);
            float sum = r.sum[m][h];

            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            scale[m][h] = __fdividef(1.0f, sum);
            if (threadIdx.x % 4 == 0 && row < whole) {
                lse[row] = (r.most[m][h] * scale_log2 + log2_fast(sum)) * LN2;
            }
        }
    }
}

/* Compute out and lse. K and V have one buffer each: the next K arrives while V is used, and the
 * next V while K is used. */
template <int DIM, int M, int WARPS, int KEYS>
static __device__ __forceinline__ void forward(const gpt_attention_sizes &s, const uint16_t *qkv,
                                               uint16_t *out, float *lse)
{
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr int N = KEYS / 8;
    CST_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *const q = shared;
    unsigned char *const k = q + ROWS * pitch<DIM>::bytes;
    unsigned char *const v = k + KEYS * pitch<DIM>::bytes;
    const corner c = find_corner(s, blockIdx.x);
    /* The blocks with the longest loops come first. */
    const uint32_t i0 = (s.n_tiles - 1 - c.tile) * ROWS;
    const uint32_t in_block = threadIdx.x / 32 * (16 * M);
    const uint32_t row0 = i0 + in_block; /* first row of this warp */
    const uint32_t end = min(s.context, i0 + ROWS);
    const bool works = row0 < s.context;
    const uint16_t *from = piece_of<DIM>(qkv + c.qkv, c.stride);
    float o[M][DIM / 8][4];
    float scale[M][2];
    running<M> r;

    zero(o);
#pragma unroll
    for (int m = 0; m < M; m++) {
        r.most[m][0] = r.most[m][1] = -INFINITY;
        r.sum[m][0] = r.sum[m][1] = 0;
    }
    bring<DIM, ROWS, THREADS>(q, from + row_at(i0, c.stride), c.stride, s.context - i0, s.dim);
    bring<DIM, KEYS, THREADS>(k, from + c.width, c.stride, s.context, s.dim);
    cst_copy_commit();
    for (uint32_t j0 = 0; j0 < end; j0 += KEYS) {
        const uint32_t next = j0 + KEYS;
        const bool sees = works && j0 < row0 + 16 * M;
        uint32_t p[M][N / 2][4];

        cst_copy_wait<0>();
        __syncthreads(); /* After this barrier K has arrived, and no warp uses V. */
        bring<DIM, KEYS, THREADS>(v, from + 2 * c.width + row_at(j0, c.stride), c.stride,
                                  s.context - j0, s.dim);
        cst_copy_commit();
        if (sees) {
            float scores[M][N][4];

            multiply_rows<DIM>(scores, q + in_block * pitch<DIM>::bytes, k);
            if (next > row0 + 1) {
                mask(scores, row0, j0);
            }
            fold(scores, r, o, s.scale_log2);
            pack<M, N>(p, scores);
        }
        cst_copy_wait<0>();
        __syncthreads(); /* After this barrier V has arrived, and no warp uses K. */
        if (next < end) {
            bring<DIM, KEYS, THREADS>(k, from + c.width + row_at(next, c.stride), c.stride,
                                      s.context - next, s.dim);
            cst_copy_commit();
        }
        if (sees) {
            multiply_columns<DIM, M, N>(o, p, v);
        }
    }
    if (works) {
        const corner d = find_corner(s, block_number());
        finish(r, scale, lse + d.pair * s.context + row0, s.context - row0, s.scale_log2);
        put<DIM>(o, scale, q + in_block * pitch<DIM>::bytes, out + d.out + row_at(row0, c.width),
                 c.width, s.context - row0, s.dim);
    }
}

} // namespace attention

#endif
