// SPDX-License-Identifier: Apache-2.0
/* The engine's kernels as one unit: one fatbinary for the GPU, one object for the processor. */
#include "kernels/cuda/cast.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/update.cu"
