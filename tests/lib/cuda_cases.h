/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA kernels must do, against the C references, bit by bit: the same cases on the
 * processor (tests/kernels/check_cuda_kernels, through cudaemu) and on a GPU
 * (tests/gpu/check_kernels). */
#ifndef CST_TESTS_CUDA_CASES_H
#define CST_TESTS_CUDA_CASES_H

#include "kernels/update.h"
#include "kernels/cuda/args.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the kernels run. Addresses are those that kernels take. All functions end the program when
 * the device fails. */
struct cases_device {
    /* @bytes at an address that is @offset above a multiple of 256. What lies around them is known.
     */
    void *(*place)(struct cases_device *device, size_t bytes, size_t offset);
    void (*put)(struct cases_device *device, void *to, const void *from, size_t bytes);
    void (*get)(struct cases_device *device, void *to, const void *from, size_t bytes);
    /* Take back all that was placed. False: something around it was written. */
    bool (*clear)(struct cases_device *device);
    /* The launches of kernels/cuda/kernels.h, done when they return. */
    void (*update)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_update_scalars *spans, enum cst_moments moments,
                   enum cst_rounding rounding, const struct cst_cuda_update *update);
    void (*reduce)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                   const struct cst_cuda_sources *sources, uint16_t *dst, double *sums);
    void (*sum)(struct cases_device *device, uint64_t n_tiles, const struct cst_cuda_tile *tiles,
                const struct cst_cuda_sources *sources, float *dst);
    void (*norm)(struct cases_device *device, uint64_t n, const double *sums, double *out);
    void (*cast)(struct cases_device *device, uint64_t n, const float *src, uint16_t *dst);
    void (*upcast)(struct cases_device *device, uint64_t n, const uint16_t *src, float *dst);
};

struct cases_result {
    unsigned long long n_elems; /* compared */
    bool ok;                    /* no bit differed, nothing around was written */
    char why[192];              /* the first difference, if not ok */
};

struct cases_op {
    const char *name; /* "reduce" */
    void (*run)(struct cases_device *device, uint64_t seed, struct cases_result *result);
};

/* All of them; *n: how many. */
const struct cases_op *cases_all(unsigned *n);

#endif
