// SPDX-License-Identifier: Apache-2.0
/* Building blocks of the attention kernels: tiles in shared memory, products of a warp, and the
 * storing of results.
 *
 * A tile has rows of DIM bf16 in pieces of 16 bytes. Piece c of row r is stored at position c ^ (r
 * mod 8) of the row. With DIM 32, where two rows are 128 bytes, the position is c ^ (r / 2 mod 4).
 * Therefore the 8 pieces that ldmatrix reads, one column in 8 rows, are in different banks. The
 * pieces of a row, which copies write, are in different banks too. A lane computes its address for
 * columns 0..15 of the tile. The address 16 k columns further is the first address ^ (k x 32), one
 * instruction, and rows are immediate offsets.
 *
 * kernels/cuda/mma.cuh describes accumulators and fragments. The accumulators of 16 x 16 scores,
 * packed, are fragment A of the next product. Therefore scores never leave the registers. */
#ifndef GPT_CUDA_ATTENTION_CUH
#define GPT_CUDA_ATTENTION_CUH

#include "client/gpt/cuda/attention_args.h"
#include "kernels/cuda/mma.cuh"

#include <math.h>

namespace attention
{

#if defined(__CUDACC__)

/* Approximations in one instruction each, with an error of 2 ulp. Subnormal numbers become 0. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float log2_fast(float x)
{
    float y;

    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Read blockIdx.x again, so that values that depend on it need not stay in registers between two
 * uses. */
static __device__ __forceinline__ uint32_t block_number()
{
    uint32_t number;

    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

#else

static inline uint32_t block_number()
{
    return blockIdx.x;
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}

static inline float log2_fast(float x)
{
    return log2f(x);
}

#endif

static constexpr float LN2 = 0.693147180559945309f;
static constexpr float LOG2E = 1.44269504088896341f;

template <int DIM> struct pitch {
    static constexpr uint32_t bytes = 2 * DIM;
};

/* Byte offset in a tile of piece @chunk of row @row. */
template <int DIM> static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
    uint32_t turn = DIM == 32 ? row / 2 % 4 : row % 8;

    return row * pitch<DIM>::bytes + (chunk ^ turn) * 16;
}

/* Address of this lane in the first 16 columns of a tile. The tile is operand A (rows x depth), or
 * operand B stored as depth x columns, which ldmatrix transposes. */
template <int DIM> static __device__ __forceinline__ uint32_t lane_of_a()
{
    const uint32_t l = threadIdx.x % 32;

    return place<DIM>(l % 16, l / 16);
}

/* As lane_of_a, for operand B stored as columns x depth. */
template <int DIM> static __device__ __forceinline__ uint32_t lane_of_b()
{
    const uint32_t l = threadIdx.x % 32;

    return place<DIM>(l % 8 + l / 16 * 8, l / 8 % 2);
}

/* Element offset of row @row. */
static __device__ __forceinline__ uint64_t row_at(uint32_t row, uint32_t stride)
{
    return static_cast<uint64_t>(row) * stride;
}

/* The first piece that this thread copies, in the rows that begin at @from. */
template <int DIM>
static __device__ __forceinline__ const uint16_t *piece_of(const uint16_t *from, uint32_t stride)
{
    constexpr uint32_t CHUNKS = DIM / 8;

    return from + row_at(threadIdx.x / CHUNKS, stride) + threadIdx.x % CHUNKS * 8;
}

/* Begin to copy ROWS rows, @stride elements apart, into a tile. Rows from @whole on and elements
 * from @dim on are zeros and are not read. @at: piece_of the first row. All threads of the block
 * must call it together. */
template <int DIM, int ROWS, int THREADS>
static __device__ __forceinline__ void bring(unsigned char *tile, const uint16_t *at,
                                             uint32_t stride, uint32_t whole, uint32_t dim)
{
    constexpr uint32_t CHUNKS = DIM / 8;
    constexpr uint32_t STEP = THREADS / CHUNKS; /* rows of a round */
    const uint32_t chunk = threadIdx.x % CHUNKS;
    const uint32_t first = threadIdx.x / CHUNKS;

    static_assert(THREADS % CHUNKS == 0 && (ROWS % STEP == 0 || STEP % ROWS == 0), "");
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i += STEP, at += STEP * stride) {
        const uint32_t row = first + i;

        if (STEP <= ROWS || row < ROWS) {
            cst_copy_async(tile + place<DIM>(row, chunk), at,
                           row < whole && chunk * 8 < dim ? 16 : 0);
        }
    }
}

template <int M, int N> static __device__ __forceinline__ void zero(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
        }
    }
}

/* c (16 M x 8 N) := a b^T, over DIM. a is 16 M rows of a tile; b is 8 N rows of another tile. */
template <int DIM, int M, int N>
static __device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], const unsigned char *a,
                                                     const unsigned char *b)
{
    const uint32_t lane_a = lane_of_a<DIM>();
    const uint32_t lane_b = lane_of_b<DIM>();

    zero(c);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t fa[M][4];
        uint32_t fb[4];

#pragma unroll
        for (int m = 0; m < M; m++) {
            cst_ldmatrix_x4(fa[m], a + (lane_a ^ (k * 32)) + m * 16 * pitch<DIM>::bytes);
        }
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            cst_ldmatrix_x4(fb, b + (lane_b ^ (k * 32)) + n * 16 * pitch<DIM>::bytes);
#pragma unroll
            for (int m = 0; m < M; m++) {
                cst_mma_bf16(c[m][2 * n], fa[m], fb);
                cst_mma_bf16(c[m][2 * n + 1], fa[m], fb + 2);
            }
        }
    }
}

/* c (16 M x DIM) += p b. p is 16 M x 8 N, packed. b is 8 N rows of a tile. */
template <int DIM, int M, int N>
static __device__ __forceinline__ void multiply_columns(float (&c)[M][DIM / 8][4],
                                                        const uint32_t (&p)[M][N / 2][4],
                                                        const unsigned char *b)
{
    const uint32_t lane = lane_of_a<DIM>();

#pragma unroll
    for (int k = 0; k < N / 2; k++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t fb[4];

            cst_ldmatrix_x4_trans(fb, b + (lane ^ (n * 32)) + k * 16 * pitch<DIM>::bytes);
#pragma unroll
            for (int m = 0; m < M; m++) {
                cst_mma_bf16(c[m][2 * n], p[m][k], fb);
                cst_mma_bf16(c[m][2 * n + 1], p[m][k], fb + 2);
            }
        }
    }
}

/* Convert accumulators to fragments A. */
template <int M, int N>
static __device__ __forceinline__ void pack(uint32_t (&p)[M][N / 2][4], const float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            p[m][n / 2][n % 2 * 2] = cst_bf16_pair_fast(c[m][n][0], c[m][n][1]);
            p[m][n / 2][n % 2 * 2 + 1] = cst_bf16_pair_fast(c[m][n][2], c[m][n][3]);
        }
    }
}

/* Row and column of element (m, n, e) of a warp's accumulators. */
static __device__ __forceinline__ uint32_t row_of(int m, int e)
{
    return 16 * m + e / 2 * 8 + threadIdx.x % 32 / 4;
}

static __device__ __forceinline__ uint32_t column_of(int n, int e)
{
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* Comparison of row and column of a warp's accumulators, which begin at row @row0 and column
 * @column0. It needs one number per thread, to which a constant is added for each element. */
struct diagonal {
    int32_t first;

    __device__ __forceinline__ diagonal(uint32_t row0, uint32_t column0)
        : first(static_cast<int32_t>(row0 + row_of(0, 0) - column0 - column_of(0, 0)))
    {
    }

    __device__ __forceinline__ bool below(int m, int n, int e) const
    {
        return first > 8 * n + e % 2 - 16 * m - e / 2 * 8;
    }

    __device__ __forceinline__ bool above(int m, int n, int e) const
    {
        return first < 8 * n + e % 2 - 16 * m - e / 2 * 8;
    }
};

/* Store 16 M rows of a warp's accumulators as bf16, each element multiplied by @scale[m][half], to
 * rows at @to that are @stride elements apart. Only the first @whole rows and @dim columns are
 * stored. @tile: shared memory for 16 M rows that no other warp reads any more. The rows pass
 * through it so that they are stored in whole pieces. */
template <int DIM, int M>
static __device__ __forceinline__ void
put(const float (&c)[M][DIM / 8][4], const float (&scale)[M][2], unsigned char *tile, uint16_t *to,
    uint32_t stride, uint32_t whole, uint32_t dim)
{
    constexpr uint32_t CHUNKS = DIM / 8;

    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                unsigned char *piece = tile + place<DIM>(row_of(m, 2 * h), n);

                *reinterpret_cast<uint32_t *>(piece + threadIdx.x % 4 * 4) = cst_bf16_pair_fast(
                    c[m][n][2 * h] * scale[m][h], c[m][n][2 * h + 1] * scale[m][h]);
            }
        }
    }
    __syncwarp();
    for (uint32_t i = threadIdx.x % 32; i < 16 * M * CHUNKS; i += 32) {
        const uint32_t row = i / CHUNKS;
        const uint32_t chunk = i % CHUNKS;

        if (row < whole && chunk * 8 < dim) {
            *reinterpret_cast<uint4 *>(to + row_at(row, stride) + chunk * 8) =
                *reinterpret_cast<const uint4 *>(tile + place<DIM>(row, chunk));
        }
    }
}

/* The sequence and head of a block, and their addresses. A kernel computes it again at its end:
 * this takes few instructions, while values that are kept through the loop cost registers. */
struct corner {
    uint64_t pair;   /* sequence x n_heads + head */
    uint32_t tile;   /* tile of this block, among n_tiles */
    uint32_t width;  /* elements of a row of out */
    uint32_t stride; /* elements of a row of qkv */
    uint64_t qkv;    /* first element of the head's q */
    uint64_t out;    /* first element of the head's out */
};

static __device__ __forceinline__ corner find_corner(const gpt_attention_sizes &s, uint32_t number)
{
    const uint32_t pair = number / s.n_tiles;
    const uint64_t seq = pair / s.n_heads;
    const uint64_t head = pair % s.n_heads;
    corner c;

    c.pair = pair;
    c.tile = number % s.n_tiles;
    c.width = s.n_heads * s.dim;
    c.stride = 3 * c.width;
    c.qkv = seq * s.context * c.stride + head * s.dim;
    c.out = seq * s.context * c.width + head * s.dim;
    return c;
}

} // namespace attention

#endif
