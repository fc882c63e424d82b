/* SPDX-License-Identifier: Apache-2.0 */
/* A worker on a simulated GPU of tests/lib/fakecuda. It uses libcistern-cuda and computes in host
 * functions on its stream; they can use device pointers because the processor can access the
 * memory. */
#ifndef TRAIN_CUDA_H
#define TRAIN_CUDA_H

#include "tests/lib/train_stream.h"

extern const struct train_stream_kind train_cuda;

#endif
