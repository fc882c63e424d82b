/* SPDX-License-Identifier: Apache-2.0 */
/* Test cases that compare the CUDA kernels with the C references bit by bit. The cases run on the
 * processor (tests/kernels/check_cuda_kernels, with cudaemu) and on a GPU
 * (tests/gpu/check_kernels). */
#ifndef CST_TESTS_CUDA_CASES_H
#define CST_TESTS_CUDA_CASES_H

#include "kernels/math/update.h"
#include "kernels/cuda/args.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The device that runs the kernels. Addresses are addresses of the device. All functions end the
 * program if the device fails. */
struct cases_device {
    /* Allocate @bytes at an address that is @offset above a multiple of 256. The memory around it
     * has a known content. */
    void *(*place)(struct cases_device *device, size_t bytes, size_t offset);
    /* Copy @bytes from the host to the device, or (get) from the device to the host. */
    void (*put)(struct cases_device *device, void *to, const void *from, size_t bytes);
    void (*get)(struct cases_device *device, void *to, const void *from, size_t bytes);
    /* Free everything that was placed. False if memory around it was written. */
    bool (*clear)(struct cases_device *device);
    /* Launch the kernels of kernels/cuda/kernels.h. The kernel is done when the function
     * returns. */
    void (*update)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   enum cst_rounding rounding, const struct cst_cuda_update *update);
    void (*direct)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   const struct cst_cuda_update *update);
    void (*muon_sums)(struct cases_device *device, uint64_t n,
                      const struct cst_cuda_muon_norm *norm);
    void (*muon_scale)(struct cases_device *device, uint64_t n,
                       const struct cst_cuda_muon_norm *norm);
    void (*muon_product)(struct cases_device *device, uint64_t n,
                         const struct cst_cuda_product *product);
    void (*reduce)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_cuda_sources *sources, uint16_t *dst, double *sums);
    void (*sum)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                const struct cst_cuda_sources *sources, float *dst);
    void (*norm)(struct cases_device *device, uint64_t n, const double *sums, double *out);
    void (*cast)(struct cases_device *device, uint64_t n, const float *src, uint16_t *dst);
    void (*upcast)(struct cases_device *device, uint64_t n, const uint16_t *src, float *dst);
    void (*total)(struct cases_device *device, bool is_fp32, const struct cst_cuda_total *total);
};

/* The result of one run of cases. */
struct cases_result {
    unsigned long long n_elems; /* number of compared elements */
    bool ok;                    /* no bit differed, and no memory around the rows was written */
    char why[192];              /* the first difference, if `ok` is false */
};

/* The test cases of one kernel. */
struct cases_op {
    const char *name; /* name of the kernel, such as "reduce" */
    void (*run)(struct cases_device *device, uint64_t seed, struct cases_result *result);
};

/* All test cases. *@n receives their number. */
const struct cases_op *cases_all(unsigned *n);

#endif
