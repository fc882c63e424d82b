/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions of ranks for the tests of sums. For test programs that consist of one file. */
#ifndef CST_TESTS_CONTRIBUTIONS_H
#define CST_TESTS_CONTRIBUTIONS_H

#include "tests/kernels/hostile.h"

#define MAX_SRC 9

/* Kinds of numbers in contributions. */
enum fill {
    ORDINARY, /* gradients of one magnitude, whose squares are summed exactly */
    /* Finite numbers from 2^-20 to 2^20: each addition is rounded, so the order of a sum shows. */
    WIDE,
    HOSTILE, /* any bits */
    N_FILL,
};

/* Numbers of elements that are summed: tails of every kind, and whole tiles. */
static const size_t lengths[] = {0,  1,  2,  7,   8,   15,  16,   17,   31,
                                 32, 33, 63, 100, 255, 511, 4095, 4096, 1000};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

static inline uint16_t fill_one(enum fill fill, uint64_t *state)
{
    uint64_t r = hostile_next(state);

    switch (fill) {
    case ORDINARY:
        return cst_fp32_to_bf16(hostile_unit(state));
    case WIDE:
        return (uint16_t)((r & 0x807fu) | (127 - 20 + (r >> 32) % 40) << 7);
    case HOSTILE:
    case N_FILL:
    default:
        return hostile_bf16(state);
    }
}

/* Make sources of @n elements each that end at an unmapped page, or begin a random number of
 * elements before. */
static inline void fill_sources(uint16_t *src[MAX_SRC], size_t n, enum fill fill, uint64_t *state)
{
    for (int r = 0; r < MAX_SRC; r++) {
        src[r] = (uint16_t *)hostile_buffer((n + 40) * sizeof *src[r]) + 40;
        if (hostile_next(state) % 2 == 0) {
            src[r] -= hostile_next(state) % 40;
        }
        for (size_t i = 0; i < n; i++) {
            src[r][i] = fill_one(fill, state);
        }
    }
}

/* The sources in the type that a kernel takes. */
static inline const uint16_t *const *in(uint16_t *const src[MAX_SRC])
{
    return (const uint16_t *const *)(const void *)src;
}

#endif
