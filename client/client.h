/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: the socket, what is in flight on it, and how it ends. Inside of libcistern; the
 * requests themselves are call.h, what happens after fork() is fork.c. Knows nothing of jobs but
 * that it owns one. */
#ifndef CST_CLIENT_H
#define CST_CLIENT_H

#include "cistern/cistern.h"
#include "proto/frame.h"

#define CST_PROTOCOL_VERSION 1
#define CST_CLIENT_HELLO_MS 10000 /* longest wait for a daemon that accepts but does not speak */

struct cst_call;

struct cst_client {
    int sock;    /* -1 when dead or forked */
    int epoll;   /* of the socket and of watched; -1: nothing is watched */
    int watched; /* polled by whoever waits for a reply; -1: nothing is */
    void (*watch)(struct cst_client *client); /* called when it is readable; it may send */
    bool forked;                     /* this process is a child of the one that connected */
    struct cst_err dead;             /* status != 0: the connection is over, and why */
    struct cst_err farewell;         /* status != 0: the daemon has said why it will close it */
    char path[108];                  /* of the socket, for words */
    uint32_t credits;                /* requests that may be in flight */
    uint32_t max_batch;              /* items in a Batch */
    uint64_t features;               /* that the daemon takes: bits of enum Feature */
    uint64_t epoch;                  /* of the daemon's start */
    uint64_t last_request;           /* id of the newest request */
    uint32_t n_sent;                 /* calls in the list sent */
    struct cst_call *sent;           /* in flight, newest first */
    struct cst_call *queue;          /* not sent yet, oldest first */
    struct cst_call **queue_end;     /* where the next one is linked */
    struct cst_job *job;             /* owned; NULL before cst_job_open */
    bool pending;                    /* a try call of job has not ended: only it may read replies */
    struct cst_client *next;         /* list of all clients of the process, for fork.c */
    struct cst_client **link;        /* what points here in that list */
    char build[64];                  /* the daemon's, from Welcome */
    uint8_t out[CST_FRAME_MAX_BODY]; /* body under construction */
    struct cst_frame_buf in;         /* last message received */
};

/* CST_OK while requests can be made; else CST_EFORKED, or the status that ended the connection,
 * with its words. */
int cst_client_check(const struct cst_client *client, struct cst_err *err);

/* End the connection: closes the socket and finishes every call in flight or queued with CST_ECONN
 * and the words of @cause. The first cause stays. */
void cst_client_die(struct cst_client *client, const struct cst_err *cause);

/* fork.c: put the client on, or take it off, the list of clients whose sockets a forked child
 * closes. */
void cst_fork_register(struct cst_client *client);
void cst_fork_forget(struct cst_client *client);

#endif
