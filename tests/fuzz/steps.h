/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an input that is a list of steps. */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include <stdint.h>

/* What is left of an input; borrowed. */
struct bytes {
    const uint8_t *at, *end;
};

/* Take the next @n bytes (up to 8) as an integer, the lowest first. Bytes beyond the end are 0. */
static inline uint64_t take(struct bytes *in, unsigned n)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < n && in->at < in->end; i++) {
        value |= (uint64_t)*in->at++ << 8 * i;
    }
    return value;
}

#endif
