/* SPDX-License-Identifier: Apache-2.0 */
/* Decides where a job's updates are done: collects what interleave_tuner.h needs to know of the
 * machine, of the job and of the last step, and applies its choice of k (one of each k chunks is
 * updated on an accelerator). A new k takes effect at the next commit and is logged. Loop thread
 * only. */
#ifndef CST_UPDATES_H
#define CST_UPDATES_H

#include <stdint.h>

struct cstd_job;

/* Return the k for @job, whose memory is ready and whose core is about to be opened. */
uint32_t cstd_updates_open(struct cstd_job *job);

/* A step of @job is committed. At the end of the loop's iteration, when the ranks have their
 * replies and the engines their commands, this module measures the last step's updates and decides
 * whether another k is better. */
void cstd_updates_step(struct cstd_job *job);

/* Stop measuring, because the core of @job is about to be closed. */
void cstd_updates_close(struct cstd_job *job);

#endif
