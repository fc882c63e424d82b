/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the CUDA kernels' own source, run on the processor by cudaemu, with the C references. */
#include "tests/lib/cuda_cases.h"
#include "tests/lib/cudaemu/cudaemu.h"
#include "tests/lib/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_PLACED = 128, AROUND = 512, CANARY = 0xa5 };

/* Placed memory: canaries, the bytes, canaries up to a multiple of 16, an inaccessible page. */
struct placed {
    unsigned char *base; /* start of the mapping */
    size_t map_bytes;    /* size of the mapping, including the last page */
    unsigned char *at;   /* address that the kernel gets */
    size_t bytes;        /* size of the memory at `at` */
    size_t usable_bytes; /* size of the mapping without the last page */
};

struct emulator {
    struct cases_device device;
    struct placed placed[MAX_PLACED];
    unsigned n_placed;
};

static void *place(struct cases_device *device, size_t bytes, size_t offset)
{
    struct emulator *e = (struct emulator *)device;
    struct placed *p = &e->placed[e->n_placed++];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* The memory lies at the highest possible address that is @offset above a multiple of 16. */
    size_t tail = (16 - (offset + bytes) % 16) % 16;
    size_t usable = (AROUND + bytes + tail + page - 1) / page * page;

    ck_assert_uint_le(e->n_placed, MAX_PLACED);
    p->base = mmap(NULL, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(p->base, MAP_FAILED);
    ck_assert_int_eq(mprotect(p->base + usable, page, PROT_NONE), 0);
    memset(p->base, CANARY, usable);
    p->map_bytes = usable + page;
    p->usable_bytes = usable;
    p->at = p->base + usable - tail - bytes;
    p->bytes = bytes;
    return p->at;
}

static bool is_canary(const unsigned char *from, const unsigned char *to)
{
    while (from < to && *from == CANARY) {
        from++;
    }
    return from >= to;
}

static bool clear(struct cases_device *device)
{
    struct emulator *e = (struct emulator *)device;
    bool whole = true;

    for (unsigned i = 0; i < e->n_placed; i++) {
        struct placed *p = &e->placed[i];

        whole = whole && is_canary(p->base, p->at) &&
                is_canary(p->at + p->bytes, p->base + p->usable_bytes);
        munmap(p->base, p->map_bytes);
    }
    e->n_placed = 0;
    return whole;
}

static void copy(struct cases_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
}

/* Launch as kernels/cuda/kernels.c does. */
static void launch(const char *name, uint64_t n, uint64_t per_block, unsigned threads,
                   void **params)
{
    const unsigned grid[3] = {(unsigned)((n + per_block - 1) / per_block), 1, 1};
    const unsigned block[3] = {threads, 1, 1};
    const struct cst_emu_kernel *kernel = cst_emu_find(name);

    ck_assert_msg(kernel != NULL, "no kernel %s", name);
    kernel->run(grid, block, 0, params);
}

static void update(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   enum cst_rounding rounding, const struct cst_cuda_update *args)
{
    static const char *const names[CST_MOMENTS_COUNT][CST_ROUNDING_COUNT] = {
        [CST_MOMENTS_FP32] = {"cst_update_fp32_kernel", "cst_update_fp32_kernel"},
        [CST_MOMENTS_BF16] = {[CST_ROUNDING_STOCHASTIC] = "cst_update_bf16_kernel",
                              [CST_ROUNDING_NEAREST] = "cst_update_bf16_nearest_kernel"},
        [CST_MOMENTS_MX8] = {[CST_ROUNDING_STOCHASTIC] = "cst_update_mx8_kernel",
                             [CST_ROUNDING_NEAREST] = "cst_update_mx8_nearest_kernel"},
    };
    struct cst_cuda_update by_value = *args;

    (void)device;
    by_value.n_moments = cst_optimizer_n_moments((enum cst_optimizer)args->optimizer);
    launch(names[moments][rounding], n_tiles, 1, CST_CUDA_UPDATE_THREADS,
           (void *[]){&tiles, &spans, &by_value});
}

static void direct(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   const struct cst_cuda_update *args)
{
    static const char *const names[CST_MOMENTS_COUNT] = {
        [CST_MOMENTS_FP32] = "cst_direct_fp32_kernel",
        [CST_MOMENTS_BF16] = "cst_direct_bf16_kernel",
        [CST_MOMENTS_MX8] = "cst_direct_mx8_kernel",
    };
    struct cst_cuda_update by_value = *args;

    (void)device;
    launch(names[moments], n_tiles, 1, CST_CUDA_UPDATE_THREADS,
           (void *[]){&tiles, &spans, &by_value});
}

static void muon_sums(struct cases_device *device, uint64_t n,
                      const struct cst_cuda_muon_norm *norm)
{
    struct cst_cuda_muon_norm by_value = *norm;

    (void)device;
    launch("cst_muon_sums_kernel", n, 1, CST_CUDA_MUON_THREADS, (void *[]){&by_value});
}

static void muon_scale(struct cases_device *device, uint64_t n,
                       const struct cst_cuda_muon_norm *norm)
{
    struct cst_cuda_muon_norm by_value = *norm;

    (void)device;
    launch("cst_muon_scale_kernel", n, 1, CST_CUDA_MUON_THREADS, (void *[]){&by_value});
}

static void muon_product(struct cases_device *device, uint64_t n,
                         const struct cst_cuda_product *product)
{
    struct cst_cuda_product by_value = *product;

    (void)device;
    launch("cst_muon_product_kernel", n * CST_CUDA_PRODUCT_BLOCKS, 1, CST_CUDA_MUON_THREADS,
           (void *[]){&by_value});
}

static void reduce(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_cuda_sources *sources, uint16_t *dst, double *sums)
{
    struct cst_cuda_sources by_value = *sources;

    (void)device;
    launch("cst_reduce_kernel", n_tiles, CST_CUDA_BLOCK_TILES,
           CST_CUDA_BLOCK_TILES * CST_CUDA_TILE_THREADS,
           (void *[]){&n_tiles, &tiles, &by_value, &dst, &sums});
}

static void sum(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                const struct cst_cuda_sources *sources, float *dst)
{
    struct cst_cuda_sources by_value = *sources;

    (void)device;
    launch("cst_sum_kernel", n_tiles, CST_CUDA_BLOCK_TILES,
           CST_CUDA_BLOCK_TILES * CST_CUDA_TILE_THREADS,
           (void *[]){&n_tiles, &tiles, &by_value, &dst});
}

static void norm(struct cases_device *device, uint64_t n, const double *sums, double *out)
{
    (void)device;
    launch("cst_norm_kernel", 1, 1, CST_CUDA_NORM_THREADS, (void *[]){&n, &sums, &out});
}

static void cast(struct cases_device *device, uint64_t n, const float *src, uint16_t *dst)
{
    (void)device;
    launch("cst_cast_kernel", n, CST_CUDA_CAST_ELEMS, CST_CUDA_CAST_THREADS,
           (void *[]){&n, &src, &dst});
}

static void upcast(struct cases_device *device, uint64_t n, const uint16_t *src, float *dst)
{
    (void)device;
    launch("cst_upcast_kernel", n, CST_CUDA_CAST_ELEMS, CST_CUDA_CAST_THREADS,
           (void *[]){&n, &src, &dst});
}

static void total(struct cases_device *device, bool is_fp32, const struct cst_cuda_total *args)
{
    struct cst_cuda_total copied = *args;

    (void)device;
    launch(is_fp32 ? "cst_total_fp32_kernel" : "cst_total_bf16_kernel", args->n,
           CST_CUDA_TOTAL_BYTES / (is_fp32 ? 4u : 2u), CST_CUDA_TOTAL_THREADS, (void *[]){&copied});
}

static uint64_t seed(void)
{
    const char *words = getenv("CST_SEED");

    return words != NULL ? strtoull(words, NULL, 0) : 20;
}

static void run_op(int i, uint64_t order)
{
    static struct emulator e;
    unsigned n;
    const struct cases_op *op = &cases_all(&n)[i];
    struct cases_result result;

    e.device = (struct cases_device){.place = place,
                                     .put = copy,
                                     .get = copy,
                                     .clear = clear,
                                     .update = update,
                                     .direct = direct,
                                     .muon_sums = muon_sums,
                                     .muon_scale = muon_scale,
                                     .muon_product = muon_product,
                                     .reduce = reduce,
                                     .sum = sum,
                                     .norm = norm,
                                     .cast = cast,
                                     .upcast = upcast,
                                     .total = total};
    cst_emu_shuffle(order);
    op->run(&e.device, seed(), &result);
    ck_assert_msg(result.ok, "order %llu: %s", (unsigned long long)order, result.why);
    ck_assert_uint_gt(result.n_elems, 0);
}

/* Each kernel has the reference's bits and writes nothing else: with any length and alignment, 0 to
 * 64 sources, in place; with every optimizer, format and rounding, hostile values, hyper-parameters
 * per span, and tiles whose states are spared. */
START_TEST(test_bits)
{
    run_op(_i, 0);
}
END_TEST

/* The results do not depend on the order of threads between barriers, nor on the order of
 * blocks. */
START_TEST(test_any_order)
{
    run_op(_i, seed() * 2 + 1);
    run_op(_i, seed() * 2 + 2);
}
END_TEST

/* A kernel that is not linked is not found. */
START_TEST(test_unknown_kernel)
{
    ck_assert_ptr_null(cst_emu_find("cst_update"));
    ck_assert_ptr_nonnull(cst_emu_find("cst_update_fp32_kernel"));
}
END_TEST

/* Launch parameters have the sizes in the kernels' signatures. */
START_TEST(test_parameter_sizes)
{
    const unsigned reduce_bytes[] = {8, 8, sizeof(struct cst_cuda_sources), 8, 8, 0};
    const unsigned update_bytes[] = {8, 8, sizeof(struct cst_cuda_update), 0};

    ck_assert_mem_eq(cst_emu_find("cst_reduce_kernel")->param_bytes, reduce_bytes,
                     sizeof reduce_bytes);
    ck_assert_mem_eq(cst_emu_find("cst_update_mx8_kernel")->param_bytes, update_bytes,
                     sizeof update_bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_kernels");
    TCase *kernels = suite_case(suite, "kernels", NULL, NULL);
    unsigned n;

    (void)cases_all(&n);
    printf("seed %llu (CST_SEED)\n", (unsigned long long)seed());
    suite_add_loop(kernels, test_bits, 0, (int)n);
    suite_add_loop(kernels, test_any_order, 0, (int)n);
    tcase_add_test(kernels, test_unknown_kernel);
    tcase_add_test(kernels, test_parameter_sizes);
    return suite_run(suite);
}
