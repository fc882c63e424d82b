/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of products by cuBLASLt, without a GPU: on tests/lib/fakecuda and tests/lib/fakecublas.
 * What happens if it refuses an algorithm or an epilogue, or fails. */
#include "client/gpt/cuda/gpu.h"
#include "client/gpt/rng.h"
#include "kernels/math/cast.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative to the build tree, in which tests run. */
#define FAKECUDA "tests/lib/fakecuda/.libs/libcuda.so.1"
#define FAKECUBLAS "tests/lib/fakecublas/.libs/libcublasLt.so.13"

#define EXECUTION_FAILED 13 /* CUBLAS_STATUS_EXECUTION_FAILED */
#define NOT_SUPPORTED 15    /* CUBLAS_STATUS_NOT_SUPPORTED */

enum { M = 64, N = 40, K = 96, USES = 4 };

static struct gpt_gpu gpu;
static unsigned (*launches)(unsigned algo);
static CUdeviceptr a, b, bias, c, pre;

/* n numbers near 0, as a function of @seed, in device memory. */
static CUdeviceptr numbers(size_t n, uint64_t seed)
{
    uint16_t *x = malloc(n * sizeof *x);
    struct cst_err err = {0};
    CUdeviceptr p;

    for (size_t i = 0; i < n; i++) {
        x[i] = cst_fp32_to_bf16((float)(gpt_rng_u64(seed, 1, i) % 2001) / 1000.0f - 1.0f);
    }
    ck_assert_msg(gpt_gpu_alloc(&gpu, n * 4, "numbers", &p, &err) == 0, "%s", err.text);
    ck_assert_int_eq(gpt_gpu_upload(&gpu, p, x, n * sizeof *x, &err), 0);
    ck_assert_int_eq(gpt_gpu_wait(&gpu, &err), 0);
    free(x);
    return p;
}

/* Find the function that counts launches. False: cublasLt.h was not there when the stand-in was
 * compiled. */
static bool find_launches(void)
{
    void *library = dlopen(FAKECUBLAS, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)fprintf(stderr, "%s\n", dlerror());
        exit(EXIT_FAILURE);
    }
    *(void **)(void *)&launches = dlsym(library, "cublasLtFakeLaunches");
    return launches != NULL;
}

/* Open the GPU with the library. */
static void open_gpu(void)
{
    struct cst_err err = {0};

    ck_assert_msg(dlopen(FAKECUDA, RTLD_NOW | RTLD_LOCAL) != NULL, "%s", dlerror());
    ck_assert_msg(gpt_gpu_open(&gpu, "cuda:0", true, &err) == 0, "%s", err.text);
    ck_assert_msg(gpu.cublas != NULL, "%s", gpu.no_cublas.text);
    a = numbers(M * K, 1);
    b = numbers(K * N, 2);
    bias = numbers(N, 3);
    c = numbers(M * N, 4);
    pre = numbers(M * N, 5);
}

static void close_gpu(void)
{
    const CUdeviceptr all[] = {a, b, bias, c, pre};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        gpt_gpu_free(&gpu, all[i]);
    }
    gpt_gpu_close(&gpu);
}

static struct gpt_product product(enum gpt_epilogue epilogue)
{
    return (struct gpt_product){.m = M,
                                .n = N,
                                .k = K,
                                .a = a,
                                .b = b,
                                .c = c,
                                .epilogue = epilogue,
                                .bias = bias,
                                .pre = pre};
}

/* Compute @p, and copy its result to @out. */
static void compute(const struct gpt_product *p, uint16_t out[2 * M * N])
{
    struct cst_err err = {0};

    ck_assert_msg(gpt_gpu_product(&gpu, p, &err) == 0, "%s", err.text);
    ck_assert_int_eq(gpt_gpu_download(&gpu, out, p->c, M * N * (p->fp32 ? 4 : 2), &err), 0);
    ck_assert_int_eq(gpt_gpu_wait(&gpu, &err), 0);
}

/* An algorithm that the library refuses is not used again; the next one computes the product. */
START_TEST(refused_algorithms)
{
    static uint16_t got[2 * M * N];
    struct gpt_product p;
    char fail[64];

    (void)snprintf(fail, sizeof fail, "cublasLtMatmul:1=%d", NOT_SUPPORTED);
    (void)setenv("CST_FAKECUBLAS_FAIL", fail, 1);
    open_gpu();
    p = product(GPT_EPILOGUE_NONE);
    for (unsigned i = 1; i <= USES; i++) {
        compute(&p, got);
        ck_assert_uint_eq(launches(0), 0);
        ck_assert_uint_eq(launches(1), i);
    }
    close_gpu();
}
END_TEST

/* An epilogue that the library lacks or refuses is a kernel after the product, or the product is
 * our own kernel's. The results are near those of the library's epilogue. */
START_TEST(refused_epilogues)
{
    static const char *const variables[] = {"CST_FAKECUBLAS_LACKS", "CST_FAKECUBLAS_REFUSES"};
    static uint16_t want[2 * M * N], got[2 * M * N];

    open_gpu();
    for (int e = GPT_EPILOGUE_NONE; e <= GPT_EPILOGUE_GELU_BACKWARD; e++) {
        static const char *const refused[] = {"default", "default,bias", "gelu", "dgelu"};
        struct gpt_product p = product((enum gpt_epilogue)e);
        unsigned before;

        (void)unsetenv(variables[_i]);
        gpt_cublas_close(gpu.cublas);
        ck_assert_int_eq(gpt_cublas_open(&gpu.cublas, &gpu.driver, &gpu.no_cublas), 0);
        compute(&p, want);
        (void)setenv(variables[_i], refused[e], 1);
        gpt_cublas_close(gpu.cublas);
        ck_assert_int_eq(gpt_cublas_open(&gpu.cublas, &gpu.driver, &gpu.no_cublas), 0);
        before = launches(0);
        for (int i = 0; i < 2; i++) {
            compute(&p, got);
        }
        /* With GELU the product is still the library's. */
        ck_assert_uint_eq(launches(0) - before, e >= GPT_EPILOGUE_BIAS_GELU ? 2 : 0);
        for (size_t i = 0; i < M * N; i++) {
            const float x = cst_bf16_to_fp32(want[i]), y = cst_bf16_to_fp32(got[i]);

            ck_assert_msg(x - y < 0.1f && y - x < 0.1f, "epilogue %d, element %zu: %g, not %g", e,
                          i, (double)y, (double)x);
        }
    }
    close_gpu();
}
END_TEST

/* Faults of the library end the product with words. */
START_TEST(faults)
{
    char fail[64];
    int n_failed = 0;

    (void)snprintf(fail, sizeof fail, "cublasLtMatmul:%d=%d", _i, EXECUTION_FAILED);
    (void)setenv("CST_FAKECUBLAS_FAIL", fail, 1);
    open_gpu();
    for (int i = 0; i < USES; i++) {
        const struct gpt_product p = product(GPT_EPILOGUE_NONE);
        struct cst_err err = {0};
        int rc = gpt_gpu_product(&gpu, &p, &err);

        if (rc != 0) {
            n_failed++;
            ck_assert_int_eq(rc, CST_EGPU);
            ck_assert_ptr_nonnull(strstr(err.text, "EXECUTION_FAILED"));
        }
    }
    ck_assert_int_eq(n_failed, 1);
    close_gpu();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_library");
    TCase *tcase = suite_case(suite, "cuda_library", NULL, NULL);

    if (!find_launches()) {
        (void)puts("skipped: the stand-in was built without cublasLt.h");
        return 77;
    }
    tcase_add_test(tcase, refused_algorithms);
    suite_add_loop(tcase, refused_epilogues, 0, 2);
    suite_add_loop(tcase, faults, 1, USES + 1);
    tcase_set_timeout(tcase, 60);
    return suite_run(suite);
}
