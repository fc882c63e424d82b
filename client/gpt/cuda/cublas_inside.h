/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by the files of cuBLASLt: cublas.c (library, plans, products) and
 * cublas_trial.c (which of the library's algorithms a plan uses). */
#ifndef GPT_CUDA_CUBLAS_INSIDE_H
#define GPT_CUDA_CUBLAS_INSIDE_H

#include "client/gpt/cuda/cublas.h"

#if __has_include(<cublasLt.h>)
#define GPT_HAVE_CUBLAS

#include <cublasLt.h>

/* NVIDIA advises at least 32 MiB for Hopper. */
#define GPT_CUBLAS_WORKSPACE (64u << 20)
/* Shapes whose plans are kept. A dense model uses about 20, and one with adapters about 50. A
 * mixture uses about 10 for each number of rows of an expert. */
#define GPT_CUBLAS_SHAPES 256
/* Algorithms that the library is asked for, for each shape. */
#define GPT_CUBLAS_ALGOS 8

/* The library's functions that are used. CALL(name) is expanded for each of them. */
#define GPT_CUBLAS_CALLS(CALL)                                                                     \
    CALL(cublasLtCreate)                                                                           \
    CALL(cublasLtDestroy)                                                                          \
    CALL(cublasLtGetVersion)                                                                       \
    CALL(cublasLtGetStatusString)                                                                  \
    CALL(cublasLtMatmul)                                                                           \
    CALL(cublasLtMatmulAlgoGetHeuristic)                                                           \
    CALL(cublasLtMatmulDescCreate)                                                                 \
    CALL(cublasLtMatmulDescDestroy)                                                                \
    CALL(cublasLtMatmulDescSetAttribute)                                                           \
    CALL(cublasLtMatmulPreferenceCreate)                                                           \
    CALL(cublasLtMatmulPreferenceDestroy)                                                          \
    CALL(cublasLtMatmulPreferenceSetAttribute)                                                     \
    CALL(cublasLtMatrixLayoutCreate)                                                               \
    CALL(cublasLtMatrixLayoutDestroy)

/* A shape that was requested, with the library's choices. The library's matrices are column-major.
 * Therefore it computes c^T (n x m) = b^T a^T: its A is our b, and its B our a. */
struct gpt_cublas_plan {
    struct gpt_product like; /* shape, transpositions, fp32 and epilogue */
    bool supported;          /* false: no field below is valid */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* layouts of the library's A, of its B, and of its C and D */
    /* Algorithms, in the order in which they are used: one after the first only if those before it
     * are refused. Before the trial this is the library's order, and all of them remain; after it
     * all give the same bits. */
    cublasLtMatmulAlgo_t algos[GPT_CUBLAS_ALGOS];
    unsigned n_algos;
    unsigned n_uses; /* products so far, up to GPT_CUBLAS_TRIAL_USE */
};

struct gpt_cublas {
    const struct cst_cuda_driver *driver; /* borrowed */
    void *library;                        /* handle of dlopen */
#define GPT_CUBLAS_FIELD(name) __typeof__(&name) name;
    GPT_CUBLAS_CALLS(GPT_CUBLAS_FIELD)
#undef GPT_CUBLAS_FIELD
    cublasLtHandle_t handle;
    CUdeviceptr workspace; /* GPT_CUBLAS_WORKSPACE bytes of device memory */
    char words[32];        /* name and version */
    size_t n_made;         /* number of plans made so far */
    /* The newest plans: plan number i is at index i modulo GPT_CUBLAS_SHAPES. */
    struct gpt_cublas_plan plans[GPT_CUBLAS_SHAPES];
};

/* Returns whether @status says that the library cannot compute the product in this way. Nothing was
 * enqueued then. */
bool gpt_cublas_refuses(cublasStatus_t status);

/* Enqueue product @p, whose shape is @plan's, by @algo, added to c times @beta. */
cublasStatus_t gpt_cublas_enqueue(const struct gpt_cublas *cublas,
                                  const struct gpt_cublas_plan *plan,
                                  const cublasLtMatmulAlgo_t *algo, float beta,
                                  const struct gpt_product *p, CUstream stream);

/* Set @err to the words of @status. Returns the status that it stands for. */
int gpt_cublas_fault(const struct gpt_cublas *cublas, cublasStatus_t status, const char *what,
                     struct cst_err *err);

/* The use of a shape before which its algorithms are tried. A shape that is used less often, such
 * as that of an expert with an unusual number of rows, is not worth a trial. */
#define GPT_CUBLAS_TRIAL_USE 4

/* Time the algorithms of @plan on @stream with operands of its own, and wait for the stream. The
 * fastest one whose result has the bits of the first one's comes first afterwards. The operands
 * show the order of every sum. The first one stays behind it, and the others go. Without enough
 * free memory for a trial the first one stays. CST_EGPU, CST_EINTERNAL: the stream or the library
 * failed. */
int gpt_cublas_try(const struct gpt_cublas *cublas, struct gpt_cublas_plan *plan, CUstream stream,
                   struct cst_err *err);

#endif
#endif
