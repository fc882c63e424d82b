/* SPDX-License-Identifier: Apache-2.0 */
/* The host device: memory is mapped memfds, a copy is memcpy, arithmetic is the best kernels that
 * the processor has. */
#ifndef CST_HOST_H
#define CST_HOST_H

#include "kernels/device.h"

/* The row "host" of the device table. */
extern const struct cst_device_ops cst_host_ops;

#endif
