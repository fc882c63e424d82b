/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of one stage of a model that is cut into stages over one micro-batch: the units of
 * --parallel dispatch (cst_next), and the actions of --parallel pipeline (pipeline.h). A stage's
 * input is the residual stream before its first block. The backward pass computes the stage's
 * activations again from it.
 *
 *   forward of stage s    input from edge s - 1 -> blocks -> output to edge s
 *   backward of stage s   input from edge `kept` -> blocks -> gradient from edge stages - 1 + s
 *                         -> blocks backward -> gradient to edge stages - 1 + s - 1
 *
 * The arrays are fp32, rows x width. Used by the pass's thread. The statuses of all functions are
 * those of the store and the device. */
#ifndef GPT_UNIT_H
#define GPT_UNIT_H

#include "client/gpt/pass.h"

#define GPT_UNIT_NO_EDGE UINT32_MAX

struct gpt_unit {
    uint32_t stage, micro_batch;
    size_t n_seqs; /* Sequences of the micro-batch, whose tokens and targets the pass has. */
    /* Edge in which the input is until the backward pass. The forward pass puts it there, unless it
     * stays where it is, in edge stage - 1. Stage 0 has none. */
    uint32_t kept;
    /* Edge to which the backward pass of stage 0 puts the gradient of the residual stream for
     * gpt_unit_embed; GPT_UNIT_NO_EDGE: it runs the embedding backward itself. */
    uint32_t embed;
};

/* Run the forward pass and put the result. The forward pass of the last stage is part of its
 * backward pass: only its input is kept. */
int gpt_unit_forward(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                     struct cst_err *err);

/* Run the forward pass again, from the input that was kept. */
int gpt_unit_restore(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                     struct cst_err *err);

/* Run the backward pass, right after gpt_unit_restore of this unit. Afterwards the pass has the
 * loss, if the stage is the last one. */
int gpt_unit_backward(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                      struct cst_err *err);

/* Run the embedding backward, from the gradient that gpt_unit_backward has put. */
int gpt_unit_embed(struct gpt_pass *pass, struct gpt_store *store, const struct gpt_unit *unit,
                   struct cst_err *err);

#endif
