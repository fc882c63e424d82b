/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the daemon's jobs share: a private daemon, a client that looks at its books, and
 * job "j". */
#ifndef JOB_RIG_H
#define JOB_RIG_H

#include "tests/lib/settle.h"

extern struct daemon_proc proc;
extern struct raw_client witness; /* looks at the books and removes jobs */
extern unsigned base_fds;         /* descriptors of the daemon with the witness alone */

/* Start the daemon; the witness connects. */
void job_rig_setup(void);

/* Everything must have settled; stop the daemon. */
void job_rig_teardown(void);

/* Connect and open job "j" as @rank of @world. */
void job_rig_open(struct raw_client *client, uint32_t rank, uint32_t world);

/* The same, and declare @n tensors of 1000 elements with an operator each. */
void job_rig_declare(struct raw_client *client, uint32_t rank, uint32_t world, uint32_t n);

/* The same, committed; of one rank. */
void job_rig_commit(struct raw_client *client, uint32_t n);

#endif
