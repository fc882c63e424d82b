/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt, found at run time: libcublasLt.so.13 or .12 is opened by name and
 * its functions are one table; nothing is linked with it. bf16 operands, sums in fp32. What is
 * chosen for a product depends on its shape alone, never on where its operands lie, so that the
 * bits do not depend on the store. */
#ifndef GPT_CUDA_CUBLAS_H
#define GPT_CUDA_CUBLAS_H

#include "kernels/cuda/driver.h"

#include <stdbool.h>
#include <stddef.h>

/* What a product does with its sums before it stores them. */
enum gpt_epilogue {
    GPT_EPILOGUE_NONE,
    GPT_EPILOGUE_BIAS,         /* + bias per column */
    GPT_EPILOGUE_BIAS_GELU,    /* pre := sums + bias; c := gelu(pre) */
    GPT_EPILOGUE_GELU_BACKWARD /* c := sums x gelu'(pre) */
};

/* c (m x n) = scale a b, row-major. a is m x k, or stored as k x m where @turn_a; b is k x n, or
 * stored as n x k where @turn_b. Sizes are multiples of 8 but m, and k where both operands have it
 * as their rows. */
struct gpt_product {
    size_t m, n, k;
    CUdeviceptr a, b; /* bf16, 16-byte aligned */
    bool turn_a, turn_b;
    CUdeviceptr c;   /* bf16, or fp32 where @fp32 */
    bool fp32;       /* without epilogue alone */
    bool accumulate; /* c += a b; without epilogue alone */
    float scale;     /* of a b; 0: 1 */
    enum gpt_epilogue epilogue;
    CUdeviceptr bias; /* bf16, n */
    CUdeviceptr pre;  /* bf16, m x n */
};

struct gpt_cublas;

/* Open the library for the current context, with a workspace in its memory. CST_EUNSUPPORTED: it is
 * not there, it will not start, or this program was built without its header; CST_ENOMEM. */
int gpt_cublas_open(struct gpt_cublas **out, const struct cst_cuda_driver *driver,
                    struct cst_err *err);
void gpt_cublas_close(struct gpt_cublas *cublas);

/* Enqueue @p on @stream. CST_EUNSUPPORTED: the library has nothing for this shape and epilogue, and
 * nothing was enqueued; CST_EGPU. */
int gpt_cublas_run(struct gpt_cublas *cublas, CUstream stream, const struct gpt_product *p,
                   struct cst_err *err);

/* "cuBLASLt 13.1.0" */
const char *gpt_cublas_name(const struct gpt_cublas *cublas);

#endif
