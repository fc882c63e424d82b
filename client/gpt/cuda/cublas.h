/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt, which is loaded at run time: libcublasLt.so.13 or .12 is opened by
 * name, and its functions are collected in a table. The program is not linked with the library.
 * Operands are bf16 and sums fp32.
 *
 * The bits of a product are those of the library's first choice for its shape, or the next one if
 * that is refused. They depend neither on the addresses of its operands nor on the run or the
 * store. */
#ifndef GPT_CUDA_CUBLAS_H
#define GPT_CUDA_CUBLAS_H

#include "kernels/cuda/driver.h"

#include <stdbool.h>
#include <stddef.h>

/* Operation on the sums of a product before they are stored. */
enum gpt_epilogue {
    GPT_EPILOGUE_NONE,
    GPT_EPILOGUE_BIAS,         /* sums + bias per column */
    GPT_EPILOGUE_BIAS_GELU,    /* pre := sums + bias; c := gelu(pre) */
    GPT_EPILOGUE_GELU_BACKWARD /* c := sums x gelu'(pre) */
};

/* c (m x n) = scale a b, row-major. a is m x k, or stored as k x m where @turn_a. b is k x n, or
 * stored as n x k where @turn_b. n is a multiple of 8. k is one too, except where both operands are
 * stored with k rows. m may be any number, except where @turn_a. */
struct gpt_product {
    size_t m, n, k;
    CUdeviceptr a, b; /* bf16, 16-byte aligned */
    bool turn_a, turn_b;
    CUdeviceptr c;   /* fp32 where @fp32, else bf16 */
    bool fp32;       /* allowed only without an epilogue */
    bool accumulate; /* c += a b; allowed only without an epilogue */
    float scale;     /* factor on a b; 0 means 1 */
    enum gpt_epilogue epilogue;
    CUdeviceptr bias; /* bf16, n elements */
    CUdeviceptr pre;  /* bf16, m x n */
};

struct gpt_cublas;

/* Open the library for the current context and allocate a workspace in device memory. The caller
 * closes it. CST_EUNSUPPORTED: the library is not installed or does not start, or this program was
 * built without its header. CST_ENOMEM. */
int gpt_cublas_open(struct gpt_cublas **out, const struct cst_cuda_driver *driver,
                    struct cst_err *err);
void gpt_cublas_close(struct gpt_cublas *cublas);

/* Enqueue @p on @stream. CST_EUNSUPPORTED: the library has no algorithm for this shape and
 * epilogue, or refuses all that it has, and nothing was enqueued. CST_ENOMEM, CST_EGPU,
 * CST_EINTERNAL. A call that times algorithms waits for the stream. */
int gpt_cublas_run(struct gpt_cublas *cublas, CUstream stream, const struct gpt_product *p,
                   struct cst_err *err);

/* Name and version, for example "cuBLASLt 13.1.0". The string is borrowed until
 * gpt_cublas_close. */
const char *gpt_cublas_name(const struct gpt_cublas *cublas);

#endif
