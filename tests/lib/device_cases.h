/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the commands of an engine whose pool is in device memory that the processor can also
 * access. tests/lib/engine_rig opens the job. The results must have the same bits on every
 * device. */
#ifndef DEVICE_CASES_H
#define DEVICE_CASES_H

#include <check.h>
#include <stdint.h>

/* Set the seed of the random bytes. The fixture calls this, so that every test has the same
 * bytes. */
void device_cases_seed(uint64_t value);

/* Add the tests that run each command by itself. */
void device_cases_add(TCase *tc);

/* Add the tests that run many commands at a time, for devices that are slow or begin late. */
void device_cases_add_slow(TCase *tc);

/* Add the tests of host memory of more than 256 MiB, the most that the engine registers at a
 * time. */
void device_cases_add_borders(TCase *tc);

#endif
