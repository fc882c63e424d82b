/* SPDX-License-Identifier: Apache-2.0 */
/* The network: a device that reads memory of other machines, by a transport (transport.h), and
 * serves theirs. It copies to host memory and does not compute. Nobody writes another machine's
 * memory. A lane has up to CSTE_NET_WINDOW payloads under way. */
#ifndef CST_NET_H
#define CST_NET_H

#include "kernels/engine/device.h"

#define CSTE_NET_WINDOW 4

/* The table of the device "net". */
extern const struct cste_device_ops cste_net_ops;

#endif
