/* kernels/update.h on a GPU: 28 bytes per element, at the memory roof. A block updates up to
 * CST_CUDA_TILE_ELEMS elements, a thread two times four of them at once: 112 bytes of loads are
 * under way per thread before the first is used. Rows are read and written once a step, so all
 * loads and stores are marked as streaming (ld.global.cs, st.global.cs). */
#include "kernels/update.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/bf16.cuh"

namespace
{

struct rows {
    const uint16_t *grad;
    float *master;
    float *exp_avg;
    float *exp_avg_sq;
    uint16_t *weight;
};

/* Four consecutive elements. */
struct quad {
    uint2 grad;
    float4 master;
    float4 exp_avg;
    float4 exp_avg_sq;
};

__device__ __forceinline__ float canonical(float x)
{
    return x != x ? __uint_as_float(CST_UPDATE_NAN) : x;
}

/* The lines of kernels/update.h, in their order. */
__device__ __forceinline__ uint16_t one(const cst_update_scalars &hyper, float grad, float &master,
                                        float &exp_avg, float &exp_avg_sq)
{
    float g = __fmul_rn(grad, hyper.grad_scale);
    float m = __fmaf_rn(hyper.one_minus_beta1, __fsub_rn(g, exp_avg), exp_avg);
    float v = __fmaf_rn(hyper.one_minus_beta2, __fmul_rn(g, g), __fmul_rn(hyper.beta2, exp_avg_sq));
    float d = __fmaf_rn(__fsqrt_rn(v), hyper.inv_sqrt_bias2, hyper.eps);
    float p = __fmaf_rn(-hyper.step_size, __fdiv_rn(m, d), __fmul_rn(master, hyper.decay));

    exp_avg = canonical(m);
    exp_avg_sq = canonical(v);
    master = canonical(p);
    return cst_bf16_down(master);
}

__device__ __forceinline__ void update_one(const cst_update_scalars &hyper, const rows &r,
                                           uint32_t i)
{
    float p = r.master[i];
    float m = r.exp_avg[i];
    float v = r.exp_avg_sq[i];
    uint16_t w = one(hyper, cst_bf16_up(r.grad[i]), p, m, v);

    r.master[i] = p;
    r.exp_avg[i] = m;
    r.exp_avg_sq[i] = v;
    r.weight[i] = w;
}

__device__ __forceinline__ void load(quad &q, const rows &r, uint32_t i)
{
    q.grad = __ldcs(reinterpret_cast<const uint2 *>(r.grad + i));
    q.master = __ldcs(reinterpret_cast<const float4 *>(r.master + i));
    q.exp_avg = __ldcs(reinterpret_cast<const float4 *>(r.exp_avg + i));
    q.exp_avg_sq = __ldcs(reinterpret_cast<const float4 *>(r.exp_avg_sq + i));
}

__device__ __forceinline__ void update(const cst_update_scalars &hyper, quad &q, const rows &r,
                                       uint32_t i)
{
    uint16_t w0 = one(hyper, cst_bf16_first(q.grad.x), q.master.x, q.exp_avg.x, q.exp_avg_sq.x);
    uint16_t w1 = one(hyper, cst_bf16_second(q.grad.x), q.master.y, q.exp_avg.y, q.exp_avg_sq.y);
    uint16_t w2 = one(hyper, cst_bf16_first(q.grad.y), q.master.z, q.exp_avg.z, q.exp_avg_sq.z);
    uint16_t w3 = one(hyper, cst_bf16_second(q.grad.y), q.master.w, q.exp_avg.w, q.exp_avg_sq.w);

    __stcs(reinterpret_cast<float4 *>(r.master + i), q.master);
    __stcs(reinterpret_cast<float4 *>(r.exp_avg + i), q.exp_avg);
    __stcs(reinterpret_cast<float4 *>(r.exp_avg_sq + i), q.exp_avg_sq);
    __stcs(reinterpret_cast<uint2 *>(r.weight + i),
           make_uint2(cst_bf16_pair(w0, w1), cst_bf16_pair(w2, w3)));
}

/* Whole quads from element @first on; returns the first element that is left. */
__device__ __forceinline__ uint32_t update_quads(const cst_update_scalars &hyper, const rows &r,
                                                 uint32_t first, uint32_t n)
{
    const uint32_t stride = 4 * CST_CUDA_ADAMW_THREADS;
    const uint32_t end = first + (n - first) / 4 * 4;
    uint32_t i = first + 4 * threadIdx.x;

    for (; i + stride < end; i += 2 * stride) {
        quad a;
        quad b;

        load(a, r, i);
        load(b, r, i + stride);
        update(hyper, a, r, i);
        update(hyper, b, r, i + stride);
    }
    if (i < end) {
        quad a;

        load(a, r, i);
        update(hyper, a, r, i);
    }
    return end;
}

/* Elements [0, n) by the whole block. Quads where all rows are aligned from some element on, the
 * first three at most and the last three at most one by one; where rows are aligned differently,
 * all of them. */
__device__ void update_range(const cst_update_scalars &hyper, const rows &r, uint32_t n)
{
    uint32_t head = static_cast<uint32_t>(-(reinterpret_cast<uintptr_t>(r.master) / 4) & 3u);
    uint32_t tail = 0;

    head = head < n ? head : n;
    if (cst_aligned(r.grad + head, 8) && cst_aligned(r.exp_avg + head, 16) &&
        cst_aligned(r.exp_avg_sq + head, 16) && cst_aligned(r.weight + head, 8) &&
        cst_aligned(r.master + head, 16)) {
        tail = update_quads(hyper, r, head, n);
        if (threadIdx.x < head) {
            update_one(hyper, r, threadIdx.x);
        }
    }
    for (uint32_t i = tail + threadIdx.x; i < n; i += CST_CUDA_ADAMW_THREADS) {
        update_one(hyper, r, i);
    }
}

__device__ __forceinline__ rows at(const rows &r, uint64_t start)
{
    return {r.grad + start, r.master + start, r.exp_avg + start, r.exp_avg_sq + start,
            r.weight + start};
}

} // namespace

extern "C" __global__ void __launch_bounds__(CST_CUDA_ADAMW_THREADS)
    cst_adamw_kernel(const cst_update_scalars hyper, uint64_t n, const uint16_t *grad,
                     float *master, float *exp_avg, float *exp_avg_sq, uint16_t *weight)
{
    uint64_t start = static_cast<uint64_t>(blockIdx.x) * CST_CUDA_TILE_ELEMS;
    uint64_t left = n - start;

    update_range(hyper, at({grad, master, exp_avg, exp_avg_sq, weight}, start),
                 left < CST_CUDA_TILE_ELEMS ? static_cast<uint32_t>(left) : CST_CUDA_TILE_ELEMS);
}
CST_KERNEL(cst_adamw_kernel);

extern "C" __global__ void __launch_bounds__(CST_CUDA_ADAMW_THREADS)
    cst_adamw_tiles_kernel(const cst_cuda_tile *tiles, const cst_update_scalars *hypers,
                           const uint16_t *grad, float *master, float *exp_avg, float *exp_avg_sq,
                           uint16_t *weight)
{
    const cst_cuda_tile tile = tiles[blockIdx.x];
    const cst_update_scalars hyper = hypers[tile.span];

    update_range(hyper, at({grad, master, exp_avg, exp_avg_sq, weight}, tile.start), tile.n_elems);
}
CST_KERNEL(cst_adamw_tiles_kernel);
