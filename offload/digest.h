/* SPDX-License-Identifier: Apache-2.0 */
/* A number that tells models apart. Pure. */
#ifndef CST_DIGEST_H
#define CST_DIGEST_H

#include "offload/layout.h"

/* A digest, below 2^53 (which numbers of JSON keep in any program), of all that layouts of @model
 * depend on, for @world ranks: names, shapes, groups, patterns and boxes of tensors, and which
 * tensors operators use, in order of declaration. Factors on learning rates and hints on costs do
 * not count. Two models of one digest are taken to be the same; it does not withstand somebody who
 * makes two on purpose. */
uint64_t cst_model_digest(const struct cst_model *model, uint32_t world);

#endif
