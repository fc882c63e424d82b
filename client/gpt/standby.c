/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpt/standby.h"

#include "client/gpt/stop.h"

#include <poll.h>
#include <stdio.h>

static int wait_for_rank(struct cst_client *client, const char *name, uint32_t *rank,
                         struct cst_err *err)
{
    struct pollfd wanted[] = {{.fd = cst_client_fd(client), .events = POLLIN},
                              {.fd = gpt_stop_fd(), .events = POLLIN}};
    int rc;

    while ((rc = cst_try_standby(client, name, 0, rank, err)) == CST_EAGAIN) {
        if (gpt_stop_asked() != 0) {
            return cst_err_set(err, CST_ECANCELLED, "stopped");
        }
        (void)poll(wanted, 2, -1);
    }
    return rc;
}

int gpt_standby(struct gpt_options *options, struct cst_client **out, struct cst_err *err)
{
    struct cst_client *client;
    int rc = cst_connect(&client, options->socket, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (!options->quiet) {
        (void)printf("cistern-gpt: standby of job '%s'\n", options->job.name);
        (void)fflush(stdout);
    }
    rc = wait_for_rank(client, options->job.name, &options->job.rank, err);
    if (rc != CST_OK) {
        cst_disconnect(client);
        return rc;
    }
    if (!options->quiet) {
        (void)printf("cistern-gpt: this standby is rank %u now\n", options->job.rank);
        (void)fflush(stdout);
    }
    *out = client;
    return CST_OK;
}
