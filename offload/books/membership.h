/* SPDX-License-Identifier: Apache-2.0 */
/* Which machines are members of the job, who is the home of a chunk, and how another machine is
 * told something (offload/base/machines.h). Owned here: the epoch. Only core/epochs.c changes
 * it. Every part of the core may call this. */
#ifndef CST_MEMBERSHIP_H
#define CST_MEMBERSHIP_H

#include "offload/base/machines.h"

struct cst_core;

struct cst_membership {
    uint64_t epoch;            /* 0: the core was not told of any. */
    uint64_t members;          /* Bit m: machine m is a member. */
    uint64_t failed_transfers; /* COPYs from other machines that have failed. */
};

/* What a member tells of a step is about one attempt in one epoch. An attempt of another epoch may
 * have the same number: those who knew of it have been started again since. */
struct cst_when {
    uint64_t epoch, attempt, step;
};

/* Less than 0: @a is earlier than @b; 0: they are equal; more than 0: @a is later. */
int cst_when_compare(const struct cst_when *a, const struct cst_when *b);

/* What @message is about. */
struct cst_when cst_membership_when(const struct cst_machine_message *message);

/* The step, attempt and epoch that run here. */
struct cst_when cst_membership_now(const struct cst_core *core);

/* The coordinator: the lowest member. There is a member. */
uint32_t cst_membership_coordinator(const struct cst_core *core);
bool cst_membership_is_coordinator(const struct cst_core *core);

/* The home of @chunk; CST_NONE: no member has its states. The job has other machines. */
uint32_t cst_membership_home(const struct cst_core *core, uint32_t chunk);

/* True if the job has other machines, and this one is the home of @chunk. */
bool cst_membership_is_home(const struct cst_core *core, uint32_t chunk);

/* Append a message to machine @to, or to all other members, with kind and epoch, the attempt and
 * the step that run now, and @chunk. Returns it for the rest to be filled in. */
struct cst_machine_message *cst_membership_tell(struct cst_core *core, uint32_t to,
                                                enum cst_message_kind kind, uint32_t chunk);

/* True if @message is about the attempt that runs here and its step. */
bool cst_membership_is_current(const struct cst_core *core,
                               const struct cst_machine_message *message);

#endif
