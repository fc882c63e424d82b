/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that no fault leaves anything behind in the daemon. All functions fail the running test if
 * something is left. */
#ifndef SETTLE_H
#define SETTLE_H

#include "tests/lib/daemon_proc.h"
#include "tests/lib/raw_client.h"

/* Check that the numbers of the blocks in each state, as @witness reads them, add up to the pools'
 * capacity. */
void settle_balanced(struct raw_client *witness);

/* Wait until @witness is the only connection, there is no job, no budget is in use, and @proc has
 * @n_fds descriptors open. Also calls settle_balanced before and after. */
void settle(struct raw_client *witness, const struct daemon_proc *proc, unsigned n_fds);

/* Wait until the daemon has finished its search for GPUs. Returns the number of its descriptors
 * then. */
unsigned settle_base_fds(struct raw_client *witness, const struct daemon_proc *proc);

/* Returns @base_fds plus the descriptors for the running engines of accelerators: two for each
 * process and one for its undo slots. */
unsigned settle_fds(struct raw_client *witness, unsigned base_fds);

/* Remove every job that @witness may remove. */
void settle_remove_jobs(struct raw_client *witness);

#endif
