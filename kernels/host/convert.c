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

/* Store master weights of fp32 values, and weights. */
static void store_fp32(const struct cst_kernels *kernels, const struct cste_device_convert *c)
{
    const float *src = cste_addr_host(c->src);
    float *master = cste_addr_host(c->dst[0]);
    uint16_t *weight = cste_addr_host(c->dst[1]);

    for (uint64_t first = 0; first < c->n_elems; first += CACHED_ELEMS) {
        uint64_t left = c->n_elems - first, n = left < CACHED_ELEMS ? left : CACHED_ELEMS;

        memcpy(master + first, src + first, n * sizeof *master);
        kernels->cast(n, master + first, weight + first);
    }
}

/* Store the master weights of fp32 tensors, which have no other weights. */
static void store_masters(const struct cst_kernels *kernels, const struct cste_device_convert *c)
{
    float *master = cste_addr_host(c->dst[0]);

    if (c->from_bf16) {
        kernels->upcast(c->n_elems, cste_addr_host(c->src), master);
    } else {
        memcpy(master, cste_addr_host(c->src), c->n_elems * sizeof *master);
    }
}

/* Store weights, and remainders unless they are NULL. */
static void store_split(const struct cste_device_convert *c, uint16_t *weight, int16_t *remainder)
{
    const void *src = cste_addr_host(c->src);

    for (uint64_t i = 0; i < c->n_elems; i++) {
        float master =
            c->from_bf16 ? cst_bf16_to_fp32(((const uint16_t *)src)[i]) : ((const float *)src)[i];
        int16_t rest;

        cst_split_cut(master, &weight[i], &rest);
        if (remainder != NULL) {
            remainder[i] = rest;
        }
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
    uint32_t first = cste_convert_first_moment(c);

    if (c->fp32) {
        store_masters(kernels, c);
    } else if (c->split) {
        store_split(c, cste_addr_host(c->dst[1]), cste_addr_host(c->dst[0]));
    } else if (c->from_bf16) {
        kernels->expand(c->n_elems, cste_addr_host(c->src), cste_addr_host(c->dst[0]),
                        cste_addr_host(c->dst[1]));
    } else {
        store_fp32(kernels, c);
    }
    for (unsigned i = 0; i + first < c->n_dst; i++) {
        struct cst_update_moment row = row_at(c, c->dst[i + first]);

        cst_moments_clear(c->moments, i, c->first, c->n_elems, &row);
    }
}

static void encode(const struct cste_device_convert *c)
{
    struct cst_update_moment row = row_at(c, c->dst[0]);

    cst_moments_encode(c->moments, (unsigned)(c->row - CST_ROW_MOMENT), c->first, c->n_elems,
                       cste_addr_host(c->src), &row);
}

static void decode(const struct cste_device_convert *c)
{
    struct cst_update_moment row = row_at(c, c->src);

    cst_moments_decode(c->moments, (unsigned)(c->row - CST_ROW_MOMENT), c->first, c->n_elems, &row,
                       cste_addr_host(c->dst[0]));
}

void cste_host_convert(const struct cst_kernels *kernels, const struct cste_device_convert *convert)
{
    switch (convert->what) {
    case CSTE_CONVERT_STATES:
        convert_states(kernels, convert);
        break;
    case CSTE_CONVERT_WEIGHT:
        if (convert->split) {
            store_split(convert, cste_addr_host(convert->dst[0]), NULL);
        } else {
            kernels->cast(convert->n_elems, cste_addr_host(convert->src),
                          cste_addr_host(convert->dst[0]));
        }
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
