/* SPDX-License-Identifier: Apache-2.0 */
/* A call of the client that makes many requests, and that can be continued from one call of the
 * program to the next: a save or a load. As for the calls of a job (job.h), an advance function
 * goes as far as possible; the cst_try_... form calls it once, the blocking form until it has
 * ended. Internal header of libcistern; used by the client's thread only. */
#ifndef CST_TASK_H
#define CST_TASK_H

#include "client/lib/client.h"

/* The first member of the struct of each kind of task. */
struct cstc_task {
    /* Go on. CST_EAGAIN: a reply is missing. Every other status is the last one. */
    int (*advance)(struct cstc_task *task, struct cst_err *err);
    /* Free the task and what it has not completed. No call of it is in flight. */
    void (*close)(struct cstc_task *task);
};

/* Return the task of @client in *out, if it has one with @advance; NULL: a new one can be added.
 * CST_EBUSY: another call is pending; or the statuses of cstc_client_check. */
int cstc_task_find(struct cst_client *client,
                   int (*advance)(struct cstc_task *task, struct cst_err *err),
                   struct cstc_task **out, struct cst_err *err);

/* Go on with client->task, which the caller has set: if @block, until it ends. CST_EAGAIN: the call
 * is pending. After any other status, the caller takes the result and calls cstc_task_close. */
int cstc_task_drive(struct cst_client *client, bool block, struct cst_err *err);

/* Close the task of @client, if it has one. */
void cstc_task_close(struct cst_client *client);

#endif
