/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kernels.h"

#include "proto/table.h"

_Static_assert(CST_CUDA_TILE_ELEMS == CST_TILE_ELEMS, "kernels/cuda/args.h and proto/table.h");

/* The device code, made by nvcc and build-aux/embed.sh. */
extern const unsigned char cst_cuda_fatbin[];

/* Largest number of blocks in a grid. */
static const uint64_t MAX_BLOCKS = 0x7fffffff;

struct entry {
    const char *name;
    CUfunction *function;
};

int cst_cuda_kernels_open(struct cst_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          struct cst_err *err)
{
    struct cst_cuda_kernels made = {.driver = driver};
    const struct entry entries[] = {
        {"cst_reduce_kernel", &made.reduce},
        {"cst_norm_kernel", &made.norm},
        {"cst_cast_kernel", &made.cast},
        {"cst_upcast_kernel", &made.upcast},
        {"cst_sum_kernel", &made.sum},
        {"cst_total_fp32_kernel", &made.total_fp32},
        {"cst_total_bf16_kernel", &made.total_bf16},
        {"cst_direct_fp32_kernel", &made.direct[CST_MOMENTS_FP32]},
        {"cst_direct_bf16_kernel", &made.direct[CST_MOMENTS_BF16]},
        {"cst_direct_mx8_kernel", &made.direct[CST_MOMENTS_MX8]},
        {"cst_muon_sums_kernel", &made.muon_sums},
        {"cst_muon_scale_kernel", &made.muon_scale},
        {"cst_muon_product_kernel", &made.muon_product},
        {"cst_update_fp32_kernel", &made.update[CST_MOMENTS_FP32][CST_ROUNDING_STOCHASTIC]},
        {"cst_update_fp32_kernel", &made.update[CST_MOMENTS_FP32][CST_ROUNDING_NEAREST]},
        {"cst_update_bf16_kernel", &made.update[CST_MOMENTS_BF16][CST_ROUNDING_STOCHASTIC]},
        {"cst_update_bf16_nearest_kernel", &made.update[CST_MOMENTS_BF16][CST_ROUNDING_NEAREST]},
        {"cst_update_mx8_kernel", &made.update[CST_MOMENTS_MX8][CST_ROUNDING_STOCHASTIC]},
        {"cst_update_mx8_nearest_kernel", &made.update[CST_MOMENTS_MX8][CST_ROUNDING_NEAREST]},
    };
    int status = cst_cuda_check(driver, driver->cuModuleLoadData(&made.module, cst_cuda_fatbin),
                                err, "loading the kernels (sm_80, sm_90, PTX)");

    if (status != CST_OK) {
        return status;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        CUresult result =
            driver->cuModuleGetFunction(entries[i].function, made.module, entries[i].name);

        status = cst_cuda_check(driver, result, err, "kernel %s", entries[i].name);
        if (status != CST_OK) {
            goto err_after_load;
        }
    }
    *kernels = made;
    return CST_OK;

err_after_load:
    driver->cuModuleUnload(made.module);
    return status;
}

void cst_cuda_kernels_close(struct cst_cuda_kernels *kernels)
{
    kernels->driver->cuModuleUnload(kernels->module);
}

/* Launch a kernel for @n items, with @per_block items in a block of @threads. Without items nothing
 * is launched, because a grid has at least one block. */
static int launch(const struct cst_cuda_kernels *kernels, CUstream stream, CUfunction function,
                  const char *name, uint64_t n, uint64_t per_block, unsigned threads, void **args,
                  struct cst_err *err)
{
    uint64_t blocks = n / per_block + (n % per_block != 0);

    if (n == 0) {
        return CST_OK;
    }
    if (blocks > MAX_BLOCKS) {
        return cst_err_set(err, CST_EINVAL, "%s: %llu elements or tiles are more than a launch has",
                           name, (unsigned long long)n);
    }
    return cst_cuda_check(kernels->driver,
                          kernels->driver->cuLaunchKernel(function, (unsigned)blocks, 1, 1, threads,
                                                          1, 1, 0, stream, args, NULL),
                          err, "launch of %s", name);
}

int cst_cuda_update(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, CUdeviceptr spans, enum cst_moments moments,
                    enum cst_rounding rounding, const struct cst_cuda_update *update,
                    struct cst_err *err)
{
    struct cst_cuda_update copy = *update;
    void *args[] = {&tiles, &spans, &copy};

    if (moments >= CST_MOMENTS_COUNT || rounding >= CST_ROUNDING_COUNT) {
        return cst_err_set(err, CST_EINVAL, "update: moments %d, rounding %d", (int)moments,
                           (int)rounding);
    }
    copy.n_moments = cst_optimizer_n_moments((enum cst_optimizer)copy.optimizer);
    return launch(kernels, stream, kernels->update[moments][rounding], "update", n_tiles, 1,
                  CST_CUDA_UPDATE_THREADS, args, err);
}

int cst_cuda_direct(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, CUdeviceptr spans, enum cst_moments moments,
                    const struct cst_cuda_update *update, struct cst_err *err)
{
    struct cst_cuda_update copy = *update;
    void *args[] = {&tiles, &spans, &copy};

    if (moments >= CST_MOMENTS_COUNT) {
        return cst_err_set(err, CST_EINVAL, "directions: moments %d", (int)moments);
    }
    return launch(kernels, stream, kernels->direct[moments], "directions", n_tiles, 1,
                  CST_CUDA_UPDATE_THREADS, args, err);
}

/* Launch a kernel of muon.cu, whose argument is @arg, with @blocks blocks for each of @n pieces. */
static int launch_muon(const struct cst_cuda_kernels *kernels, CUstream stream, CUfunction function,
                       const char *name, uint64_t n, uint64_t blocks, void *arg,
                       struct cst_err *err)
{
    void *args[] = {arg};

    return launch(kernels, stream, function, name, n * blocks, 1, CST_CUDA_MUON_THREADS, args, err);
}

int cst_cuda_muon_sums(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                       const struct cst_cuda_muon_norm *norm, struct cst_err *err)
{
    struct cst_cuda_muon_norm copy = *norm;

    return launch_muon(kernels, stream, kernels->muon_sums, "sums of squares", n, 1, &copy, err);
}

int cst_cuda_muon_scale(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                        const struct cst_cuda_muon_norm *norm, struct cst_err *err)
{
    struct cst_cuda_muon_norm copy = *norm;

    return launch_muon(kernels, stream, kernels->muon_scale, "division by norms", n, 1, &copy, err);
}

int cst_cuda_muon_product(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                          const struct cst_cuda_product *product, struct cst_err *err)
{
    struct cst_cuda_product copy = *product;

    return launch_muon(kernels, stream, kernels->muon_product, "products", n,
                       CST_CUDA_PRODUCT_BLOCKS, &copy, err);
}

int cst_cuda_reduce(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                    CUdeviceptr sums, struct cst_err *err)
{
    struct cst_cuda_sources copy = *sources;
    void *args[] = {&n_tiles, &tiles, &copy, &dst, &sums};

    if (sources->n > CST_CUDA_MAX_SRC) {
        return cst_err_set(err, CST_EINVAL, "reduce: %u contributions, not 0 to %d", sources->n,
                           CST_CUDA_MAX_SRC);
    }
    return launch(kernels, stream, kernels->reduce, "reduce", n_tiles, CST_CUDA_BLOCK_TILES,
                  CST_CUDA_BLOCK_TILES * CST_CUDA_TILE_THREADS, args, err);
}

int cst_cuda_sum(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                 CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                 struct cst_err *err)
{
    struct cst_cuda_sources copy = *sources;
    void *args[] = {&n_tiles, &tiles, &copy, &dst};

    if (sources->n > CST_CUDA_MAX_SRC) {
        return cst_err_set(err, CST_EINVAL, "sum: %u contributions, not 0 to %d", sources->n,
                           CST_CUDA_MAX_SRC);
    }
    return launch(kernels, stream, kernels->sum, "sum", n_tiles, CST_CUDA_BLOCK_TILES,
                  CST_CUDA_BLOCK_TILES * CST_CUDA_TILE_THREADS, args, err);
}

int cst_cuda_norm(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr sums, CUdeviceptr out, struct cst_err *err)
{
    void *args[] = {&n, &sums, &out};

    /* One block for any n: with n = 0 the kernel stores the sum 0. */
    return launch(kernels, stream, kernels->norm, "norm", 1, 1, CST_CUDA_NORM_THREADS, args, err);
}

int cst_cuda_cast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr src, CUdeviceptr dst, struct cst_err *err)
{
    void *args[] = {&n, &src, &dst};

    return launch(kernels, stream, kernels->cast, "cast", n, CST_CUDA_CAST_ELEMS,
                  CST_CUDA_CAST_THREADS, args, err);
}

int cst_cuda_upcast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                    CUdeviceptr src, CUdeviceptr dst, struct cst_err *err)
{
    void *args[] = {&n, &src, &dst};

    return launch(kernels, stream, kernels->upcast, "upcast", n, CST_CUDA_CAST_ELEMS,
                  CST_CUDA_CAST_THREADS, args, err);
}

/* Launch @function, one of the total kernels, for elements of @elem_bytes. */
static int launch_total(const struct cst_cuda_kernels *kernels, CUstream stream,
                        CUfunction function, size_t elem_bytes, const struct cst_cuda_total *total,
                        struct cst_err *err)
{
    struct cst_cuda_total copy = *total;
    void *args[] = {&copy};

    if (total->n_src == 0 || total->n_src > CST_CUDA_MAX_SRC) {
        return cst_err_set(err, CST_EINVAL, "total: %u rows, not 1 to %d", total->n_src,
                           CST_CUDA_MAX_SRC);
    }
    return launch(kernels, stream, function, "total", total->n, CST_CUDA_TOTAL_BYTES / elem_bytes,
                  CST_CUDA_TOTAL_THREADS, args, err);
}

int cst_cuda_total_fp32(const struct cst_cuda_kernels *kernels, CUstream stream,
                        const struct cst_cuda_total *total, struct cst_err *err)
{
    return launch_total(kernels, stream, kernels->total_fp32, sizeof(float), total, err);
}

int cst_cuda_total_bf16(const struct cst_cuda_kernels *kernels, CUstream stream,
                        const struct cst_cuda_total *total, struct cst_err *err)
{
    return launch_total(kernels, stream, kernels->total_bf16, sizeof(uint16_t), total, err);
}
