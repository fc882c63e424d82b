/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions on the host: fp32 values to the rows of a chunk, and between fp32 values and rows of
 * moments in each format. */
#ifndef CST_HOST_CONVERT_H
#define CST_HOST_CONVERT_H

#include "kernels/engine/device.h"

/* cste_device_convert on the host, with the contract of kernels/engine/device.h, after its checks.
 * Any thread. */
void cste_host_convert(const struct cst_kernels *kernels,
                       const struct cste_device_convert *convert);

#endif
