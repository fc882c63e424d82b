// SPDX-License-Identifier: Apache-2.0
/* Matrix pieces of a warp: bf16 multiply with fp32 sums, loads of 8 x 8 pieces, copies into shared
 * memory that go on by themselves. PTX (sm_80 and later) on a GPU; in tests the same by exchange
 * between the lanes (tests/lib/cudaemu/mma.hpp). All lanes of a warp call together what is called
 * "warp".
 *
 * Fragments of m16n8k16, lane = 4 g + t (g = lane / 4, t = lane % 4); a pair has the lower column
 * (a, c) or row (b) in its lower half:
 *
 *   a[0] = A[g][2t, 2t+1]    a[1] = A[g+8][2t, 2t+1]    a[2] = A[g][2t+8, 2t+9]    a[3] =
 * A[g+8][2t+8, 2t+9] b[0] = B[2t, 2t+1][g]    b[1] = B[2t+8, 2t+9][g] c[0], c[1] = C[g][2t, 2t+1]
 * c[2], c[3] = C[g+8][2t, 2t+1]
 *
 * An 8 x 8 piece of 16-bit elements, row i at the address that its lane i gives: lane has row g,
 * columns 2t and 2t+1; transposed: rows 2t and 2t+1 of column g. So for row-major A [16][16] with
 * rows of @pitch elements, the address of lane l is A + (l % 16) * pitch + l / 16 * 8 in
 * cst_ldmatrix_x4; for B stored as [n][k] (b[0], b[1] of 8 columns), x2 with B + (l % 8) * pitch +
 * l / 8 % 2 * 8; for B stored as [k][n], x2_trans with B + (l % 16) * pitch. */
#ifndef CST_CUDA_MMA_CUH
#define CST_CUDA_MMA_CUH

#include "kernels/cuda/bf16.cuh"

#if defined(__CUDACC__)

/* An address as instructions on shared memory take it. */
static __device__ __forceinline__ uint32_t cst_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Warp: c += a b, A 16 x 16 and B 16 x 8 in bf16, C 16 x 8 in fp32. */
static __device__ __forceinline__ void cst_mma_bf16(float c[4], const uint32_t a[4],
                                                    const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Warp: four pieces; lanes 8 m .. 8 m + 7 give the rows (16 bytes each, aligned, in shared memory)
 * of piece m. */
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

/* Warp: two pieces, whose rows lanes 0 to 15 give; the others' addresses must be valid but are not
 * used. */
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

/* Begin to copy 16 bytes, aligned, from global memory at @from to shared memory at @to; only the
 * first @bytes (0..16) are read, the rest becomes zero. */
static __device__ __forceinline__ void cst_copy_async(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(cst_shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

/* This thread's copies since the last call become a group. */
static __device__ __forceinline__ void cst_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for this thread's groups but the last KEEP. Others see what it copied behind a __syncthreads
 * that follows. */
template <int KEEP> static __device__ __forceinline__ void cst_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
}

/* @first and @second as bf16, nearest even, in one instruction. A NaN is 0x7fff: not
 * kernels/cast.h's bits. */
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
