// SPDX-License-Identifier: Apache-2.0
/* The orthogonalisation of kernels/math/muon.h on a GPU, with the bits of the processor: the sums
 * of squares, the division by the norm, and the products. (update.cu makes the directions.)
 *
 * The elements of a product are sums in fp32 in one order, which fused multiply-adds make and the
 * tensor cores do not: how these add is not specified and differs between architectures. Hence a
 * matrix can be updated by a node in one step and by any accelerator in the next.
 *
 * A block of threads makes SIDE x SIDE elements of a product, a quarter of a tile of the processor.
 * DEPTH elements of k at a time are in shared memory as fp32, while the next ones are loaded into
 * registers. A thread makes 8 x 8 elements: rows 4 ty + {0..3} and 64 + 4 ty + {0..3}, and columns
 * likewise. Threads read shared memory as four neighbours at a time, which all banks serve. */
#include "kernels/cuda/args.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/math/formulas.h"
#include "kernels/math/rounding.h"

namespace
{

const uint32_t THREADS = CST_CUDA_MUON_THREADS;
const uint32_t SIDE = CST_CUDA_PRODUCT_SIDE;
const uint32_t DEPTH = 16;        /* Elements of k in shared memory. */
const uint32_t EACH = 8;          /* Elements that a thread loads together: 16 bytes. */
const uint32_t HALF = SIDE / 2;   /* Distance of the two groups of rows of a thread. */
const uint32_t ROW = SIDE / EACH; /* Threads in a row of threads. */
const uint32_t QUARTERS = 2;      /* Parts of a tile of the processor, in each direction. */
const uint32_t SUM_PIECE = 1024;  /* Squares in shared memory. */
static_assert(THREADS == ROW * ROW && SIDE * DEPTH == THREADS * EACH, "each thread has its part");
static_assert(SIDE * QUARTERS == CST_MUON_TILE, "a tile of the processor has four parts");

struct panel {
    float x[DEPTH][SIDE]; /* [k][line] */
};

__device__ __forceinline__ uint32_t at_most(uint32_t n, uint64_t left)
{
    return n < left ? n : static_cast<uint32_t>(left);
}

/* What a thread loads of an operand, EACH elements at a time: neighbours of a line (a row of a or a
 * column of b) if these are consecutive in memory, and otherwise those of neighbouring lines. */
struct operand {
    const uint16_t *from; /* The first of the next elements. */
    uint64_t ahead;       /* Elements to those of the next DEPTH elements of k. */
    uint32_t line, k;     /* The first element in the panel. */
    uint32_t n;           /* Elements of EACH that exist, for k within the depth. */
    bool by_k;            /* The EACH elements are those of one line. */
};

/* Element k of line i of the operand is at[i * @line + k * @step], and one of the two strides is 1.
 * It has @n_lines lines. */
__device__ __forceinline__ operand open(const uint16_t *at, uint64_t line, uint64_t step,
                                        uint64_t n_lines)
{
    operand o;

    o.by_k = step == 1;
    o.line = o.by_k ? threadIdx.x / (DEPTH / EACH) : threadIdx.x % ROW * EACH;
    o.k = o.by_k ? threadIdx.x % (DEPTH / EACH) * EACH : threadIdx.x / ROW;
    o.from = at + o.line * line + o.k * step;
    o.ahead = DEPTH * step;
    o.n = o.line >= n_lines ? 0 : o.by_k ? EACH : at_most(EACH, n_lines - o.line);
    return o;
}

/* Load the next elements, as pairs; @left elements of k are left. Those that do not exist are
 * zero. */
__device__ __forceinline__ uint4 bring(operand &o, uint64_t left)
{
    const uint32_t n = o.k >= left ? 0 : o.by_k ? at_most(o.n, left - o.k) : o.n;
    const uint16_t *from = o.from;
    uint32_t pairs[EACH / 2];

    o.from += o.ahead;
    if (n == EACH && cst_aligned(from, 16)) {
        return *reinterpret_cast<const uint4 *>(from);
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i += 2) {
        pairs[i / 2] = cst_bf16_pair(i < n ? from[i] : static_cast<uint16_t>(0),
                                     i + 1 < n ? from[i + 1] : static_cast<uint16_t>(0));
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__device__ __forceinline__ void put(panel &p, uint4 in, const operand &o)
{
    const uint32_t pairs[] = {in.x, in.y, in.z, in.w};

#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t pair = pairs[i / 2];

        p.x[o.k + (o.by_k ? i : 0)][o.line + (o.by_k ? 0 : i)] =
            i % 2 == 0 ? cst_bf16_first(pair) : cst_bf16_second(pair);
    }
}

/* Load the elements of this row or column of threads. */
__device__ __forceinline__ void take(float out[EACH], const float *row, uint32_t thread)
{
    const float4 a = *reinterpret_cast<const float4 *>(row + 4 * thread);
    const float4 b = *reinterpret_cast<const float4 *>(row + HALF + 4 * thread);

    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

__device__ __forceinline__ void add_products(float sums[EACH][EACH], const panel &a, const panel &b,
                                             uint32_t k)
{
    float x[EACH], y[EACH];

    take(x, a.x[k], threadIdx.x / ROW);
    take(y, b.x[k], threadIdx.x % ROW);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            sums[i][j] = __fmaf_rn(x[i], y[j], sums[i][j]);
        }
    }
}

/* Returns the row or column of element @i of the thread in row or column @thread of threads. */
__device__ __forceinline__ uint64_t place(uint32_t thread, uint32_t i)
{
    return 4 * thread + i % 4 + (i < 4 ? 0 : HALF);
}

__device__ __forceinline__ uint16_t round_any(float x)
{
    return static_cast<uint16_t>(cst_round_bf16(cst_formula_canonical({x})).x >> 16);
}

/* The place of a part of a product. */
struct part {
    uint64_t matrix, row, column;
};

/* Returns the part that this block makes. */
__device__ part find_part(const cst_cuda_product &p)
{
    const uint64_t piece = p.first + blockIdx.x / (QUARTERS * QUARTERS);
    const uint32_t quarter = blockIdx.x % (QUARTERS * QUARTERS);
    const uint64_t tile = piece % p.tiles, across = (p.columns + CST_MUON_TILE - 1) / CST_MUON_TILE;
    uint64_t i = p.symmetric ? 0 : tile / across, j = p.symmetric ? tile : tile % across;

    while (p.symmetric && j > i) {
        j -= ++i;
    }
    return {piece / p.tiles, (i * QUARTERS + quarter / QUARTERS) * SIDE,
            (j * QUARTERS + quarter % QUARTERS) * SIDE};
}

__device__ void finish(const cst_cuda_product &p, const part &at, const float sums[EACH][EACH])
{
    const uint64_t base = at.matrix * p.out_step;

#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint64_t row = at.row + place(threadIdx.x / ROW, i);
            const uint64_t column = at.column + place(threadIdx.x % ROW, j);
            const uint64_t here = base + row * p.columns + column;

            if (row >= p.rows || column >= p.columns) {
                continue;
            }
            const float added =
                p.add != nullptr ? __fmul_rn(p.beta, cst_bf16_up(p.add[here])) : 0.0f;
            const uint16_t x = round_any(__fmaf_rn(p.alpha, sums[i][j], added));

            p.out[here] = x;
            if (p.symmetric && at.row != at.column) {
                p.out[base + column * p.columns + row] = x;
            }
        }
    }
}

/* Store the squares of elements [at, at + SUM_PIECE) of the @n elements at @x. Zeros after the last
 * one do not change the sum, which is never -0. */
__device__ __forceinline__ void bring_squares(double *out, const uint16_t *x, uint64_t n,
                                              uint64_t at)
{
    for (uint32_t i = threadIdx.x; i < SUM_PIECE; i += THREADS) {
        const double v = at + i < n ? static_cast<double>(cst_bf16_up(x[at + i])) : 0.0;

        out[i] = __dmul_rn(v, v);
    }
}

/* Set *x and *n to the elements of piece number @piece. */
__device__ __forceinline__ void find_sum(const cst_cuda_muon_norm &norm, uint64_t piece,
                                         uint64_t *first, uint64_t *n)
{
    const uint64_t at = piece % norm.n_sums * CST_MUON_SUM_ELEMS;
    const uint64_t left = norm.n_elems - at;

    *first = piece / norm.n_sums * norm.n_elems + at;
    *n = left < CST_MUON_SUM_ELEMS ? left : CST_MUON_SUM_ELEMS;
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cst_muon_product_kernel(const cst_cuda_product p)
{
    __shared__ __align__(16) panel a, b;
    const part at = find_part(p);
    operand rows, columns;
    uint4 next_a, next_b;
    float sums[EACH][EACH] = {};

    /* The part of a symmetric product beyond the diagonal is a mirror image. */
    if (at.row >= p.rows || at.column >= p.columns || (p.symmetric && at.row < at.column)) {
        return;
    }
    rows =
        open(p.a + at.matrix * p.a_step + at.row * p.a_row, p.a_row, p.a_column, p.rows - at.row);
    columns = open(p.b + at.matrix * p.b_step + at.column * p.b_column, p.b_column, p.b_row,
                   p.columns - at.column);
    next_a = bring(rows, p.depth);
    next_b = bring(columns, p.depth);
    for (uint64_t k = 0; k < p.depth; k += DEPTH) {
        __syncthreads();
        put(a, next_a, rows);
        put(b, next_b, columns);
        __syncthreads();
        if (k + DEPTH < p.depth) {
            next_a = bring(rows, p.depth - k - DEPTH);
            next_b = bring(columns, p.depth - k - DEPTH);
        }
        if (k + DEPTH <= p.depth) {
#pragma unroll
            for (uint32_t i = 0; i < DEPTH; i++) {
                add_products(sums, a, b, i);
            }
        } else {
            /* A product of zeros would turn a sum of -0 into 0. */
            for (uint32_t i = 0; k + i < p.depth; i++) {
                add_products(sums, a, b, i);
            }
        }
    }
    finish(p, at, sums);
}
CST_KERNEL(cst_muon_product_kernel);

extern "C" __global__ void __launch_bounds__(THREADS)
    cst_muon_sums_kernel(const cst_cuda_muon_norm norm)
{
    __shared__ double squares[2][SUM_PIECE];
    const uint64_t piece = norm.first + blockIdx.x;
    uint64_t first, n;
    double total = 0.0;

    find_sum(norm, piece, &first, &n);
    bring_squares(squares[0], norm.values + first, n, 0);
    __syncthreads();
    for (uint64_t at = 0; at < n; at += SUM_PIECE) {
        const uint32_t turn = at / SUM_PIECE % 2;

        bring_squares(squares[turn ^ 1], norm.values + first, n, at + SUM_PIECE);
        if (threadIdx.x == 0) {
#pragma unroll 16
            for (uint32_t i = 0; i < SUM_PIECE; i++) {
                total = __dadd_rn(total, squares[turn][i]);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        norm.sums[piece] = total;
    }
}
CST_KERNEL(cst_muon_sums_kernel);

extern "C" __global__ void __launch_bounds__(THREADS)
    cst_muon_scale_kernel(const cst_cuda_muon_norm norm)
{
    __shared__ float divisor;
    const uint64_t piece = norm.first + blockIdx.x;
    uint64_t first, n;

    find_sum(norm, piece, &first, &n);
    if (threadIdx.x == 0) {
        const double *sums = norm.sums + piece / norm.n_sums * norm.n_sums;
        double total = 0.0;

        for (uint64_t i = 0; i < norm.n_sums; i++) {
            total = __dadd_rn(total, sums[i]);
        }
        divisor = cst_bf16_up(cst_bf16_down(__double2float_rn(__dsqrt_rn(total))));
        divisor = divisor < norm.least ? norm.least : divisor;
    }
    __syncthreads();
    for (uint64_t i = first + threadIdx.x; i < first + n; i += THREADS) {
        norm.values[i] = round_any(__fdiv_rn(cst_bf16_up(norm.values[i]), divisor));
    }
}
CST_KERNEL(cst_muon_scale_kernel);
