/* SPDX-License-Identifier: Apache-2.0 */
/* The devices: those of the machine that CUDA_VISIBLE_DEVICES lets this process see. */
#ifndef CST_FAKE_DEVICE_H
#define CST_FAKE_DEVICE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* How many this process sees. */
int cst_fake_n_devices(void);

bool cst_fake_device_is(CUdevice device);

/* The number that @device has in the machine; and the device that has it, or -1: not seen here. */
int cst_fake_device_physical(CUdevice device);
CUdevice cst_fake_device_visible(int physical);

/* Its memory. */
size_t cst_fake_device_bytes(CUdevice device);

/* Can @device reach the memory of @peer, or its own? */
bool cst_fake_device_reaches(CUdevice device, CUdevice peer);

#endif
