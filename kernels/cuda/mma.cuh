// SPDX-License-Identifier: Apache-2.0
/* Matrix fragments of a warp: multiplication of bf16 with fp32 sums, loads of 8 x 8 matrices, and
 * asynchronous copies into shared memory. On a GPU these operations are PTX instructions (sm_80 and
 * later). Tests emulate the operations by exchange between lanes (tests/lib/cudaemu/mma.hpp). All
 * lanes of a warp call together a function whose comment begins with "Warp".
 *
 * Fragments of m16n8k16, for lane = 4 g + t (g = lane / 4, t = lane % 4). The lower half of a pair
 * holds the lower column (a, c) or row (b):
 *
 *   a[0] = A[g][2t, 2t+1]         a[1] = A[g+8][2t, 2t+1]
 *   a[2] = A[g][2t+8, 2t+9]       a[3] = A[g+8][2t+8, 2t+9]
 *   b[0] = B[2t, 2t+1][g]         b[1] = B[2t+8, 2t+9][g]
 *   c[0], c[1] = C[g][2t, 2t+1]   c[2], c[3] = C[g+8][2t, 2t+1]
 *
 * An 8 x 8 matrix of 16-bit elements has row i at the address that its lane i gives. After the
 * load, a lane holds columns 2t and 2t+1 of row g; transposed, it holds rows 2t and 2t+1 of column
 * g. Addresses for lane l, with rows of @pitch elements:
 *
 *   row-major A [16][16]                           x4        A + (l % 16) * pitch + l / 16 * 8
 *   B stored as [n][k] (b[0], b[1] of 8 columns)   x2        B + (l % 8) * pitch + l / 8 % 2 * 8
 *   B stored as [k][n]                             x2_trans  B + (l % 16) * pitch */
#ifndef CST_CUDA_MMA_CUH
#define CST_CUDA_MMA_CUH

#include "kernels/cuda/bf16.cuh"

#if defined(__CUDACC__)

/* Returns an address in the form that instructions on shared memory take. */
static __device__ __forceinline__ uint32_t cst_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Warp: c += a b, with A 16 x 16 and B 16 x 8 in bf16, and C 16 x 8 in fp32. */
static __device__ __forceinline__ void cst_mma_bf16(float c[4], const uint32_t a[4],
                                                    const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Warp: load four matrices. Lanes 8 m .. 8 m + 7 give the addresses of the rows of matrix m (16
 * bytes each, aligned, in shared memory). */
static __device__ __forceinline__ void cst_ldmatrix_x4(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(cst_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void cst_ldmatrix_x4_trans(uint32_t out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(cst_shared_address(row))
                 : "memory");
}

/* Warp: load two matrices, whose row addresses lanes 0 to 15 give. The addresses of the other lanes
 * must be valid but are not used. */
static __device__ __forceinline__ void cst_ldmatrix_x2(uint32_t out[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(cst_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void cst_ldmatrix_x2_trans(uint32_t out[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(out[0]), "=r"(out[1])
                 : "r"(cst_shared_address(row))
                 : "memory");
}

/* Begin to copy 16 bytes, aligned, from global memory at @from to shared memory at @to. Only the
 * first @bytes (0 to 16) are read; the other bytes become zero. */
static __device__ __forceinline__ void cst_copy_async(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(cst_shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* Put the copies of this thread since the last call into a group. */
static __device__ __forceinline__ void cst_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for all groups of this thread except the last KEEP. Other threads see the copied bytes after
 * a __syncthreads that follows. */
template <int KEEP> static __device__ __forceinline__ void cst_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
}

/* Convert @first and @second to bf16, to nearest even, in one instruction. A NaN becomes 0x7fff,
 * unlike in kernels/math/cast.h. */
static __device__ __forceinline__ uint32_t cst_bf16_pair_fast(float first, float second)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

#else

#include "tests/lib/cudaemu/mma.hpp"

#endif

#endif
