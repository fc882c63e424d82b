/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw: Parallel
 * random numbers: as easy as 1, 2, 3; 2011). Its numbers are the same on every device, in any
 * order, and with any number of threads. */
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

/* Replace @counter by its four random words under the key @seed. */
CST_INLINE void cst_philox(uint64_t seed, uint32_t counter[4])
{
    uint32_t low = (uint32_t)seed;
    uint32_t high = (uint32_t)(seed >> 32);

    for (int r = 0; r < CST_PHILOX_ROUNDS; r++) {
        uint64_t p0 = (uint64_t)CST_PHILOX_M0 * counter[0];
        uint64_t p1 = (uint64_t)CST_PHILOX_M1 * counter[2];

        counter[0] = (uint32_t)(p1 >> 32) ^ counter[1] ^ low;
        counter[2] = (uint32_t)(p0 >> 32) ^ counter[3] ^ high;
        counter[1] = (uint32_t)p1;
        counter[3] = (uint32_t)p0;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
}

#endif
