/* SPDX-License-Identifier: Apache-2.0 */
/* The host device. Its memory is mapped memfds, a copy is memcpy, and arithmetic uses the best
 * kernels that the processor supports. */
#ifndef CST_HOST_H
#define CST_HOST_H

#include "kernels/engine/device.h"

/* The table of the device "host". */
extern const struct cste_device_ops cste_host_ops;

#endif
