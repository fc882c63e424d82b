/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a job hold a tensor: one row per pattern. Whatever differs between patterns is a
 * column here; code asks for the column, never for the name. To add one: offload/README.md.
 *
 * Every rank declares every group, tensor and operator, whether or not it holds them, in the same
 * words. A rank holds a tensor if it is in the tensor's group, and runs an operator if it holds all
 * of the operator's tensors. */
#ifndef CST_PATTERNS_H
#define CST_PATTERNS_H

#include "cistern/pattern.h"

#include <stdbool.h>
#include <stdint.h>

struct cst_pattern {
    const char *name;  /* "shard" and so on, in files, on the command line, in explain */
    bool has_states;   /* grad, master and moments rows, a reduction and an update; else the weight
                          row alone */
    bool stays;        /* a victim only where a step could not go on otherwise */
    bool wants_box;    /* cst_layout_tensor.whole is to be given */
    bool wants_subset; /* useless unless its group is smaller than the job: the layout takes it,
                          `cistern plan` warns */
    bool sparse; /* an operator that uses it may be left out of a step: expected_uses counts, its
                    absence is no surprise */
};

/* Row of @kind; NULL: there is none. */
const struct cst_pattern *cst_pattern(uint32_t kind);

/* CST_PATTERN_COUNT: no pattern has that name. */
enum cst_pattern_kind cst_pattern_find(const char *name);

#endif
