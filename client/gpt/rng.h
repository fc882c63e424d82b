/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers as a pure function of (seed, stream, counter): the result does not depend on the
 * order of calls or on the process. All arithmetic except the last step is on integers, so that
 * every language can compute the same bits (tests/gpt/make_reference.py does). */
#ifndef GPT_RNG_H
#define GPT_RNG_H

#include <stdint.h>

/* Finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t gpt_rng_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t gpt_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint64_t key = gpt_rng_mix(seed ^ gpt_rng_mix(stream + 0x9e3779b97f4a7c15ull));

    return gpt_rng_mix(key + (counter + 1) * 0x9e3779b97f4a7c15ull);
}

/* Uniform in 0 <= x < 1. */
static inline double gpt_rng_unit(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (double)(gpt_rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

/* Approximately normal, with mean 0 and standard deviation 1: the sum of eight uniform 16-bit
 * numbers. No result is further than 4.9 from 0. */
static inline float gpt_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint64_t a = gpt_rng_u64(seed, stream, 2 * counter);
    uint64_t b = gpt_rng_u64(seed, stream, 2 * counter + 1);
    int64_t sum = 0;

    for (int shift = 0; shift < 64; shift += 16) {
        sum += (int64_t)((a >> shift) & 0xffff) + (int64_t)((b >> shift) & 0xffff);
    }
    /* The sum has mean 8 x 32767.5 and variance 8 x (65536^2 - 1) / 12. */
    return (float)((double)(sum - 262140) / 53509.91992145008);
}

#endif
