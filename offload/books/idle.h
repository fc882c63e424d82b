/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors without a gradient in a step, in a job that skips them (layout->states.skips_unused):
 * they are idle. Decides which ones are, and counts the Adam steps that each tensor has missed.
 * Owns what ranks have said of it. Called by core.c, commit, agreement and revival.
 *
 * A tensor is idle in a step if each rank of its group has said so in its STEP, on all machines of
 * the job: when its ranks have asked for the step, each machine tells the others (UNUSED). Its
 * states stay, its gradient adds nothing to the norm, and its bias corrections count the steps that
 * it has made. The counts are in the job table (proto/table.h), which outlives the daemon: those up
 * to the last committed step and those up to the one after it are in different places, so that a
 * step that is not committed changes nothing. */
#ifndef CST_IDLE_H
#define CST_IDLE_H

#include "offload/base/event.h"
#include "offload/books/idle_union.h"

struct cst_core;
struct cst_idle {
    bool on;        /* The job skips idle tensors. If not, all pointers are NULL. */
    size_t n_bytes; /* Bytes of a bit for each tensor. */
    /* Per rank, a bit for each tensor: it had no gradient; its gradient was discarded. Owned. */
    uint8_t *without, *discarded;
    struct cst_idle_union all; /* What the ranks of all machines have said. */
    /* Per span in the order of the job table: steps up to the last Adam step, and up to the one
     * that is being committed. Owned. */
    struct cst_table_steps *steps, *next;
    uint64_t *missed; /* Per tensor: steps missed before the next RESTORE. Owned. */
};

/* CST_EINVAL: tensors cannot be skipped together with early updates or stages. CST_ENOMEM. The
 * caller calls cst_idle_close nevertheless. */
int cst_idle_open(struct cst_core *core, struct cst_err *err);
void cst_idle_close(struct cst_core *core);

/* Take what @event, a STEP that is accepted, says of tensors without a gradient. */
void cst_idle_ask(struct cst_core *core, const struct cst_event *event);

/* All ranks here have asked for the step. CST_EMISMATCH: a rank discards a gradient, and another
 * rank of the tensor's group has one. */
int cst_idle_check(const struct cst_core *core, struct cst_err *err);

/* All ranks here have asked for the step: tell the other machines what they say. */
void cst_idle_tell(struct cst_core *core);

/* Handle UNUSED. */
void cst_idle_told(struct cst_core *core, const struct cst_event *event);

/* True if it is known what the ranks of all machines say in the step that closes, and that does not
 * contradict what the ranks here say. */
bool cst_idle_is_known(const struct cst_core *core);

/* Decide which tensors and chunks are idle in the step with the mark @mark, and write the counts up
 * to it to the job table. All gradients are summed, and cst_idle_is_known. */
void cst_idle_decide(struct cst_core *core, uint64_t mark);

/* The step for which cst_idle_decide was called last is committed and not skipped. */
void cst_idle_commit(struct cst_core *core);

/* Number of the last update of chunk @c up to Adam step @adam_step, the last one or the one before,
 * as @table says; @adam_step if the job does not skip. */
uint64_t cst_idle_last_update(const struct cst_core *core, struct cst_table_header *table,
                              uint32_t c, uint64_t adam_step);

/* Take the counts up to Adam step @adam_step from @table, and those of the next step: other
 * machines may have decided to commit it (offload/core/agreement.h), and then this machine has
 * written them.
 */
void cst_idle_revive(struct cst_core *core, const struct cst_table_header *table,
                     uint64_t adam_step);

/* Handle CST_EV_MISSED. */
void cst_idle_take_missed(struct cst_core *core, const struct cst_event *event);

/* The job is restored to Adam step @adam_step: each tensor has missed as many steps as the events
 * CST_EV_MISSED since the last RESTORE have said, or none. */
void cst_idle_restore(struct cst_core *core, uint64_t adam_step);

#endif
