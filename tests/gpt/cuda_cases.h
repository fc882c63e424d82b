/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the worker's GPU kernels against the layers of the host. The cases run without a GPU
 * (tests/gpt/cuda, on tests/lib/fakecuda) and with one (tests/gpu/check_worker). */
#ifndef GPT_CUDA_CASES_H
#define GPT_CUDA_CASES_H

#include "client/gpt/cuda/gpu.h"
#include "client/gpt/layers.h"

/* Limits of relative differences. FP32: fp32 sums of equal terms in another order. BF16: a result
 * that is also rounded to bf16, which keeps eight bits; half a unit in the last place is at most
 * 2^-8 of the number. */
#define CUDA_NEAR_FP32 2e-5
#define CUDA_NEAR_BF16 0x1p-8

struct cuda_case {
    const struct gpt_gpu *gpu; /* borrowed */
    unsigned n_compared;       /* arrays compared so far */
    bool ok;                   /* all arrays were near enough */
    char why[640];             /* describes the first array that was not */
};

struct cuda_case_row {
    const char *name;
    void (*run)(struct cuda_case *c);
};

/* Return all cases; *n is their number. */
const struct cuda_case_row *cuda_cases_all(unsigned *n);

/* Compare @n values of @got with @want. They may differ by at most @limit times the largest value
 * of @want. False: they differ by more, and @c records it. @what names the array. */
bool cuda_case_near(struct cuda_case *c, const char *what, const float *got, const float *want,
                    size_t n, double limit);

/* Record that @c failed for another reason. */
void cuda_case_fail(struct cuda_case *c, const char *words);

/* -- arrays on host and GPU (cuda_arrays.c). The caller frees arrays on the host. The program ends
 * when memory runs out. -- */

void *cuda_must(void *p);

/* Normally distributed numbers, as a function of @seed. */
float *cuda_numbers(size_t n, uint64_t seed, float deviation);
uint16_t *cuda_numbers16(size_t n, uint64_t seed, float deviation, float mean);
float *cuda_wide(const uint16_t *x, size_t n);

/* Allocate @bytes on the GPU and copy @from into them. @from NULL: fill them with 0xff, which is
 * NaN in every type. */
CUdeviceptr cuda_there(struct cuda_case *c, const void *from, size_t bytes);

/* Copy @n values from the GPU as fp32, and free them there. */
float *cuda_back(struct cuda_case *c, CUdeviceptr p, size_t n);
float *cuda_back16(struct cuda_case *c, CUdeviceptr p, size_t n);

/* Record that @c failed unless @rc is 0. */
void cuda_done(struct cuda_case *c, int rc, const struct cst_err *err);

/* Compare the values at @p, fp32 or bf16, as cuda_case_near does, and free them. */
void cuda_expect(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want, size_t n,
                 double limit);
void cuda_expect16(struct cuda_case *c, const char *what, CUdeviceptr p, const float *want,
                   size_t n, double limit);

/* Layers of the host with fp32 operands, in one thread. */
struct gpt_layers cuda_host_layers(size_t max_width, const struct gpt_attention_shape *shape);

/* -- cases of cuda_products.c ----------------------------------------------------------------- */

void cuda_case_product(struct cuda_case *c);
void cuda_case_epilogues(struct cuda_case *c);
void cuda_case_attention(struct cuda_case *c);

/* -- cases of cuda_mixture.c ------------------------------------------------------------------ */

void cuda_case_choose(struct cuda_case *c);
void cuda_case_rows(struct cuda_case *c);

#endif
