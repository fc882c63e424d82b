/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and addresses in whole units, such as pages. */
#ifndef CST_ROUND_UP_H
#define CST_ROUND_UP_H

#include <stdint.h>

/* Return the smallest multiple of @unit that is not below @n. The caller ensures that it is below
 * 2^64. Any thread. */
static inline uint64_t cst_round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

#endif
