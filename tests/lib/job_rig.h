/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the daemon's jobs: a private daemon, a client that reads its statistics, and
 * the job "j". */
#ifndef JOB_RIG_H
#define JOB_RIG_H

#include "tests/lib/settle.h"

extern struct daemon_proc proc; /* the daemon; pid 0: not started */
/* A manager's client that reads the daemon's statistics and removes jobs. */
extern struct raw_client witness;
extern unsigned base_fds; /* descriptors of the daemon when only the witness is connected */

/* Start the daemon and connect the witness. */
void job_rig_setup(void);

/* Check that the daemon has settled, and stop it. */
void job_rig_teardown(void);

/* Connect and open job "j" as @rank of @world. */
void job_rig_open(struct raw_client *client, uint32_t rank, uint32_t world);

/* Like job_rig_open; also declare @n tensors of 1000 elements with one operator each. */
void job_rig_declare(struct raw_client *client, uint32_t rank, uint32_t world, uint32_t n);

/* Like job_rig_declare, for rank 0 of 1; also commit. */
void job_rig_commit(struct raw_client *client, uint32_t n);

#endif
