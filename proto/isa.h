/* SPDX-License-Identifier: Apache-2.0 */
/* The widest vector instructions that cistern's programs use: all that the processor has, or fewer
 * if the environment variable CISTERN_ISA says so, to test the code for slower machines on a fast
 * one. States have the same bits with all instruction sets (kernels/math/update.h). Losses of
 * cistern-gpt can differ, because the order of sums differs. No state; any thread, as long as no
 * thread changes the environment. */
#ifndef CST_ISA_H
#define CST_ISA_H

#include "cistern/status.h"

#include <stddef.h>

/* The values of the variable, for messages. */
#ifdef __aarch64__
#define CST_ISA_NAMES "plain or neon"
#else
#define CST_ISA_NAMES "plain, avx2 or avx512"
#endif

/* Each set of an architecture contains the ones before it. */
enum cst_isa {
    CST_ISA_PLAIN, /* "plain": what the compiler makes of plain C. */
#ifdef __aarch64__
    CST_ISA_NEON, /* "neon": and all further instructions of the processor, such as SVE. */
    CST_ISA_WIDEST = CST_ISA_NEON,
#else
    CST_ISA_AVX2, /* "avx2": with FMA and F16C. */
    /* "avx512": F, BW, VL, DQ, and all further instructions of the processor, such as AMX. */
    CST_ISA_AVX512,
    CST_ISA_WIDEST = CST_ISA_AVX512,
#endif
};

/* Return the widest set to use. CST_ISA_WIDEST if the variable is not set, is empty, or has an
 * unknown value. */
enum cst_isa cst_isa_limit(void);

/* Return the value of the variable if it is unknown; NULL: the value is valid, or the variable is
 * not set. */
const char *cst_isa_refused(void);

/* Check the variable when a program starts. CST_EINVAL: its value is unknown. */
static inline int cst_isa_check(struct cst_err *err)
{
    const char *refused = cst_isa_refused();

    return refused == NULL ? CST_OK
                           : cst_err_set(err, CST_EINVAL,
                                         "CISTERN_ISA is '%s' in the environment; it can be %s",
                                         refused, CST_ISA_NAMES);
}

#endif
