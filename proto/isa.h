/* SPDX-License-Identifier: Apache-2.0 */
/* The widest vector instructions that programs of cistern use: all that the processor has, or what
 * the environment variable CISTERN_ISA says, so that a fast machine can be made to run what a
 * slower one would. States have the same bits with all of them (kernels/update.h); losses of
 * cistern-gpt do not, since sums have other orders. No state; any thread, while no thread changes
 * the environment. */
#ifndef CST_ISA_H
#define CST_ISA_H

#include "cistern/status.h"

#include <stddef.h>

/* Each contains those before it. */
enum cst_isa {
    CST_ISA_PLAIN,  /* "plain": what every processor of the architecture has */
    CST_ISA_AVX2,   /* "avx2": with FMA and F16C */
    CST_ISA_AVX512, /* "avx512": F, BW, VL, DQ, and all of the processor beyond, such as AMX */
};

/* The limit. CST_ISA_AVX512 where the variable is not set, is empty, or names none of these. */
enum cst_isa cst_isa_limit(void);

/* The value of the variable where it names none of these; NULL: there is nothing wrong with it. */
const char *cst_isa_refused(void);

/* What a program calls when it starts. CST_EINVAL: the variable names none of these. */
static inline int cst_isa_check(struct cst_err *err)
{
    const char *refused = cst_isa_refused();

    return refused == NULL
               ? CST_OK
               : cst_err_set(err, CST_EINVAL,
                             "CISTERN_ISA is '%s' in the environment; it can be plain, avx2 or "
                             "avx512",
                             refused);
}

#endif
