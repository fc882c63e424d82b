/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of small numbers as tests write them. */
#ifndef TEST_BITS_H
#define TEST_BITS_H

#include "proto/set.h"

/* The set that has member i if bit i of @word is set. */
static inline struct cst_set bits(uint64_t word)
{
    return (struct cst_set){{word}};
}

/* Return @set as a word; its members must be below 64. */
static inline uint64_t word_of(const struct cst_set *set)
{
    return set->words[0];
}

#endif
