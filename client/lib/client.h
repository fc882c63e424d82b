/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the daemon: the socket, the calls in flight on it, and the connection's end.
 * Internal header of libcistern. call.h makes the requests; fork.c handles fork(). The only thing
 * that a client knows of jobs is that it owns one. */
#ifndef CST_CLIENT_H
#define CST_CLIENT_H

#include "cistern/cistern.h"
#include "client/lib/segment.h"
#include "client/lib/wake.h"
#include "proto/frame.h"

#define CSTC_PROTOCOL_VERSION 1
#define CSTC_CLIENT_HELLO_MS 10000 /* Longest time in which a connection is made. */

struct cstc_call;
struct cstc_task;

struct cst_client {
    int sock;    /* Socket; -1: the connection is over, or this process is a forked child. */
    int watched; /* A device's descriptor, which `wake` polls; -1: none. */
    /* Called when `watched` is readable; may send requests. NULL: nothing is watched. */
    void (*watch)(struct cst_client *client);
    struct cstc_wake wake; /* What cst_client_fd() and waits for a reply poll. */
    bool forked;           /* This process is a child of the one that connected. */
    struct cst_err dead;   /* Why the connection is over; status CST_OK: it is not. */
    /* The daemon is started again if it ends, and goes on with the job: the end of the connection
     * only voids the step (CST_EPEERDIED). */
    bool returns;
    bool reconnects;              /* A standby waits, which connects again (standby.c). */
    struct cst_err farewell;      /* Why the daemon will close the connection, if it has said so. */
    char path[108];               /* Path of the socket, for messages. */
    uint32_t credits;             /* Largest number of requests in flight. */
    uint32_t max_batch;           /* Largest number of items in a Batch. */
    uint64_t epoch;               /* Differs between starts of the daemon; from Welcome. */
    uint64_t last_request;        /* Id of the newest request. */
    uint32_t n_sent;              /* Number of calls in `sent`. */
    struct cstc_call *sent;       /* Calls in flight, newest first. */
    struct cstc_call *queue;      /* Calls that are not sent yet, oldest first. */
    struct cstc_call **queue_end; /* The pointer to which the next queued call is linked. */
    struct cst_job *job;          /* Owned; NULL before cst_job_open. */
    void (*free_job)(struct cst_job *job); /* cstc_job_free; valid if there is a job. */
    struct cstc_segment staging; /* Mapped by the first read or write of a state (state_io.h). */
    struct cstc_task *task;      /* A save or a load under way (task.h). Owned; NULL: none. */
    /* A cst_try_... call has not ended. Only that call may read replies. */
    bool pending;
    struct cst_client *next;  /* Next in the list of all clients of the process, for fork.c. */
    struct cst_client **link; /* The pointer in that list that points to this client. */
    char build[64];           /* Build of the daemon, from Welcome. */
    uint8_t out[CST_FRAME_MAX_BODY]; /* Body of a request under construction. */
    struct cst_frame_buf in;         /* The last message received. */
};

/* CST_OK if requests can be made; else CST_EFORKED, or the status and cause that ended the
 * connection. */
int cstc_client_check(const struct cst_client *client, struct cst_err *err);

/* How long somebody waits for the daemon. */
struct cstc_limit {
    uint64_t end_ns;    /* Monotonic; the wait is over then. */
    bool (*stop)(void); /* True: the wait is over now. Asked several times a second. NULL: never. */
};

/* Milliseconds until the wait is over or @limit->stop has to be asked again; 0: it is over. */
int cstc_limit_left(const struct cstc_limit *limit);

/* cst_connect with another limit than CSTC_CLIENT_HELLO_MS from now, which holds for all of it.
 * CST_ECONN: the daemon has not answered in time. */
int cstc_client_connect(struct cst_client **out, const char *path, const struct cstc_limit *limit,
                        struct cst_err *err);

/* Connect again, after the connection has ended. CST_ECONN: nobody listens, or nobody answers. */
int cstc_client_reopen(struct cst_client *client, struct cst_err *err);

/* End the connection: close the socket, and finish every call in flight or queued with the status
 * and words of @cause. If the connection is over already, its first cause is kept. */
void cstc_client_die(struct cst_client *client, const struct cst_err *cause);

/* End the connection, because the daemon sent something impossible, which @why describes. Returns
 * the status that ended the connection: CST_EPROTO, unless the connection was over already. */
int cstc_client_distrust(struct cst_client *client, const struct cst_err *why, struct cst_err *err);

/* fork.c: add the client to (register) or remove it from (forget) the list of clients whose sockets
 * a forked child closes. Any thread. */
void cstc_fork_register(struct cst_client *client);
void cstc_fork_forget(struct cst_client *client);

#endif
