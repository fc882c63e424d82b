/* SPDX-License-Identifier: Apache-2.0 */
/* The states with which a job begins: initial weights, the weights of the model in --init, or the
 * states of a checkpoint. */
#ifndef GPT_START_H
#define GPT_START_H

#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "client/gpt/store.h"

/* Rank 0 calls this function before its first sync: a job without states gets them. @n_passes is
 * the number of passes of a batch. What was loaded, and what is other than in the checkpoint, is
 * printed. If there are no such states, the job is removed, so that no job without weights remains.
 * Statuses: those of the store and of gpt_checkpoint_check_model; CST_ENOMEM. */
int gpt_start(const struct gpt_options *options, const struct gpt_model *model, uint32_t n_passes,
              struct gpt_store *store, struct cst_err *err);

#endif
