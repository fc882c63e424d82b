/* SPDX-License-Identifier: Apache-2.0 */
/* A device that the processor cannot touch, for a job on the fake daemon: memory of this process,
 * and a stream that is a number, which the test moves. */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include "cistern/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_DEVICE_FLOWS (UINT64_MAX / 2) /* as passed: the stream is never behind */

struct fake_device {
    struct cst_device_calls calls; /* what the job is given, with the device as argument */
    _Atomic uint64_t mark;         /* newest fence */
    _Atomic uint64_t passed;       /* the stream is there */
    atomic_bool works;             /* work was enqueued behind the newest fence; the test says so */
    _Atomic int failed;            /* status of done, fence and zero */
    int slow;      /* done is asked so often before the stream comes along; 0: never */
    int map_fails; /* the n-th map fails, counted from 1; 0: none */
    unsigned n_maps, n_unmaps, n_zeros, n_fences; /* calls so far */
};

/* Fill in the calls, with a new descriptor, which is the caller's to close. Other fields may be set
 * before. */
void fake_device_open(struct fake_device *device);

/* The stream comes as far as @mark. */
void fake_device_move(struct fake_device *device, uint64_t mark);

/* Every call but map and unmap fails with CST_EGPU from now on. */
void fake_device_break(struct fake_device *device);

#endif
