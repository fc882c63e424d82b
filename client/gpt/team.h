/* SPDX-License-Identifier: Apache-2.0 */
/* A team of threads for passes over memory. The threads are started once, are each pinned to a
 * usable core, and are woken for each pass. */
#ifndef GPT_TEAM_H
#define GPT_TEAM_H

#include "cistern/status.h"

#include <stdint.h>

struct gpt_team;

/* Function of a pass, called in each thread of the team: @member of @n_members. */
typedef void (*gpt_team_fn)(void *arg, unsigned member, unsigned n_members);

/* Start a team; the caller ends it with gpt_team_close. @n_threads 0: one per usable core.
 * CST_ENOMEM. */
int gpt_team_open(struct gpt_team **out, unsigned n_threads, struct cst_err *err);
void gpt_team_close(struct gpt_team *team);

/* Run @fn in all members and wait for them. At most one caller at a time. */
void gpt_team_run(struct gpt_team *team, gpt_team_fn fn, void *arg);

#endif
