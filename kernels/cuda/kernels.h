/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of cistern's CUDA kernels. The device code (update.cu, muon.cu, reduce.cu, norm.cu,
 * cast.cu, total.cu) is compiled for sm_80, for sm_90 and as PTX into one fatbinary, which is a
 * byte array in the program. The fatbinary is loaded through the table of driver calls; the CUDA
 * runtime is not used.
 *
 * The kernels produce the same bits as kernels/math/{update,muon,reduce,norm,cast,total}.h: they
 * use
 * __fmaf_rn, __fdiv_rn, __fsqrt_rn and __dadd_rn, keep the order of sums and subnormals, and store
 * NaN as those headers say. Tests compare with memcmp. Tests without a GPU compile the .cu files
 * for the processor (tests/lib/cudaemu). Tests with a GPU run the kernels on the GPU (tests/gpu).
 *
 * All launches are asynchronous on @stream. Pointers are device addresses, or addresses of pinned
 * host memory that is mapped for the device. Rows may begin at any whole element; 16-byte aligned
 * rows reach the bandwidth of the memory. Statuses are those of cst_cuda_check, and CST_EINVAL for
 * arguments that no launch supports. Any thread whose current context is that of the kernels. */
#ifndef CST_CUDA_KERNELS_H
#define CST_CUDA_KERNELS_H

#include "kernels/math/update.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/driver.h"

/* The loaded kernels. They are valid in the context into which they were loaded. */
struct cst_cuda_kernels {
    const struct cst_cuda_driver *driver; /* Driver; borrowed. */
    /* The fatbinary, loaded into the context of cst_cuda_kernels_open. */
    CUmodule module;
    CUfunction reduce, sum, norm, cast, upcast; /* Kernels of the module, named cst_..._kernel. */
    CUfunction update[CST_MOMENTS_COUNT][CST_ROUNDING_COUNT];
    CUfunction direct[CST_MOMENTS_COUNT]; /* Directions of Muon. */
    CUfunction muon_sums, muon_scale, muon_product;
    CUfunction total_fp32, total_bf16;
};

/* Load the kernels into the current context. On success, end with cst_cuda_kernels_close in the
 * same context. */
int cst_cuda_kernels_open(struct cst_cuda_kernels *kernels, const struct cst_cuda_driver *driver,
                          struct cst_err *err);
/* Unload the kernels. The context into which they were loaded is current. */
void cst_cuda_kernels_close(struct cst_cuda_kernels *kernels);

/* Update each of @n_tiles tiles as kernels/math/update.h says: update->rows (device addresses of
 * the rows of a chunk) with the scalars spans[tile.span]. Rows that are written may be rows that
 * are read. @tiles and @spans are device addresses. CST_EINVAL: there is no such format.
 *
 *   cst_update_fp32_kernel and the kernels of the other formats (kernels.c):
 *   (const struct cst_cuda_tile *, const struct cst_update_scalars *, struct cst_cuda_update) */
int cst_cuda_update(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, CUdeviceptr spans, enum cst_moments moments,
                    enum cst_rounding rounding, const struct cst_cuda_update *update,
                    struct cst_err *err);

/* Compute the directions of Muon of each of @n_tiles tiles (kernels/math/product.h) at
 * tile.direction, from the gradient and the first moment of update->rows. Those of a tile with
 * tile.keep are zeros. CST_EINVAL: there is no such format.
 *
 *   cst_direct_fp32_kernel and the kernels of the other formats (kernels.c):
 *   (const struct cst_cuda_tile *, const struct cst_update_scalars *, struct cst_cuda_update) */
int cst_cuda_direct(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, CUdeviceptr spans, enum cst_moments moments,
                    const struct cst_cuda_update *update, struct cst_err *err);

/* Make sums of squares number norm->first to norm->first + @n - 1, or (scale) divide their elements
 * by the norm of their matrix, of which all sums are made.
 *
 *   cst_muon_sums_kernel(struct cst_cuda_muon_norm)
 *   cst_muon_scale_kernel(struct cst_cuda_muon_norm) */
int cst_cuda_muon_sums(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                       const struct cst_cuda_muon_norm *norm, struct cst_err *err);
int cst_cuda_muon_scale(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                        const struct cst_cuda_muon_norm *norm, struct cst_err *err);

/* Make tiles product->first to product->first + @n - 1 of the products of all matrices.
 *
 *   cst_muon_product_kernel(struct cst_cuda_product) */
int cst_cuda_muon_product(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                          const struct cst_cuda_product *product, struct cst_err *err);

/* Do cst_reduce_fn for each of @n_tiles tiles: dst[..] := sum in rank order, sums[tile] := sum of
 * squares (double). @dst may be one of the sources.
 *
 *   cst_reduce_kernel(uint64_t n_tiles, const struct cst_cuda_tile *, struct cst_cuda_sources,
 *                     uint16_t *dst, double *sums) */
int cst_cuda_reduce(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                    CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                    CUdeviceptr sums, struct cst_err *err);

/* Make the first sum of kernels/math/accumulate.h for each of @n_tiles tiles: dst[..] := sum in
 * rank order, fp32. A NaN stays as the additions return it.
 *
 *   cst_sum_kernel(uint64_t n_tiles, const struct cst_cuda_tile *, struct cst_cuda_sources,
 *                  float *dst) */
int cst_cuda_sum(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n_tiles,
                 CUdeviceptr tiles, const struct cst_cuda_sources *sources, CUdeviceptr dst,
                 struct cst_err *err);

/* Do cst_norm_sum: *out (double, on the device) := sum of @n sums, added one after the other.
 *
 *   cst_norm_kernel(uint64_t n, const double *sums, double *out) */
int cst_cuda_norm(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr sums, CUdeviceptr out, struct cst_err *err);

/* Do cst_cast_fn or cst_upcast_fn for @n elements.
 *
 *   cst_cast_kernel(uint64_t n, const float *src, uint16_t *dst)
 *   cst_upcast_kernel(uint64_t n, const uint16_t *src, float *dst) */
int cst_cuda_cast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                  CUdeviceptr src, CUdeviceptr dst, struct cst_err *err);
int cst_cuda_upcast(const struct cst_cuda_kernels *kernels, CUstream stream, uint64_t n,
                    CUdeviceptr src, CUdeviceptr dst, struct cst_err *err);

/* Do cst_total_fp32_fn or cst_total_bf16_fn. CST_EINVAL: the number of rows is wrong.
 *
 *   cst_total_fp32_kernel(struct cst_cuda_total)
 *   cst_total_bf16_kernel(struct cst_cuda_total) */
int cst_cuda_total_fp32(const struct cst_cuda_kernels *kernels, CUstream stream,
                        const struct cst_cuda_total *total, struct cst_err *err);
int cst_cuda_total_bf16(const struct cst_cuda_kernels *kernels, CUstream stream,
                        const struct cst_cuda_total *total, struct cst_err *err);

#endif
