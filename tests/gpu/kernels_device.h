/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for tests of kernels: its context, the kernels, a stream, and memory in which rows are
 * placed between bytes that must stay. */
#ifndef CST_TESTS_GPU_KERNELS_DEVICE_H
#define CST_TESTS_GPU_KERNELS_DEVICE_H

#include "kernels/cuda/kernels.h"
#include "tests/lib/cuda_cases.h"

#include <stdio.h>

#define KERNELS_MAX_PLACED 128 /* rows at once */

struct kernels_placed {
    CUdeviceptr at;
    size_t bytes;
};

struct kernels_device {
    struct cases_device cases; /* its functions end the program on errors of the GPU */
    struct cst_cuda_driver driver;
    struct cst_cuda_kernels kernels;
    CUdevice number;
    CUcontext context;
    CUstream stream;
    char name[128];    /* the card's */
    CUdeviceptr arena; /* where rows are placed */
    size_t arena_used; /* bytes from its start */
    struct kernels_placed placed[KERNELS_MAX_PLACED];
    unsigned n_placed;
};

/* The first GPU. CST_EUNSUPPORTED: there is none, with words. */
int kernels_device_open(struct kernels_device *d, struct cst_err *err);
void kernels_device_close(struct kernels_device *d);

/* Print @err and end the program unless @status is CST_OK. */
void kernels_device_need(int status, const struct cst_err *err);

/* Needs CUDA_SUCCESS of a call named @what. */
void kernels_device_call(struct kernels_device *d, CUresult result, const char *what);

/* Do fragments lie as kernels/cuda/mma.cuh says? */
void kernels_device_mma(struct kernels_device *d, struct cases_result *result);

/* Measure: a table on stdout and, unless NULL, pieces of a JSON object in @json, each with a comma
 * before it. */
void kernels_speed(struct kernels_device *d, FILE *json);

#endif
