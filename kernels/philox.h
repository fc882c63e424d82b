/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10: random numbers by counter (Salmon, Moraes, Dror and Shaw: Parallel random numbers:
 * as easy as 1, 2, 3; 2011). The same on every device, in any order, by any number of threads.
 *
 * Stochastic rounding takes them so: the job's seed is the key. Counter {low, high} of element / 8,
 * {low, high} of the optimizer's step makes four words for eight elements, but those of a group of
 * 32 elements are taken in this order: the group's word i, 0 to 15, is that of elements i and
 * i + 16 of the group, which take its low and its high bits. exp_avg takes them as they are,
 * exp_avg_sq from the word with each of its halves multiplied by CST_PHILOX_OTHER. */
#ifndef CST_PHILOX_H
#define CST_PHILOX_H

#include <stdint.h>

/* How functions that CUDA compiles too are declared; CUDA has its own. */
#ifndef CST_INLINE
#define CST_INLINE __attribute__((always_inline)) static inline
#endif

#define CST_PHILOX_ROUNDS 10
#define CST_PHILOX_M0 0xd2511f53u
#define CST_PHILOX_M1 0xcd9e8d57u
#define CST_PHILOX_OTHER 0x9e37u /* odd, so that all 16-bit numbers stay equally likely */

/* Keys of the rounds. */
struct cst_philox_keys {
    uint32_t v[CST_PHILOX_ROUNDS][2];
};

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

/* Replace @counter by its random words. */
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

/* The counter of quarter @quad, 0 to 3, of group @group's words in step @t. */
CST_INLINE void cst_philox_counter(uint32_t counter[4], uint64_t group, unsigned quad, uint64_t t)
{
    uint64_t n = group * 4 + quad;

    counter[0] = (uint32_t)n;
    counter[1] = (uint32_t)(n >> 32);
    counter[2] = (uint32_t)t;
    counter[3] = (uint32_t)(t >> 32);
}

/* What exp_avg_sq takes for the word @word. */
CST_INLINE uint32_t cst_philox_other(uint32_t word)
{
    uint32_t low = (word & 0xffffu) * CST_PHILOX_OTHER & 0xffffu;
    uint32_t high = (word >> 16) * CST_PHILOX_OTHER & 0xffffu;

    return high << 16 | low;
}

#endif
