/* SPDX-License-Identifier: Apache-2.0 */
/* The paced accelerator: a device with memory of its own, memfds that it makes, to which and from
 * which bytes take the time that a link of a chosen rate would take, each way on its own; updates
 * keep a rate, too. It computes with the host's kernels, so bits are the host's. With it schedules
 * meet a machine of chosen proportions without a GPU; like a GPU it does not compute on what is not
 * its own: only sums are written to host memory. How much memory there may be is for the daemon to
 * say. */
#ifndef CST_PACED_H
#define CST_PACED_H

#include "kernels/device.h"

/* The row "paced" of the device table; rates are those of cst_device_spec. */
extern const struct cst_device_ops cst_paced_ops;

#endif
