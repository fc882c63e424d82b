/* SPDX-License-Identifier: Apache-2.0 */
/* The loss on a text that is not trained on. */
#ifndef GPT_VALIDATE_H
#define GPT_VALIDATE_H

#include "client/gpt/data.h"
#include "client/gpt/pass.h"

#define GPT_VALIDATE_SEQUENCES 1024 /* most sequences that are computed */

/* Compute the mean cross entropy of the sequences of @data, which do not overlap. If there are more
 * than GPT_VALIDATE_SEQUENCES, so many of them are computed, at equal distances. Forward passes use
 * @weights, a read-only store, and need no other rank. The statuses are those of @pass, and
 * those of gpt_data_sequence. */
int gpt_validate(struct gpt_pass *pass, struct gpt_store *weights, const struct gpt_data *data,
                 double *loss, struct cst_err *err);

#endif
