// SPDX-License-Identifier: Apache-2.0
/* The reference worker's kernels, compiled for the processor. */
#include "client/gpt/cuda/kernels.cu"
