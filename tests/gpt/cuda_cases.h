/* SPDX-License-Identifier: Apache-2.0 */
/* What the worker's kernels must do, against the layers of the host: the same cases without a GPU
 * (tests/gpt/cuda, on tests/lib/fakecuda) and with one (tests/gpu/check_worker). */
#ifndef GPT_CUDA_CASES_H
#define GPT_CUDA_CASES_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/layers.h"

/* fp32 sums of the same terms in another order; and what is rounded to bf16 behind that, which
 * keeps eight bits: half a unit in the last place is 2^-8 of the number at most. */
#define CUDA_NEAR_FP32 2e-5
#define CUDA_NEAR_BF16 0x1p-8

struct cuda_case {
    const struct gpt_gpu *gpu; /* borrowed */
    unsigned n_compared;       /* arrays so far */
    bool ok;                   /* all were near enough */
    char why[384];             /* the first that was not */
};

struct cuda_case_row {
    const char *name;
    void (*run)(struct cuda_case *c);
};

/* All of them; *n: how many. */
const struct cuda_case_row *cuda_cases_all(unsigned *n);

/* @what of @c: @n values of @got should be those of @want, off by at most @limit times the largest
 * of them. False: they are not, or one is NaN; @c says so. */
bool cuda_case_near(struct cuda_case *c, const char *what, const float *got, const float *want,
                    size_t n, double limit);

/* @c failed for other reasons. */
void cuda_case_fail(struct cuda_case *c, const char *words);

/* -- arrays here and there (cuda_arrays.c). Those on the host are to be freed; out of memory ends
 * the program ---- */

void *cuda_must(void *p);

/* Normally distributed, a function of @seed. */
float *cuda_numbers(size_t n, uint64_t seed, float deviation);
uint16_t *cuda_numbers16(size_t n, uint64_t seed, float deviation, float mean);
float *cuda_wide(const uint16_t *x, size_t n);

/* @bytes on the GPU, of @from or (NULL) 0xff: NaN, whatever type they are read as. */
CUdeviceptr cuda_there(struct cuda_case *c, const void *from, size_t bytes);

/* Bring @n values back, as fp32, and free them there. */
float *cuda_back(struct cuda_case *c, CUdeviceptr p, size_t n);
float *cuda_back16(struct cuda_case *c, CUdeviceptr p, size_t n);

/* @c failed unless @rc is 0. */
void cuda_done(struct cuda_case *c, int rc, const struct cst_err *err);

/* cuda_case_near on what is at @p, fp32 or bf16, which is freed. */
void cuda_expect(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want, size_t n,
                 double limit);
void cuda_expect16(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want,
                   size_t n, double limit);

/* Layers of the host with operands in fp32. */
struct gpt_layers cuda_host_layers(size_t max_width, const struct gpt_attention_shape *shape);

/* -- the cases of cuda_products.c ---- */

void cuda_case_product(struct cuda_case *c);
void cuda_case_epilogues(struct cuda_case *c);
void cuda_case_attention(struct cuda_case *c);

/* -- the cases of cuda_mixture.c ---- */

void cuda_case_choose(struct cuda_case *c);
void cuda_case_rows(struct cuda_case *c);

#endif
