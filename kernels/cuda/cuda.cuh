// SPDX-License-Identifier: Apache-2.0
/* What every kernel of the project includes first: CUDA's words (nvcc's, or tests/lib/cudaemu's
 * where the kernel is compiled for the processor), how a kernel is made known, and how it asks for
 * shared memory whose size the launch decides.
 *
 *   extern "C" __global__ void cst_x_kernel(...) { CST_DYNAMIC_SHARED(float, row); ... }
 *   CST_KERNEL(cst_x_kernel);    // and a line in tests/lib/cudaemu/list.h */
#ifndef CST_CUDA_CUH
#define CST_CUDA_CUH

#include <stdint.h>

#if defined(__CUDACC__)

#define CST_KERNEL(name) static_assert(sizeof(#name) > 1, "")

/* All kernels that have it share one symbol, so it is bytes for each. */
#define CST_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ __align__(128) unsigned char cst_dynamic_shared[];                           \
    type *name = reinterpret_cast<type *>(cst_dynamic_shared)

#else

#include "tests/lib/cudaemu/cudaemu.hpp"

#endif

#endif
