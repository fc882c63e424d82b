/* Philox4x32-10: random numbers by counter (Salmon, Moraes, Dror and Shaw: Parallel random numbers:
 * as easy as 1, 2, 3; 2011). The same on every device, in any order, by any number of threads.
 *
 * Stochastic rounding takes them so: the job's seed is the key; counter {low, high} of element / 4,
 * {low, high} of the optimizer's step gives a word to each of four elements of the job. exp_avg
 * takes low bits of the word, exp_avg_sq high ones (kernels/formats.h). */
#ifndef CST_PHILOX_H
#define CST_PHILOX_H

#include <stdint.h>

/* How functions that CUDA compiles too are declared; CUDA has its own. */
#ifndef CST_INLINE
#define CST_INLINE static inline
#endif

#define CST_PHILOX_ROUNDS 10
#define CST_PHILOX_M0 0xd2511f53u
#define CST_PHILOX_M1 0xcd9e8d57u

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

/* The counter of elements 4 x @quad to 4 x @quad + 3 in step @t. */
CST_INLINE void cst_philox_counter(uint32_t counter[4], uint64_t quad, uint64_t t)
{
    counter[0] = (uint32_t)quad;
    counter[1] = (uint32_t)(quad >> 32);
    counter[2] = (uint32_t)t;
    counter[3] = (uint32_t)(t >> 32);
}

#endif
