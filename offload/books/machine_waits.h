/* SPDX-License-Identifier: Apache-2.0 */
/* How long the steps of this machine have waited for each other machine of the job.
 *
 * A machine waits when all work of a step is done here, and something is missing that others send:
 *   - all ranks here are in SYNC, until the attempt begins (START);
 *   - all ranks here have asked for the step, until it is committed (PARTIAL, SUMMED, READY,
 * COMMIT, RECORDED, and the bytes that these messages name);
 *   - a rank here waits for weights that another machine makes (WRITTEN, and the weights).
 * An arrival ends a wait. Its time is charged to the machine that has sent it or, if the message
 * says so, to the machine for which the sender had to wait itself (cst_machine_message.waited_for).
 * The time for which engines here add gradients is charged to nobody.
 *
 * Owned here: these times. Called by agreement, commit, core, epochs, partials, ranks and replicas.
 */
#ifndef CST_MACHINE_WAITS_H
#define CST_MACHINE_WAITS_H

#include "offload/base/stats.h"

struct cst_core;

struct cst_machine_wait {
    uint64_t ns;      /* Since the core was opened. */
    uint64_t step_ns; /* Since the last commit. */
    double recent_ns; /* Of the last steps; an older one weighs less. */
};

struct cst_machine_waits {
    struct cst_machine_wait *v; /* Per machine; owned. NULL: the job has one machine. */
    uint64_t since;         /* When the present wait began, ns; 0: this machine does not wait. */
    uint64_t charged;       /* Until when waits were charged to a machine, ns. */
    double recent_steps_ns; /* Time of the last steps, weighted as in recent_ns. */
};

/* Fill core->machine_waits. CST_ENOMEM. */
int cst_machine_waits_open(struct cst_core *core);
void cst_machine_waits_close(struct cst_core *core);

/* All is done here: a wait begins, unless one is under way. */
void cst_machine_waits_begin(struct cst_core *core);

/* Work here has ended only now: a wait that is under way begins anew. */
void cst_machine_waits_work(struct cst_core *core);

/* The step goes on here, or is over: there is no wait any more. */
void cst_machine_waits_end(struct cst_core *core);

/* Something of @machine has arrived; @waited_for: the machine for which that one had to wait, which
 * can be itself; or CST_MACHINE_UNKNOWN. */
void cst_machine_waits_arrived(struct cst_core *core, uint32_t machine, uint32_t waited_for);

/* The weights of chunk @chunk came from @machine: ranks here can have waited for them. */
void cst_machine_waits_weights(struct cst_core *core, uint32_t chunk, uint32_t machine);

/* A step was committed, after core->commit.last_step_ns. */
void cst_machine_waits_committed(struct cst_core *core);

#endif
