/* SPDX-License-Identifier: Apache-2.0 */
/* A save reads the states of a job as of one committed step, the cut, by READs, while the ranks go
 * on with the next step. Owns the save.
 *
 *   NONE --SAVE--> WAITING --the states are those of a committed step--> ACTIVE
 *
 * A save ends by SAVE_END. WAITING also ends if no commit comes for long, and ACTIVE if there is no
 * READ for long while a commit waits.
 *
 * While a save is active, no update is issued: a commit waits for the end of the save, and no
 * update is early. Thus every READ sees the states of the cut, without copies of states. A commit
 * waits only if the save takes longer than the rest of the step. Nothing may be written. */
#ifndef CST_SAVE_H
#define CST_SAVE_H

#include "offload/base/event.h"

struct cst_core;

enum cst_save_state { CST_SAVE_NONE, CST_SAVE_WAITING, CST_SAVE_ACTIVE };

struct cst_save {
    enum cst_save_state state;
    uint64_t tag;     /* WAITING: the request that is answered when the save is active. */
    uint64_t read_ns; /* Time of the last READ, or of the request if it is later. */
    bool timed_out;   /* NONE: the last save was ended because it had stopped reading. */
    uint64_t wait_ns; /* Time for which commits have waited for saves, of all saves together. */
};

/* Handle CST_EV_SAVE and SAVE_END. */
void cst_save_begin(struct cst_core *core, const struct cst_event *event);
void cst_save_end(struct cst_core *core, const struct cst_event *event);

/* Handle CST_EV_RESTORE. */
void cst_save_restore(struct cst_core *core, const struct cst_event *event);

/* Begin a save that waits, if the states are now those of a committed step. Called after each
 * event. */
void cst_save_look(struct cst_core *core);

/* A READ was issued. */
void cst_save_note_read(struct cst_core *core);

/* End a save that stopped reading while a commit waits for it, or that waits for a commit which
 * does not come. */
void cst_save_expire(struct cst_core *core);

/* The time at which cst_save_expire would end the save, in ns; or CST_CORE_NEVER. */
uint64_t cst_save_deadline(const struct cst_core *core);

/* CST_EBUSY: states cannot be written, because a save reads them. */
int cst_save_check_write(const struct cst_core *core, struct cst_err *err);

#endif
