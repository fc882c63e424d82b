/* SPDX-License-Identifier: Apache-2.0 */
/* The paced accelerator: a simulated device with memory of its own (memfds that it creates). Copies
 * to and from this memory take as long as a link of a chosen rate would need, independently for
 * each direction. Updates keep a rate as well. The host's kernels compute, and the bits are those
 * of the host. The device lets schedules meet a machine of chosen proportions without a GPU. Like a
 * GPU, it does not compute on host memory; only sums are written there. The daemon decides how much
 * memory there may be. */
#ifndef CST_PACED_H
#define CST_PACED_H

#include "kernels/engine/device.h"

/* The table of the device "paced". Its rates are those of struct cste_device_spec. */
extern const struct cste_device_ops cste_paced_ops;

#endif
