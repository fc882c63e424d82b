/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns, the ways in which the ranks of a job hold a tensor: one row per pattern. Each property
 * in which patterns differ is a column here; code tests the column, never the pattern itself.
 * offload/README.md describes how to add a pattern.
 *
 * Every rank declares all groups, tensors and operators identically, even those that it does not
 * hold. A rank holds a tensor if the rank is in the tensor's group. It runs an operator if it holds
 * all of the operator's tensors. */
#ifndef CST_PATTERNS_H
#define CST_PATTERNS_H

#include "cistern/pattern.h"

#include <stdbool.h>
#include <stdint.h>

struct cst_pattern {
    /* "shard" and so on: the name in files, on the command line and in explanations. */
    const char *name;
    /* The tensor has gradients, master weights and moments, and is summed and updated. Otherwise it
     * has weights only. */
    bool has_states;
    /* Its weights are evicted only if the step could not continue otherwise. */
    bool stays;
    bool may_have_box; /* The tensor may be a part of a larger one (cst_layout_box). */
    bool wants_box;    /* It must be declared what part it is. */
    /* The pattern is useless unless the tensor's group is smaller than the job. The layout accepts
     * it; `cistern plan` warns. */
    bool wants_subset;
    /* An operator that uses the tensor may be left out of a step: its expected_uses matters, and
     * its absence is no surprise for the prediction of requests. */
    bool sparse;
};

/* Return the row of @kind; NULL: there is no such pattern. */
const struct cst_pattern *cst_pattern(uint32_t kind);

/* Return the pattern of that name; CST_PATTERN_COUNT: there is none. */
enum cst_pattern_kind cst_pattern_find(const char *name);

#endif
