/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the properties that every layout must have, from the layout's contract alone, and makes
 * random models. */
#ifndef LAYOUT_RIG_H
#define LAYOUT_RIG_H

#include "offload/layout/layout.h"

/* Check that each tensor lies whole and aligned in one chunk of its kind and size class, apart from
 * other tensors; that each chunk has the rows that its pattern needs, apart from other rows, in
 * segments of the chunk's node; and that the totals are right. @config: the configuration with
 * which the layout was built. */
void rig_check_layout(const struct cst_layout *layout, const struct cst_model *model,
                      const struct cst_layout_config *config);

/* Run forward and backward for each rank as a worker does, and count its blocks. The layout's needs
 * must be equal to the count or, if sparse operators may be left out, not smaller. @seed chooses
 * which of these are left out. */
void rig_check_needs(const struct cst_layout *layout, const struct cst_model *model, uint32_t world,
                     unsigned seed);

/* Declare random tensors, groups, patterns and operators for @world ranks. @model must be
 * initialised. */
void rig_random_model(struct cst_model *model, uint32_t world);

/* A number from 0 to n - 1, of rand(). */
uint32_t rig_below(uint32_t n);

#endif
