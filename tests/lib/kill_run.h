/* SPDX-License-Identifier: Apache-2.0 */
/* Executes a list of commands with engines that are killed on the way. The commands' tickets count
 * from 1; done[i] is true when ticket i + 1 has completed. */
#ifndef KILL_RUN_H
#define KILL_RUN_H

#include "tests/lib/tiny_job.h"

/* Start an engine of @threads threads on @job and let it execute all @commands that are not
 * done. */
void kill_run_to_end(struct tiny_job *job, const struct engine_command *commands, size_t n,
                     uint32_t threads, bool *done);

/* Start an engine, issue the commands that are not done, kill the engine at a random moment, and
 * note in @done which completions were received. In one run of three the socket is full, so that no
 * completion is received. Returns how many of the @n_slots undo slots the engine left in use. */
unsigned kill_run(struct tiny_job *job, const struct engine_command *commands, size_t n,
                  unsigned n_slots, bool *done, uint64_t *random);

#endif
