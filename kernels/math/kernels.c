/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/kernels.h"

#include "kernels/math/processor.h"

#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

static bool always(void)
{
    return true;
}

#define ROW(name, has)                                                                             \
    {                                                                                              \
        .isa = #name, .usable = (has), .update = &cst_update_##name, .reduce = cst_reduce_##name,  \
        .accumulate = cst_accumulate_##name, .accumulate_fp32 = cst_accumulate_fp32_##name,        \
        .cast = cst_cast_##name, .upcast = cst_upcast_##name, .expand = cst_expand_##name,         \
        .total_fp32 = cst_total_fp32_##name, .total_bf16 = cst_total_bf16_##name,                  \
        .direction = cst_direction_##name, .product = cst_product_##name,                          \
    }

static const struct cst_kernels rows[] = {
    ROW(ref, always),
#ifdef HAVE_X86_SIMD
    ROW(avx2, cst_processor_has_avx2),
    ROW(avx512, cst_processor_has_avx512),
#endif
#ifdef HAVE_NEON
    ROW(neon, cst_processor_has_neon),
#endif
};

const struct cst_kernels *cst_kernels_all(unsigned *n_out)
{
    *n_out = sizeof rows / sizeof rows[0];
    return rows;
}

const struct cst_kernels *cst_kernels_get(const char *isa)
{
    for (unsigned i = sizeof rows / sizeof rows[0]; i-- > 0;) {
        if ((isa == NULL || strcmp(isa, rows[i].isa) == 0) && rows[i].usable()) {
            return &rows[i];
        }
    }
    return NULL;
}
