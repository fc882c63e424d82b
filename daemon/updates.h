/* SPDX-License-Identifier: Apache-2.0 */
/* Where a job's updates are made: what balance.h wants to know of the machine, of the job and of
 * the last step, and what becomes of its choice. A new k takes effect at the next commit and is
 * logged. Loop thread. */
#ifndef CST_UPDATES_H
#define CST_UPDATES_H

#include <stdint.h>

struct cst_job;

/* k for @job, whose memory is ready and whose core is about to be opened. */
uint32_t cst_updates_open(struct cst_job *job);

/* A step of @job is committed: at the end of the turn, when ranks have their replies and engines
 * their commands, see what the last one's updates took, and whether another k is better. */
void cst_updates_step(struct cst_job *job);

/* The core of @job goes: there is nothing more to see. */
void cst_updates_close(struct cst_job *job);

#endif
