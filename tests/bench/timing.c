/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/timing.h"

#include <stdlib.h>
#include <time.h>

double bench_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void bench_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
}

double bench_median(double *values, size_t n)
{
    bench_sort(values, n);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double bench_p99(double *values, size_t n)
{
    bench_sort(values, n);
    return values[n - n / 100 - 1];
}

uint32_t bench_sized(uint32_t normal, uint32_t smallest)
{
    return getenv("BENCH_SMALLEST") != NULL ? smallest : normal;
}
