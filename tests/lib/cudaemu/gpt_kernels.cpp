/* The reference worker's kernels, for the processor. */
#include "client/gpt/cuda/kernels.cu"
