/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a device: the row "cuda" of the device table. Host memory is mapped and registered with
 * the driver, memory of its own is the driver's virtual memory management; copies, sums
 * and updates run on the calling thread's stream and are waited for. CONVERT, and UPDATE in place,
 * are for the host's engines, where the states are. */
#ifndef CST_CUDA_DEVICE_H
#define CST_CUDA_DEVICE_H

#include "kernels/device.h"

extern const struct cst_device_ops cst_cuda_ops;

#endif
