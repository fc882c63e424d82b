/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of dispatched jobs that hang up while their processes go on. Such a process may still write
 * to the memory that ranks pass arrays through, so that nobody can do its unit again there. If the
 * process has not ended after SHUT_OUT_MS, the job's edges get new memory, which it cannot map, and
 * the step is done again without it. The old memory is charged as long as a process has it
 * (daemon/budget/remains.h). Loop thread only. */
#ifndef CSTD_SHUT_OUT_H
#define CSTD_SHUT_OUT_H

#include <stdint.h>

struct cstd_job;

/* Prepare the timer of @job, which the owner closes. */
void cstd_shut_out_init(struct cstd_job *job);

/* Rank @rank of @job has hung up, and its process lives. */
void cstd_shut_out_watch(struct cstd_job *job, uint32_t rank);

#endif
