/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and storing groups of CST_UPDATE_GROUP moments and split masters, written over vectors.
 * Included after one of kernels/math/vec_*.h. Private to kernels/. Format, rounding and @which (0:
 * exp_avg, 1: exp_avg_sq) are compile-time constants. */
#ifndef CST_FORMATS_H
#define CST_FORMATS_H

#include "kernels/math/formulas.h"
#include "kernels/math/mx8.h"
#include "kernels/math/rounding.h"

/* CST_MEMORY_INLINE declares a function that reads or writes memory, and CST_MEMORY names a
 * function of this kind in a call. On a GPU these functions are templates over the kind of
 * memory. */
#ifndef CST_MEMORY_INLINE
#define CST_MEMORY_INLINE CST_INLINE
#define CST_MEMORY(function) function
#endif

/* Returns the bytes of a group, without the exponent of mx8. */
CST_INLINE size_t cst_format_bytes(enum cst_moments moments)
{
    return CST_UPDATE_GROUP * (moments == CST_MOMENTS_FP32   ? sizeof(float)
                               : moments == CST_MOMENTS_BF16 ? sizeof(uint16_t)
                                                             : 1);
}

/* Returns the place in @row of the group that begins at element @i. */
CST_INLINE struct cst_update_moment cst_format_at(enum cst_moments moments,
                                                  const struct cst_update_moment *row, size_t i)
{
    struct cst_update_moment at;

    at.values = (uint8_t *)row->values + i * (cst_format_bytes(moments) / CST_UPDATE_GROUP);
    at.exponents = moments == CST_MOMENTS_MX8 ? row->exponents + i / CST_UPDATE_GROUP : NULL;
    return at;
}

/* Load @n vectors of split master weights (kernels/math/split.h). */
CST_MEMORY_INLINE void cst_format_join(const uint16_t *weight, const int16_t *remainder, int n,
                                       struct cst_vec *out)
{
    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        const int at = j * CST_VEC_LANES;
        struct cst_vec_bits w = cst_vec_to_bits(CST_MEMORY(cst_vec_load_bf16)(weight + at));
        struct cst_vec_bits r = CST_MEMORY(cst_vec_load_int16)(remainder + at);

        out[j] = cst_vec_from_bits(cst_vec_plus(w, r));
    }
}

/* Store @n vectors of master weights as split ones: a group, or half a group. A NaN in @p must be
 * CST_UPDATE_NAN. @stream: the weights bypass the cache. */
CST_MEMORY_INLINE void cst_format_cut(int n, const struct cst_vec *p, uint16_t *weight,
                                      int16_t *remainder, bool stream)
{
    const struct cst_vec_bits half = cst_vec_set_bits(0x8000);
    struct cst_vec_bits bits[CST_VEC_GROUP], upper[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        bits[j] = cst_vec_to_bits(p[j]);
        upper[j] = cst_vec_plus(bits[j], half);
    }
    CST_MEMORY(cst_vec_store_lower)((uint16_t *)remainder, n, bits);
    CST_MEMORY(cst_vec_store_upper)(weight, n, upper, stream);
}

/* Load the group at @at as fp32. */
CST_MEMORY_INLINE void cst_format_load(enum cst_moments moments, unsigned which,
                                       const struct cst_update_moment *at,
                                       struct cst_vec out[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        if (moments == CST_MOMENTS_FP32) {
            out[j] = CST_MEMORY(cst_vec_load)((const float *)at->values + j * CST_VEC_LANES);
        } else if (moments == CST_MOMENTS_BF16) {
            out[j] =
                CST_MEMORY(cst_vec_load_bf16)((const uint16_t *)at->values + j * CST_VEC_LANES);
        } else {
            const uint8_t *codes = (const uint8_t *)at->values + j * CST_VEC_LANES;

            out[j] = cst_vec_mul(which == 0 ? CST_MEMORY(cst_vec_load_signed)(codes)
                                            : CST_MEMORY(cst_vec_load_unsigned)(codes),
                                 cst_mx8_scale(which, *at->exponents));
        }
    }
}

CST_MEMORY_INLINE void cst_format_store_bf16(enum cst_rounding rounding,
                                             const struct cst_update_moment *at,
                                             const struct cst_vec in[CST_VEC_GROUP],
                                             const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_bits upper[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_vec_bits x = cst_vec_to_bits(in[j]);

        upper[j] = cst_vec_plus(x, cst_round_add(rounding, 16, x, words[j % (CST_VEC_GROUP / 2)],
                                                 j >= CST_VEC_GROUP / 2));
    }
    CST_MEMORY(cst_vec_store_upper)((uint16_t *)at->values, CST_VEC_GROUP, upper, false);
}

/* Store the codes of a block whose magnitudes have the bits @magnitudes. @from is that argument of
 * cst_vec_store_codes. @huge: a magnitude may be 2^127 or more. */
CST_MEMORY_INLINE void cst_format_store_codes(enum cst_rounding rounding, unsigned which, bool huge,
                                              uint8_t *at, const struct cst_mx8_block *block,
                                              const struct cst_vec_bits magnitudes[CST_VEC_GROUP],
                                              const struct cst_vec_bits from[CST_VEC_GROUP],
                                              const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_bits codes[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_vec_bits fixed =
            huge ? cst_mx8_fixed_huge(block, magnitudes[j]) : cst_mx8_fixed(block, magnitudes[j]);
        struct cst_vec_bits add = cst_round_add(rounding, 20, fixed, words[j % (CST_VEC_GROUP / 2)],
                                                j >= CST_VEC_GROUP / 2);

        codes[j] = cst_vec_right(cst_vec_plus(fixed, add), 20);
    }
    CST_MEMORY(cst_vec_store_codes)(which, at, codes, block->excess, from);
}

/* Store the codes of a block again whose largest magnitude, with the bits @largest, is 2^127 or
 * more or a NaN. */
CST_MEMORY_INLINE void cst_format_store_rare(enum cst_rounding rounding, unsigned which,
                                             uint8_t *at, const struct cst_mx8_block *block,
                                             uint32_t largest,
                                             const struct cst_vec_bits magnitudes[CST_VEC_GROUP],
                                             const struct cst_vec_bits from[CST_VEC_GROUP],
                                             const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_bits zeros[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        zeros[j] = cst_vec_set_bits(0);
    }
    if (largest <= CST_MX8_MAX) {
        CST_MEMORY(cst_format_store_codes)
        (rounding, which, true, at, block, magnitudes, from, words);
    } else {
        CST_MEMORY(cst_vec_store_codes)(which, at, zeros, zeros[0], zeros);
    }
}

CST_MEMORY_INLINE void cst_format_store_mx8(enum cst_rounding rounding, unsigned which,
                                            const struct cst_update_moment *at,
                                            const struct cst_vec in[CST_VEC_GROUP],
                                            const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec_bits magnitudes[CST_VEC_GROUP], from[CST_VEC_GROUP], all;
    uint8_t *codes = (uint8_t *)at->values;
    struct cst_mx8_block block;
    uint32_t largest;

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        magnitudes[j] = cst_mx8_magnitude(in[j]);
        from[j] = which == 0 ? cst_vec_to_bits(in[j]) : magnitudes[j];
    }
    all = cst_vec_largest(magnitudes);
    block = cst_mx8_block_of(which, all);
    largest = cst_vec_first(all);
    *at->exponents = (uint8_t)cst_mx8_exponent(which, largest);
    CST_MEMORY(cst_format_store_codes)
    (rounding, which, false, codes, &block, magnitudes, from, words);
    if (__builtin_expect(largest >= CST_MX8_HUGE, false)) {
        CST_MEMORY(cst_format_store_rare)
        (rounding, which, codes, &block, largest, magnitudes, from, words);
    }
}

/* Store the group @in at @at. Each NaN must be CST_UPDATE_NAN, except with mx8. @words are the
 * random words of the group for this moment. @words is not read if the moments are fp32 or are
 * rounded to nearest. */
CST_MEMORY_INLINE void cst_format_store(enum cst_moments moments, enum cst_rounding rounding,
                                        unsigned which, const struct cst_update_moment *at,
                                        const struct cst_vec in[CST_VEC_GROUP],
                                        const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    if (moments == CST_MOMENTS_BF16) {
        CST_MEMORY(cst_format_store_bf16)(rounding, at, in, words);
    } else if (moments == CST_MOMENTS_MX8) {
        CST_MEMORY(cst_format_store_mx8)(rounding, which, at, in, words);
    } else {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            float *to = (float *)at->values + j * CST_VEC_LANES;

            CST_MEMORY(cst_vec_store)(to, in[j]);
        }
    }
}

#endif
