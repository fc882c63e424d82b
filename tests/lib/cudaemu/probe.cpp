/* Kernels of tests, for the processor. */
#include "tests/gpu/probe.cu"
