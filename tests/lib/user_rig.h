/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of several users of one daemon: a private daemon with a configuration file, a
 * manager as the witness, and clients that connect as a given user. */
#ifndef USER_RIG_H
#define USER_RIG_H

#include "tests/lib/job_rig.h"

#include <sys/types.h>

/* Start a daemon with the configuration @text, 256 MiB of host memory and 64 MiB of pool memory.
 * Users may connect, and the witness is connected as a manager. */
void user_rig_start(const char *text);

/* Like user_rig_start, with the budgets of the options @host and @pool. */
void user_rig_start_sized(const char *text, const char *host, const char *pool);

/* Replace the daemon's configuration file. The daemon reads it again on SIGHUP. */
void user_rig_write_config(const char *text);

/* Remove all jobs, check that nothing is in use or in the accounts, and stop the daemon. */
void user_rig_stop(void);

/* Returns the jobs that @client may see, which are valid until its next request. */
Cistern__JobListPart *user_rig_list(struct raw_client *client);

/* Let @client remove job @name of user @uid. Returns the status. */
int user_rig_remove(struct raw_client *client, const char *name, uid_t uid);

/* Connect as @uid with the primary group @gid. Nothing is sent. */
void user_rig_open_in_group(struct raw_client *client, uid_t uid, gid_t gid);

/* Connect as @uid and send Hello. Returns the status. */
int user_rig_greet(struct raw_client *client, uid_t uid);

/* Like user_rig_greet; the test fails unless the status is CST_OK. */
void user_rig_open(struct raw_client *client, uid_t uid);

/* Connect as @uid and open job @name of one rank. Returns the status. */
int user_rig_open_job(struct raw_client *client, uid_t uid, const char *name);

/* Connect as @uid and commit job @name of @n_params parameters with a pool of @pool_bytes (0: as
 * many as it can use). Returns the status. */
int user_rig_commit(struct raw_client *client, uid_t uid, const char *name, int64_t n_params,
                    uint64_t pool_bytes);

#endif
