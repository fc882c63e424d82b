/* SPDX-License-Identifier: Apache-2.0 */
/* What `cistern metrics` knows of the daemon at one time: the replies to some requests. The socket
 * decides which jobs and users are among them, as for all commands. Does not print anything. */
#ifndef CLI_METRICS_GATHER_H
#define CLI_METRICS_GATHER_H

#include "cistern/status.h"
#include "proto/cistern.pb-c.h"

#include <stdbool.h>
#include <stddef.h>

#define CLI_METRICS_WAIT_MS 5000 /* Longest time of a gather, its connection included. */

/* Of which jobs there are names, and of which users there are quotas. */
enum cli_metrics_jobs {
    CLI_METRICS_NO_JOBS,  /* Of none. */
    CLI_METRICS_OWN_JOBS, /* Of the jobs of the user who runs this program, and of no user. */
    CLI_METRICS_ALL_JOBS, /* Of all that the daemon shows on the socket. */
};

/* Messages that are owned. */
struct cli_messages {
    ProtobufCMessage **v;
    size_t n;
};

struct cli_metrics {
    Cistern__StatReply *stat;     /* The node. Owned. NULL: the daemon has not answered. */
    struct cli_messages listed;   /* JobListParts: all jobs that the socket shows. */
    struct cli_messages jobs;     /* JobInfoReplies: the jobs with names. */
    struct cli_messages accounts; /* QuotaParts: the accounts of users and groups. */
};

/* Connect to the daemon at @path, ask, and disconnect. The caller closes *out in any case; after a
 * failure it is empty. Statuses of cst_connect and of requests. After CLI_METRICS_WAIT_MS, or as
 * soon as @stop (NULL: it is not asked) returns true, the daemon is given up: CST_ECONN if it has
 * not accepted the connection, CST_ETIMEDOUT if it has. */
int cli_metrics_gather(const char *path, enum cli_metrics_jobs jobs, bool (*stop)(void),
                       struct cli_metrics *out, struct cst_err *err);

/* Free what *metrics owns, and make it empty. */
void cli_metrics_close(struct cli_metrics *metrics);

#endif
