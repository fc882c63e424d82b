/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: the GPU's rate of bf16 matrix products with fp32 sums, as cuBLASLt reaches it: the best
 * of some square sizes, on random numbers (zeros need less power and run faster). The worker is
 * compared with it.
 *
 * cuBLASLt is loaded at run time. Usage: bench_matmul [--quick] [--json FILE] [--cublas FILE]. Exit
 * status 77: no GPU, or no cuBLASLt. */
#include "kernels/cuda/driver.h"

#include <cublasLt.h>

#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_GPU = 77, REPEATS = 5, LAUNCHES = 10, MAX_ELEMS_SIDE = 8192 };

#define WORKSPACE_BYTES ((size_t)64 << 20)

#define CUBLAS_CALLS(CALL)                                                                         \
    CALL(cublasLtCreate)                                                                           \
    CALL(cublasLtMatmulDescCreate)                                                                 \
    CALL(cublasLtMatmulDescSetAttribute)                                                           \
    CALL(cublasLtMatrixLayoutCreate)                                                               \
    CALL(cublasLtMatmulPreferenceCreate)                                                           \
    CALL(cublasLtMatmulPreferenceSetAttribute)                                                     \
    CALL(cublasLtMatmulAlgoGetHeuristic)                                                           \
    CALL(cublasLtMatmul)

struct bench {
    struct cst_cuda_driver cu;
#define FIELD(name) __typeof__(&(name)) name;
    CUBLAS_CALLS(FIELD)
#undef FIELD
    cublasLtHandle_t handle;
    CUstream stream;
    CUevent begin, end;
    CUdeviceptr a, b, c, workspace;
};

/* The measured product: c := a b, n x n each. a is transposed as BLAS defines it, so that both are
 * read along the rows over which the sums run. */
struct product {
    uint64_t n;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulHeuristicResult_t way;
};

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_matmul: %s\n", what);
    exit(EXIT_FAILURE);
}

static void call(struct bench *b, CUresult result, const char *what)
{
    struct cst_err err;

    if (cst_cuda_check(&b->cu, result, &err, "%s", what) != CST_OK) {
        die(err.text);
    }
}

static void blas(cublasStatus_t status, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)fprintf(stderr, "bench_matmul: %s: cuBLAS status %d\n", what, (int)status);
        exit(EXIT_FAILURE);
    }
}

/* -- opening -------------------------------------------------------------------------------- */

static int open_cublas(struct bench *b, const char *path)
{
    static const char *const known[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *library = path != NULL ? dlopen(path, RTLD_NOW) : NULL;

    for (size_t i = 0; i < sizeof known / sizeof known[0] && library == NULL && path == NULL; i++) {
        library = dlopen(known[i], RTLD_NOW);
    }
    if (library == NULL) {
        (void)printf("bench_matmul: no cuBLASLt: %s\n", dlerror());
        return NO_GPU;
    }
#define LOOK_UP(name)                                                                              \
    *(void **)(void *)&b->name = dlsym(library, #name);                                            \
    if (b->name == NULL) {                                                                         \
        die(#name " is not in cuBLASLt");                                                          \
    }
    CUBLAS_CALLS(LOOK_UP)
#undef LOOK_UP
    return 0;
}

static int open_gpu(struct bench *b)
{
    struct cst_err err;
    CUdevice device;
    CUcontext context;
    int rc = cst_cuda_driver_open(&b->cu, &err);

    if (rc != CST_OK) {
        (void)printf("bench_matmul: %s\n", err.text);
        return NO_GPU;
    }
    call(b, b->cu.cuDeviceGet(&device, 0), "device");
    call(b, b->cu.cuDevicePrimaryCtxRetain(&context, device), "context");
    call(b, b->cu.cuCtxSetCurrent(context), "context");
    call(b, b->cu.cuStreamCreateWithPriority(&b->stream, CU_STREAM_NON_BLOCKING, 0), "stream");
    call(b, b->cu.cuEventCreate(&b->begin, CU_EVENT_DEFAULT), "event");
    call(b, b->cu.cuEventCreate(&b->end, CU_EVENT_DEFAULT), "event");
    return 0;
}

/* Allocate @n bf16 numbers between -2 and 2, with random signs and digits. */
static CUdeviceptr random_matrix(struct bench *b, size_t n, uint64_t seed)
{
    uint16_t *values = malloc(2 * n);
    uint64_t x = 2 * seed + 1;
    CUdeviceptr at;

    if (values == NULL) {
        die("no memory");
    }
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        values[i] = (uint16_t)((x & 0x80ff) | 0x3f00);
    }
    call(b, b->cu.cuMemAlloc(&at, 2 * n), "memory");
    call(b, b->cu.cuMemcpyHtoDAsync(at, values, 2 * n, b->stream), "copy");
    call(b, b->cu.cuStreamSynchronize(b->stream), "copy");
    free(values);
    return at;
}

static void open_memory(struct bench *b, uint64_t n)
{
    b->a = random_matrix(b, n * n, 1);
    b->b = random_matrix(b, n * n, 2);
    b->c = random_matrix(b, n * n, 3);
    call(b, b->cu.cuMemAlloc(&b->workspace, WORKSPACE_BYTES), "workspace");
}

static void open_product(struct bench *b, struct product *p, uint64_t n)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t room = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    int found = 0;

    p->n = n;
    blas(b->cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
    blas(b->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed),
         "transposition");
    blas(b->cublasLtMatrixLayoutCreate(&p->layout, CUDA_R_16BF, n, n, (int64_t)n), "layout");
    blas(b->cublasLtMatmulPreferenceCreate(&preference), "preference");
    blas(b->cublasLtMatmulPreferenceSetAttribute(
             preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room),
         "workspace");
    blas(b->cublasLtMatmulAlgoGetHeuristic(b->handle, p->desc, p->layout, p->layout, p->layout,
                                           p->layout, preference, 1, &p->way, &found),
         "choosing a way");
    if (found == 0) {
        die("cuBLASLt knows no way to multiply");
    }
}

/* -- measuring ------------------------------------------------------------------------------ */

static void multiply(struct bench *b, const struct product *p)
{
    const float one = 1, zero = 0;

    blas(b->cublasLtMatmul(b->handle, p->desc, &one, (const void *)(uintptr_t)b->a, p->layout,
                           (const void *)(uintptr_t)b->b, p->layout, &zero,
                           (const void *)(uintptr_t)b->c, p->layout, (void *)(uintptr_t)b->c,
                           p->layout, &p->way.algo, (void *)(uintptr_t)b->workspace,
                           WORKSPACE_BYTES, (cudaStream_t)b->stream),
         "matmul");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median rate in TFLOP/s. */
static double measure(struct bench *b, const struct product *p)
{
    double rates[REPEATS], flop = 2.0 * (double)p->n * (double)p->n * (double)p->n * LAUNCHES;

    for (int r = -1; r < REPEATS; r++) { /* the first run warms up */
        float ms;

        call(b, b->cu.cuEventRecord(b->begin, b->stream), "event");
        for (int i = 0; i < LAUNCHES; i++) {
            multiply(b, p);
        }
        call(b, b->cu.cuEventRecord(b->end, b->stream), "event");
        call(b, b->cu.cuEventSynchronize(b->end), "products");
        call(b, b->cu.cuEventElapsedTime(&ms, b->begin, b->end), "event");
        if (r >= 0) {
            rates[r] = flop / (double)ms / 1e9;
        }
    }
    qsort(rates, REPEATS, sizeof rates[0], by_size);
    return rates[REPEATS / 2];
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"cublas", required_argument, NULL, 'c'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {NULL, 0, NULL, 0}};
    static struct bench b;
    const char *json = NULL, *cublas = NULL;
    uint64_t most = MAX_ELEMS_SIDE;
    double best = 0;
    FILE *file = NULL;
    int option, rc;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j') {
            json = optarg;
        } else if (option == 'c') {
            cublas = optarg;
        } else if (option == 'q') {
            most = 2048;
        } else {
            (void)fprintf(stderr, "usage: bench_matmul [--quick] [--json FILE] [--cublas FILE]\n");
            return 2;
        }
    }
    rc = open_gpu(&b);
    rc = rc != 0 ? rc : open_cublas(&b, cublas);
    if (rc != 0) {
        return rc;
    }
    blas(b.cublasLtCreate(&b.handle), "cublasLtCreate");
    open_memory(&b, most);
    for (uint64_t n = 2048; n <= most; n *= 2) {
        struct product product;
        double rate;

        open_product(&b, &product, n);
        rate = measure(&b, &product);
        (void)printf("bf16 product of %llu x %llu matrices: %.1f TFLOP/s\n", (unsigned long long)n,
                     (unsigned long long)n, rate);
        best = rate > best ? rate : best;
    }
    if (json != NULL && (file = fopen(json, "ae")) == NULL) {
        perror(json);
        return EXIT_FAILURE;
    }
    if (file != NULL) {
        (void)fprintf(file, "{\"name\": \"matmul\", \"value\": %.2f, \"unit\": \"TFLOP/s\"}\n",
                      best);
    }
    return file == NULL || fclose(file) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
