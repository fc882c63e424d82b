/* SPDX-License-Identifier: Apache-2.0 */
/* What benchmarks do with times. */
#ifndef CST_BENCH_TIMING_H
#define CST_BENCH_TIMING_H

#include <stddef.h>

/* Returns the time of a clock that never goes back, in seconds. */
double bench_now(void);

/* Sort @values in ascending order. */
void bench_sort(double *values, size_t n);

/* Sort @values, of which there is at least one, and return their median. That of an even number is
 * the mean of the two in the middle. */
double bench_median(double *values, size_t n);

#endif
