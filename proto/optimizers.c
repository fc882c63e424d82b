/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/optimizers.h"

#include <stddef.h>
#include <string.h>

const char *const cst_optimizer_names[CST_OPTIMIZER_COUNT + 1] = {
#define NAME(name, prefix, ...) [CST_OPTIMIZER_##name] = #prefix,
    CST_OPTIMIZERS(NAME)
#undef NAME
};

const char *const cst_moment_names[] = {"exp_avg", "exp_avg_sq"};

_Static_assert(sizeof cst_moment_names / sizeof cst_moment_names[0] == CST_MAX_MOMENTS,
               "each moment has a name");

const char *const cst_tensor_update_names[CST_TENSOR_UPDATE_COUNT + 1] = {
    [CST_TENSOR_UPDATE_AUTO] = "auto",
    [CST_TENSOR_UPDATE_ADAMW] = "adamw",
    [CST_TENSOR_UPDATE_MUON] = "muon",
};

const char *const cst_masters_names[CST_MASTERS_COUNT + 1] = {
    [CST_MASTERS_FP32] = "fp32",
    [CST_MASTERS_SPLIT] = "split",
};

const char *const cst_moments_names[CST_MOMENTS_COUNT + 1] = {
    [CST_MOMENTS_FP32] = "fp32",
    [CST_MOMENTS_BF16] = "bf16",
    [CST_MOMENTS_MX8] = "mx8",
};

const char *const cst_rounding_names[CST_ROUNDING_COUNT + 1] = {
    [CST_ROUNDING_STOCHASTIC] = "stochastic",
    [CST_ROUNDING_NEAREST] = "nearest",
};

const char *const cst_overlap_names[CST_OVERLAP_COUNT + 1] = {
    [CST_OVERLAP_COMMIT] = "commit",
    [CST_OVERLAP_EARLY] = "early",
    [CST_OVERLAP_DELAYED] = "delayed",
};

const char *const cst_unused_names[CST_UNUSED_COUNT + 1] = {
    [CST_UNUSED_ZERO] = "zero",
    [CST_UNUSED_SKIP] = "skip",
};

uint32_t cst_name_find(const char *const *names, const char *name)
{
    uint32_t i = 0;

    while (names[i] != NULL && strcmp(names[i], name) != 0) {
        i++;
    }
    return i;
}
