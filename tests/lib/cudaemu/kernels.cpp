/* The engine's kernels, for the processor. */
#include "kernels/cuda/kernels.cu"
