/* SPDX-License-Identifier: Apache-2.0 */
/* cst_standby: waits until a rank of a job has lost its worker. */
#include "client/lib/call.h"
#include "client/lib/job.h"
#include "client/lib/opened.h"
#include "client/lib/task.h"
#include "proto/cistern.pb-c.h"
#include "proto/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    RETURN_MS = 60000, /* Longest wait for the next process of the daemon. */
    LOOK_MS = 10,      /* Time between two attempts to connect. */
};

struct standby {
    struct cstc_task task;
    struct cst_client *client;
    struct cstc_call call;
    char name[CST_JOB_NAME_BYTES];
    uint32_t hold_ms;
    uint64_t until_ns; /* When to give up connecting; 0: the connection is not over. */
    uint32_t rank;     /* The result. */
};

static int send_request(struct standby *standby, struct cst_err *err)
{
    Cistern__Standby msg = CISTERN__STANDBY__INIT;

    msg.name = standby->name;
    msg.has_hold_ms = true;
    msg.hold_ms = standby->hold_ms;
    return cstc_call_start(standby->client, &standby->call, CISTERN__MSG_TYPE__MSG_STANDBY,
                           &msg.base, CISTERN__MSG_TYPE__MSG_STANDBY_RANK,
                           &cistern__standby_rank__descriptor, err);
}

/* Return whether a process of the daemon that ended has caused the status @rc. Another one may be
 * started. */
static bool has_ended(int rc)
{
    return rc == CST_ECONN || rc == CST_EDRAINING;
}

/* Connect to the next process of the daemon. CST_EAGAIN: it does not listen yet. */
static int connect_again(struct standby *standby, const struct cst_err *cause, struct cst_err *err)
{
    struct cst_client *client = standby->client;
    struct cst_err why = *cause;

    cstc_client_die(client, cause);
    if (standby->until_ns == 0) {
        standby->until_ns = cst_clock_ns() + RETURN_MS * UINT64_C(1000000);
    }
    if (cst_clock_ns() > standby->until_ns) {
        return cst_err_set(err, CST_ECONN,
                           "standby of job '%s': no daemon was there again within %d ms: %.256s",
                           standby->name, RETURN_MS, why.text);
    }
    if (cstc_client_reopen(client, &why) == CST_OK) {
        return CST_OK;
    }
    /* The client's descriptor polls readable when the next attempt is due. */
    cstc_wake_resend(&client->wake, client->sock, CSTC_RESEND_LATER);
    return CST_EAGAIN;
}

static int take_rank(struct standby *standby)
{
    standby->rank = ((const Cistern__StandbyRank *)standby->call.reply)->rank;
    cstc_call_reset(&standby->call);
    return CST_OK;
}

/* The request is sent anew after each end of the connection. */
static int advance(struct cstc_task *task, struct cst_err *err)
{
    struct standby *standby = (struct standby *)task;
    struct cst_err cause = {0};
    int rc;

    for (;;) {
        rc = cstc_client_check(standby->client, &cause);
        if (rc == CST_OK && standby->call.state == CSTC_CALL_IDLE) {
            rc = send_request(standby, &cause);
        }
        rc = rc == CST_OK ? cstc_call_result(&standby->call, &cause) : rc;
        if (rc == CST_OK) {
            return take_rank(standby);
        }
        if (rc == CST_EAGAIN) {
            standby->until_ns = 0;
            return rc;
        }
        if (standby->call.state == CSTC_CALL_DONE) {
            cstc_call_reset(&standby->call);
        }
        if (rc == CST_ECANCELLED) {
            cstc_opened_tell(CSTC_OPENED_ENDED, 0);
        }
        if (!has_ended(rc)) {
            return cst_err_set(err, rc, "%s", cause.text);
        }
        rc = connect_again(standby, &cause, err);
        if (rc != CST_OK) {
            return rc;
        }
    }
}

static void close_standby(struct cstc_task *task)
{
    struct standby *standby = (struct standby *)task;

    cstc_call_reset(&standby->call);
    standby->client->reconnects = false;
    free(standby);
}

/* Go on with the task: if @block, until it ends. */
static int drive(struct cst_client *client, bool block, struct cst_err *err)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    struct cst_err ignored;
    int rc;

    client->pending = false;
    if (!block) {
        (void)cstc_call_pump(client, &ignored);
    }
    while ((rc = client->task->advance(client->task, err)) == CST_EAGAIN && block) {
        if (client->sock >= 0) {
            (void)cstc_call_wait(client, -1, &ignored);
        } else {
            (void)nanosleep(&pause, NULL);
        }
    }
    client->pending = rc == CST_EAGAIN;
    return rc;
}

static int open_standby(struct cst_client *client, const char *name, uint32_t hold_ms,
                        struct cst_err *err)
{
    struct standby *standby;

    if (client->job != NULL) {
        return cst_err_set(err, CST_EINVAL, "this connection has job '%s' open: it has a rank",
                           client->job->name);
    }
    if (!cst_job_name_is_valid(name)) {
        return cst_err_set(err, CST_EINVAL,
                           "standby '%.64s': the name of a job has " CST_JOB_NAME_RULE, name);
    }
    if (hold_ms > CST_STANDBY_MAX_HOLD_MS) {
        return cst_err_set(err, CST_EINVAL, "hold_ms is %u, at most %d is possible", hold_ms,
                           CST_STANDBY_MAX_HOLD_MS);
    }
    standby = calloc(1, sizeof *standby);
    if (standby == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a standby");
    }
    standby->task = (struct cstc_task){.advance = advance, .close = close_standby};
    standby->client = client;
    standby->hold_ms = hold_ms > 0 ? hold_ms : CST_STANDBY_HOLD_MS;
    (void)snprintf(standby->name, sizeof standby->name, "%s", name);
    client->task = &standby->task;
    client->reconnects = true;
    return CST_OK;
}

static int stand_by(struct cst_client *client, const char *name, uint32_t hold_ms, uint32_t *rank,
                    bool block, struct cst_err *err)
{
    struct cstc_task *task;
    int rc;

    if (name == NULL || rank == NULL) {
        return cst_err_set(err, CST_EINVAL, "standby needs the name of a job and a place for rank");
    }
    rc = cstc_task_find(client, advance, &task, err);
    if (rc == CST_OK && task == NULL) {
        rc = open_standby(client, name, hold_ms, err);
    }
    rc = rc == CST_OK ? drive(client, block, err) : rc;
    if (rc == CST_OK) {
        *rank = ((const struct standby *)client->task)->rank;
    }
    if (rc != CST_EAGAIN && client->task != NULL && client->task->advance == advance &&
        !client->pending) {
        cstc_task_close(client);
    }
    return rc;
}

int cst_standby(struct cst_client *client, const char *name, uint32_t hold_ms, uint32_t *rank,
                struct cst_err *err)
{
    return stand_by(client, name, hold_ms, rank, true, err);
}

int cst_try_standby(struct cst_client *client, const char *name, uint32_t hold_ms, uint32_t *rank,
                    struct cst_err *err)
{
    return stand_by(client, name, hold_ms, rank, false, err);
}
