// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/cudaemu/cudaemu.h"
#include "tests/lib/cudaemu/list.h"

#include <string.h>

#define DECLARE(name) extern "C" const struct cst_emu_kernel cst_emu_##name;
CST_EMU_KERNELS(DECLARE)
#undef DECLARE

const struct cst_emu_kernel *cst_emu_find(const char *name)
{
#define ADDRESS(name) &cst_emu_##name,
    static const struct cst_emu_kernel *const all[] = {CST_EMU_KERNELS(ADDRESS)};
#undef ADDRESS

    for (const struct cst_emu_kernel *kernel : all) {
        if (strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
    return nullptr;
}
