// SPDX-License-Identifier: Apache-2.0
/* All kernels of the engine as one unit: a fatbinary for the GPU, an object for the processor. */
#include "kernels/cuda/cast.cu"
#include "kernels/cuda/muon.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/total.cu"
#include "kernels/cuda/update.cu"
