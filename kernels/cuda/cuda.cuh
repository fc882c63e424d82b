// SPDX-License-Identifier: Apache-2.0
/* The first header of every kernel of the project. It provides the keywords of CUDA (from nvcc, or
 * from tests/lib/cudaemu where a kernel is compiled for the processor), the registration of a
 * kernel, and shared memory whose size the launch decides.
 *
 *   extern "C" __global__ void cst_x_kernel(...) { CST_DYNAMIC_SHARED(float, row); ... }
 *   CST_KERNEL(cst_x_kernel);    // and a line in tests/lib/cudaemu/list.h */
#ifndef CST_CUDA_CUH
#define CST_CUDA_CUH

#include <stdint.h>

#if defined(__CUDACC__)

#define CST_KERNEL(name) static_assert(sizeof(#name) > 1, "")

/* All kernels with dynamic shared memory share one symbol. The symbol is therefore an array of
 * bytes, which each kernel casts. */
#define CST_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ __align__(128) unsigned char cst_dynamic_shared[];                           \
    type *name = reinterpret_cast<type *>(cst_dynamic_shared)

#else

#include "tests/lib/cudaemu/cudaemu.hpp"

#endif

#endif
