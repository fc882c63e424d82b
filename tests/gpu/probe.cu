// SPDX-License-Identifier: Apache-2.0
/* One product of matrices by each of the ways that kernels/cuda/mma.cuh describes, so that what it
 * says can be checked: on the processor by tests/kernels/check_cudaemu, on a GPU by
 * tests/gpu/check_kernels. */
#include "kernels/cuda/mma.cuh"

namespace
{

const uint32_t M = 16;
const uint32_t N = 8;
const uint32_t K = 16;

/* Bring @rows rows of @columns elements (a multiple of 8) into shared memory, @whole of them; zeros
 * follow. */
__device__ void bring(uint16_t *to, const uint16_t *from, uint32_t rows, uint32_t columns,
                      uint32_t whole)
{
    for (uint32_t i = 8 * threadIdx.x; i < rows * columns; i += 8 * blockDim.x) {
        uint32_t left = i < whole ? whole - i : 0;

        cst_copy_async(to + i, from + i, 2 * (left < 8 ? left : 8));
    }
    cst_copy_commit();
}

__device__ void put(float *c, const float fragment[4])
{
    const uint32_t g = threadIdx.x / 4;
    const uint32_t t = threadIdx.x % 4;

    c[g * N + 2 * t] = fragment[0];
    c[g * N + 2 * t + 1] = fragment[1];
    c[(g + 8) * N + 2 * t] = fragment[2];
    c[(g + 8) * N + 2 * t + 1] = fragment[3];
}

} // namespace

/* One warp. c[0] := a b with a [16][16] and b as [n][k]; c[1] := the same with a transposed in
 * memory, [k][m], and b as [k][n]; c[2] := c[0] of the first @whole elements of a alone. */
extern "C" __global__ void cst_probe_mma(const uint16_t *a, const uint16_t *a_trans,
                                         const uint16_t *b_trans, const uint16_t *b, uint32_t whole,
                                         float *c)
{
    __shared__ __align__(16) uint16_t piece[3][M * K];
    __shared__ __align__(16) uint16_t narrow[2][N * K];
    const uint32_t l = threadIdx.x;
    float sum[3][4] = {};
    uint32_t fa[4];
    uint32_t fb[2];

    bring(piece[0], a, M, K, M * K);
    bring(narrow[0], b_trans, N, K, N * K);
    bring(piece[1], a_trans, K, M, M * K);
    bring(narrow[1], b, K, N, N * K);
    bring(piece[2], a, M, K, whole);

    cst_copy_wait<3>();
    __syncthreads();
    cst_ldmatrix_x4(fa, piece[0] + l % 16 * K + l / 16 * 8);
    cst_ldmatrix_x2(fb, narrow[0] + l % 8 * K + l / 8 % 2 * 8);
    cst_mma_bf16(sum[0], fa, fb);

    cst_copy_wait<0>();
    __syncthreads();
    cst_ldmatrix_x4(fa, piece[2] + l % 16 * K + l / 16 * 8);
    cst_mma_bf16(sum[2], fa, fb);

    cst_ldmatrix_x4_trans(fa, piece[1] + (l % 8 + l / 16 * 8) * M + l / 8 % 2 * 8);
    cst_ldmatrix_x2_trans(fb, narrow[1] + l % 16 * N);
    cst_mma_bf16(sum[1], fa, fb);
    for (uint32_t i = 0; i < 3; i++) {
        put(c + i * M * N, sum[i]);
    }
}
CST_KERNEL(cst_probe_mma);
