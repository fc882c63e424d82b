/* SPDX-License-Identifier: Apache-2.0 */
/* The life of one rank: its start, steps, validations, files, sample. The code is the same for a
 * rank that is a process with a daemon and for a rank that is a thread with the local store. */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include "client/gpt/data.h"
#include "client/gpt/compute_device.h"
#include "client/gpt/model.h"
#include "client/gpt/options.h"
#include "client/gpt/store.h"

/* Train until --steps steps are committed, starting from the job's current step. The caller keeps
 * all arguments and closes @store. @comm: communicator of this rank, if the ranks of a mixture are
 * threads; otherwise NULL, and ranks of a mixture open theirs at each sync. Rank 0 writes progress
 * and the sample to standard output. Statuses: those of the store and the device, CST_EIO,
 * CST_ENOMEM; CST_ECANCELLED: a signal requested the end. */
int gpt_train(const struct gpt_options *options, const struct gpt_model *model,
              const struct gpt_texts *texts, struct gpt_device *device, struct gpt_store *store,
              struct cst_comm *comm, uint32_t rank, struct cst_err *err);

#endif
