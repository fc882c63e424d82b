/* SPDX-License-Identifier: Apache-2.0 */
/* cistern's CUDA kernels and how they are launched. The device code (update.cu, reduce.cu, norm.cu,
 * cast.cu) is compiled for sm_80, sm_90 and as PTX into one fatbinary that lies in the program as a
 * byte array, and is loaded through the driver table: no CUDA runtime.
 *
 * Same bits as kernels/{update,reduce,norm,cast}.h: __fmaf_rn, __fdiv_rn, __fsqrt_rn, __dadd_rn,
 * the same order of sums, subnormals kept, NaN as those headers say. Tests compare with memcmp:
 * without a GPU the same .cu files, compiled for the processor by tests/lib/cudaemu, with one they
 * run on it (tests/gpu).
 *
 * All launches are asynchronous on @stream; pointers are device addresses (or addresses of pinned
 * host memory that is mapped for the device); any alignment of whole elements, at the memory roof
 * where rows are 16-byte aligned. Errors: cst_cuda_check's, and CST_EINVAL for what no launch can
 * do. Any thread whose current context is that of the kernels. */
#ifndef CST_CUDA_KERNELS_H
#define CST_CUDA_KERNELS_H

#include "kernels/update.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/driver.h"

struct cst_cuda_kernels {
    const struct cst_cuda_driver *driver;       /* borrowed */
    CUmodule module;                            /* the fatbinary, in the context of _open */
    CUfunction reduce, sum, norm, cast, upcast; /* its kernels, named cst_..._kernel */
    CUfunction update[CST_MOMENTS_COUNT][CST_ROUNDING_COUNT];
};

/* Load them into the current context. On success: cst_cuda_kernels_close, in the same context. */
int cst_cuda_kernels_open(struct cst_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          struct cst_err *err);
void cst_cuda_kernels_close(struct cst_cuda_kernels *kernels);

/* The kernels of kernels/update.h on each of @n_tiles tiles: update->rows (device addresses, of a
 * chunk's rows) with spans[tile.span]; what is written may be what is read. @tiles and @spans are
 * device addresses. CST_EINVAL: no such format. Kernels: "cst_update_fp32_kernel" and those of the
 * other formats (kernels.c)(const struct cst_cuda_tile *, const struct cst_update_scalars *, struct
 * cst_cuda_update). */
int cst_cuda_update(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, CUdeviceptr spans, enum cst_moments moments,
                    enum cst_rounding rounding, const struct cst_cuda_update *update,
                    struct cst_err *err);

/* cst_reduce_fn on each of @n_tiles tiles: dst[..] := sum in rank order, sums[tile] := sum of
 * squares (double). @dst may be one of the sources. Kernel: "cst_reduce_kernel"(uint64_t n_tiles,
 * const struct cst_cuda_tile *, struct cst_cuda_sources, uint16_t *dst, double *sums). */
int cst_cuda_reduce(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                    CUdeviceptr sums, struct cst_err *err);

/* The first sum of kernels/accumulate.h for each of @n_tiles tiles: dst[..], fp32, := sum in rank
 * order, any NaN as the additions leave it. Kernel: "cst_sum_kernel"(uint64_t n_tiles, const struct
 * cst_cuda_tile *, struct cst_cuda_sources, float *dst). */
int cst_cuda_sum(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                 CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                 struct cst_err *err);

/* cst_norm_sum: *out (device, double) := sum of @n sums, one after the other. Kernel:
 * "cst_norm_kernel"(uint64_t n, const double *sums, double *out). */
int cst_cuda_norm(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr sums, CUdeviceptr out, struct cst_err *err);

/* cst_cast_fn, cst_upcast_fn. Kernels: "cst_cast_kernel"(uint64_t n, const float *src, uint16_t
 * *dst), "cst_upcast_kernel"(uint64_t n, const uint16_t *src, float *dst). */
int cst_cuda_cast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr src, CUdeviceptr dst, struct cst_err *err);
int cst_cuda_upcast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                    CUdeviceptr src, CUdeviceptr dst, struct cst_err *err);

#endif
