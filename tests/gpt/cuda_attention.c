/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the attention kernels. client/gpt/cuda/attention.c launches their CUDA source, and
 * cudaemu runs it on the processor. The results are compared with the formula in double precision
 * and with the host's attention. */
#include "client/gpt/cuda/attention.h"
#include "kernels/math/cast.h"
#include "tests/gpt/support.h"
#include "tests/lib/attention_reference.h"
#include "tests/lib/cudaemu/cudaemu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Number of guard bytes before and after results, and their value. */
enum { GUARD = 64, CANARY = 0xa5 };

static uint64_t seed = 20;

/* -- a driver of a few calls ------------------------------------------------------------------ */

static unsigned n_launches;

static const char *const no_kernel = "none of that name";

static CUresult find(CUfunction *out, CUmodule module, const char *name)
{
    const struct cst_emu_kernel *kernel = cst_emu_find(name);

    (void)module;
    *out = (CUfunction)(uintptr_t)kernel;
    return kernel != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult not_found(CUfunction *out, CUmodule module, const char *name)
{
    return strcmp(name, "gpt_attention_dkv_64") == 0 ? CUDA_ERROR_NOT_FOUND
                                                     : find(out, module, name);
}

static CUresult name_of(CUresult result, const char **out)
{
    (void)result;
    *out = no_kernel;
    return CUDA_SUCCESS;
}

/* A kernel asks for no more shared memory than a block of sm_80 can have. */
static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ck_assert_ptr_nonnull(function);
    ck_assert_int_eq(attribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    ck_assert_int_le(value, 163 * 1024);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       CUstream stream, void **params, void **extra)
{
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};

    ck_assert_ptr_null(stream);
    ck_assert_ptr_null(extra);
    n_launches++;
    ((const struct cst_emu_kernel *)(uintptr_t)function)->run(grid, block, shared, params);
    return CUDA_SUCCESS;
}

static const struct cst_cuda_driver driver = {
    .cuModuleGetFunction = find,
    .cuFuncSetAttribute = set_attribute,
    .cuLaunchKernel = launch,
    .cuGetErrorName = name_of,
    .cuGetErrorString = name_of,
};

static struct gpt_cuda_attention_kernels kernels;

static void open_kernels(void)
{
    struct cst_err err = {0};

    ck_assert_msg(gpt_cuda_attention_open(&kernels, &driver, NULL, &err) == CST_OK, "%s", err.text);
    cst_emu_shuffle(0);
}

/* -- running the kernels ---------------------------------------------------------------------- */

/* Copy @bytes from @from into new memory between guard bytes. */
static unsigned char *guarded(const void *from, size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);

    ck_assert_ptr_nonnull(p);
    memset(p, CANARY, bytes + 2 * GUARD);
    memcpy(p + GUARD, from, bytes);
    return p + GUARD;
}

/* Copy the bytes to @to and free the memory. The guard bytes must be unchanged. */
static void unguard(unsigned char *p, void *to, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++) {
        ck_assert_uint_eq(p[-1 - (ptrdiff_t)i], CANARY);
        ck_assert_uint_eq(p[bytes + i], CANARY);
    }
    memcpy(to, p, bytes);
    free(p - GUARD);
}

static CUdeviceptr at(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

static void forward(struct attention_field *f)
{
    unsigned char *out = guarded(f->out, f->n_out * 2), *lse = guarded(f->lse, f->n_lse * 4);
    struct cst_err err = {0};

    ck_assert_msg(
        gpt_cuda_attention(&kernels, NULL, &f->shape, at(f->qkv), at(out), at(lse), &err) == CST_OK,
        "%s", err.text);
    unguard(out, f->out, f->n_out * 2);
    unguard(lse, f->lse, f->n_lse * 4);
}

static void backward(struct attention_field *f)
{
    const size_t bytes = gpt_cuda_attention_scratch(&f->shape);
    unsigned char *dqkv = guarded(f->dqkv, f->n_out * 6), *junk = calloc(1, bytes), *scratch;
    struct cst_err err = {0};

    ck_assert_ptr_nonnull(junk);
    memset(junk, 0xff, bytes);
    scratch = guarded(junk, bytes);
    ck_assert_msg(gpt_cuda_attention_backward(&kernels, NULL, &f->shape, at(f->qkv), at(f->out),
                                              at(f->lse), at(f->dout), at(dqkv), at(scratch),
                                              &err) == CST_OK,
                  "%s", err.text);
    unguard(dqkv, f->dqkv, f->n_out * 6);
    unguard(scratch, junk, bytes);
    free(junk);
}

/* -- tests ------------------------------------------------------------------------------------ */

/* The contexts have one position, are below, at and above tiles, or have several tiles. The heads
 * are as wide as those of each instance or narrower. There are one or two sequences. */
static const struct gpt_attention_shape shapes[] = {
    {1, 1, 1, 16},    {2, 33, 2, 16},   {1, 100, 1, 32}, {1, 77, 3, 48},
    {2, 64, 1, 64},   {1, 131, 2, 64},  {1, 150, 1, 80}, {2, 65, 2, 96},
    {1, 129, 1, 112}, {1, 200, 1, 128}, {1, 70, 2, 144}, {1, 133, 1, 256},
};
#define N_SHAPES (int)(sizeof shapes / sizeof shapes[0])

/* The limits allow for a few roundings to bf16: 2^-9 of the largest number in a sum, and of a
 * probability. */
static void check_errors(const struct attention_field *f)
{
    const struct attention_error e = attention_compare(f);

    if (getenv("CST_VERBOSE") != NULL) {
        printf("%zu x %zu x %zu x %zu: out %.2e (%.2e) lse %.2e dq %.2e dk %.2e dv %.2e (%.2e)\n",
               f->shape.n_seqs, f->shape.context, f->shape.n_heads, f->shape.head_dim, e.out,
               e.out_worst, e.lse, e.dq, e.dk, e.dv, e.dqkv_worst);
    }
    ck_assert_double_lt(e.out, 3e-3);
    ck_assert_double_lt(e.out_worst, 2e-2);
    ck_assert_double_lt(e.lse, 1e-6);
    if (f->shape.context > 1) { /* With one position dq and dk are 0. */
        ck_assert_double_lt(e.dq, 4e-3);
        ck_assert_double_lt(e.dk, 4e-3);
    }
    ck_assert_double_lt(e.dv, 4e-3);
    ck_assert_double_lt(e.dqkv_worst, 6e-3);
}

/* Out, lse and gradients are those of the formula except for roundings to bf16, and no other memory
 * is written. */
START_TEST(attention_is_the_formula)
{
    struct attention_field f;

    attention_field_init(&f, shapes[_i], seed, 1.0f);
    attention_reference(&f);
    forward(&f);
    backward(&f);
    check_errors(&f);
    attention_field_close(&f);
}
END_TEST

/* Out, lse and gradients are those of the host's attention except for roundings to bf16. */
START_TEST(attention_is_the_hosts)
{
    struct attention_field f;
    struct gpt_layers layers;
    float *up, *host;

    attention_field_init(&f, shapes[_i], seed, 1.0f);
    forward(&f);
    backward(&f);
    ck_assert_int_eq(
        gpt_layers_init(&layers, gpt_simd_get("plain"), false, 1, 3 * f.n_out, &f.shape), 0);
    up = aligned_alloc(64, (8 * f.n_out * sizeof *up + 63) / 64 * 64);
    host = aligned_alloc(64, (f.n_lse * sizeof *host + 63) / 64 * 64);
    ck_assert_ptr_nonnull(up);
    ck_assert_ptr_nonnull(host);
    gpt_upcast(&layers, 3 * f.n_out, f.qkv, up);
    gpt_upcast(&layers, f.n_out, f.dout, up + 3 * f.n_out);
    gpt_attention(&layers, &f.shape, up, up + 4 * f.n_out, host);
    gpt_attention_backward(&layers, &f.shape, up, up + 4 * f.n_out, host, up + 3 * f.n_out,
                           up + 5 * f.n_out);
    for (size_t i = 0; i < 3 * f.n_out; i++) {
        f.DQKV[i] = (double)up[5 * f.n_out + i];
        f.OUT[i % f.n_out] = (double)up[4 * f.n_out + i % f.n_out];
        f.LSE[i % f.n_lse] = (double)host[i % f.n_lse];
    }
    check_errors(&f);
    free(up);
    free(host);
    gpt_layers_close(&layers);
    attention_field_close(&f);
}
END_TEST

static void assert_finite(const uint16_t *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg((a[i] & 0x7f80) != 0x7f80, "element %zu is not finite", i);
    }
}

/* Scores of hundreds and thousands do not overflow, neither forward nor backward. Nearly all
 * probability is on one key, and dv is right. */
START_TEST(large_scores_do_not_overflow)
{
    static const struct gpt_attention_shape large[] = {
        {1, 150, 1, 16}, {1, 150, 1, 64}, {1, 150, 1, 128}, {1, 80, 1, 256}};
    struct attention_field f;
    struct attention_error e;

    attention_field_init(&f, large[_i], seed + 1, 14.0f);
    attention_reference(&f);
    forward(&f);
    backward(&f);
    e = attention_compare(&f);
    ck_assert_double_lt(e.out, 3e-3);
    ck_assert_double_lt(e.dv, 4e-3);
    ck_assert_double_lt(e.lse, 1e-6);
    assert_finite(f.dqkv, 3 * f.n_out);
    attention_field_close(&f);
}
END_TEST

/* One shape of several tiles for each instance. */
static const struct gpt_attention_shape several[] = {
    {1, 150, 2, 32}, {2, 140, 1, 64}, {1, 140, 1, 128}, {1, 90, 1, 256}};

/* Two runs give the same bits, whatever the order of threads and blocks is. */
START_TEST(runs_have_the_same_bits)
{
    struct attention_field one, two;

    attention_field_init(&one, several[_i], seed, 1.0f);
    attention_field_init(&two, several[_i], seed, 1.0f);
    forward(&one);
    backward(&one);
    cst_emu_shuffle(seed * 2 + 3);
    forward(&two);
    cst_emu_shuffle(seed * 2 + 4);
    backward(&two);
    ck_assert_mem_eq(one.out, two.out, one.n_out * 2);
    ck_assert_mem_eq(one.lse, two.lse, one.n_lse * 4);
    ck_assert_mem_eq(one.dqkv, two.dqkv, one.n_out * 6);
    attention_field_close(&one);
    attention_field_close(&two);
}
END_TEST

/* Later positions have no influence: other numbers after position 69 change neither out nor dq up
 * to it. */
START_TEST(attention_is_causal)
{
    struct gpt_attention_shape shape = several[_i];
    const size_t t = 70, width = shape.n_heads * shape.head_dim;
    struct attention_field one, two;

    shape.n_seqs = 1;
    attention_field_init(&one, shape, seed, 1.0f);
    attention_field_init(&two, shape, seed, 1.0f);
    test_fill_bf16(two.dout + t * width, one.n_out - t * width, 77, 3.0f);
    test_fill_bf16(two.qkv + 3 * t * width, 3 * (one.n_out - t * width), 78, 3.0f);
    forward(&one);
    forward(&two);
    backward(&one);
    backward(&two);
    ck_assert_mem_eq(one.out, two.out, t * width * 2);
    ck_assert_mem_ne(one.out, two.out, one.n_out * 2);
    for (size_t i = 0; i < t; i++) {
        ck_assert_mem_eq(one.dqkv + i * 3 * width, two.dqkv + i * 3 * width, width * 2);
    }
    attention_field_close(&one);
    attention_field_close(&two);
}
END_TEST

/* A NaN in a key appears in the outputs of all queries that see the key, and in no other output. */
START_TEST(nans_show)
{
    const struct gpt_attention_shape shape = several[_i];
    const size_t width = shape.n_heads * shape.head_dim;
    struct attention_field f;

    attention_field_init(&f, shape, seed, 1.0f);
    f.qkv[40 * 3 * width + width] = 0x7fc0;
    forward(&f);
    assert_finite(f.out, 40 * width);
    for (size_t i = 40; i < shape.context; i++) {
        ck_assert_uint_eq(f.out[i * width] & 0x7fc0, 0x7fc0);
    }
    attention_field_close(&f);
}
END_TEST

/* Head widths that no instance takes, and too large grids, are refused with an error text and
 * without a launch, forward and backward. A shape of no sequences succeeds without a launch. */
START_TEST(shapes_are_checked)
{
    static const size_t dims[] = {0, 8, 24, 272};
    struct gpt_attention_shape shape = {1, 16, 1, 64};
    struct cst_err err = {0};

    n_launches = 0;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        shape.head_dim = dims[i];
        ck_assert_int_eq(gpt_cuda_attention(&kernels, NULL, &shape, 0, 0, 0, &err),
                         CST_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.text, "multiple of 16"));
        ck_assert_int_eq(
            gpt_cuda_attention_backward(&kernels, NULL, &shape, 0, 0, 0, 0, 0, 0, &err),
            CST_EUNSUPPORTED);
    }
    shape = (struct gpt_attention_shape){(size_t)1 << 24, 100000, 16, 64};
    ck_assert_int_eq(gpt_cuda_attention(&kernels, NULL, &shape, 0, 0, 0, &err), CST_EUNSUPPORTED);
    shape = (struct gpt_attention_shape){0, 16, 1, 64};
    ck_assert_int_eq(gpt_cuda_attention(&kernels, NULL, &shape, 0, 0, 0, &err), CST_OK);
    ck_assert_uint_eq(n_launches, 0);
}
END_TEST

/* A module that lacks a kernel is refused, and the error text names the kernel. */
START_TEST(kernels_are_looked_up)
{
    struct cst_cuda_driver lacking = driver;
    struct gpt_cuda_attention_kernels before = kernels;
    struct cst_err err = {0};

    lacking.cuModuleGetFunction = not_found;
    ck_assert_int_ne(gpt_cuda_attention_open(&kernels, &lacking, NULL, &err), CST_OK);
    ck_assert_ptr_nonnull(strstr(err.text, "gpt_attention_dkv_64"));
    ck_assert_mem_eq(&kernels, &before, sizeof before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_attention");
    TCase *tcase = suite_case(suite, "cuda_attention", open_kernels, NULL);

    if (getenv("CST_SEED") != NULL) {
        seed = strtoull(getenv("CST_SEED"), NULL, 0);
    }
    printf("seed %llu (CST_SEED)\n", (unsigned long long)seed);
    suite_add_loop(tcase, attention_is_the_formula, 0, N_SHAPES);
    suite_add_loop(tcase, attention_is_the_hosts, 0, N_SHAPES);
    suite_add_loop(tcase, large_scores_do_not_overflow, 0, 4);
    suite_add_loop(tcase, runs_have_the_same_bits, 0, 4);
    suite_add_loop(tcase, attention_is_causal, 0, 4);
    suite_add_loop(tcase, nans_show, 0, 4);
    tcase_add_test(tcase, shapes_are_checked);
    tcase_add_test(tcase, kernels_are_looked_up);
    return suite_run(suite);
}
