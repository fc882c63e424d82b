/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/validate.h"

/* Compute the mean loss of sequences [first, first + n) of @n_all. */
static int one_batch(struct gpt_pass *pass, struct gpt_store *weights, const struct gpt_data *data,
                     size_t first, size_t n, size_t n_all, double *loss, struct cst_err *err)
{
    const size_t context = pass->model->context, n_places = (data->n_tokens - 1) / context;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = gpt_data_sequence(data, (first + i) * n_places / n_all * context, context,
                               pass->tokens + i * context, pass->targets + i * context, err);
    }
    if (rc == 0) {
        rc = pass->ops->forward(pass, weights, n, true, err);
    }
    return rc == 0 ? pass->ops->loss(pass, loss, err) : rc;
}

int gpt_validate(struct gpt_pass *pass, struct gpt_store *weights, const struct gpt_data *data,
                 double *loss, struct cst_err *err)
{
    const size_t n_places = (data->n_tokens - 1) / pass->model->context;
    const size_t n_all = n_places < GPT_VALIDATE_SEQUENCES ? n_places : GPT_VALIDATE_SEQUENCES;
    const struct gpt_exchange_comms comms = pass->comms;
    double sum = 0, part;
    int rc = 0;

    pass->comms = (struct gpt_exchange_comms){0}; /* The other ranks take no part. */
    for (size_t first = 0, n; rc == 0 && first < n_all; first += n) {
        n = n_all - first < pass->max_seqs ? n_all - first : pass->max_seqs;
        rc = one_batch(pass, weights, data, first, n, n_all, &part, err);
        sum += rc == 0 ? part * (double)n : 0;
    }
    pass->comms = comms;
    *loss = sum / (double)n_all;
    return rc;
}
