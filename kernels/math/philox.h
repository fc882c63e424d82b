/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw: Parallel
 * random numbers: as easy as 1, 2, 3; 2011). Its numbers are the same on every device, in any
 * order, and with any number of threads.
 *
 * Use in stochastic rounding:
 *
 * - The key is the seed of the job. The counter is {low, high} of (element / 8), {low, high} of the
 *   optimizer's step. One counter yields four words for eight elements.
 * - The four counters of a group of 32 elements yield words 0 to 15 of the group. Word i belongs to
 *   elements i and i + 16 of the group; element i uses its low bits, element i + 16 its high bits.
 * - exp_avg uses the words unchanged. exp_avg_sq uses the words with each 16-bit half multiplied by
 *   CST_PHILOX_OTHER. */
#ifndef CST_PHILOX_H
#define CST_PHILOX_H

#include <stdint.h>

/* Declaration of functions that CUDA compiles, too. CUDA defines its own form. */
#ifndef CST_INLINE
#define CST_INLINE __attribute__((always_inline)) static inline
#endif

#define CST_PHILOX_ROUNDS 10
#define CST_PHILOX_M0 0xd2511f53u
#define CST_PHILOX_M1 0xcd9e8d57u
/* Odd: multiplication then permutes the 16-bit numbers, and all stay equally likely. */
#define CST_PHILOX_OTHER 0x9e37u

/* Keys of the rounds. */
struct cst_philox_keys {
    uint32_t v[CST_PHILOX_ROUNDS][2];
};

/* Compute the keys of all rounds from the key @seed. */
CST_INLINE void cst_philox_schedule(struct cst_philox_keys *keys, uint64_t seed)
{
    uint32_t low = (uint32_t)seed;
    uint32_t high = (uint32_t)(seed >> 32);

    for (int r = 0; r < CST_PHILOX_ROUNDS; r++) {
        keys->v[r][0] = low;
        keys->v[r][1] = high;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
}

/* Replace @counter by its four random words. */
CST_INLINE void cst_philox(const struct cst_philox_keys *keys, uint32_t counter[4])
{
    for (int r = 0; r < CST_PHILOX_ROUNDS; r++) {
        uint64_t p0 = (uint64_t)CST_PHILOX_M0 * counter[0];
        uint64_t p1 = (uint64_t)CST_PHILOX_M1 * counter[2];

        counter[0] = (uint32_t)(p1 >> 32) ^ counter[1] ^ keys->v[r][0];
        counter[2] = (uint32_t)(p0 >> 32) ^ counter[3] ^ keys->v[r][1];
        counter[1] = (uint32_t)p1;
        counter[3] = (uint32_t)p0;
    }
}

/* Set @counter for quarter @quad (0 to 3) of the words of group @group in step @t. */
CST_INLINE void cst_philox_counter(uint32_t counter[4], uint64_t group, unsigned quad, uint64_t t)
{
    uint64_t n = group * 4 + quad;

    counter[0] = (uint32_t)n;
    counter[1] = (uint32_t)(n >> 32);
    counter[2] = (uint32_t)t;
    counter[3] = (uint32_t)(t >> 32);
}

/* Returns the word that exp_avg_sq uses where exp_avg uses @word. */
CST_INLINE uint32_t cst_philox_other(uint32_t word)
{
    uint32_t low = (word & 0xffffu) * CST_PHILOX_OTHER & 0xffffu;
    uint32_t high = (word >> 16) * CST_PHILOX_OTHER & 0xffffu;

    return high << 16 | low;
}

#endif
