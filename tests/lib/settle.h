/* SPDX-License-Identifier: Apache-2.0 */
/* What every fault must leave behind: nothing. Fails the running test when it does not. */
#ifndef SETTLE_H
#define SETTLE_H

#include "tests/lib/daemon_proc.h"
#include "tests/lib/raw_client.h"

/* The states of all pools' blocks sum to their capacity, as @witness hears it. */
void settle_balanced(struct raw_client *witness);

/* Wait until @witness is the only connection, there is no job, no byte of a budget is in use and
 * @proc has @n_fds descriptors open; the books balance before and after. */
void settle(struct raw_client *witness, const struct daemon_proc *proc, unsigned n_fds);

/* Wait until @witness hears that the GPUs, if any, have been looked for; the descriptors that the
 * daemon has then. */
unsigned settle_base_fds(struct raw_client *witness, const struct daemon_proc *proc);

/* Those and what engines of accelerators that run now have: two for the process, one for its undo
 * slots. */
unsigned settle_fds(struct raw_client *witness, unsigned base_fds);

/* Remove every job that @witness may remove. */
void settle_remove_jobs(struct raw_client *witness);

#endif
