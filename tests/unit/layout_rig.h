/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of every layout, checked from its contract alone; and models at random. */
#ifndef LAYOUT_RIG_H
#define LAYOUT_RIG_H

#include "offload/layout.h"

/* Every tensor is in one chunk, of its kind and class, whole, aligned and apart from others; rows
 * are there as the pattern says, apart, in segments of the chunk's node; the sums are right.
 * @config: that it was built with. */
void rig_check_layout(const struct cst_layout *layout, const struct cst_model *model,
                      const struct cst_layout_config *config);

/* Each rank goes through forward and backward as a worker does, with its blocks counted: needs are
 * what it takes, or, where operators may be left out (_every_ other sparse one is, by @seed),
 * enough. */
void rig_check_needs(const struct cst_layout *layout, const struct cst_model *model, uint32_t world,
                     unsigned seed);

/* Tensors, groups, patterns and operators of @world ranks at random. */
void rig_random_model(struct cst_model *model, uint32_t world);

/* 0..n-1, of rand(). */
uint32_t rig_below(uint32_t n);

#endif
