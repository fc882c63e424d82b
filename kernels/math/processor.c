/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/math/processor.h"

#include "proto/isa.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

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
bool cst_processor_has_avx2(void)
{
    __builtin_cpu_init();
    return cst_isa_limit() >= CST_ISA_AVX2 && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && has_f16c();
}

bool cst_processor_has_avx512(void)
{
    return cst_isa_limit() >= CST_ISA_AVX512 && cst_processor_has_avx2() &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool cst_processor_has_avx2(void)
{
    return false;
}

bool cst_processor_has_avx512(void)
{
    return false;
}
#endif

#ifdef HAVE_NEON
/* Every AArch64 processor that Linux runs on has NEON. */
bool cst_processor_has_neon(void)
{
    return cst_isa_limit() >= CST_ISA_NEON;
}
#else
bool cst_processor_has_neon(void)
{
    return false;
}
#endif
