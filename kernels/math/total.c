/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/total.h"

#include "kernels/math/processor.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

struct cst_totals cst_totals_get(void)
{
#ifdef HAVE_X86_SIMD
    if (cst_processor_has_avx512()) {
        return (struct cst_totals){cst_total_fp32_avx512, cst_total_bf16_avx512};
    }
    if (cst_processor_has_avx2()) {
        return (struct cst_totals){cst_total_fp32_avx2, cst_total_bf16_avx2};
    }
#endif
#ifdef HAVE_NEON
    if (cst_processor_has_neon()) {
        return (struct cst_totals){cst_total_fp32_neon, cst_total_bf16_neon};
    }
#endif
    return (struct cst_totals){cst_total_fp32_ref, cst_total_bf16_ref};
}
