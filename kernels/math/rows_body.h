/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, reduction and accumulation over vectors: the common part of rows_avx2.c,
 * rows_avx512.c and rows_neon.c, which add only their vectors and the suffix ISA. Included once,
 * after one of kernels/math/vec_*.h. Private to kernels/. Elements after the last whole group are
 * processed one by one. */
#include "kernels/math/rounding.h"
#include "kernels/math/sum_element.h"

/* Prefetch distance in each source, in bytes. The part of a source in one tile is too short for the
 * processor's own prefetcher. */
#define AHEAD_BYTES 2048

#define NAME_OF(function, isa) cst_##function##_##isa
#define NAME_FOR(function, isa) NAME_OF(function, isa)
#define NAME(function) NAME_FOR(function, ISA)

_Static_assert(sizeof(struct cst_vec_squares) == CST_SUM_LANES * sizeof(double),
               "the lanes of the sum of squares");

/* -- conversions ------------------------------------------------------------------------------ */

/* cst_fp32_to_bf16 of each lane, in the upper half. The lower half is undefined. */
CST_INLINE struct cst_vec_bits to_bf16(struct cst_vec x)
{
    struct cst_vec_bits bits = cst_vec_to_bits(x);
    struct cst_vec_bits odd = cst_vec_and(cst_vec_right(bits, 16), cst_vec_set_bits(1));
    struct cst_vec_bits rounded = cst_vec_plus(cst_vec_plus(bits, odd), cst_vec_set_bits(0x7fff));
    struct cst_vec_bits quiet = cst_vec_or(bits, cst_vec_set_bits(0x00400000));

    return cst_vec_to_bits(cst_vec_if_nan(x, cst_vec_from_bits(quiet), cst_vec_from_bits(rounded)));
}

void NAME(cast)(size_t n, const float *src, uint16_t *dst)
{
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec_bits v[CST_VEC_GROUP];

        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            v[j] = to_bf16(cst_vec_load(src + i + j * CST_VEC_LANES));
        }
        cst_vec_store_upper(dst + i, CST_VEC_GROUP, v, false);
    }
    cst_cast_ref(n - i, src + i, dst + i);
}

void NAME(upcast)(size_t n, const uint16_t *src, float *dst)
{
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            size_t at = i + (size_t)(j * CST_VEC_LANES);

            cst_vec_store(dst + at, cst_vec_load_bf16(src + at));
        }
    }
    cst_upcast_ref(n - i, src + i, dst + i);
}

void NAME(expand)(size_t n, const uint16_t *src, float *fp32, uint16_t *bf16)
{
    bool stream = cst_vec_can_stream(fp32), stream_bf16 = cst_vec_can_stream(bf16);
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec_bits v[CST_VEC_GROUP];

        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            size_t at = i + (size_t)(j * CST_VEC_LANES);
            struct cst_vec x = cst_vec_load_bf16(src + at);

            if (stream) {
                cst_vec_stream(fp32 + at, x);
            } else {
                cst_vec_store(fp32 + at, x);
            }
            v[j] = to_bf16(x);
        }
        cst_vec_store_upper(bf16 + i, CST_VEC_GROUP, v, stream_bf16);
    }
    cst_expand_ref(n - i, src + i, fp32 + i, bf16 + i);
    cst_vec_fence();
}

/* -- sums ------------------------------------------------------------------------------------- */

/* Operands of a sum. */
struct input {
    struct cst_sum_sources src;
    const float *row; /* First operand. NULL: there is none. */
};

/* Returns the vector of contribution @r at element @at. */
CST_INLINE struct cst_vec load_source(const struct cst_sum_sources *src, uint32_t r, size_t at)
{
    return src->wide ? cst_vec_load(src->fp32[r] + at) : cst_vec_load_bf16(src->bf16[r] + at);
}

/* Returns the address of contribution @r, AHEAD_BYTES after element @i. */
CST_INLINE const void *ahead_of(const struct cst_sum_sources *src, uint32_t r, size_t i)
{
    uintptr_t at = src->wide ? (uintptr_t)(src->fp32[r] + i) : (uintptr_t)(src->bf16[r] + i);

    return (const void *)(at + AHEAD_BYTES);
}

/* Sum a group of elements from @i on. There is at least one operand. */
CST_INLINE void sum_group(const struct input *in, size_t i, struct cst_vec v[CST_VEC_GROUP])
{
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        size_t at = i + (size_t)(j * CST_VEC_LANES);

        v[j] = in->row != NULL ? cst_vec_load(in->row + at) : load_source(&in->src, 0, at);
    }
    for (uint32_t r = 0; r < in->src.n; r++) {
        cst_vec_ahead(ahead_of(&in->src, r, i));
        if (r == 0 && in->row == NULL) {
            continue;
        }
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            v[j] = cst_vec_add(v[j], load_source(&in->src, r, i + (size_t)(j * CST_VEC_LANES)));
        }
    }
}

/* Returns whether there is a NaN in a group. NaNs are rare. */
CST_INLINE bool has_nan(const struct cst_vec v[CST_VEC_GROUP])
{
    struct cst_vec_flags nans = cst_vec_no_flags();

    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j += 2) {
        nans = cst_vec_flag_nan(nans, v[j], v[j + 1]);
    }
    return __builtin_expect(cst_vec_flagged(nans), false);
}

/* Replace each NaN in a group by @nan. */
CST_INLINE void replace_nans(struct cst_vec v[CST_VEC_GROUP], struct cst_vec nan)
{
    if (has_nan(v)) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            v[j] = cst_vec_if_nan(v[j], nan, v[j]);
        }
    }
}

/* Make each NaN in a group quiet. */
CST_INLINE void quieten(struct cst_vec v[CST_VEC_GROUP])
{
    const struct cst_vec_bits quiet = cst_vec_set_bits(0x00400000);

    if (has_nan(v)) {
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            struct cst_vec_bits bits = cst_vec_or(cst_vec_to_bits(v[j]), quiet);

            v[j] = cst_vec_if_nan(v[j], cst_vec_from_bits(bits), v[j]);
        }
    }
}

/* Round the sum of two or more contributions to bf16. */
CST_INLINE void round_sum(struct cst_vec v[CST_VEC_GROUP])
{
    replace_nans(v, cst_vec_from_bits(cst_vec_set_bits(CST_REDUCE_NAN << 16)));
    CST_VEC_UNROLL
    for (int j = 0; j < CST_VEC_GROUP; j++) {
        struct cst_vec_bits upper = cst_vec_set_bits(0xffff0000u);

        v[j] = cst_vec_from_bits(cst_vec_and(cst_round_bf16(v[j]), upper));
    }
}

CST_INLINE double reduce(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    const struct input in = {.src = {.n = n_src, .bf16 = src}};
    struct cst_vec_squares squares = {0};
    double lanes[CST_SUM_LANES];
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec_bits bits[CST_VEC_GROUP];
        struct cst_vec v[CST_VEC_GROUP];

        sum_group(&in, i, v);
        /* A single contribution needs no rounding. */
        if (n_src == 1) {
            quieten(v);
        } else {
            round_sum(v);
        }
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            bits[j] = cst_vec_to_bits(v[j]);
        }
        cst_vec_store_upper(dst + i, CST_VEC_GROUP, bits, false);
        cst_vec_add_squares(&squares, v);
    }
    memcpy(lanes, &squares, sizeof lanes);
    for (; i < n; i++) {
        cst_reduce_element(i, n_src, src, dst, lanes);
    }
    return cst_sum_tree(lanes);
}

/* Frequent numbers of sources are compile-time constants. */
double NAME(reduce)(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    switch (n_src) {
    case 0:
        return cst_reduce_ref(n, n_src, src, dst);
    case 1:
        return reduce(n, 1, src, dst);
    case 2:
        return reduce(n, 2, src, dst);
    case 4:
        return reduce(n, 4, src, dst);
    default:
        return reduce(n, n_src, src, dst);
    }
}

CST_INLINE double accumulate(const struct input *in, size_t n, float *dst)
{
    const struct cst_vec nan = cst_vec_from_bits(cst_vec_set_bits(CST_ACCUMULATE_NAN));
    struct cst_vec_squares squares = {0};
    double lanes[CST_SUM_LANES];
    size_t i = 0;

    /* Without operands, the loop of single elements stores zeros. */
    for (; (in->row != NULL || in->src.n > 0) && i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec v[CST_VEC_GROUP];

        sum_group(in, i, v);
        replace_nans(v, nan);
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            cst_vec_store(dst + i + j * CST_VEC_LANES, v[j]);
        }
        cst_vec_add_squares(&squares, v);
    }
    memcpy(lanes, &squares, sizeof lanes);
    for (; i < n; i++) {
        float x = cst_sum_total(i, &in->src, in->row == NULL ? NULL : in->row + i);

        cst_accumulate_element(x, i, dst, lanes);
    }
    return cst_sum_tree(lanes);
}

double NAME(accumulate)(size_t n, uint32_t n_src, const uint16_t *const *src, bool accumulates,
                        float *dst)
{
    const struct input in = {.src = {.n = n_src, .bf16 = src}, .row = accumulates ? dst : NULL};

    return accumulate(&in, n, dst);
}

double NAME(accumulate_fp32)(size_t n, uint32_t n_src, const float *const *src, bool accumulates,
                             float *dst)
{
    const struct input in = {.src = {.n = n_src, .wide = true, .fp32 = src},
                             .row = accumulates ? dst : NULL};

    return accumulate(&in, n, dst);
}

/* -- totals ----------------------------------------------------------------------------------- */

CST_INLINE void total_fp32(size_t n, uint32_t n_src, const float *const *src, float *dst)
{
    const struct cst_vec nan = cst_vec_from_bits(cst_vec_set_bits(CST_TOTAL_NAN));
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec v[CST_VEC_GROUP];

        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            v[j] = cst_vec_load(src[0] + i + j * CST_VEC_LANES);
        }
        for (uint32_t r = 1; r < n_src; r++) {
            CST_VEC_UNROLL
            for (int j = 0; j < CST_VEC_GROUP; j++) {
                v[j] = cst_vec_add(v[j], cst_vec_load(src[r] + i + j * CST_VEC_LANES));
            }
        }
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            cst_vec_store(dst + i + j * CST_VEC_LANES, cst_vec_if_nan(v[j], nan, v[j]));
        }
    }
    for (; i < n; i++) {
        dst[i] = cst_total_fp32_element(i, n_src, src);
    }
}

/* Two sources are the most frequent case, and a compile-time constant. */
void NAME(total_fp32)(size_t n, uint32_t n_src, const float *const *src, float *dst)
{
    if (n_src == 2) {
        total_fp32(n, 2, src, dst);
    } else {
        total_fp32(n, n_src, src, dst);
    }
}

CST_INLINE void total_bf16(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    const struct cst_vec nan = cst_vec_from_bits(cst_vec_set_bits(CST_TOTAL_NAN));
    const struct input in = {.src = {.n = n_src, .bf16 = src}};
    size_t i = 0;

    for (; i + CST_UPDATE_GROUP <= n; i += CST_UPDATE_GROUP) {
        struct cst_vec_bits bits[CST_VEC_GROUP];
        struct cst_vec v[CST_VEC_GROUP];

        sum_group(&in, i, v);
        replace_nans(v, nan);
        CST_VEC_UNROLL
        for (int j = 0; j < CST_VEC_GROUP; j++) {
            bits[j] = cst_round_bf16(v[j]);
        }
        cst_vec_store_upper(dst + i, CST_VEC_GROUP, bits, false);
    }
    for (; i < n; i++) {
        dst[i] = cst_total_bf16_element(i, n_src, src);
    }
}

void NAME(total_bf16)(size_t n, uint32_t n_src, const uint16_t *const *src, uint16_t *dst)
{
    if (n_src == 2) {
        total_bf16(n, 2, src, dst);
    } else {
        total_bf16(n, n_src, src, dst);
    }
}
