/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock: CLOCK_MONOTONIC, which no change of the date moves. Any thread. */
#ifndef CST_CLOCK_H
#define CST_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Return the time in ns. */
static inline uint64_t cst_clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Return the time in seconds. */
static inline double cst_clock_s(void)
{
    return (double)cst_clock_ns() / 1e9;
}

#endif
