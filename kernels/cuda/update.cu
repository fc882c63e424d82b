// SPDX-License-Identifier: Apache-2.0
/* kernels/math/update.h on a GPU, with a block of threads per tile. The formulas, formats and
 * roundings are those of the processor, over the vectors of vec.cuh; the bits are therefore the
 * same. Half a warp processes two groups of 32 elements at a time, whose loads are all under way
 * before the first store. There is a kernel for each format and rounding of the moments. The
 * optimizer and the format of the gradient (bf16 or fp32) are branches that all threads take alike.
 * The directions of Muon have a kernel for each format. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/math/formats.h"
#include "kernels/math/random.h"

namespace
{

const uint32_t HALVES = CST_CUDA_UPDATE_THREADS / CST_VEC_LANES; /* Half-warps in a block. */
static_assert(CST_CUDA_TILE_ELEMS == CST_RANDOM_SPAN, "a tile has one key");
/* Groups that a half-warp processes together. */
const uint32_t AT_ONCE = 2;
/* Resident blocks per SM. A kernel may then use at most 80 registers. */
const uint32_t UPDATE_BLOCKS_PER_SM = 3;

/* The elements of one lane in a group. */
struct group {
    cst_vec g[CST_VEC_GROUP];
    cst_vec p[CST_VEC_GROUP];
    cst_vec moments[CST_MAX_MOMENTS][CST_VEC_GROUP];
};

/* A group in shared memory. Elements after the last one of the tile are zero. */
struct padded {
    uint16_t grad_bf16[CST_UPDATE_GROUP];
    float grad_fp32[CST_UPDATE_GROUP];
    float master[CST_UPDATE_GROUP];
    int16_t remainder[CST_UPDATE_GROUP];
    float moments[CST_MAX_MOMENTS][CST_UPDATE_GROUP];
    uint16_t weight[CST_UPDATE_GROUP];
    uint8_t exponents[CST_MAX_MOMENTS];
};

/* Returns the rows from element @i on. */
template <cst_moments MOMENTS>
__device__ __forceinline__ cst_update_rows rows_at(const cst_update_rows &rows, uint32_t n,
                                                   uint64_t i)
{
    cst_update_rows at = {};

    at.grad_bf16 = rows.grad_bf16 != nullptr ? rows.grad_bf16 + i : nullptr;
    at.grad_fp32 = rows.grad_bf16 == nullptr ? rows.grad_fp32 + i : nullptr;
    at.weight = rows.weight != nullptr ? rows.weight + i : nullptr;
    if (rows.remainder_in != nullptr) {
        at.weight_in = rows.weight_in + i;
        at.remainder_in = rows.remainder_in + i;
        at.remainder = rows.remainder + i;
    } else {
        at.master_in = rows.master_in + i;
        at.master = rows.master + i;
    }
#pragma unroll
    for (uint32_t k = 0; k < CST_MAX_MOMENTS; k++) {
        if (k < n) {
            at.moments_in[k] = cst_format_at(MOMENTS, &rows.moments_in[k], i);
            at.moments[k] = cst_format_at(MOMENTS, &rows.moments[k], i);
        }
    }
    return at;
}

template <cst_vec_memory MEMORY, cst_moments MOMENTS>
__device__ __forceinline__ void load(group &x, uint32_t n, const cst_update_rows &at)
{
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        const int i = j * CST_VEC_LANES;

        x.g[j] = at.grad_bf16 != nullptr ? cst_vec_load_bf16<MEMORY>(at.grad_bf16 + i)
                                         : cst_vec_load<MEMORY>(at.grad_fp32 + i);
    }
    if (at.remainder_in != nullptr) {
        cst_format_join<MEMORY>(at.weight_in, at.remainder_in, CST_VEC_GROUP, x.p);
    } else {
#pragma unroll
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            x.p[j] = cst_vec_load<MEMORY>(at.master_in + j * CST_VEC_LANES);
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < CST_MAX_MOMENTS; k++) {
        if (k == 0 || k < n) {
            cst_format_load<MEMORY>(MOMENTS, cst_format_code(k), &at.moments_in[k], x.moments[k]);
        } else {
            x.moments[k][0] = x.moments[k][1] = cst_vec_set(0.0f);
        }
    }
}

template <cst_vec_memory MEMORY>
__device__ __forceinline__ void store_masters(const cst_vec p[CST_VEC_GROUP],
                                              const cst_update_rows &at)
{
    if (at.remainder != nullptr) {
        cst_format_cut<MEMORY>(CST_VEC_GROUP, p, at.weight, at.remainder, false);
        return;
    }
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        cst_vec_store<MEMORY>(at.master + j * CST_VEC_LANES, p[j]);
    }
    if (at.weight != nullptr) {
        cst_vec_store_bf16<MEMORY>(at.weight, CST_VEC_GROUP, p, false);
    }
}

/* Compute a group. */
template <cst_moments MOMENTS>
__device__ __forceinline__ void
compute(group &x, uint32_t optimizer, const cst_formula_scalars &scalars, const cst_update_rows &at)
{
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        cst_formula_states states = {};

        states.p = x.p[j];
#pragma unroll
        for (uint32_t k = 0; k < CST_MAX_MOMENTS; k++) {
            states.m[k] = x.moments[k][j];
        }

        if (at.direction != nullptr) {
            states.o = cst_vec_load_bf16<CST_VEC_ROWS>(at.direction + j * CST_VEC_LANES);
        }
        cst_formula_moments(static_cast<cst_optimizer>(optimizer), &scalars, x.g[j], &states);
        cst_formula_weight(static_cast<cst_optimizer>(optimizer), MOMENTS, &scalars, &states);
        x.p[j] = cst_formula_canonical(states.p);
        /* A block of mx8 with a NaN has no NaNs in its codes. */
#pragma unroll
        for (uint32_t k = 0; k < CST_MAX_MOMENTS; k++) {
            x.moments[k][j] =
                MOMENTS == CST_MOMENTS_MX8 ? states.m[k] : cst_formula_canonical(states.m[k]);
        }
    }
}

/* Update a group of @n moments. @word is this lane's random word of the group. */
template <cst_vec_memory MEMORY, cst_moments MOMENTS, cst_rounding ROUNDING>
__device__ __forceinline__ void compute_and_store(group &x, uint32_t optimizer, uint32_t n,
                                                  const cst_formula_scalars &scalars,
                                                  cst_vec_bits word, const cst_update_rows &at)
{
    cst_vec_bits words[1][CST_VEC_GROUP / 2] = {{word}};

    compute<MOMENTS>(x, optimizer, scalars, at);
    store_masters<MEMORY>(x.p, at);
#pragma unroll
    for (uint32_t k = 0; k < CST_MAX_MOMENTS; k++) {
        if (k == 0 || k < n) {
            cst_format_store<MEMORY>(MOMENTS, ROUNDING, cst_format_code(k), 1, &at.moments[k],
                                     &x.moments[k], words);
            words[0][0] = cst_random_other(words[0][0]);
        }
    }
}

/* Returns whether @lane has an element in vector @j of a last group with @n elements. */
__device__ __forceinline__ bool has(uint32_t lane, int j, uint32_t n)
{
    return lane + static_cast<uint32_t>(j) * CST_VEC_LANES < n;
}

template <class T> __device__ __forceinline__ void move(T *to, const T *from, bool there)
{
    *to = there ? *from : T();
}

/* Update the @n elements of an incomplete group of @n_rows moments. @at is the rows at this lane's
 * first element. Each lane fills and empties its own places of @pad. */
template <cst_moments MOMENTS, cst_rounding ROUNDING>
__device__ void do_tail(padded &pad, uint32_t n, uint32_t optimizer, uint32_t n_rows,
                        const cst_formula_scalars &scalars, cst_vec_bits word,
                        const cst_update_rows &at)
{
    typedef uint8_t byte;
    const uint32_t lane = threadIdx.x % CST_VEC_LANES;
    const uint32_t size = static_cast<uint32_t>(cst_format_bytes(MOMENTS) / CST_UPDATE_GROUP);
    cst_update_rows inside = {};
    group x;

    inside.direction = at.direction;
    inside.grad_bf16 = at.grad_bf16 != nullptr ? pad.grad_bf16 + lane : nullptr;
    inside.grad_fp32 = pad.grad_fp32 + lane;
    inside.weight = at.weight != nullptr ? pad.weight + lane : nullptr;
    if (at.remainder != nullptr) {
        inside.weight_in = inside.weight;
        inside.remainder_in = inside.remainder = pad.remainder + lane;
    } else {
        inside.master_in = inside.master = pad.master + lane;
    }
#pragma unroll
    for (uint32_t k = 0; k < CST_MAX_MOMENTS && k < n_rows; k++) {
        inside.moments_in[k].values = reinterpret_cast<byte *>(pad.moments[k]) + lane * size;
        inside.moments_in[k].exponents = &pad.exponents[k];
        inside.moments[k] = inside.moments_in[k];
        if (MOMENTS == CST_MOMENTS_MX8) {
            pad.exponents[k] = *at.moments_in[k].exponents;
        }
    }
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        const uint32_t i = static_cast<uint32_t>(j) * CST_VEC_LANES;
        const bool there = has(lane, j, n);

        if (at.grad_bf16 != nullptr) {
            move(pad.grad_bf16 + lane + i, at.grad_bf16 + i, there);
        } else {
            move(pad.grad_fp32 + lane + i, at.grad_fp32 + i, there);
        }
        if (at.remainder != nullptr) {
            move(inside.weight + i, at.weight_in + i, there);
            move(inside.remainder + i, at.remainder_in + i, there);
        } else {
            move(inside.master + i, at.master_in + i, there);
        }
#pragma unroll
        for (uint32_t k = 0; k < CST_MAX_MOMENTS && k < n_rows; k++) {
            for (uint32_t b = i * size; b < (i + 1) * size; b++) {
                move(static_cast<byte *>(inside.moments[k].values) + b,
                     static_cast<const byte *>(at.moments_in[k].values) + b, there);
            }
        }
    }
    load<CST_VEC_SHARED, MOMENTS>(x, n_rows, inside);
    compute_and_store<CST_VEC_SHARED, MOMENTS, ROUNDING>(x, optimizer, n_rows, scalars, word,
                                                         inside);
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        const uint32_t i = static_cast<uint32_t>(j) * CST_VEC_LANES;

        if (!has(lane, j, n)) {
            continue;
        }
        if (at.remainder != nullptr) {
            at.remainder[i] = inside.remainder[i];
        } else {
            at.master[i] = inside.master[i];
        }
        if (at.weight != nullptr) {
            at.weight[i] = inside.weight[i];
        }
#pragma unroll
        for (uint32_t k = 0; k < CST_MAX_MOMENTS && k < n_rows; k++) {
            for (uint32_t b = i * size; b < (i + 1) * size; b++) {
                static_cast<byte *>(at.moments[k].values)[b] =
                    static_cast<const byte *>(inside.moments[k].values)[b];
            }
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < CST_MAX_MOMENTS && k < n_rows; k++) {
        if (MOMENTS == CST_MOMENTS_MX8) {
            *at.moments[k].exponents = pad.exponents[k];
        }
    }
}

/* Keep the states of the tile. Its weights are made from the master weights. */
template <cst_moments MOMENTS>
__device__ void keep(const cst_cuda_tile &tile, uint32_t n_rows, const cst_update_rows &rows)
{
    for (uint32_t i = threadIdx.x; i < tile.n_elems; i += CST_CUDA_UPDATE_THREADS) {
        const cst_update_rows at = rows_at<MOMENTS>(rows, n_rows, tile.start + i);
        const uint32_t size = static_cast<uint32_t>(cst_format_bytes(MOMENTS) / CST_UPDATE_GROUP);

        if (at.remainder != nullptr) {
            *at.remainder = *at.remainder_in;
            *at.weight = *at.weight_in;
        } else {
            *at.master = *at.master_in;
            if (at.weight != nullptr) {
                *at.weight = cst_bf16_down(*at.master_in);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < CST_MAX_MOMENTS && k < n_rows; k++) {
            for (uint32_t b = 0; b < size; b++) {
                static_cast<uint8_t *>(at.moments[k].values)[b] =
                    static_cast<const uint8_t *>(at.moments_in[k].values)[b];
            }
            if (MOMENTS == CST_MOMENTS_MX8) {
                *at.moments[k].exponents = *at.moments_in[k].exponents;
            }
        }
    }
}

template <cst_moments MOMENTS, cst_rounding ROUNDING>
__device__ __forceinline__ void update(const cst_cuda_tile *tiles, const cst_update_scalars *spans,
                                       const cst_cuda_update &update, padded &pad)
{
    const bool random = MOMENTS != CST_MOMENTS_FP32 && ROUNDING == CST_ROUNDING_STOCHASTIC;
    const cst_cuda_tile tile = tiles[blockIdx.x];
    const uint32_t half = threadIdx.x / CST_VEC_LANES, lane = threadIdx.x % CST_VEC_LANES;
    const uint32_t n_rows = update.n_moments;
    /* Number of complete groups. */
    const uint32_t n_groups = tile.n_elems / CST_UPDATE_GROUP;
    cst_formula_scalars scalars;
    cst_random_key key = {};

    if (tile.keep) {
        keep<MOMENTS>(tile, n_rows, update.rows);
        return;
    }
    cst_formula_broadcast(&scalars, &spans[tile.span]);
    if (random) {
        key = cst_random_key_of(update.seed, tile.number, update.t);
    }
    const auto group_at = [&](uint32_t g) {
        cst_update_rows at = rows_at<MOMENTS>(
            rows_at<MOMENTS>(update.rows, n_rows, tile.start + g * CST_UPDATE_GROUP), n_rows, lane);

        at.direction =
            tile.direction != nullptr ? tile.direction + g * CST_UPDATE_GROUP + lane : nullptr;
        return at;
    };
    const auto word_of = [&](uint32_t g) {
        cst_vec_bits word = cst_vec_set_bits(0);

        if (random) {
            cst_random_words(key, g, &word);
        }
        return word;
    };
    for (uint32_t from = half * AT_ONCE; from < n_groups; from += HALVES * AT_ONCE) {
        cst_update_rows at[AT_ONCE];
        group x[AT_ONCE];

#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (from + i < n_groups) {
                at[i] = group_at(from + i);
                load<CST_VEC_ROWS, MOMENTS>(x[i], n_rows, at[i]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (from + i < n_groups) {
                compute_and_store<CST_VEC_ROWS, MOMENTS, ROUNDING>(
                    x[i], update.optimizer, n_rows, scalars, word_of(from + i), at[i]);
            }
        }
    }
    if (tile.n_elems % CST_UPDATE_GROUP > 0 && n_groups / AT_ONCE % HALVES == half) {
        do_tail<MOMENTS, ROUNDING>(pad, tile.n_elems % CST_UPDATE_GROUP, update.optimizer, n_rows,
                                   scalars, word_of(n_groups), group_at(n_groups));
    }
}

/* -- directions of Muon ----------------------------------------------------------------------- */

/* Compute the directions of a group (kernels/math/product.h), in the upper halves of @out. */
template <cst_vec_memory MEMORY, cst_moments MOMENTS>
__device__ __forceinline__ void direct(const cst_update_rows &at, const cst_update_scalars &scalars,
                                       cst_vec_bits out[CST_VEC_GROUP])
{
    const cst_vec rest = cst_vec_set(scalars.one_minus_beta1);
    cst_vec m[CST_VEC_GROUP];

    cst_format_load<MEMORY>(MOMENTS, 0, &at.moments_in[0], m);
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        const int i = j * CST_VEC_LANES;
        const cst_vec from = at.grad_bf16 != nullptr ? cst_vec_load_bf16<MEMORY>(at.grad_bf16 + i)
                                                     : cst_vec_load<MEMORY>(at.grad_fp32 + i);
        const cst_vec g = cst_vec_mul(from, cst_vec_set(scalars.grad_scale));
        const cst_vec next = cst_formula_towards(m[j], g, rest);

        out[j] =
            cst_round_bf16(cst_formula_canonical(cst_vec_fnma(rest, cst_vec_sub(next, g), next)));
    }
}

/* The @n directions of an incomplete group. @at is the rows at this lane's first element. */
template <cst_moments MOMENTS>
__device__ void direct_tail(padded &pad, uint32_t n, const cst_update_rows &at,
                            const cst_update_scalars &scalars, uint16_t *to)
{
    typedef uint8_t byte;
    const uint32_t lane = threadIdx.x % CST_VEC_LANES;
    const uint32_t size = static_cast<uint32_t>(cst_format_bytes(MOMENTS) / CST_UPDATE_GROUP);
    cst_update_rows inside = {};
    cst_vec_bits out[CST_VEC_GROUP];

    inside.grad_bf16 = at.grad_bf16 != nullptr ? pad.grad_bf16 + lane : nullptr;
    inside.grad_fp32 = pad.grad_fp32 + lane;
    inside.moments_in[0].values = reinterpret_cast<byte *>(pad.moments[0]) + lane * size;
    inside.moments_in[0].exponents = &pad.exponents[0];
    if (MOMENTS == CST_MOMENTS_MX8) {
        pad.exponents[0] = *at.moments_in[0].exponents;
    }
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        const uint32_t i = static_cast<uint32_t>(j) * CST_VEC_LANES;
        const bool there = has(lane, j, n);

        if (at.grad_bf16 != nullptr) {
            move(pad.grad_bf16 + lane + i, at.grad_bf16 + i, there);
        } else {
            move(pad.grad_fp32 + lane + i, at.grad_fp32 + i, there);
        }
        for (uint32_t b = i * size; b < (i + 1) * size; b++) {
            move(static_cast<byte *>(inside.moments_in[0].values) + b,
                 static_cast<const byte *>(at.moments_in[0].values) + b, there);
        }
    }
    direct<CST_VEC_SHARED, MOMENTS>(inside, scalars, out);
#pragma unroll
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        if (has(lane, j, n)) {
            to[j * CST_VEC_LANES] = static_cast<uint16_t>(out[j].x >> 16);
        }
    }
}

template <cst_moments MOMENTS>
__device__ __forceinline__ void direct_tile(const cst_cuda_tile *tiles,
                                            const cst_update_scalars *spans,
                                            const cst_cuda_update &update, padded &pad)
{
    const cst_cuda_tile tile = tiles[blockIdx.x];
    const uint32_t half = threadIdx.x / CST_VEC_LANES, lane = threadIdx.x % CST_VEC_LANES;
    const uint32_t n_groups = tile.n_elems / CST_UPDATE_GROUP;
    const auto group_at = [&](uint32_t g) {
        return rows_at<MOMENTS>(rows_at<MOMENTS>(update.rows, 1, tile.start + g * CST_UPDATE_GROUP),
                                1, lane);
    };

    if (tile.keep) {
        for (uint32_t i = threadIdx.x; i < tile.n_elems; i += CST_CUDA_UPDATE_THREADS) {
            tile.direction[i] = 0;
        }
        return;
    }
    for (uint32_t g = half; g < n_groups; g += HALVES) {
        cst_vec_bits out[CST_VEC_GROUP];

        direct<CST_VEC_ROWS, MOMENTS>(group_at(g), spans[tile.span], out);
        cst_vec_store_upper<CST_VEC_SHARED>(tile.direction + g * CST_UPDATE_GROUP + lane,
                                            CST_VEC_GROUP, out, false);
    }
    if (tile.n_elems % CST_UPDATE_GROUP > 0 && n_groups % HALVES == half) {
        direct_tail<MOMENTS>(pad, tile.n_elems % CST_UPDATE_GROUP, group_at(n_groups),
                             spans[tile.span], tile.direction + n_groups * CST_UPDATE_GROUP + lane);
    }
}

} // namespace

#define UPDATE_KERNEL(name, moments, rounding)                                                     \
    extern "C" __global__ void __launch_bounds__(CST_CUDA_UPDATE_THREADS, UPDATE_BLOCKS_PER_SM)    \
        name(const cst_cuda_tile *tiles, const cst_update_scalars *spans,                          \
             const cst_cuda_update args)                                                           \
    {                                                                                              \
        __shared__ padded pad;                                                                     \
                                                                                                   \
        update<moments, rounding>(tiles, spans, args, pad);                                        \
    }                                                                                              \
    CST_KERNEL(name)

UPDATE_KERNEL(cst_update_fp32_kernel, CST_MOMENTS_FP32, CST_ROUNDING_NEAREST);
UPDATE_KERNEL(cst_update_bf16_kernel, CST_MOMENTS_BF16, CST_ROUNDING_STOCHASTIC);
UPDATE_KERNEL(cst_update_bf16_nearest_kernel, CST_MOMENTS_BF16, CST_ROUNDING_NEAREST);
UPDATE_KERNEL(cst_update_mx8_kernel, CST_MOMENTS_MX8, CST_ROUNDING_STOCHASTIC);
UPDATE_KERNEL(cst_update_mx8_nearest_kernel, CST_MOMENTS_MX8, CST_ROUNDING_NEAREST);

#define DIRECT_KERNEL(name, moments)                                                               \
    extern "C" __global__ void __launch_bounds__(CST_CUDA_UPDATE_THREADS) name(                    \
        const cst_cuda_tile *tiles, const cst_update_scalars *spans, const cst_cuda_update args)   \
    {                                                                                              \
        __shared__ padded pad;                                                                     \
                                                                                                   \
        direct_tile<moments>(tiles, spans, args, pad);                                             \
    }                                                                                              \
    CST_KERNEL(name)

DIRECT_KERNEL(cst_direct_fp32_kernel, CST_MOMENTS_FP32);
DIRECT_KERNEL(cst_direct_bf16_kernel, CST_MOMENTS_BF16);
DIRECT_KERNEL(cst_direct_mx8_kernel, CST_MOMENTS_MX8);
