/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/patterns.h"

#include <stddef.h>
#include <string.h>

static const struct cst_pattern patterns[CST_PATTERN_COUNT] = {
    [CST_PATTERN_SHARD] = {.name = "shard", .has_states = true},
    [CST_PATTERN_REPLICATE] = {.name = "replicate", .has_states = true, .stays = true},
    [CST_PATTERN_TENSOR] = {.name = "tensor",
                            .has_states = true,
                            .may_have_box = true,
                            .wants_box = true,
                            .wants_subset = true},
    [CST_PATTERN_EXPERT] = {.name = "expert",
                            .has_states = true,
                            .wants_subset = true,
                            .sparse = true},
    [CST_PATTERN_FROZEN] = {.name = "frozen", .may_have_box = true},
};

const struct cst_pattern *cst_pattern(uint32_t kind)
{
    return kind < CST_PATTERN_COUNT ? &patterns[kind] : NULL;
}

enum cst_pattern_kind cst_pattern_find(const char *name)
{
    enum cst_pattern_kind kind = 0;

    while (kind < CST_PATTERN_COUNT && strcmp(patterns[kind].name, name) != 0) {
        kind++;
    }
    return kind;
}
