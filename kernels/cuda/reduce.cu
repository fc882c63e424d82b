// SPDX-License-Identifier: Apache-2.0
/* kernels/math/reduce.h on a GPU, with CST_CUDA_BLOCK_TILES tiles per block of threads, and the
 * fp32 sum that kernels/math/accumulate.h stores in a row.
 *
 * - Step 1: CST_CUDA_TILE_THREADS threads per tile sum the contributions, 16 bytes of each at a
 *   time. They write the result and leave its magnitude (bf16 without sign) in shared memory.
 * - Step 2: one half-warp per tile sums the squares in the order that reduce.h prescribes. Lane j
 *   takes elements j, j + 16, ... one after the other, 256 additions that wait for each other. The
 *   tree follows, by shuffles.
 *
 * One warp does step 2 while seven wait. Step 2 is therefore made cheap:
 *
 * - A bf16 becomes a double by a shift and an exact multiplication, because conversions have an
 *   eighth of the rate.
 * - Infinities and NaN are found afterwards, by the largest magnitude.
 * - Blocks use different warps. The chains of the blocks of an SM then do not meet on one of its
 *   four schedulers. README.md has the figures.
 *
 * Padding a tile with zeros is harmless: fma(0, 0, lane) is the lane, because no lane is -0. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/math/reduce.h"

namespace
{

const uint32_t WARP = 32;
const uint32_t LANES = 16; /* Lanes of the sum of squares. */
const uint32_t GROUP = 8;  /* Elements that a thread processes together: 16 bytes of bf16. */
/* Groups of a thread that are loaded together, STRIDE elements apart. */
const uint32_t GROUPS = 2;
const uint32_t UNROLL = 16; /* Elements of a lane whose loads are issued together. */
const uint32_t STRIDE = CST_CUDA_TILE_THREADS * GROUP;
const uint32_t BLOCKS_PER_SM = 5; /* Resident blocks per SM, at 48 registers per thread. */
const uint32_t BLOCK_THREADS = CST_CUDA_TILE_THREADS * CST_CUDA_BLOCK_TILES;

/* Size of the copy of a tile in shared memory. The copies of the two tiles are shifted against each
 * other by 32 bytes, which lets the half-warps read from different banks. */
const uint32_t COPY_ELEMS = CST_CUDA_TILE_ELEMS + LANES;

__device__ __forceinline__ bool whole(const uint16_t *row, uint32_t i, uint32_t n)
{
    return i + (GROUPS - 1) * STRIDE + GROUP <= n && cst_aligned(row, 16);
}

/* Load elements [i, i + GROUP) of @row as pairs, one by one. Elements from @n on are zero. */
__device__ __forceinline__ uint4 load_group(const uint16_t *row, uint32_t i, uint32_t n)
{
    uint16_t e[GROUP];

#pragma unroll
    for (uint32_t k = 0; k < GROUP; k++) {
        e[k] = i + k < n ? row[i + k] : static_cast<uint16_t>(0);
    }
    return make_uint4(cst_bf16_pair(e[0], e[1]), cst_bf16_pair(e[2], e[3]),
                      cst_bf16_pair(e[4], e[5]), cst_bf16_pair(e[6], e[7]));
}

__device__ __forceinline__ void store_group(uint16_t *row, uint32_t i, uint32_t n, uint4 group)
{
    const uint32_t pairs[GROUP / 2] = {group.x, group.y, group.z, group.w};

#pragma unroll
    for (uint32_t k = 0; k < GROUP; k++) {
        if (i + k < n) {
            row[i + k] = static_cast<uint16_t>(pairs[k / 2] >> (16 * (k % 2)));
        }
    }
}

/* Load a thread's groups of one row, at i, i + STRIDE, ... */
__device__ __forceinline__ void load_groups(uint4 *groups, const uint16_t *row, uint32_t i,
                                            uint32_t n)
{
    const bool fast = whole(row, i, n);

#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = fast ? __ldcs(reinterpret_cast<const uint4 *>(row + i + g * STRIDE))
                         : load_group(row, i + g * STRIDE, n);
    }
}

__device__ __forceinline__ void store_groups(uint16_t *row, uint32_t i, uint32_t n,
                                             const uint4 *groups)
{
    const bool fast = whole(row, i, n);

#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (fast) {
            *reinterpret_cast<uint4 *>(row + i + g * STRIDE) = groups[g];
        } else {
            store_group(row, i + g * STRIDE, n, groups[g]);
        }
    }
}

__device__ __forceinline__ void add_pair(float *sum, uint32_t pair)
{
    sum[0] = __fadd_rn(sum[0], cst_bf16_first(pair));
    sum[1] = __fadd_rn(sum[1], cst_bf16_second(pair));
}

__device__ __forceinline__ void set_pair(float *sum, uint32_t pair)
{
    sum[0] = cst_bf16_first(pair);
    sum[1] = cst_bf16_second(pair);
}

/* Returns the stored value of @sum. @added: @sum is the result of an addition. */
__device__ __forceinline__ uint16_t down(float sum, bool added)
{
    return added && sum != sum ? static_cast<uint16_t>(CST_REDUCE_NAN) : cst_bf16_down(sum);
}

__device__ __forceinline__ uint4 down_group(const float *sum, bool added)
{
    return make_uint4(cst_bf16_pair(down(sum[0], added), down(sum[1], added)),
                      cst_bf16_pair(down(sum[2], added), down(sum[3], added)),
                      cst_bf16_pair(down(sum[4], added), down(sum[5], added)),
                      cst_bf16_pair(down(sum[6], added), down(sum[7], added)));
}

/* Sum a thread's groups over all sources, in rank order. @sum is zero before. */
__device__ __forceinline__ void add_groups(float (*sum)[GROUP], const cst_cuda_sources &sources,
                                           uint64_t start, uint32_t i, uint32_t n)
{
    uint4 groups[GROUPS];

    for (uint32_t r = 0; r < sources.n; r++) {
        load_groups(groups, sources.v[r] + start, i, n);
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            const uint32_t pairs[GROUP / 2] = {groups[g].x, groups[g].y, groups[g].z, groups[g].w};

#pragma unroll
            for (uint32_t k = 0; k < GROUP / 2; k++) {
                r == 0 ? set_pair(&sum[g][2 * k], pairs[k]) : add_pair(&sum[g][2 * k], pairs[k]);
            }
        }
    }
}

/* Sum a thread's groups over all sources and convert them to bf16. */
__device__ __forceinline__ void sum_groups(uint4 *out, const cst_cuda_sources &sources,
                                           uint64_t start, uint32_t i, uint32_t n)
{
    float sum[GROUPS][GROUP] = {};

    add_groups(sum, sources, start, i, n);
#pragma unroll
    for (uint32_t g = 0; g < GROUPS; g++) {
        out[g] = down_group(sum[g], sources.n > 1);
    }
}

__device__ __forceinline__ uint4 magnitudes(uint4 group)
{
    const uint32_t no_sign = 0x7fff7fffu;

    return make_uint4(group.x & no_sign, group.y & no_sign, group.z & no_sign, group.w & no_sign);
}

/* Step 1 for a tile: store the result in @dst and its magnitudes in @copy. Zeros follow in @copy,
 * up to a multiple of what a half-warp reads together. */
__device__ __forceinline__ void add_up(const cst_cuda_sources &sources, uint64_t start, uint32_t n,
                                       uint16_t *dst, uint16_t *copy)
{
    uint32_t i = threadIdx.x % CST_CUDA_TILE_THREADS * GROUP;

    for (; i < n + LANES * UNROLL && i < CST_CUDA_TILE_ELEMS; i += GROUPS * STRIDE) {
        uint4 groups[GROUPS];

        sum_groups(groups, sources, start, i, n);
        store_groups(dst, i, n, groups);
#pragma unroll
        for (uint32_t g = 0; g < GROUPS; g++) {
            *reinterpret_cast<uint4 *>(copy + i + g * STRIDE) = magnitudes(groups[g]);
        }
    }
}

/* Convert a finite magnitude to double. The exponent of a bf16 counts from 2^-126, that of a double
 * from 2^-1022. After the shift, all values, also subnormals, are too small by exactly 2^896. */
__device__ __forceinline__ double exact(uint32_t magnitude)
{
    return __dmul_rn(__hiloint2double(static_cast<int>(magnitude << 13), 0), 0x1p896);
}

/* Returns @sum, the sum of squares, or infinity or NaN if @largest, the largest magnitude, is. @sum
 * is not valid in these cases. */
__device__ __forceinline__ double or_not_finite(double sum, uint32_t largest)
{
    const uint32_t infinity = 0x7f80u;

    if (largest >= infinity) {
        return __hiloint2double(largest > infinity ? 0x7ff80000 : 0x7ff00000, 0);
    }
    return sum;
}

/* Returns the sum of squares of this half-warp's elements of @copy: @n elements, followed by zeros
 * up to a multiple of LANES x UNROLL. The first lane of each half holds the result. The whole warp
 * calls the function, each half with a tile of its own. */
__device__ __forceinline__ double sum_squares(const uint16_t *copy, uint32_t n)
{
    double lane = 0.0;
    uint32_t largest = 0;

    for (uint32_t i = threadIdx.x % LANES; i < n; i += LANES * UNROLL) {
#pragma unroll
        for (uint32_t k = 0; k < UNROLL; k++) {
            const uint32_t magnitude = copy[i + LANES * k];
            const double x = exact(magnitude);

            largest = max(largest, magnitude);
            lane = __fma_rn(x, x, lane);
        }
    }
    lane = or_not_finite(lane, largest);
    __syncwarp();
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        lane = __dadd_rn(lane, __shfl_down_sync(0xffffffffu, lane, half, LANES));
    }
    return lane != lane ? __hiloint2double(0x7ff80000, 0) : lane;
}

/* Returns the warp of a block that sums the squares: a pseudorandom one of the first four. */
__device__ __forceinline__ uint32_t summing_warp()
{
    return blockIdx.x * 0x9e3779b1u >> 30;
}

} // namespace

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    cst_reduce_kernel(uint64_t n_tiles, const cst_cuda_tile *tiles, const cst_cuda_sources sources,
                      uint16_t *dst, double *sums)
{
    __shared__ __align__(16) uint16_t copies[CST_CUDA_BLOCK_TILES][COPY_ELEMS];
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * CST_CUDA_BLOCK_TILES;
    const uint32_t mine = threadIdx.x / CST_CUDA_TILE_THREADS;

    if (first + mine < n_tiles) {
        const cst_cuda_tile tile = tiles[first + mine];

        add_up(sources, tile.start, tile.n_elems, dst + tile.start, copies[mine]);
    }
    __syncthreads();
    if (threadIdx.x / WARP == summing_warp()) {
        const uint32_t half = threadIdx.x % WARP / LANES;
        const bool there = first + half < n_tiles;
        const double sum = sum_squares(copies[half], there ? tiles[first + half].n_elems : 0);

        if (threadIdx.x % LANES == 0 && there) {
            sums[first + half] = sum;
        }
    }
}
CST_KERNEL(cst_reduce_kernel);

namespace
{

/* Store a group of fp32 sums as elements [i, i + GROUP) of @row, up to element @n. */
__device__ __forceinline__ void store_sums(float *row, uint32_t i, uint32_t n, const float *sum)
{
    if (i + GROUP <= n && cst_aligned(row, 16)) {
        float4 *to = reinterpret_cast<float4 *>(row + i);

        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        return;
    }
#pragma unroll
    for (uint32_t k = 0; k < GROUP; k++) {
        if (i + k < n) {
            row[i + k] = sum[k];
        }
    }
}

} // namespace

/* The kernel has only loads, additions and stores. It reaches the bandwidth of the memory without
 * further measures. */
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    cst_sum_kernel(uint64_t n_tiles, const cst_cuda_tile *tiles, const cst_cuda_sources sources,
                   float *dst)
{
    const uint64_t t = static_cast<uint64_t>(blockIdx.x) * CST_CUDA_BLOCK_TILES +
                       threadIdx.x / CST_CUDA_TILE_THREADS;

    if (t < n_tiles) {
        const cst_cuda_tile tile = tiles[t];
        uint32_t i = threadIdx.x % CST_CUDA_TILE_THREADS * GROUP;

        for (; i < tile.n_elems; i += GROUPS * STRIDE) {
            float sum[GROUPS][GROUP] = {};

            add_groups(sum, sources, tile.start, i, tile.n_elems);
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++) {
                store_sums(dst + tile.start, i + g * STRIDE, tile.n_elems, sum[g]);
            }
        }
    }
}
CST_KERNEL(cst_sum_kernel);
