/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters: the bf16 weight is the upper half of the fp32 master weight, and a row of 16-bit
 * remainders has what is missing. As integers,
 *
 *   bits of the master = bits of the weight * 2^16 + remainder,  -2^15 <= remainder < 2^15
 *
 * The weight is therefore the master rounded to nearest, and both together are the master, bit by
 * bit. Where the master lies in the middle of two bf16 numbers, the remainder is -2^15, and the
 * weight is the one further from zero. (To nearest even, the remainder could be either -2^15 or
 * 2^15, and 16 bits would not be enough.) Only there, for one of 2^17 masters with random bits, the
 * weight differs from the weight of other jobs, by one unit in the last place. A NaN is stored as
 * CST_UPDATE_NAN. */
#ifndef CST_SPLIT_H
#define CST_SPLIT_H

#include "kernels/math/update.h"

#include <string.h>

/* Returns the master weight of @weight and @remainder. */
static inline float cst_split_join(uint16_t weight, int16_t remainder)
{
    uint32_t bits = ((uint32_t)weight << 16) + (uint32_t)(int32_t)remainder;
    float master;

    memcpy(&master, &bits, sizeof master);
    return master;
}

/* Set @weight and @remainder to the parts of @master. */
static inline void cst_split_cut(float master, uint16_t *weight, int16_t *remainder)
{
    uint32_t bits;

    memcpy(&bits, &master, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        bits = CST_UPDATE_NAN;
    }
    *weight = (uint16_t)((bits + 0x8000u) >> 16);
    *remainder = (int16_t)(uint16_t)bits;
}

#endif
