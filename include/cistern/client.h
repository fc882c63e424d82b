/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of a worker, or of another program, to the daemon. cistern.h has the terms, and
 * what holds for all calls. */
#ifndef CISTERN_CLIENT_H
#define CISTERN_CLIENT_H

#include "cistern/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CST_DEFAULT_SOCKET "/run/cistern/cistern.sock"

struct cst_client; /* A connection to the daemon. */

/* Connect to the daemon that listens at the path @path. If @path is NULL, the environment variable
 * CISTERN_SOCKET is used, or else CST_DEFAULT_SOCKET. *out belongs to the caller, who frees it with
 * cst_disconnect. Statuses:
 *   - CST_ECONN: no daemon listens at the path, or the daemon does not answer.
 *   - CST_EDENIED: the user may not connect.
 *   - CST_EVERSION: the daemon and this library have no common version of the protocol.
 *   - CST_EINVAL: the path is too long for a socket.
 *   - CST_EPROTO, CST_EIO, CST_ENOMEM. */
int cst_connect(struct cst_client **out, const char *path, struct cst_err *err);

/* Close the connection and free @client and its job. If the job has not been left with
 * cst_job_leave, the daemon treats the rank as if its process had died. If the pool is on a GPU,
 * this call waits for the work on the rank's stream first. @client may be NULL. */
void cst_disconnect(struct cst_client *client);

/* Return the file descriptor to poll for POLLIN after a cst_try_... call returned CST_EAGAIN, or a
 * negative status if the connection is over. The descriptor belongs to the client, and stays
 * the same until cst_disconnect. It also polls readable when a request that could not be sent at
 * once can be sent. The repeated call sends it. */
int cst_client_fd(const struct cst_client *client);

/* Return true if a cst_try_... call of @client or its job is pending. */
bool cst_client_is_pending(const struct cst_client *client);

/* Make one round trip to the daemon. *ns_out is its duration in nanoseconds; @ns_out may be NULL.
 * CST_EBUSY: a cst_try_... call is pending. */
int cst_ping(struct cst_client *client, uint64_t *ns_out, struct cst_err *err);

/* Return the version of the library, "major.minor.patch". The string is static. */
const char *cst_version(void);

#ifdef __cplusplus
}
#endif

#endif
