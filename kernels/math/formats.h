/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and storing groups of CST_UPDATE_GROUP moments and split masters, written over vectors.
 * Included after one of kernels/math/vec_*.h. Private to kernels/. Format, rounding and @which (0:
 * a moment with a sign, 1: one without) are compile-time constants. */
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

/* Returns whether moment number @number has no sign. This is @which of the functions below. */
CST_INLINE unsigned cst_format_code(unsigned number)
{
    return CST_MOMENTS_UNSIGNED >> number & 1u;
}

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
    CST_MEMORY(cst_vec_load_all_bf16)(weight, n, out);
    CST_VEC_UNROLL
    for (int j = 0; j < n; j++) {
        struct cst_vec_bits r = CST_MEMORY(cst_vec_load_int16)(remainder + j * CST_VEC_LANES);

        out[j] = cst_vec_from_bits(cst_vec_plus(cst_vec_to_bits(out[j]), r));
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
    if (moments == CST_MOMENTS_BF16) {
        CST_MEMORY(cst_vec_load_all_bf16)((const uint16_t *)at->values, CST_VEC_GROUP, out);
        return;
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        if (moments == CST_MOMENTS_FP32) {
            out[j] = CST_MEMORY(cst_vec_load)((const float *)at->values + j * CST_VEC_LANES);
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

    if (rounding == CST_ROUNDING_NEAREST) {
        CST_MEMORY(cst_vec_store_bf16)((uint16_t *)at->values, CST_VEC_GROUP, in, false);
        return;
    }
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_vec_bits x = cst_vec_to_bits(in[j]);

        upper[j] = cst_vec_plus(x, cst_round_add(rounding, 16, x, words[j % (CST_VEC_GROUP / 2)],
                                                 j >= CST_VEC_GROUP / 2));
    }
    CST_MEMORY(cst_vec_store_upper)((uint16_t *)at->values, CST_VEC_GROUP, upper, false);
}

/* Store the codes of a block of @x. @unit is that of the block, and @from is that of
 * cst_vec_store_codes. */
CST_MEMORY_INLINE void cst_format_store_codes(enum cst_rounding rounding, unsigned which,
                                              uint8_t *at, struct cst_vec_common unit,
                                              const struct cst_vec x[CST_VEC_GROUP],
                                              const struct cst_vec from[CST_VEC_GROUP],
                                              const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    const struct cst_vec units = cst_vec_from_bits(cst_vec_common_bits(unit));
    struct cst_vec_bits codes[CST_VEC_GROUP];

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_vec_bits fixed = cst_vec_fixed(which, x[j], units);
        struct cst_vec_bits add = cst_round_add(rounding, 20, fixed, words[j % (CST_VEC_GROUP / 2)],
                                                j >= CST_VEC_GROUP / 2);

        codes[j] = cst_vec_plus(fixed, add);
    }
    CST_MEMORY(cst_vec_store_codes)(which, at, codes, unit, from);
}

/* Store a block that has a NaN, a magnitude of 2^127 or more, or a sign that its code
 * does not have. */
CST_MEMORY_INLINE void cst_format_store_rare(enum cst_rounding rounding, unsigned which,
                                             const struct cst_update_moment *at,
                                             const struct cst_vec in[CST_VEC_GROUP],
                                             const struct cst_vec_bits words[CST_VEC_GROUP / 2])
{
    struct cst_vec from[1][CST_VEC_GROUP], x[CST_VEC_GROUP];
    struct cst_vec_common largest;
    bool nan, halves;

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        from[0][j] = which == 0 ? in[j] : cst_mx8_magnitude(in[j]);
    }
    cst_vec_largest(which, 1, from, &largest);
    nan = cst_vec_common_scalar(largest) > CST_MX8_MAX;
    *at->exponents = (uint8_t)(nan ? CST_MX8_NAN : cst_mx8_exponent(which, largest));
    /* Twice a magnitude of 2^127 is no number. In a block of halves with half the unit, the codes
     * are the same: a half that is not exact is far below the last bit. */
    halves = cst_vec_common_scalar(largest) >= CST_MX8_HUGE;
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        from[0][j] = nan ? cst_vec_set(0.0f) : from[0][j];
        x[j] = halves ? cst_vec_mul(from[0][j], cst_vec_set(0.5f)) : from[0][j];
    }
    CST_MEMORY(cst_format_store_codes)
    (rounding, which, (uint8_t *)at->values,
     cst_vec_common_plus(cst_mx8_unit(which, largest), halves ? 0u - (1u << 23) : 0), x, from[0],
     words);
}

/* Store @n groups of different moments. The arguments have one element for each, and @which a bit.
 */
CST_MEMORY_INLINE void cst_format_store_mx8(enum cst_rounding rounding, unsigned which, unsigned n,
                                            const struct cst_update_moment at[],
                                            const struct cst_vec in[][CST_VEC_GROUP],
                                            const struct cst_vec_bits words[][CST_VEC_GROUP / 2])
{
    struct cst_vec_common largest[CST_MAX_MOMENTS];

    cst_vec_largest(which, n, in, largest);
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n; k++) {
        const unsigned code = which >> k & 1u;

        *at[k].exponents = (uint8_t)cst_mx8_exponent(code, largest[k]);
        CST_MEMORY(cst_format_store_codes)
        (rounding, code, (uint8_t *)at[k].values, cst_mx8_unit(code, largest[k]), in[k], in[k],
         words[k]);
        if (__builtin_expect(cst_vec_common_scalar(largest[k]) >= CST_MX8_HUGE, false)) {
            CST_MEMORY(cst_format_store_rare)(rounding, code, &at[k], in[k], words[k]);
        }
    }
}

/* Store the @n groups @in of different moments at @at. Bit k of @which is that of group k. Each NaN
 * must be CST_UPDATE_NAN, except with mx8. @words are the random words of the groups. @words is not
 * read if the moments are fp32 or are rounded to nearest. */
CST_MEMORY_INLINE void cst_format_store(enum cst_moments moments, enum cst_rounding rounding,
                                        unsigned which, unsigned n,
                                        const struct cst_update_moment at[],
                                        const struct cst_vec in[][CST_VEC_GROUP],
                                        const struct cst_vec_bits words[][CST_VEC_GROUP / 2])
{
    if (moments == CST_MOMENTS_MX8) {
        CST_MEMORY(cst_format_store_mx8)(rounding, which, n, at, in, words);
        return;
    }
    CST_VEC_UNROLL
    for (unsigned k = 0; k < n; k++) {
        if (moments == CST_MOMENTS_BF16) {
            CST_MEMORY(cst_format_store_bf16)(rounding, &at[k], in[k], words[k]);
            continue;
        }
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            CST_MEMORY(cst_vec_store)((float *)at[k].values + j * CST_VEC_LANES, in[k][j]);
        }
    }
}

#endif
