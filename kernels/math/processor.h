/* SPDX-License-Identifier: Apache-2.0 */
/* Which vector instructions the kernels may use: those that the processor and the operating system
 * support and that CISTERN_ISA allows (proto/isa.h). Any thread, as long as no thread changes the
 * environment. Private to kernels/. */
#ifndef CST_PROCESSOR_H
#define CST_PROCESSOR_H

#include <stdbool.h>

/* AVX2 with FMA and F16C. False on other architectures than x86. */
bool cst_processor_has_avx2(void);

/* AVX-512 F, BW, VL and DQ, and everything in AVX2. False on other architectures than x86. */
bool cst_processor_has_avx512(void);

/* NEON. False on other architectures than AArch64. */
bool cst_processor_has_neon(void);

#endif
