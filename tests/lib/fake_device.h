/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated device for a job on the simulated daemon: its memory is memory of this process that
 * libcistern must treat as inaccessible, and its stream is a number that the test advances. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include "cistern/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Value of `passed` with which the stream is never behind. */
#define FAKE_DEVICE_FLOWS (UINT64_MAX / 2)

/* The simulated device. */
struct fake_device {
    /* The calls that the job receives, with the device as their argument. */
    struct cst_device_calls calls;
    _Atomic uint64_t mark;   /* the newest fence */
    _Atomic uint64_t passed; /* the fence that the stream has reached */
    atomic_bool works;       /* set by the test: work was enqueued after the newest fence */
    _Atomic int failed;      /* status that done, fence and zero return */
    int slow;      /* number of calls of done until the stream reaches the mark; 0: never */
    int map_fails; /* number of the map call that fails, counted from 1; 0: none */
    unsigned n_maps, n_unmaps, n_zeros, n_fences; /* number of calls so far */
};

/* Fill in the calls, with a new descriptor that the caller closes. Other fields may be set
 * before. */
void fake_device_open(struct fake_device *device);

/* Let the stream reach @mark. */
void fake_device_move(struct fake_device *device, uint64_t mark);

/* Let every call but map and unmap fail with CST_EGPU from now on. */
void fake_device_break(struct fake_device *device);

#endif
