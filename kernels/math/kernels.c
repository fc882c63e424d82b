/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/kernels.h"

#include "proto/isa.h"

#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

static bool always(void)
{
    return true;
}

#ifdef HAVE_X86_SIMD
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows F16C. AVX2, which is checked as well, needs the
 * same support of the operating system. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/* __builtin_cpu_supports also asks (XGETBV) whether the operating system saves the registers. */
static bool has_avx2(void)
{
    __builtin_cpu_init();
    return cst_isa_limit() >= CST_ISA_AVX2 && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return cst_isa_limit() >= CST_ISA_AVX512 && has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

#ifdef HAVE_NEON
/* Every AArch64 processor that Linux runs on has NEON. */
static bool has_neon(void)
{
    return cst_isa_limit() >= CST_ISA_NEON;
}
#endif

#define ROW(name, has)                                                                             \
    {                                                                                              \
        .isa = #name, .usable = (has), .update = &cst_update_##name, .reduce = cst_reduce_##name,  \
        .accumulate = cst_accumulate_##name, .accumulate_sum = cst_accumulate_sum_##name,          \
        .cast = cst_cast_##name, .upcast = cst_upcast_##name, .expand = cst_expand_##name,         \
    }

static const struct cst_kernels rows[] = {
    ROW(ref, always),
#ifdef HAVE_X86_SIMD
    ROW(avx2, has_avx2),
    ROW(avx512, has_avx512),
#endif
#ifdef HAVE_NEON
    ROW(neon, has_neon),
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
