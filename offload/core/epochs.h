/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs of a job on several machines: what members tell each other when one begins, and what is
 * missing in it. The state is in agreement.h, which describes epochs. Called by core.c, agreement,
 * ranks and deadlines. */
#ifndef CST_EPOCHS_H
#define CST_EPOCHS_H

#include "offload/base/event.h"

struct cst_core;

/* Handle CST_EV_MACHINES, and RECORD. */
void cst_epochs_machines(struct cst_core *core, const struct cst_event *event);
void cst_epochs_record(struct cst_core *core, const struct cst_event *event);

/* True if all members have told what they have recorded, and no ranks or states are missing. The
 * job has other machines. */
bool cst_epochs_may_begin(const struct cst_core *core);

/* True if no step can begin or be committed before members come that have the ranks of lost ones:
 * what the last step has made stays as it is. */
bool cst_epochs_await_ranks(const struct cst_core *core);

/* CST_OK: a rank may wait in SYNC. CST_ELOST: no attempt can begin, because no member has the
 * states of the chunks that *err names. */
int cst_epochs_check_sync(const struct cst_core *core, struct cst_err *err);

/* Write the machines for which SYNC waits into @text: "machine 2". */
void cst_epochs_name_missing(const struct cst_core *core, char *text, size_t size);

#endif
