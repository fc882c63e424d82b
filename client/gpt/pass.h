/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's forward and backward passes through the model, operator by operator, between op_begin
 * and op_end of the store. The table of operations is implemented for the host processor
 * (pass_host.c) and for a GPU (cuda/pass.c). A pass holds activations and no weights: weights
 * belong to the store and are visible only while an operator is begun. A pass is used by the thread
 * that opened it. */
#ifndef GPT_PASS_H
#define GPT_PASS_H

#include "client/gpt/exchange.h"
#include "client/gpt/model.h"
#include "client/gpt/store.h"

struct gpt_pass;

/* What a pass does for a unit (unit.h). Arrays are in the memory of the pass's device, fp32, rows x
 * width. */
struct gpt_unit_ops {
    /* Begin a pass through the blocks @first to @last over @n_seqs sequences. */
    int (*begin)(struct gpt_pass *pass, size_t n_seqs, uint32_t first, uint32_t last,
                 struct cst_err *err);
    /* Where the caller writes the residual stream before block @block, the first one. */
    void *(*input)(struct gpt_pass *pass, uint32_t block);
    /* Compute the residual stream after block @block, the last one. *out is where it is. */
    int (*output)(struct gpt_pass *pass, uint32_t block, void **out, struct cst_err *err);
    /* Where the gradient of the residual stream is. The caller writes that after the last block
     * there, and calls grad_taken. After the backward pass it is that before the first block. */
    void *(*grad)(struct gpt_pass *pass);
    int (*grad_taken)(struct gpt_pass *pass, struct cst_err *err);
    /* Compute the loss from the logits, and its gradient. */
    int (*loss)(struct gpt_pass *pass, struct cst_err *err);
};

struct gpt_pass_ops {
    const char *name;
    /* Run all operators forward over the first @n_seqs sequences of tokens. @train: also compute
     * the loss against targets, and the gradient of the logits. The statuses are those of the store
     * and the device. */
    int (*forward)(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                   struct cst_err *err);
    /* Run all operators backward, after a forward with @train. Every gradient is written into the
     * store's blocks. */
    int (*backward)(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err);
    /* Mean cross entropy of the last forward with @train. Waits for the device's result, and until
     * the last rows of a mixture have been exchanged. */
    int (*loss)(struct gpt_pass *pass, double *out, struct cst_err *err);
    /* Logits of @row from the last forward, as many as the vocabulary has tokens. Waits for the
     * device's result. */
    int (*logits)(struct gpt_pass *pass, size_t row, float *out, struct cst_err *err);
    void (*close)(struct gpt_pass *pass);

    const struct gpt_unit_ops *units;

    /* The operations below are for gpt_pass_step. This one runs operator @number between op_begin
     * and op_end. */
    int (*run)(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
               enum cst_direction direction, struct cst_err *err);
    /* Mixtures only: whether the expert @op runs in this rank. */
    bool (*runs)(const struct gpt_pass *pass, const struct gpt_operator *op);
    /* Mixtures only: send the rows of block @layer to the experts, before the first expert runs. */
    int (*send_rows)(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                     struct cst_err *err);
    /* Mixtures only: return the rows of block @layer and add them up, after the last expert. */
    int (*combine)(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                   struct cst_err *err);
};

/* First member of the struct of each implementation. */
struct gpt_pass {
    const struct gpt_pass_ops *ops;
    const struct gpt_model *model; /* borrowed */
    size_t max_seqs;               /* most sequences of a pass */
    uint32_t *tokens, *targets;    /* max_seqs x context; the caller fills both before a forward */
    /* Communicators of all ranks for the rows of a mixture, borrowed. They are used in passes with
     * @train. NULL: there are no other ranks. */
    struct gpt_exchange_comms comms;
};

/* Run operator @number, including a mixture's transport of rows before its first and after its last
 * expert. The forward and backward passes call it for each operator. */
int gpt_pass_step(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                  enum cst_direction direction, struct cst_err *err);

#endif
