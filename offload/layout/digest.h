/* SPDX-License-Identifier: Apache-2.0 */
/* A number that distinguishes models. Pure. */
#ifndef CST_DIGEST_H
#define CST_DIGEST_H

#include "offload/layout/layout.h"

/* A digest of everything that layouts of @model depend on, for @world ranks: names, shapes, groups,
 * patterns and boxes of tensors, and the tensors of each operator, in order of declaration. Factors
 * for learning rates and hints about costs do not count. The result is below 2^53, so that any JSON
 * program keeps it exactly. Two models with the same digest are taken for the same; the digest is
 * not safe against deliberate collisions. */
uint64_t cst_model_digest(const struct cst_model *model, uint32_t world);

#endif
