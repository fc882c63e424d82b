// SPDX-License-Identifier: Apache-2.0
/* All kernels of the worker as one compilation unit: one fatbinary for the GPU, and one object for
 * tests on the host processor. */
#include "client/gpt/cuda/attention.cu"
#include "client/gpt/cuda/embed.cu"
#include "client/gpt/cuda/gelu.cu"
#include "client/gpt/cuda/loss.cu"
#include "client/gpt/cuda/matmul.cu"
#include "client/gpt/cuda/mixture.cu"
#include "client/gpt/cuda/norm.cu"
#include "client/gpt/cuda/residual.cu"
#include "client/gpt/cuda/sums.cu"
