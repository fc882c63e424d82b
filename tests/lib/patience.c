/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/patience.h"

#include <stdlib.h>
#include <time.h>

enum { DAY_MS = 86400000 };

/* The factor for limits: at least 1, also if the variable is not a number. */
static double multiplier(void)
{
    const char *words = getenv("CK_TIMEOUT_MULTIPLIER");
    double x = words != NULL ? strtod(words, NULL) : 1.0;

    return x > 1.0 ? x : 1.0;
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int patience_ms(int ms)
{
    double scaled = ms * multiplier();

    return scaled < DAY_MS ? (int)scaled : DAY_MS;
}

uint64_t patience_until(int ms)
{
    return now_ns() + (uint64_t)patience_ms(ms) * 1000000u;
}

bool patience_over(uint64_t until)
{
    return now_ns() >= until;
}
