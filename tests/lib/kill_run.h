/* SPDX-License-Identifier: Apache-2.0 */
/* A list of commands that engines work off while they are killed. Their tickets count from 1;
 * done[i]: ticket i + 1 has completed. */
#ifndef KILL_RUN_H
#define KILL_RUN_H

#include "tests/lib/tiny_job.h"

/* Start an engine of @threads on @job and let it do all of @n @commands that are not done. */
void kill_run_to_end(struct tiny_job *job, const struct engine_command *commands, size_t n,
                     uint32_t threads, bool *done);

/* Start one, issue those, let some complete, or see to it that the socket is so full that no end
 * can be told, wait a moment more, kill; by @random. How many of @n_slots undo slots the engine
 * left in use. */
unsigned kill_run(struct tiny_job *job, const struct engine_command *commands, size_t n,
                  unsigned n_slots, bool *done, uint64_t *random);

#endif
