/* Causal attention as its formula says it, one thread per query or key: the reference for the fast
 * one. Products and sums in fp32, in the order of the positions. */
#include "client/gpt/cuda/args.h"
#include "client/gpt/cuda/vector.cuh"

using namespace gpt;

namespace
{

const uint32_t MAX_HEAD_DIM = 256;

struct place {
    uint32_t seq, head, position;
    float scale; /* 1 / sqrt(head_dim) */
    bool inside;
};

/* Of this thread: blockIdx.y is the head of a sequence. */
__device__ __forceinline__ place here(const gpt_cuda_attention_shape &s)
{
    uint32_t position = blockIdx.x * blockDim.x + threadIdx.x;

    return {blockIdx.y / s.n_heads, blockIdx.y % s.n_heads, position,
            1.0f / __fsqrt_rn(static_cast<float>(s.head_dim)), position < s.context};
}

/* The head's part of row @position; @part 0, 1, 2 of @parts: q, k, v. */
__device__ __forceinline__ uint64_t offset(const gpt_cuda_attention_shape &s, const place &p,
                                           uint32_t position, uint32_t part, uint32_t parts)
{
    uint64_t width = static_cast<uint64_t>(s.n_heads) * s.head_dim;
    uint64_t row = static_cast<uint64_t>(p.seq) * s.context + position;

    return row * parts * width + part * width + static_cast<uint64_t>(p.head) * s.head_dim;
}

__device__ __forceinline__ float dot(uint32_t n, const uint16_t *a, const uint16_t *b)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        sum += cst_bf16_up(a[i]) * cst_bf16_up(b[i]);
    }
    return sum;
}

__device__ __forceinline__ void add(uint32_t n, float factor, const uint16_t *from, float *to)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] += factor * cst_bf16_up(from[i]);
    }
}

__device__ __forceinline__ void write(uint32_t n, const float *from, uint16_t *to)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] = cst_bf16_down(from[i]);
    }
}

} // namespace

extern "C" __global__ void gpt_attention_plain_kernel(const gpt_cuda_attention_shape s,
                                                      const uint16_t *qkv, uint16_t *out,
                                                      float *lse)
{
    const place p = here(s);
    float acc[MAX_HEAD_DIM] = {};
    float most = -INFINITY;
    float sum = 0.0f;

    if (!p.inside) {
        return;
    }
    const uint16_t *q = qkv + offset(s, p, p.position, 0, 3);
    for (uint32_t j = 0; j <= p.position; j++) {
        most = fmaxf(most, dot(s.head_dim, q, qkv + offset(s, p, j, 1, 3)) * p.scale);
    }
    for (uint32_t j = 0; j <= p.position; j++) {
        float e = expf(dot(s.head_dim, q, qkv + offset(s, p, j, 1, 3)) * p.scale - most);

        sum += e;
        add(s.head_dim, e, qkv + offset(s, p, j, 2, 3), acc);
    }
    for (uint32_t i = 0; i < s.head_dim; i++) {
        acc[i] /= sum;
    }
    write(s.head_dim, acc, out + offset(s, p, p.position, 0, 1));
    lse[static_cast<uint64_t>(blockIdx.y) * s.context + p.position] = most + logf(sum);
}
CST_KERNEL(gpt_attention_plain_kernel);

/* dq of a query. */
extern "C" __global__ void gpt_attention_plain_dq_kernel(const gpt_cuda_attention_shape s,
                                                         const uint16_t *qkv, const uint16_t *out,
                                                         const float *lse, const uint16_t *dout,
                                                         uint16_t *dqkv)
{
    const place p = here(s);
    float acc[MAX_HEAD_DIM] = {};

    if (!p.inside) {
        return;
    }
    const uint16_t *q = qkv + offset(s, p, p.position, 0, 3);
    const uint16_t *g = dout + offset(s, p, p.position, 0, 1);
    const float delta = dot(s.head_dim, g, out + offset(s, p, p.position, 0, 1));
    const float l = lse[static_cast<uint64_t>(blockIdx.y) * s.context + p.position];

    for (uint32_t j = 0; j <= p.position; j++) {
        const uint16_t *k = qkv + offset(s, p, j, 1, 3);
        float prob = expf(dot(s.head_dim, q, k) * p.scale - l);
        float ds = prob * (dot(s.head_dim, g, qkv + offset(s, p, j, 2, 3)) - delta);

        add(s.head_dim, ds * p.scale, k, acc);
    }
    write(s.head_dim, acc, dqkv + offset(s, p, p.position, 0, 3));
}
CST_KERNEL(gpt_attention_plain_dq_kernel);

/* dk and dv of a key. */
extern "C" __global__ void gpt_attention_plain_dkv_kernel(const gpt_cuda_attention_shape s,
                                                          const uint16_t *qkv, const uint16_t *out,
                                                          const float *lse, const uint16_t *dout,
                                                          uint16_t *dqkv)
{
    const place p = here(s);
    float dk[MAX_HEAD_DIM] = {};
    float dv[MAX_HEAD_DIM] = {};

    if (!p.inside) {
        return;
    }
    const uint16_t *k = qkv + offset(s, p, p.position, 1, 3);
    const uint16_t *v = qkv + offset(s, p, p.position, 2, 3);

    for (uint32_t i = p.position; i < s.context; i++) {
        const uint16_t *q = qkv + offset(s, p, i, 0, 3);
        const uint16_t *g = dout + offset(s, p, i, 0, 1);
        float l = lse[static_cast<uint64_t>(blockIdx.y) * s.context + i];
        float prob = expf(dot(s.head_dim, q, k) * p.scale - l);
        float delta = dot(s.head_dim, g, out + offset(s, p, i, 0, 1));

        add(s.head_dim, prob, g, dv);
        add(s.head_dim, prob * (dot(s.head_dim, g, v) - delta) * p.scale, q, dk);
    }
    write(s.head_dim, dk, dqkv + offset(s, p, p.position, 1, 3));
    write(s.head_dim, dv, dqkv + offset(s, p, p.position, 2, 3));
}
CST_KERNEL(gpt_attention_plain_dkv_kernel);
