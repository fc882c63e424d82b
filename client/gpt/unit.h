/* SPDX-License-Identifier: Apache-2.0 */
/* Units of a model that is cut into stages (cst_next). A stage's input is the residual stream
 * before its first block. The backward pass computes the stage's activations again from it.
 *
 *   forward of stage s    input from edge s - 1 -> blocks -> output to edge s
 *   backward of stage s   input from edge s - 1 -> blocks -> gradient from edge stages - 1 + s
 *                         -> blocks backward -> gradient to edge stages - 1 + s - 1
 *
 * The arrays are fp32, rows x width. Used by the pass's thread. */
#ifndef GPT_UNIT_H
#define GPT_UNIT_H

#include "client/gpt/pass.h"

/* Run @unit over a micro-batch of @n_seqs sequences, whose tokens and targets @pass has. The pass's
 * loss is that of the last backward unit of the last stage. The statuses are those of the store and
 * the device. */
int gpt_unit_run(struct gpt_pass *pass, struct gpt_store *store, const struct cst_unit *unit,
                 size_t n_seqs, struct cst_err *err);

#endif
