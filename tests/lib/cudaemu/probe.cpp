// SPDX-License-Identifier: Apache-2.0
/* Kernels of tests, compiled for the processor. */
#include "tests/gpu/probe.cu"
