/* SPDX-License-Identifier: Apache-2.0 */
/* A directory with checkpoints of the job "job", for tests of client/checkpoint/directory. On an
 * error these functions fail the test. */
#ifndef DIRECTORY_RIG_H
#define DIRECTORY_RIG_H

#include "client/checkpoint/directory.h"

#include <stdbool.h>

extern char path[]; /* The directory. */

/* Fixture: make the directory, and remove it with all that is in it. */
void directory_rig_setup(void);
void directory_rig_teardown(void);

/* Make or truncate the file @name of the directory. */
void touch(const char *name);

/* Return whether the directory has the file or link @name. */
bool exists(const char *name);

/* Return the number of names in the directory, with those that are hidden. */
unsigned count_names(void);

/* Write the files of a checkpoint of @directory's job. */
void fill(const struct cstc_directory *directory);

/* Make the checkpoint of @step. */
void save(uint64_t step);

/* Return whether the checkpoint of @step is whole, with the right checksums. */
bool whole(uint64_t step);

/* Go on as a user without rights who owns the directory, if this is the superuser, and become the
 * superuser again. */
void drop_rights(void);
void regain_rights(void);

#endif
