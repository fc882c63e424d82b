/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of an engine whose device has memory of its own that the processor can touch as well: its
 * commands, on what tests/lib/engine_rig opened with a pool there. Whatever the device, the bits
 * are the same. */
#ifndef DEVICE_CASES_H
#define DEVICE_CASES_H

#include <check.h>
#include <stdint.h>

/* Where random bytes begin; in the fixture, after which they are the same again. */
void device_cases_seed(uint64_t value);

/* Every command by itself. */
void device_cases_add(TCase *tc);

/* Many at a time, for devices that begin late or take long. */
void device_cases_add_slow(TCase *tc);

/* Host memory of more than 256 MiB, the most that a driver registers at a time. */
void device_cases_add_borders(TCase *tc);

#endif
