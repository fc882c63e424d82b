/* SPDX-License-Identifier: Apache-2.0 */
/* Layers other than attention. The file is compiled once per instruction set, see simd.h. */
#include "client/gpt/simd.h"

#include <math.h>

#define LN_EPS 1e-5f

static void layernorm(size_t rows, size_t width, const float *x, const uint16_t *w,
                      const uint16_t *b, void *y, bool bf16, float *mean, float *rstd)
{
    const float inv = 1.0f / (float)width;

    for (size_t r = 0; r < rows; r++, x += width) {
        vf sum = {0}, square = {0};
        float m, s;

        for (size_t i = 0; i < width; i += VL) {
            sum += load(x + i);
        }
        /* The squares are summed in a second pass over the row, because sum(x^2) - n mean^2 would
         * lose precision. */
        m = sum_lanes(sum) * inv;
        for (size_t i = 0; i < width; i += VL) {
            vf d = load(x + i) - m;
            square = fma_(d, d, square);
        }
        s = 1.0f / sqrtf(sum_lanes(square) * inv + LN_EPS);
        for (size_t i = 0; i < width; i += VL) {
            vf n = (load(x + i) - m) * s;
            store_operand(y, r * width + i, fma_(n, load_bf16(w + i), load_bf16(b + i)), bf16);
        }
        mean[r] = m;
        rstd[r] = s;
    }
}

/* With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)), dw = sum dy n, db =
 * sum dy. */
static void layernorm_backward(size_t rows, size_t width, const float *dy, const float *x,
                               const uint16_t *w, const float *mean, const float *rstd, float *dx,
                               float *dw, float *db)
{
    const float inv = 1.0f / (float)width;

    for (size_t r = 0; r < rows; r++, x += width, dy += width, dx += width) {
        vf sum_g = {0}, sum_gn = {0};
        float mg, mgn;

        for (size_t i = 0; i < width; i += VL) {
            vf n = (load(x + i) - mean[r]) * rstd[r];
            vf d = load(dy + i);
            vf g = d * load_bf16(w + i);

            sum_g += g;
            sum_gn = fma_(g, n, sum_gn);
            store(dw + i, fma_(d, n, load(dw + i)));
            store(db + i, load(db + i) + d);
        }
        mg = sum_lanes(sum_g) * inv;
        mgn = sum_lanes(sum_gn) * inv;
        for (size_t i = 0; i < width; i += VL) {
            vf n = (load(x + i) - mean[r]) * rstd[r];
            vf g = load(dy + i) * load_bf16(w + i);

            store(dx + i, fma_(g - mg - n * mgn, splat(rstd[r]), load(dx + i)));
        }
    }
}

/* gelu(x) = x/2 (1 + tanh u) = x s(2u) with u = sqrt(2/pi) (x + 0.044715 x^3) and s(t) = 1 / (1 +
 * e^-t). */
#define GELU_A 1.5957691216f    /* 2 sqrt(2/pi) */
#define GELU_B 0.0713548162726f /* 2 sqrt(2/pi) 0.044715 */

INLINE vf gelu_sigmoid(vf x)
{
    vf t = x * fma_(x * x, splat(GELU_B), splat(GELU_A));

    return 1.0f / (1.0f + exp_(-t));
}

static void gelu(size_t rows, size_t width, float *x, const uint16_t *bias, void *y, bool bf16)
{
    for (size_t r = 0; r < rows; r++, x += width) {
        for (size_t i = 0; i < width; i += VL) {
            vf v = load(x + i) + load_bf16(bias + i);

            store(x + i, v);
            store_operand(y, r * width + i, v * gelu_sigmoid(v), bf16);
        }
    }
}

static void gelu_backward(size_t rows, size_t width, const float *x, const float *dy, void *dx,
                          bool bf16, float *sums)
{
    for (size_t r = 0; r < rows; r++, x += width, dy += width) {
        for (size_t i = 0; i < width; i += VL) {
            vf v = load(x + i);
            vf s = gelu_sigmoid(v);
            vf slope = fma_(v * v, splat(3.0f * GELU_B), splat(GELU_A)); /* slope = d(2u)/dx */
            vf d = load(dy + i) * fma_(v * slope, s * (1.0f - s), s);

            store_operand(dx, r * width + i, d, bf16);
            store(sums + i, load(sums + i) + d);
        }
    }
}

static void bias_add(size_t rows, size_t width, float *y, const uint16_t *bias)
{
    for (size_t r = 0; r < rows; r++, y += width) {
        for (size_t i = 0; i < width; i += VL) {
            store(y + i, load(y + i) + load_bf16(bias + i));
        }
    }
}

static void residual(size_t rows, size_t width, const float *x, const float *branch,
                     const uint16_t *bias, float *y)
{
    for (size_t r = 0; r < rows; r++, x += width, branch += width, y += width) {
        for (size_t i = 0; i < width; i += VL) {
            store(y + i, load(x + i) + (load(branch + i) + load_bf16(bias + i)));
        }
    }
}

static void operand(size_t rows, size_t width, const float *dy, void *out, bool bf16, float *sums)
{
    for (size_t r = 0; r < rows; r++, dy += width) {
        for (size_t i = 0; i < width; i += VL) {
            vf d = load(dy + i);

            store_operand(out, r * width + i, d, bf16);
            store(sums + i, load(sums + i) + d);
        }
    }
}

/* The last elements of a row, from @i to @width, which are fewer than a vector. The other lanes are
 * so small that their exponentials are nearly zero. */
INLINE vf load_tail(const float *row, size_t i, size_t width)
{
    float lanes[VL];

    for (size_t k = 0; k < VL; k++) {
        lanes[k] = i + k < width ? row[i + k] : -1e30f;
    }
    return load(lanes);
}

/* Store the elements from @i to @width of the row that begins at element @at of an operand. */
INLINE void store_tail(void *p, size_t at, size_t i, size_t width, vf v, bool bf16)
{
    const size_t bytes = bf16 ? sizeof(uint16_t) : sizeof(float);
    float lanes[VL];

    store_operand(lanes, 0, v, bf16);
    memcpy((char *)p + (at + i) * bytes, lanes, (width - i) * bytes);
}

/* The gradient of the logits @x, which begin at element @i of the row. */
INLINE vf logit_gradient(vf x, size_t i, uint32_t target, float most, float inv, float scale)
{
    vf d = exp_(x - most) * inv;

    if (target >= i && target < i + VL) {
        d[target - i] -= scale;
    }
    return d;
}

static void cross_entropy(size_t rows, size_t width, const float *logits, const uint32_t *targets,
                          float scale, float *loss, void *dlogits, bool bf16)
{
    const size_t whole = width / VL * VL;

    for (size_t r = 0; r < rows; r++, logits += width) {
        vf top = load(logits), sum = {0};
        float most, total, inv;

        for (size_t i = VL; i < whole; i += VL) {
            top = max_(top, load(logits + i));
        }
        if (whole < width) {
            top = max_(top, load_tail(logits, whole, width));
        }
        /* Without the maximum the exponentials could overflow. */
        most = max_lanes(top);
        for (size_t i = 0; i < whole; i += VL) {
            sum += exp_(load(logits + i) - most);
        }
        if (whole < width) {
            sum += exp_(load_tail(logits, whole, width) - most);
        }
        total = sum_lanes(sum);
        loss[r] = most + logf(total) - logits[targets[r]];
        if (dlogits == NULL) {
            continue;
        }
        inv = scale / total;
        for (size_t i = 0; i < whole; i += VL) {
            store_operand(dlogits, r * width + i,
                          logit_gradient(load(logits + i), i, targets[r], most, inv, scale), bf16);
        }
        if (whole < width) {
            store_tail(dlogits, r * width, whole, width,
                       logit_gradient(load_tail(logits, whole, width), whole, targets[r], most, inv,
                                      scale),
                       bf16);
        }
    }
}

static void embed(size_t first_row, size_t rows, size_t width, size_t context,
                  const uint32_t *tokens, const uint16_t *wte, const uint16_t *wpe, float *y)
{
    for (size_t r = 0; r < rows; r++, y += width) {
        const uint16_t *token = wte + (size_t)tokens[r] * width;
        const uint16_t *position = wpe + (first_row + r) % context * width;

        for (size_t i = 0; i < width; i += VL) {
            store(y + i, load_bf16(token + i) + load_bf16(position + i));
        }
    }
}

static void put(size_t n, const float *src, uint16_t *dst, bool accumulate)
{
    for (size_t i = 0; i < n; i += VL) {
        vf v = load(src + i);

        store_bf16(dst + i, accumulate ? load_bf16(dst + i) + v : v);
    }
}

static void upcast(size_t n, const uint16_t *src, float *dst)
{
    for (size_t i = 0; i < n; i += VL) {
        store(dst + i, load_bf16(src + i));
    }
}

extern const struct gpt_simd GPT_ISA(gpt_simd);
void GPT_ISA(gpt_attention)(const struct gpt_attention_shape *shape, size_t seq, size_t head,
                            const float *qkv, void *out, bool bf16, float *lse, float *scratch);
void GPT_ISA(gpt_attention_backward)(const struct gpt_attention_shape *shape, size_t seq,
                                     size_t head, const float *qkv, const void *out, bool bf16,
                                     const float *lse, const float *dout, float *dqkv,
                                     float *scratch);

const struct gpt_simd GPT_ISA(gpt_simd) = {
    .isa = GPT_ISA_NAME,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .bias = bias_add,
    .residual = residual,
    .operand = operand,
    .cross_entropy = cross_entropy,
    .embed = embed,
    .put = put,
    .upcast = upcast,
    .attention = GPT_ISA(gpt_attention),
    .attention_backward = GPT_ISA(gpt_attention_backward),
};
