/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for tests of kernels: its context, the kernels, a stream, and memory for rows. The bytes
 * before and after each row are checked: kernels must not change them. */
#ifndef CST_TESTS_GPU_KERNELS_DEVICE_H
#define CST_TESTS_GPU_KERNELS_DEVICE_H

#include "kernels/cuda/kernels.h"
#include "tests/lib/cuda_cases.h"

#include <stdio.h>

#define KERNELS_MAX_PLACED 128 /* Most rows that are in the arena at a time. */

/* A row in the arena. */
struct kernels_placed {
    CUdeviceptr at; /* The address of the row. */
    size_t bytes;   /* The size of the row. */
};

struct kernels_device {
    struct cases_device cases; /* The functions of this device end the program on GPU errors. */
    struct cst_cuda_driver driver;
    struct cst_cuda_kernels kernels;
    CUdevice number;   /* The device of the driver. */
    CUcontext context; /* The primary context of the device. */
    CUstream stream;   /* The stream of all kernels. */
    char name[128];    /* The name of the device, NUL-terminated. */
    CUdeviceptr arena; /* The memory in which rows are placed. */
    size_t arena_used; /* The bytes of the arena that rows occupy, from the start of the arena. */
    struct kernels_placed placed[KERNELS_MAX_PLACED]; /* The rows in the arena. */
    unsigned n_placed;                                /* The number of rows in the arena. */
};

/* Open the first GPU. CST_EUNSUPPORTED: the machine has no GPU; @err says why. */
int kernels_device_open(struct kernels_device *d, struct cst_err *err);
/* Free everything that kernels_device_open made. */
void kernels_device_close(struct kernels_device *d);

/* Print @err and end the program unless @status is CST_OK. */
void kernels_device_need(int status, const struct cst_err *err);

/* Print an error that names the call @what, and end the program, unless @result is
 * CUDA_SUCCESS. */
void kernels_device_call(struct kernels_device *d, CUresult result, const char *what);

/* Check that each lane of a warp holds the elements of a matrix that kernels/cuda/mma.cuh
 * documents. The outcome is stored in @result. */
void kernels_device_mma(struct kernels_device *d, struct cases_result *result);

/* Measure the speed of the kernels. Prints a table to stdout. Unless @json is NULL, also writes
 * members of a JSON object to @json, each with a comma before it. */
void kernels_speed(struct kernels_device *d, FILE *json);

#endif
