/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/convert.h"

#include "kernels/math/cast.h"
#include "kernels/math/moments.h"
#include "kernels/math/split.h"

#include <string.h>

/* Master weights that are converted to weights while they are in the cache. */
enum { CACHED_ELEMS = 4096 };

/* Returns the moments row that begins at @addr. */
static struct cst_update_moment row_at(const struct cste_device_convert *c, struct cste_addr addr)
{
    uint8_t *values = cste_addr_host(addr);

    return (struct cst_update_moment){
        .values = values,
        .exponents = c->moments == CST_MOMENTS_MX8 ? values + c->row_elems : NULL};
}

/* Store @n master weights and weights, of elements [first, first + n) of the source. */
static void convert_weights(const struct cst_kernels *kernels, const struct cste_device_convert *c,
                            uint64_t first, uint64_t n)
{
    float *master = (float *)cste_addr_host(c->dst[0]) + first;

    if (c->from_bf16) {
        kernels->upcast(n, (const uint16_t *)cste_addr_host(c->src) + first, master);
    } else {
        memcpy(master, (const float *)cste_addr_host(c->src) + first, n * sizeof *master);
    }
    /* From bf16, too: signalling NaNs become quiet. */
    kernels->cast(n, master, (uint16_t *)cste_addr_host(c->dst[1]) + first);
}

/* Store @n remainders and weights. */
static void cut_weights(const struct cste_device_convert *c, uint64_t first, uint64_t n)
{
    int16_t *remainder = (int16_t *)cste_addr_host(c->dst[0]) + first;
    uint16_t *weight = (uint16_t *)cste_addr_host(c->dst[1]) + first;
    const void *src = cste_addr_host(c->src);

    for (uint64_t i = 0; i < n; i++) {
        float master = c->from_bf16 ? cst_bf16_to_fp32(((const uint16_t *)src)[first + i])
                                    : ((const float *)src)[first + i];

        cst_split_cut(master, &weight[i], &remainder[i]);
    }
}

static void join(const struct cste_device_convert *c)
{
    const uint16_t *weight = cste_addr_host(c->src);
    const int16_t *remainder = cste_addr_host(c->remainder);
    float *master = cste_addr_host(c->dst[0]);

    for (uint64_t i = 0; i < c->n_elems; i++) {
        master[i] = cst_split_join(weight[i], remainder[i]);
    }
}

static void convert_states(const struct cst_kernels *kernels, const struct cste_device_convert *c)
{
    for (uint64_t first = 0; first < c->n_elems; first += CACHED_ELEMS) {
        uint64_t left = c->n_elems - first, n = left < CACHED_ELEMS ? left : CACHED_ELEMS;

        if (c->split) {
            cut_weights(c, first, n);
        } else {
            convert_weights(kernels, c, first, n);
        }
    }
    for (unsigned i = 0; i + 2 < c->n_dst; i++) {
        struct cst_update_moment row = row_at(c, c->dst[i + 2]);

        cst_moments_clear(c->moments, i, c->first, c->n_elems, &row);
    }
}

static void encode(const struct cste_device_convert *c)
{
    struct cst_update_moment row = row_at(c, c->dst[0]);

    cst_moments_encode(c->moments, (unsigned)(c->row - CST_ROW_EXP_AVG), c->first, c->n_elems,
                       cste_addr_host(c->src), &row);
}

static void decode(const struct cste_device_convert *c)
{
    struct cst_update_moment row = row_at(c, c->src);

    cst_moments_decode(c->moments, (unsigned)(c->row - CST_ROW_EXP_AVG), c->first, c->n_elems, &row,
                       cste_addr_host(c->dst[0]));
}

void cste_host_convert(const struct cst_kernels *kernels, const struct cste_device_convert *convert)
{
    switch (convert->what) {
    case CSTE_CONVERT_STATES:
        convert_states(kernels, convert);
        break;
    case CSTE_CONVERT_WEIGHT:
        kernels->cast(convert->n_elems, cste_addr_host(convert->src),
                      cste_addr_host(convert->dst[0]));
        break;
    case CSTE_CONVERT_ENCODE:
        encode(convert);
        break;
    case CSTE_CONVERT_DECODE:
        decode(convert);
        break;
    case CSTE_CONVERT_JOIN:
        join(convert);
        break;
    }
}
