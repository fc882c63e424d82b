/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of the layers between the matrix products, forward and backward: layer norm, GELU,
 * cross entropy, embeddings, attention, biases and residuals. There is one table of functions per
 * instruction set. Each function computes a range of rows in one thread. layers.c divides the rows
 * among threads. It takes sums over rows in fixed stripes, so that results do not depend on the
 * number of threads.
 *
 * Arrays are rows x width, row-major, with a width that is a multiple of GPT_SIMD_ELEMS; only that
 * of logits may be any number from GPT_SIMD_ELEMS on. Elements are fp32 unless stated otherwise. An
 * "operand" is an input of a matrix product: bf16 where @bf16, else fp32. Weights and biases are
 * bf16, as in the store. */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_SIMD_ELEMS 16
/* Number of fixed stripes for sums over rows. It is part of the numerics. */
#define GPT_STRIPES 16

/* Sizes of an attention. All sequences have the same length. */
struct gpt_attention_shape {
    size_t n_seqs;  /* number of sequences */
    size_t context; /* positions in a sequence */
    size_t n_heads;
    size_t head_dim; /* elements, a multiple of GPT_SIMD_ELEMS */
};

struct gpt_simd {
    const char *isa; /* "plain", "avx2", "avx512", "neon" */

    /* y = (x - mean) / sqrt(var + 1e-5) * w + b, an operand. mean and rstd (1 / sqrt) of each row
     * are written for the backward pass. */
    void (*layernorm)(size_t rows, size_t width, const float *x, const uint16_t *w,
                      const uint16_t *b, void *y, bool bf16, float *mean, float *rstd);
    /* dx += gradient. dw and db (width each) += sums over the rows. */
    void (*layernorm_backward)(size_t rows, size_t width, const float *dy, const float *x,
                               const uint16_t *w, const float *mean, const float *rstd, float *dx,
                               float *dw, float *db);
    /* x += bias. y = gelu(x) in the tanh form, an operand. */
    void (*gelu)(size_t rows, size_t width, float *x, const uint16_t *bias, void *y, bool bf16);
    /* dx = dy * gelu'(x), an operand. sums (width) += dx over the rows. */
    void (*gelu_backward)(size_t rows, size_t width, const float *x, const float *dy, void *dx,
                          bool bf16, float *sums);
    /* y += bias. */
    void (*bias)(size_t rows, size_t width, float *y, const uint16_t *bias);
    /* y = x + branch + bias. */
    void (*residual)(size_t rows, size_t width, const float *x, const float *branch,
                     const uint16_t *bias, float *y);
    /* out = dy as an operand. sums (width) += dy over the rows. */
    void (*operand)(size_t rows, size_t width, const float *dy, void *out, bool bf16, float *sums);
    /* loss[row] = -log softmax(logits)[target]. dlogits = (softmax - onehot) * scale, an operand.
     * @dlogits may be NULL. */
    void (*cross_entropy)(size_t rows, size_t width, const float *logits, const uint32_t *targets,
                          float scale, float *loss, void *dlogits, bool bf16);
    /* y[row] = wte[token[row]] + wpe[position], position = (first_row + row) mod context. */
    void (*embed)(size_t first_row, size_t rows, size_t width, size_t context,
                  const uint32_t *tokens, const uint16_t *wte, const uint16_t *wpe, float *y);
    /* Round fp32 to bf16. @accumulate: first add, in fp32, the value that dst holds. */
    void (*put)(size_t n, const float *src, uint16_t *dst, bool accumulate);
    /* Convert bf16 to fp32. */
    void (*upcast)(size_t n, const uint16_t *src, float *dst);
    /* For sequence @seq and head @head: out = softmax(q k^T / sqrt(head_dim), causal) v. qkv:
     * n_seqs x context rows of 3 x width, with q, k and v side by side. out: rows of width, an
     * operand. lse: for each (seq, head, position) the log of the sum of exponentials. */
    void (*attention)(const struct gpt_attention_shape *shape, size_t seq, size_t head,
                      const float *qkv, void *out, bool bf16, float *lse, float *scratch);
    /* Gradients of the attention, written to the head's columns of dqkv. */
    void (*attention_backward)(const struct gpt_attention_shape *shape, size_t seq, size_t head,
                               const float *qkv, const void *out, bool bf16, const float *lse,
                               const float *dout, float *dqkv, float *scratch);
};

/* The best table that this CPU can run, or the table called @isa. NULL: no table has this name, or
 * the CPU lacks its instructions. */
const struct gpt_simd *gpt_simd_get(const char *isa);

/* Context of one rank, to run the functions above on all rows with several threads. */
struct gpt_layers {
    const struct gpt_simd *simd;
    bool bf16;          /* operands are bf16 */
    unsigned n_threads; /* compute threads of this rank */
    float *stripes;     /* 2 x GPT_STRIPES x max_width: partial sums over rows */
    size_t max_width;   /* width of the widest row */
    float *scratch;     /* n_threads x scratch_elems, for attention */
    size_t scratch_elems;
};

/* Set up @layers for rows of at most @max_width elements. The caller frees the memory with
 * gpt_layers_close. CST_ENOMEM. */
int gpt_layers_init(struct gpt_layers *layers, const struct gpt_simd *simd, bool bf16,
                    unsigned n_threads, size_t max_width, const struct gpt_attention_shape *shape);
void gpt_layers_close(struct gpt_layers *layers);

/* The functions of the table over all rows. The sums (dw, db, sums) are fp32, and are
 * overwritten. */
void gpt_layernorm(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                   const uint16_t *w, const uint16_t *b, void *y, float *mean, float *rstd);
void gpt_layernorm_backward(const struct gpt_layers *layers, size_t rows, size_t width,
                            const float *dy, const float *x, const uint16_t *w, const float *mean,
                            const float *rstd, float *dx, float *dw, float *db);
void gpt_gelu(const struct gpt_layers *layers, size_t rows, size_t width, float *x,
              const uint16_t *bias, void *y);
void gpt_gelu_backward(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                       const float *dy, void *dx, float *sums);
void gpt_bias(const struct gpt_layers *layers, size_t rows, size_t width, float *y,
              const uint16_t *bias);
void gpt_residual(const struct gpt_layers *layers, size_t rows, size_t width, const float *x,
                  const float *branch, const uint16_t *bias, float *y);
void gpt_operand(const struct gpt_layers *layers, size_t rows, size_t width, const float *dy,
                 void *out, float *sums);
void gpt_embed(const struct gpt_layers *layers, size_t rows, size_t width, size_t context,
               const uint32_t *tokens, const uint16_t *wte, const uint16_t *wpe, float *y);
void gpt_attention(const struct gpt_layers *layers, const struct gpt_attention_shape *shape,
                   const float *qkv, void *out, float *lse);
void gpt_attention_backward(const struct gpt_layers *layers,
                            const struct gpt_attention_shape *shape, const float *qkv,
                            const void *out, const float *lse, const float *dout, float *dqkv);

/* Round @n fp32 gradients to bf16 into @dst. @accumulate: first add, in fp32, the values that @dst
 * holds. @n is a multiple of GPT_SIMD_ELEMS. */
void gpt_put(const struct gpt_layers *layers, size_t n, const float *src, uint16_t *dst,
             bool accumulate);
/* Convert bf16 to fp32. @n is a multiple of GPT_SIMD_ELEMS. */
void gpt_upcast(const struct gpt_layers *layers, size_t n, const uint16_t *src, float *dst);

/* Cross entropy of all rows. Returns the mean over the rows, summed in row order in double.
 * @losses: one float per row. @dlogits: as in the table, with scale 1 / rows. */
double gpt_cross_entropy(const struct gpt_layers *layers, size_t rows, size_t width,
                         const float *logits, const uint32_t *targets, float *losses,
                         void *dlogits);

/* Gradients of the embeddings: dwte (vocab x width) and dwpe (context x width), fp32, overwritten.
 * They are sums of dx over the rows, in row order. */
void gpt_embed_backward(const struct gpt_layers *layers, size_t rows, size_t width, size_t context,
                        size_t vocab, const uint32_t *tokens, const float *dx, float *dwte,
                        float *dwpe);

#endif
