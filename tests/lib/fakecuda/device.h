/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of the machine that CUDA_VISIBLE_DEVICES lets this process see. */
#ifndef CST_FAKE_DEVICE_H
#define CST_FAKE_DEVICE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* Number of devices that this process sees. */
int cst_fake_n_devices(void);

/* True if @device is one of them. */
bool cst_fake_device_is(CUdevice device);

/* cst_fake_device_physical returns @device's number in the machine. cst_fake_device_visible returns
 * the device with that number, or -1 if this process does not see it. */
int cst_fake_device_physical(CUdevice device);
CUdevice cst_fake_device_visible(int physical);

/* Size of @device's memory. */
size_t cst_fake_device_bytes(CUdevice device);

/* True if @device can access the memory of @peer; always true for its own memory. */
bool cst_fake_device_reaches(CUdevice device, CUdevice peer);

#endif
