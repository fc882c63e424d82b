// SPDX-License-Identifier: Apache-2.0
/* Backward pass of attention:
 *
 *   p = exp(s - lse), dp = dout v^T, ds = p (dp - delta), delta = rowsum(dout out)
 *   dq = ds k, dk = ds^T q, dv = p^T dout
 *
 * s, dq and dk include the factor scale. There are two kernels. One computes a tile of queries over
 * the keys up to them, the other a tile of keys over the queries from them on. Each sum then has
 * one owner and one order. The price is that p and ds are computed twice (7 products instead of 5).
 *
 * Scratch is fp32, with a row of @padded elements per (seq, head):
 *   - [0] lse x log2(e); infinity beyond the context, so that p is 0 there
 *   - [1] delta; 0 beyond the context */
#ifndef GPT_CUDA_ATTENTION_BACKWARD_CUH
#define GPT_CUDA_ATTENTION_BACKWARD_CUH

#include "client/gpt/cuda/attention.cuh"

namespace attention
{

/* Return @sum + a . b for eight elements, added one after the other. */
static __device__ __forceinline__ float dot(uint4 a, uint4 b, float sum)
{
    const uint32_t x[4] = {a.x, a.y, a.z, a.w};
    const uint32_t y[4] = {b.x, b.y, b.z, b.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = __fmaf_rn(cst_bf16_first(x[i]), cst_bf16_first(y[i]), sum);
        sum = __fmaf_rn(cst_bf16_second(x[i]), cst_bf16_second(y[i]), sum);
    }
    return sum;
}

/* Fill the scratch for GPT_ATTENTION_PREPARE positions of a head. */
static __device__ __forceinline__ void prepare(const gpt_attention_sizes &s, const uint16_t *out,
                                               const uint16_t *dout, const float *lse,
                                               float *scratch, uint64_t n_rows)
{
    const corner c = find_corner(s, blockIdx.x);
    const uint32_t position =
        c.tile * GPT_ATTENTION_PREPARE + threadIdx.x / GPT_ATTENTION_PREPARE_LANES;
    const uint32_t lane = threadIdx.x % GPT_ATTENTION_PREPARE_LANES;
    const uint64_t row = c.pair * s.padded + position;
    float sum = 0;

    if (position < s.context) {
        for (uint32_t i = lane * 8; i < s.dim; i += GPT_ATTENTION_PREPARE_LANES * 8) {
            const uint64_t at = c.out + row_at(position, c.width) + i;

            sum = dot(*reinterpret_cast<const uint4 *>(out + at),
                      *reinterpret_cast<const uint4 *>(dout + at), sum);
        }
    }
#pragma unroll
    for (int step = GPT_ATTENTION_PREPARE_LANES / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (lane == 0) {
        scratch[row] = position < s.context ? lse[c.pair * s.context + position] * LOG2E : INFINITY;
        scratch[n_rows * s.padded + row] = sum;
    }
}

/* Compute dq of 16 M WARPS queries. K and V have two buffers each. */
template <int DIM, int M, int WARPS, int KEYS, int PARTS>
static __device__ __forceinline__ void dq(const gpt_attention_sizes &s, const uint16_t *qkv,
                                          const uint16_t *dout, const float *scratch,
                                          uint64_t n_rows, uint16_t *dqkv)
{
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr int N = KEYS / 8;
    constexpr uint32_t STAGE = 2 * KEYS * pitch<DIM>::bytes;
    CST_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *const q = shared;
    unsigned char *const g = q + ROWS * pitch<DIM>::bytes; /* gradient of out */
    unsigned char *const kv = g + ROWS * pitch<DIM>::bytes;
    const corner c = find_corner(s, blockIdx.x);
    const uint32_t i0 = (s.n_tiles - 1 - c.tile) * ROWS;
    const uint32_t in_block = threadIdx.x / 32 * (16 * M);
    const uint32_t row0 = i0 + in_block;
    const uint32_t end = min(s.context, i0 + ROWS);
    const bool works = row0 < s.context;
    const uint16_t *from = piece_of<DIM>(qkv + c.qkv, c.stride);
    const float *rows = scratch + c.pair * s.padded + row0;
    float sum[M][DIM / 8][4];
    float lse[M][2], delta[M][2];
    uint32_t stage = 0;

    zero(sum);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            lse[m][h] = rows[row_of(m, 2 * h)];
            delta[m][h] = rows[n_rows * s.padded + row_of(m, 2 * h)];
        }
    }
    bring<DIM, ROWS, THREADS>(q, from + row_at(i0, c.stride), c.stride, s.context - i0, s.dim);
    bring<DIM, ROWS, THREADS>(g, piece_of<DIM>(dout + c.out + row_at(i0, c.width), c.width),
                              c.width, s.context - i0, s.dim);
    from += c.width;
    bring<DIM, KEYS, THREADS>(kv, from, c.stride, s.context, s.dim);
    bring<DIM, KEYS, THREADS>(kv + STAGE / 2, from + c.width, c.stride, s.context, s.dim);
    cst_copy_commit();
    for (uint32_t j0 = 0; j0 < end; j0 += KEYS, stage = STAGE - stage) {
        const uint32_t next = j0 + KEYS;
        const unsigned char *k = kv + stage;
        const unsigned char *v = k + STAGE / 2;

        cst_copy_wait<0>();
        /* After this barrier the stage has arrived, and no warp uses the other stage. */
        __syncthreads();
        if (next < end) {
            unsigned char *to = kv + (STAGE - stage);

            from += row_at(KEYS, c.stride);
            bring<DIM, KEYS, THREADS>(to, from, c.stride, s.context - next, s.dim);
            bring<DIM, KEYS, THREADS>(to + STAGE / 2, from + c.width, c.stride, s.context - next,
                                      s.dim);
            cst_copy_commit();
        }
        if (works && j0 < row0 + 16 * M) {
            const diagonal d(row0, j0);
            float p[M][N][4], dp[M][N][4];
            uint32_t ds[M][N / 2][4];

            multiply_rows<DIM>(p, q + in_block * pitch<DIM>::bytes, k);
            multiply_rows<DIM>(dp, g + in_block * pitch<DIM>::bytes, v);
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float x =
                            exp2_fast(__fmaf_rn(p[m][n][e], s.scale_log2, -lse[m][e / 2]));

                        dp[m][n][e] = d.above(m, n, e) ? 0.0f : x * (dp[m][n][e] - delta[m][e / 2]);
                    }
                }
            }
            pack<M, N>(ds, dp);
            multiply_columns<DIM, M, N>(sum, ds, k);
        }
    }
    if (works) {
        const corner d = find_corner(s, block_number());
        float scale[M][2];

#pragma unroll
        for (int m = 0; m < M; m++) {
            scale[m][0] = scale[m][1] = s.scale;
        }
        put<DIM>(sum, scale, q + in_block * pitch<DIM>::bytes,
                 dqkv + d.qkv + row_at(row0, c.stride), c.stride, s.context - row0, s.dim);
    }
}

/* What dkv reads of queries: the addresses of this thread's pieces of the next tile. */
struct queries {
    const uint16_t *q, *g;
    const float *rows; /* lse or delta */
};

/* Begin to copy one stage: q, dout, then lse and delta. Tiles of scratch need no bounds, because
 * scratch is padded. */
template <int DIM, int QUERIES, int THREADS>
static __device__ __forceinline__ void bring_queries(const gpt_attention_sizes &s, const corner &c,
                                                     unsigned char *to, float *to_rows,
                                                     queries &from, uint32_t whole)
{
    bring<DIM, QUERIES, THREADS>(to, from.q, c.stride, whole, s.dim);
    bring<DIM, QUERIES, THREADS>(to + QUERIES * pitch<DIM>::bytes, from.g, c.width, whole, s.dim);
    if (threadIdx.x < QUERIES / 2) {
        cst_copy_async(to_rows + threadIdx.x * 4, from.rows, 16);
    }
    cst_copy_commit();
    from.q += row_at(QUERIES, c.stride);
    from.g += row_at(QUERIES, c.width);
    from.rows += QUERIES;
}

/* Compute dk, dv or both of 16 M WARPS keys. The scores are k q^T, with keys as rows, so that p and
 * ds are already the fragments for dv and dk. Q and dout have two buffers each. */
template <int DIM, int M, int WARPS, int QUERIES, bool DK, bool DV>
static __device__ __forceinline__ void dkv_of(const gpt_attention_sizes &s, const uint16_t *qkv,
                                              const uint16_t *dout, const float *scratch,
                                              uint64_t n_rows, uint16_t *dqkv)
{
    constexpr int ROWS = 16 * M * WARPS;
    constexpr int THREADS = 32 * WARPS;
    constexpr int N = QUERIES / 8;
    constexpr uint32_t STAGE = 2 * QUERIES * pitch<DIM>::bytes;
    CST_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *const k = shared;
    unsigned char *const v = k + ROWS * pitch<DIM>::bytes;
    unsigned char *const qg = v + ROWS * pitch<DIM>::bytes;
    float *const lse_delta = reinterpret_cast<float *>(qg + 2 * STAGE);
    const corner c = find_corner(s, blockIdx.x);
    const uint32_t j0 = c.tile * ROWS; /* The blocks with the longest loops come first. */
    const uint32_t in_block = threadIdx.x / 32 * (16 * M);
    const uint32_t key0 = j0 + in_block;
    const bool works = key0 < s.context;
    queries next = {piece_of<DIM>(qkv + c.qkv + row_at(j0, c.stride), c.stride),
                    piece_of<DIM>(dout + c.out + row_at(j0, c.width), c.width),
                    scratch + (threadIdx.x / (QUERIES / 4) * n_rows + c.pair) * s.padded + j0 +
                        threadIdx.x % (QUERIES / 4) * 4};
    float dk[M][DIM / 8][4], dv[M][DIM / 8][4];
    uint32_t stage = 0;

    static_assert(ROWS % QUERIES == 0, "");
    zero(dk);
    zero(dv);
    bring<DIM, ROWS, THREADS>(k, next.q + c.width, c.stride, s.context - j0, s.dim);
    bring<DIM, ROWS, THREADS>(v, next.q + 2 * c.width, c.stride, s.context - j0, s.dim);
    bring_queries<DIM, QUERIES, THREADS>(s, c, qg, lse_delta, next, s.context - j0);
    for (uint32_t i0 = j0; i0 < s.context; i0 += QUERIES, stage = 1 - stage) {
        const unsigned char *q = qg + stage * STAGE;
        const unsigned char *g = q + STAGE / 2;
        const float *lse = lse_delta + stage * (2 * QUERIES);

        cst_copy_wait<0>();
        /* After this barrier the stage has arrived, and no warp uses the other stage. */
        __syncthreads();
        if (i0 + QUERIES < s.context) {
            bring_queries<DIM, QUERIES, THREADS>(s, c, qg + (1 - stage) * STAGE,
                                                 lse_delta + (1 - stage) * (2 * QUERIES), next,
                                                 s.context - i0 - QUERIES);
        }
        if (works && key0 < i0 + QUERIES) {
            const diagonal at(key0, i0);
            float p[M][N][4], dp[M][N][4];
            uint32_t packed[M][N / 2][4];

            multiply_rows<DIM>(p, k + in_block * pitch<DIM>::bytes, q);
            if (DK) {
                multiply_rows<DIM>(dp, v + in_block * pitch<DIM>::bytes, g);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float2 l = *reinterpret_cast<const float2 *>(lse + column_of(n, 0));
                const float2 d = *reinterpret_cast<const float2 *>(lse + QUERIES + column_of(n, 0));

#pragma unroll
                for (int m = 0; m < M; m++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float x = exp2_fast(
                            __fmaf_rn(p[m][n][e], s.scale_log2, e % 2 == 0 ? -l.x : -l.y));

                        p[m][n][e] = at.below(m, n, e) ? 0.0f : x;
                        if (DK) {
                            dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - (e % 2 == 0 ? d.x : d.y));
                        }
                    }
                }
            }
            if (DV) {
                pack<M, N>(packed, p);
                multiply_columns<DIM, M, N>(dv, packed, g);
            }
            if (DK) {
                pack<M, N>(packed, dp);
                multiply_columns<DIM, M, N>(dk, packed, q);
            }
        }
    }
    if (works) {
        const corner d = find_corner(s, block_number());
        float scale[M][2], one[M][2];
        uint16_t *to = dqkv + d.qkv + row_at(key0, c.stride) + c.width;

#pragma unroll
        for (int m = 0; m < M; m++) {
            scale[m][0] = scale[m][1] = s.scale;
            one[m][0] = one[m][1] = 1.0f;
        }
        if (DK) {
            put<DIM>(dk, scale, k + in_block * pitch<DIM>::bytes, to, c.stride, s.context - key0,
                     s.dim);
        }
        if (DV) {
            put<DIM>(dv, one, v + in_block * pitch<DIM>::bytes, to + c.width, c.stride,
                     s.context - key0, s.dim);
        }
    }
}

/* With two parts, the blocks with y = 0 compute dk and those with y = 1 compute dv. */
template <int DIM, int M, int WARPS, int QUERIES, int PARTS>
static __device__ __forceinline__ void dkv(const gpt_attention_sizes &s, const uint16_t *qkv,
                                           const uint16_t *dout, const float *scratch,
                                           uint64_t n_rows, uint16_t *dqkv)
{
    static_assert(PARTS == 1 || PARTS == 2, "");
    if (PARTS == 1 || blockIdx.y == 0) {
        dkv_of<DIM, M, WARPS, QUERIES, true, PARTS == 1>(s, qkv, dout, scratch, n_rows, dqkv);
    } else {
        dkv_of<DIM, M, WARPS, QUERIES, false, true>(s, qkv, dout, scratch, n_rows, dqkv);
    }
}

} // namespace attention

#endif
