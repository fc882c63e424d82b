// SPDX-License-Identifier: Apache-2.0
/* The engine's kernels, compiled for the processor. */
#include "kernels/cuda/kernels.cu"
