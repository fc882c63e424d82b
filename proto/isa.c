/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/isa.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [CST_ISA_PLAIN] = "plain",
#ifdef __aarch64__
    [CST_ISA_NEON] = "neon",
#else
    [CST_ISA_AVX2] = "avx2",
    [CST_ISA_AVX512] = "avx512",
#endif
};

/* Return the number of @name in names, or -1. */
static int find(const char *name)
{
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

enum cst_isa cst_isa_limit(void)
{
    const char *given = getenv("CISTERN_ISA");
    int i = given != NULL ? find(given) : -1;

    return i < 0 ? CST_ISA_WIDEST : (enum cst_isa)i;
}

const char *cst_isa_refused(void)
{
    const char *given = getenv("CISTERN_ISA");

    return given == NULL || given[0] == '\0' || find(given) >= 0 ? NULL : given;
}
