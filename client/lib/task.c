/* SPDX-License-Identifier: Apache-2.0 */
#include "client/lib/task.h"

#include "client/lib/call.h"

int cstc_task_find(struct cst_client *client,
                   int (*advance)(struct cstc_task *task, struct cst_err *err),
                   struct cstc_task **out, struct cst_err *err)
{
    int rc = cstc_client_check(client, err);

    *out = NULL;
    if (client->task != NULL && client->pending && client->task->advance == advance) {
        *out = client->task; /* It tells the cause itself if the connection is over. */
        return CST_OK;
    }
    /* A task that is not pending is the one from which the caller is called. */
    if (rc == CST_OK && (client->pending || client->task != NULL)) {
        rc = cst_err_set(err, CST_EBUSY, "another call is pending: repeat it until it has ended");
    }
    return rc;
}

int cstc_task_drive(struct cst_client *client, bool block, struct cst_err *err)
{
    struct cst_err ignored;
    int rc;

    client->pending = false;
    if (!block) {
        (void)cstc_call_pump(client, &ignored);
    }
    while ((rc = client->task->advance(client->task, err)) == CST_EAGAIN && block) {
        (void)cstc_call_wait(client, -1, &ignored);
    }
    client->pending = rc == CST_EAGAIN;
    return rc;
}

void cstc_task_close(struct cst_client *client)
{
    if (client->task != NULL) {
        client->task->close(client->task);
        client->task = NULL;
    }
}
