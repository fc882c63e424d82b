/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of checkpoints with the daemon: those of job_rig, and a folder. */
#ifndef SAVE_RIG_H
#define SAVE_RIG_H

#include "tests/lib/job_rig.h"

#include <stdint.h>

extern char save_rig_dir[]; /* the folder, which is new in each test */

/* Make the folder, start the daemon and connect the witness. */
void save_rig_setup(void);

/* Remove all jobs, check that the daemon has settled, stop it, and remove the folder. */
void save_rig_teardown(void);

/* The path of @name in the folder, until the next call. */
const char *save_rig_path(const char *name);

/* The path of the checkpoint of @step there, until the next call. */
const char *save_rig_step(const char *name, uint64_t step);

#endif
