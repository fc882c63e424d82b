#include "kernels/kernels.h"

#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

static bool always(void)
{
    return true;
}

#ifdef HAVE_X86_SIMD
/* The builtin also asks the operating system (XGETBV) whether it saves the registers. */
static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct cst_kernels rows[] = {
    {"ref", always, cst_adamw_ref, cst_adamw_undo_ref, cst_reduce_ref, cst_cast_ref,
     cst_upcast_ref},
#ifdef HAVE_X86_SIMD
    {"avx2", has_avx2, cst_adamw_avx2, cst_adamw_undo_avx2, cst_reduce_avx2, cst_cast_avx2,
     cst_upcast_avx2},
    {"avx512", has_avx512, cst_adamw_avx512, cst_adamw_undo_avx512, cst_reduce_avx512,
     cst_cast_avx512, cst_upcast_avx512},
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
