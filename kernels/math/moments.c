/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/vec_ref.h"

#include "kernels/math/formats.h"
#include "kernels/math/moments.h"

/* Returns the group of @row in which element @i lies. */
static struct cst_update_moment group_at(enum cst_moments moments,
                                         const struct cst_update_moment *row, uint64_t i)
{
    return cst_format_at(moments, row, (size_t)(i - i % CST_UPDATE_GROUP));
}

/* Returns the number of elements in [i, end) that are in the group of element @i. */
static size_t share(uint64_t i, uint64_t end)
{
    uint64_t next = i - i % CST_UPDATE_GROUP + CST_UPDATE_GROUP;

    return (size_t)((next < end ? next : end) - i);
}

static void decode_mx8(unsigned which, uint64_t first, uint64_t end,
                       const struct cst_update_moment *row, float *out)
{
    for (uint64_t i = first; i < end;) {
        struct cst_update_moment at = group_at(CST_MOMENTS_MX8, row, i);
        struct cst_vec values[1][CST_UPDATE_GROUP];
        size_t n = share(i, end);

        cst_format_load(CST_MOMENTS_MX8, which, &at, values[0]);
        for (size_t j = 0; j < n; j++) {
            out[i + j - first] = cst_formula_canonical(values[0][i % CST_UPDATE_GROUP + j]).x;
        }
        i += n;
    }
}

void cst_moments_decode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const struct cst_update_moment *row, float *out)
{
    if (moments == CST_MOMENTS_MX8) {
        decode_mx8(cst_format_code(which), first, first + n, row, out);
    } else if (moments == CST_MOMENTS_BF16) {
        cst_upcast_ref(n, (const uint16_t *)row->values + first, out);
    } else {
        memcpy(out, (const float *)row->values + first, n * sizeof *out);
    }
}

static void encode_mx8(unsigned which, uint64_t first, uint64_t end, const float *in,
                       const struct cst_update_moment *row)
{
    /* Rounding to nearest reads no random words. */
    const struct cst_vec_bits none[1][CST_VEC_GROUP / 2] = {{{0}}};

    for (uint64_t i = first; i < end;) {
        struct cst_update_moment at = group_at(CST_MOMENTS_MX8, row, i);
        struct cst_vec values[1][CST_UPDATE_GROUP];
        size_t n = share(i, end);

        /* Elements of the block outside [i, i + n) keep their values. */
        cst_format_load(CST_MOMENTS_MX8, which, &at, values[0]);
        for (size_t j = 0; j < n; j++) {
            values[0][i % CST_UPDATE_GROUP + j].x = in[i + j - first];
        }
        cst_format_store(CST_MOMENTS_MX8, CST_ROUNDING_NEAREST, which, 1, &at, values, none);
        i += n;
    }
}

void cst_moments_encode(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                        const float *in, const struct cst_update_moment *row)
{
    if (moments == CST_MOMENTS_MX8) {
        encode_mx8(cst_format_code(which), first, first + n, in, row);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct cst_vec x = cst_formula_canonical(cst_vec_set(in[i]));

        if (moments == CST_MOMENTS_BF16) {
            ((uint16_t *)row->values)[first + i] = cst_fp32_to_bf16(x.x);
        } else {
            ((float *)row->values)[first + i] = x.x;
        }
    }
}

/* Set elements to zero. A block that is cleared as a whole becomes zero bytes. */
static void clear_mx8(unsigned which, uint64_t first, uint64_t end,
                      const struct cst_update_moment *row)
{
    static const float zeros[CST_UPDATE_GROUP];

    for (uint64_t i = first; i < end;) {
        size_t n = share(i, end);

        if (n == CST_UPDATE_GROUP) {
            memset((uint8_t *)row->values + i, 0, n);
            row->exponents[i / CST_UPDATE_GROUP] = 0;
        } else {
            encode_mx8(which, i, i + n, zeros, row);
        }
        i += n;
    }
}

void cst_moments_clear(enum cst_moments moments, unsigned which, uint64_t first, size_t n,
                       const struct cst_update_moment *row)
{
    const size_t bytes = cst_moments_elem_bytes(moments);

    if (moments == CST_MOMENTS_MX8) {
        clear_mx8(cst_format_code(which), first, first + n, row);
    } else {
        memset((char *)row->values + first * bytes, 0, n * bytes);
    }
}
