/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's way through the model, forwards and backwards, operator by operator between op_begin
 * and op_end of the store: a table of operations with a row each for the processor (pass_host.c)
 * and a GPU (cuda/pass.c). A pass holds activations, never weights: those are the store's, and are
 * seen only while an operator is begun. Used by the thread that opened it. */
#ifndef GPT_PASS_H
#define GPT_PASS_H

#include "client/gpt/exchange.h"
#include "client/gpt/model.h"
#include "client/gpt/store.h"

struct gpt_pass;

struct gpt_pass_ops {
    const char *name;
    /* All operators forwards over the first @n_seqs sequences of tokens. @train: also the loss
     * against targets, and what the way back starts from. Statuses of the store and the device. */
    int (*forward)(struct gpt_pass *pass, struct gpt_store *store, size_t n_seqs, bool train,
                   struct cst_err *err);
    /* All operators backwards, after a forward with @train: every gradient is written into the
     * store's blocks. */
    int (*backward)(struct gpt_pass *pass, struct gpt_store *store, struct cst_err *err);
    /* Mean cross entropy of the last forward with @train; waits until it is known. */
    int (*loss)(struct gpt_pass *pass, double *out, struct cst_err *err);
    /* What the last forward gave for @row; waits likewise. */
    int (*logits)(struct gpt_pass *pass, size_t row, float out[GPT_VOCAB], struct cst_err *err);
    void (*close)(struct gpt_pass *pass);

    /* For gpt_pass_step. Operator @number between op_begin and op_end: */
    int (*run)(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
               enum cst_direction direction, struct cst_err *err);
    /* of a mixture, whether the expert @op runs here, and what is done with the rows of block
     * @layer before the first of its experts and behind the last. */
    bool (*runs)(const struct gpt_pass *pass, const struct gpt_operator *op);
    int (*dispatch)(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                    struct cst_err *err);
    int (*combine)(struct gpt_pass *pass, uint32_t layer, enum cst_direction direction,
                   struct cst_err *err);
};

/* The head of each row's own struct. */
struct gpt_pass {
    const struct gpt_pass_ops *ops;
    const struct gpt_model *model; /* borrowed */
    size_t max_seqs;               /* sequences that fit */
    uint8_t *tokens, *targets;     /* max_seqs x context; the caller fills them before a forward */
    struct gpt_exchange *exchange; /* of a mixture on several ranks, borrowed: where those of a pass
                                      with @train meet; NULL: there are no others */
};

/* Operator @number and, of a mixture, what is around its experts: what forward and backward do for
 * one operator after the other. */
int gpt_pass_step(struct gpt_pass *pass, struct gpt_store *store, uint32_t number,
                  enum cst_direction direction, struct cst_err *err);

#endif
