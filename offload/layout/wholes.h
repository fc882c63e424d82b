/* SPDX-License-Identifier: Apache-2.0 */
/* The wholes of a model: what one rank would declare for the same parameters. Pure; only allocates
 * memory.
 *
 *   model of four ranks                          its wholes
 *   w.0: rows 0-1 of w, w.1: rows 2-3 of w  ->   w
 *   bias                                         bias */
#ifndef CST_WHOLES_H
#define CST_WHOLES_H

#include "offload/layout/layout.h"

/* Make the model *out of the wholes of @model, in the order in which their first parts are declared
 * there. It has tensors alone, all of them in group 0. A whole has the name, the shape and the
 * external names that its parts declare. A tensor whose whole has no name of its own stays as it
 * is, with its box. of[i], unless @of is NULL, gets the number in *out of the whole of tensor i of
 * @model. The caller closes *out. Statuses; after a failure *out is closed:
 *
 *   - CST_EMISMATCH: the parts of a whole leave out a range, which the words name; they meet
 *     without being equal; they differ in the shape of their whole, their type or their external
 *     names; there are more than CST_BOX_MAX_PARTS.
 *   - CST_EEXIST: two wholes have one name in model files.
 *   - CST_ENOMEM. */
int cst_wholes_open(struct cst_model *out, const struct cst_model *model, uint32_t *of,
                    struct cst_err *err);

#endif
