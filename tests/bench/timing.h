/* SPDX-License-Identifier: Apache-2.0 */
/* What benchmarks do with times. */
#ifndef CST_BENCH_TIMING_H
#define CST_BENCH_TIMING_H

#include <stddef.h>
#include <stdint.h>

/* Returns the time of a clock that never goes back, in seconds. */
double bench_now(void);

/* Sort @values in ascending order. */
void bench_sort(double *values, size_t n);

/* Sort @values, of which there is at least one, and return their median. That of an even number is
 * the mean of the two in the middle. */
double bench_median(double *values, size_t n);

/* Sort @values, of which there is at least one, and return the 99th percentile. */
double bench_p99(double *values, size_t n);

/* Returns @smallest if the environment has BENCH_SMALLEST, otherwise @normal. With BENCH_SMALLEST,
 * every benchmark makes its shortest run, which shows that it still works. Its figures mean
 * nothing. */
uint32_t bench_sized(uint32_t normal, uint32_t smallest);

#endif
