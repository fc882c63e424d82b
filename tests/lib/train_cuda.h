/* SPDX-License-Identifier: Apache-2.0 */
/* A worker on a GPU that is tests/lib/fakecuda's: libcistern-cuda, and work in host functions on
 * the program's stream, where device pointers are pointers of the processor. */
#ifndef TRAIN_CUDA_H
#define TRAIN_CUDA_H

#include "tests/lib/train_stream.h"

extern const struct train_stream_kind train_cuda;

#endif
