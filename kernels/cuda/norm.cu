// SPDX-License-Identifier: Apache-2.0
/* kernels/math/norm.h on a GPU: the sums, added one after the other in double. The additions form a
 * chain, which only one thread can compute (about 8 cycles each). The other threads load the next
 * piece into shared memory at the same time, so that the chain never waits for memory. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/cuda.cuh"

namespace
{

/* Number of sums in a piece. Two pieces take 16 KiB of shared memory. */
const uint32_t PIECE = 1024;

/* Load sums [at, at + PIECE) of @n. Zeros after the last sum do not change the total: sums are not
 * negative, and the total is therefore never -0. */
__device__ __forceinline__ void bring(double *piece, uint64_t n, const double *sums, uint64_t at)
{
    for (uint32_t i = threadIdx.x; i < PIECE; i += CST_CUDA_NORM_THREADS) {
        piece[i] = at + i < n ? sums[at + i] : 0.0;
    }
}

__device__ __forceinline__ double add_up(const double *piece, double total)
{
#pragma unroll 16
    for (uint32_t i = 0; i < PIECE; i++) {
        total = __dadd_rn(total, piece[i]);
    }
    return total;
}

} // namespace

extern "C" __global__ void __launch_bounds__(CST_CUDA_NORM_THREADS)
    cst_norm_kernel(uint64_t n, const double *sums, double *out)
{
    __shared__ double pieces[2][PIECE];
    double total = 0.0;

    bring(pieces[0], n, sums, 0);
    __syncthreads();
    for (uint64_t at = 0; at < n; at += PIECE) {
        uint32_t turn = at / PIECE % 2;

        /* The warp of the adding thread loads its part first, because a warp does one thing at a
         * time. */
        bring(pieces[turn ^ 1], n, sums, at + PIECE);
        if (threadIdx.x == 0) {
            total = add_up(pieces[turn], total);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *out = total != total ? __hiloint2double(0x7ff80000, 0) : total;
    }
}
CST_KERNEL(cst_norm_kernel);
