/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a device: the table "cuda". Host memory is mapped and registered with the driver. Device
 * memory uses the driver's virtual memory management. Copies, sums and updates run on the stream of
 * the calling thread, which enqueues several before it waits for the oldest one. conversions of
 * states and UPDATE in place are left to the engines of nodes, which have the states. */
#ifndef CST_CUDA_DEVICE_H
#define CST_CUDA_DEVICE_H

#include "kernels/engine/device.h"

/* The table of the device "cuda". */
extern const struct cste_device_ops cste_cuda_ops;

#endif
