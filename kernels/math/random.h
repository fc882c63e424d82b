/* SPDX-License-Identifier: Apache-2.0 */
/* The random bits of stochastic rounding, written over vectors. Included after one of
 * kernels/math/vec_*.h. Private to kernels/. The bits of an element depend on the seed of the job,
 * the optimizer's step and the number of the element, and on nothing else.
 *
 * - CST_RANDOM_SPAN successive elements are a span. Philox4x32-10 yields one key for each span: its
 *   key is the seed, and its counter is {low, high} of the span's number, {low, high} of the step.
 * - Word j of a span is a hash of j under the span's key: two rounds of shift and multiplication,
 *   with the shifts and factors of the best such function that hash-prospector lists. The hash is a
 *   permutation of 32-bit numbers, and v[0] of the key is added to its argument. Each word is
 *   therefore uniform if the key is. v[1] of the key is added between the rounds, so that two spans
 *   do not share a sequence of words.
 * - A group of 32 elements has words 16 g to 16 g + 15, where g is the number of the group in its
 *   span. Word i of the group belongs to elements i and i + 16; element i uses its low bits,
 *   element i + 16 its high bits.
 * - The first moment uses the words unchanged. Each other one uses those of the moment before it
 *   after one more round, so that the bits of an element's moments are independent. */
#ifndef CST_RANDOM_H
#define CST_RANDOM_H

#include "kernels/math/philox.h"

#define CST_RANDOM_SPAN 4096 /* Number of elements with one key. */
/* Number of groups in a span. */
#define CST_RANDOM_SPAN_GROUPS (CST_RANDOM_SPAN / CST_UPDATE_GROUP)
#define CST_RANDOM_STEP 0x9e3779b9u
#define CST_RANDOM_M0 0x21f0aaadu
#define CST_RANDOM_M1 0xd35a2d97u
#define CST_RANDOM_OTHER 0x9e3779b1u

/* Key of a span. */
struct cst_random_key {
    uint32_t v[2];
};

/* Returns the key of span @span in step @t. */
CST_INLINE struct cst_random_key cst_random_key_of(uint64_t seed, uint64_t span, uint64_t t)
{
    uint32_t words[4] = {(uint32_t)span, (uint32_t)(span >> 32), (uint32_t)t, (uint32_t)(t >> 32)};
    struct cst_random_key key;

    cst_philox(seed, words);
    key.v[0] = words[0];
    key.v[1] = words[1];
    return key;
}

/* Set @out to the words of group @group of the span. */
CST_INLINE void cst_random_words(struct cst_random_key key, uint32_t group,
                                 struct cst_vec_bits out[CST_VEC_GROUP / 2])
{
    const uint32_t first = key.v[0] + group * (CST_UPDATE_GROUP / 2) * CST_RANDOM_STEP;

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP / 2; j++) {
        struct cst_vec_bits place =
            cst_vec_plus(cst_vec_lanes(), cst_vec_set_bits((uint32_t)j * CST_VEC_LANES));
        struct cst_vec_bits x = cst_vec_plus(
            cst_vec_set_bits(first), cst_vec_times(place, cst_vec_set_bits(CST_RANDOM_STEP)));

        x = cst_vec_times(cst_vec_xor(x, cst_vec_right(x, 16)), cst_vec_set_bits(CST_RANDOM_M0));
        x = cst_vec_plus(x, cst_vec_set_bits(key.v[1]));
        x = cst_vec_times(cst_vec_xor(x, cst_vec_right(x, 15)), cst_vec_set_bits(CST_RANDOM_M1));
        out[j] = cst_vec_xor(x, cst_vec_right(x, 15));
    }
}

/* Returns the words that a moment uses where the one before it uses @words. */
CST_INLINE struct cst_vec_bits cst_random_other(struct cst_vec_bits words)
{
    return cst_vec_times(cst_vec_xor(words, cst_vec_right(words, 16)),
                         cst_vec_set_bits(CST_RANDOM_OTHER));
}

#endif
