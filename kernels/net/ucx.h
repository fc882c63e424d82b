/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "ucx": active messages of UCX. A request is a message without a payload; the reply
 * is one with the payload, which goes by rendezvous into the destination if it is large. Each lane
 * that reads has a worker of its own, and one thread with a worker serves all other machines. The
 * parts are ucx_pull.c (lanes) and ucx_serve.c.
 *
 * UCX over TCP lets whoever connects write to the memory of this process: a network in which it is
 * used has to be trusted. */
#ifndef CST_NET_UCX_H
#define CST_NET_UCX_H

#include "kernels/net/address.h"
#include "kernels/net/transport.h"
#include "kernels/net/ucx_library.h"

/* Numbers of active messages. */
enum { CSTE_UCX_REQUEST = 1, CSTE_UCX_REPLY = 2 };

struct cste_ucx_lane;
struct cste_ucx_server;

struct cste_ucx_transport {
    struct cste_net *net; /* Borrowed. */
    struct cste_ucx ucx;
    ucp_context_h context;
    char address[CSTE_ADDRESS_MAX];
    struct cste_ucx_lane *lanes;    /* One for each thread; owned. */
    struct cste_ucx_server *server; /* Owned. */
};

/* Make a worker that calls @receive with @arg for active messages @id, and tell by *efd when it has
 * something to do. CST_EIO. */
int cste_ucx_make_worker(struct cste_ucx_transport *transport, unsigned id,
                         ucp_am_recv_callback_t receive, void *arg, ucp_worker_h *out, int *efd,
                         struct cst_err *err);

/* Sleep until @worker, which has nothing to do, has something to do, or @wake is readable (-1:
 * none). What comes soon is seen to at once, without sleeping. Returns whether @wake is. CST_EIO in
 * @err: UCX has failed. */
bool cste_ucx_sleep(struct cste_ucx_transport *transport, ucp_worker_h worker, int efd, int wake,
                    struct cst_err *err);

/* Functions of the table, for ucx_pull.c. @state is a struct cste_ucx_transport. */
int cste_ucx_begin(void *state, unsigned thread, struct cste_net_pull *pull, struct cst_err *err);
void cste_ucx_finish(void *state, unsigned thread, struct cste_net_pull *pull);

/* Make the lanes. CST_ENOMEM. */
int cste_ucx_open_lanes(struct cste_ucx_transport *transport, struct cst_err *err);
void cste_ucx_close_lanes(struct cste_ucx_transport *transport);

/* Listen at @address and serve; writes transport->address. CST_EINVAL, CST_EIO, CST_ENOMEM. */
int cste_ucx_open_server(struct cste_ucx_transport *transport,
                         const struct sockaddr_storage *address, socklen_t bytes,
                         struct cst_err *err);
void cste_ucx_close_server(struct cste_ucx_transport *transport);
void cste_ucx_interrupt(void *state);

#endif
