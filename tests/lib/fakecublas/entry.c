/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of the stand-in for libcublasLt.so.13. A product is a host function of the
 * stream. Descriptors are the program's: this library only reads what is set in them. */
#if __has_include(<cublasLt.h>)

#include "kernels/cuda/driver.h"
#include "tests/lib/fakecublas/product.h"
#include "tests/lib/fakecublas/settings.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is behind the opaque descriptors. */
struct desc {
    int32_t turn_a, turn_b, bias_type;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *aux;
    int64_t ld_aux;
};

struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

struct wish {
    uint64_t workspace;
};

/* Algorithms that the heuristic offers for each shape. All of them add in the same order. */
#define N_ALGOS 2

static struct cst_cuda_driver driver;
/* Products that were enqueued by each algorithm. */
static _Atomic unsigned launches[N_ALGOS];

unsigned cublasLtFakeLaunches(unsigned algo);
unsigned cublasLtFakeLaunches(unsigned algo)
{
    return algo < N_ALGOS ? atomic_load(&launches[algo]) : 0;
}

/* -- the library ------------------------------------------------------------------------------ */

cublasStatus_t CUBLASWINAPI cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    const cublasStatus_t fault = settings_fault(__func__);
    struct cst_err err = {0};

    if (fault != CUBLAS_STATUS_SUCCESS) {
        return fault;
    }
    if (cst_cuda_driver_open(&driver, &err) != CST_OK) {
        (void)fprintf(stderr, "fakecublas: %s\n", err.text);
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *lightHandle = (cublasLtHandle_t)&driver;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    (void)lightHandle;
    cst_cuda_driver_close(&driver);
    return CUBLAS_STATUS_SUCCESS;
}

size_t CUBLASWINAPI cublasLtGetVersion(void)
{
    return 130100;
}

const char *CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED      ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
           : status == CUBLAS_STATUS_ALLOC_FAILED     ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                      : "another status";
}

/* -- descriptors ------------------------------------------------------------------------------ */

/* Store a copy of the @bytes of @what in *out. */
static cublasStatus_t make(void **out, const void *what, size_t bytes, const char *name)
{
    const cublasStatus_t fault = settings_fault(name);

    if (fault != CUBLAS_STATUS_SUCCESS) {
        return fault;
    }
    *out = malloc(bytes);
    if (*out == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    memcpy(*out, what, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                                     cublasComputeType_t computeType,
                                                     cudaDataType_t scaleType)
{
    const struct desc desc = {.epilogue = CUBLASLT_EPILOGUE_DEFAULT};

    if (computeType != CUBLAS_COMPUTE_32F || scaleType != CUDA_R_32F) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return make((void **)matmulDesc, &desc, sizeof desc, __func__);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    free(matmulDesc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                                           cublasLtMatmulDescAttributes_t attr,
                                                           const void *buf, size_t sizeInBytes)
{
    struct desc *desc = (struct desc *)matmulDesc;
    const struct {
        cublasLtMatmulDescAttributes_t attr;
        void *to;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &desc->turn_a, sizeof desc->turn_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &desc->turn_b, sizeof desc->turn_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &desc->epilogue, sizeof desc->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &desc->bias, sizeof desc->bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &desc->bias_type, sizeof desc->bias_type},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &desc->aux, sizeof desc->aux},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &desc->ld_aux, sizeof desc->ld_aux},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].attr == attr && rows[i].bytes == sizeInBytes) {
            memcpy(rows[i].to, buf, sizeInBytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout,
                                                       cudaDataType type, uint64_t rows,
                                                       uint64_t cols, int64_t ld)
{
    const struct layout layout = {type, rows, cols, ld};

    return make((void **)matLayout, &layout, sizeof layout, __func__);
}

cublasStatus_t CUBLASWINAPI cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    free(matLayout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    const struct wish wish = {0};

    return make((void **)pref, &wish, sizeof wish, __func__);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    free(pref);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t attr, const void *buf,
    size_t sizeInBytes)
{
    struct wish *wish = (struct wish *)pref;

    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && sizeInBytes == sizeof wish->workspace) {
        memcpy(&wish->workspace, buf, sizeInBytes);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* -- products --------------------------------------------------------------------------------- */

/* As the library: rows of A and B are multiples of 16 bytes. */
static bool is_aligned(const struct layout *layout)
{
    return layout->type == CUDA_R_16BF && layout->ld % 8 == 0;
}

cublasStatus_t CUBLASWINAPI cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    const cublasStatus_t fault = settings_fault(__func__);
    const struct desc *desc = (const struct desc *)operationDesc;

    (void)lightHandle;
    (void)Cdesc;
    (void)Ddesc;
    (void)preference;
    *returnAlgoCount = 0;
    if (fault != CUBLAS_STATUS_SUCCESS) {
        return fault;
    }
    if (settings_refuses(desc->epilogue, false) || !is_aligned((const struct layout *)Adesc) ||
        !is_aligned((const struct layout *)Bdesc)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (unsigned i = 0; i < N_ALGOS && (int)i < requestedAlgoCount; i++) {
        heuristicResultsArray[i] =
            (cublasLtMatmulHeuristicResult_t){.algo.data[0] = i, .state = CUBLAS_STATUS_SUCCESS};
        (*returnAlgoCount)++;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static void CUDA_CB run(void *arg)
{
    product_run(arg);
    free(arg);
}

cublasStatus_t CUBLASWINAPI cublasLtMatmul(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void *alpha,
    const void *A, cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc,
    const void *beta, const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
    cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo, void *workspace,
    size_t workspaceSizeInBytes, cudaStream_t stream)
{
    const cublasStatus_t fault = settings_fault(__func__);
    const struct desc *desc = (const struct desc *)computeDesc;
    const struct layout *a = (const struct layout *)Adesc, *b = (const struct layout *)Bdesc,
                        *d = (const struct layout *)Ddesc;
    struct product *p;

    (void)lightHandle;
    (void)workspace;
    (void)workspaceSizeInBytes;
    if (fault != CUBLAS_STATUS_SUCCESS) {
        return fault;
    }
    if (algo->data[0] >= N_ALGOS || C != D || Cdesc != Ddesc) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (settings_refuses(desc->epilogue, true)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    p = malloc(sizeof *p);
    if (p == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *p = (struct product){
        .alpha = *(const float *)alpha,
        .beta = *(const float *)beta,
        .a = A,
        .b = B,
        .lda = (size_t)a->ld,
        .ldb = (size_t)b->ld,
        .ldd = (size_t)d->ld,
        .turn_a = desc->turn_a == CUBLAS_OP_T,
        .turn_b = desc->turn_b == CUBLAS_OP_T,
        .d = D,
        .fp32 = d->type == CUDA_R_32F,
        .m = d->rows,
        .n = d->columns,
        .k = desc->turn_a == CUBLAS_OP_T ? a->rows : a->columns,
        .epilogue = desc->epilogue,
        .bias = desc->bias,
        .aux = desc->aux,
        .ld_aux = (size_t)desc->ld_aux,
    };
    atomic_fetch_add(&launches[algo->data[0]], 1);
    if (driver.cuLaunchHostFunc((CUstream)stream, run, p) != CUDA_SUCCESS) {
        free(p);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

#endif
