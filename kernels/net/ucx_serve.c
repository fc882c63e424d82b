/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/ucx.h"

#include "kernels/net/answer.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#define MAX_CONNECTIONS 4096
/* Pause after UCX could not say when to go on. */
#define RETRY_MS 10

struct connection;

/* An answer while UCX sends it. */
struct sending {
    TAILQ_ENTRY(sending) link;
    struct connection *connection;
    struct cste_net_answer answer;
};

/* An endpoint of another machine.
 *
 *   open --it has failed, sent nonsense, is refused or dropped--> over --closed--> freed */
struct connection {
    TAILQ_ENTRY(connection) link;
    struct cste_ucx_server *server;
    ucp_ep_h ep;
    char address[CSTE_ADDRESS_MAX];
    struct cste_net_peer *peer; /* Who it is; held. NULL: a stranger. */
    TAILQ_HEAD(, sending) sendings;
    bool over;    /* It has to be closed. */
    bool refused; /* It has to be closed when what is being sent has gone. */
};

/* The thread of the server alone uses all of it but kick and stop. */
struct cste_ucx_server {
    struct cste_ucx_transport *transport;
    ucp_worker_h worker;
    ucp_listener_h listener;
    int efd;
    int kick; /* An eventfd: segments were removed, peers dropped, or stop is set. */
    atomic_bool stop;
    pthread_t thread;
    bool serves; /* The thread was started. */
    TAILQ_HEAD(, connection) connections;
    unsigned n;
};

static void connection_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    (void)status;
    ((struct connection *)arg)->over = true;
}

/* Refuse what @connection has sent, and tell people. */
static void refuse(struct connection *connection, const struct cst_err *why)
{
    cste_complain(&connection->server->transport->net->complaints, connection->address, why);
    connection->over = true;
}

/* -- answers -------------------------------------------------------------------------------- */

static void end_sending(struct sending *sending, bool sent)
{
    struct connection *connection = sending->connection;

    TAILQ_REMOVE(&connection->sendings, sending, link);
    cste_net_answer_end(connection->server->transport->net, &sending->answer, sent);
    free(sending);
}

static void answer_sent(void *of_ucx, ucs_status_t status, void *arg)
{
    struct sending *sending = arg;
    struct connection *connection = sending->connection;

    connection->over = connection->over || status != UCS_OK;
    connection->server->transport->ucx.request_free(of_ucx);
    end_sending(sending, status == UCS_OK);
}

static void send_answer(struct sending *sending)
{
    struct connection *connection = sending->connection;
    const struct cste_net_answer *answer = &sending->answer;
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.send = answer_sent,
                                       .user_data = sending};
    ucs_status_ptr_t status = connection->server->transport->ucx.am_send_nbx(
        connection->ep, CSTE_UCX_REPLY, answer->reply, sizeof answer->reply, answer->payload,
        answer->bytes, &param);

    if (UCS_PTR_IS_PTR(status)) {
        return;
    }
    connection->over = connection->over || UCS_PTR_IS_ERR(status);
    end_sending(sending, status == NULL);
}

/* Check who has sent the request to which @answer was made. */
static int identify(struct connection *connection, const struct cste_net_answer *answer,
                    struct cst_err *err)
{
    struct cste_net *net = connection->server->transport->net;

    if (answer->peer == NULL) {
        (void)cst_err_set(err, CST_EDENIED,
                          "it is no machine of this job, or its token is another");
        cste_complain(&net->complaints, connection->address, err);
        connection->refused = true;
        return CST_OK;
    }
    if (connection->peer == NULL) {
        connection->peer = answer->peer;
        cste_net_peers_hold_again(&net->peers, connection->peer);
    }
    return answer->peer == connection->peer
               ? CST_OK
               : cst_err_set(err, CST_EDENIED,
                             "a request of machine %u on a connection of machine %u",
                             answer->peer->number, connection->peer->number);
}

static void serve(struct connection *connection, const void *header, size_t bytes)
{
    struct cste_net *net = connection->server->transport->net;
    struct sending *sending = malloc(sizeof *sending);
    struct cst_err why;
    int rc = sending != NULL ? cste_net_answer_make(net, header, bytes, &sending->answer, &why)
                             : cst_err_set(&why, CST_ENOMEM, "no memory for an answer");

    if (rc != CST_OK) {
        free(sending);
        refuse(connection, &why);
        return;
    }
    sending->connection = connection;
    TAILQ_INSERT_TAIL(&connection->sendings, sending, link);
    if (identify(connection, &sending->answer, &why) == CST_OK) {
        send_answer(sending);
    } else {
        end_sending(sending, false);
        refuse(connection, &why);
    }
}

static ucs_status_t request_came(void *arg, const void *header, size_t header_bytes, void *data,
                                 size_t bytes, const ucp_am_recv_param_t *param)
{
    struct cste_ucx_server *server = arg;
    struct connection *connection;
    struct cst_err why;

    (void)data;
    TAILQ_FOREACH(connection, &server->connections, link)
    {
        if (connection->ep == param->reply_ep) {
            break;
        }
    }
    if (connection == NULL || connection->over || connection->refused ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
        return UCS_OK;
    }
    if (bytes > 0) {
        (void)cst_err_set(&why, CST_EPROTO, "a request with a payload of %zu bytes", bytes);
        refuse(connection, &why);
    } else {
        serve(connection, header, header_bytes);
    }
    return UCS_OK;
}

/* -- connections ---------------------------------------------------------------------------- */

static void add_connection(struct cste_ucx_server *server, ucp_conn_request_h request,
                           const char *address)
{
    const struct cste_ucx *ucx = &server->transport->ucx;
    struct connection *connection =
        server->n < MAX_CONNECTIONS ? calloc(1, sizeof *connection) : NULL;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                                    .conn_request = request,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = connection_failed, .arg = connection}};
    struct cst_err why;
    ucs_status_t status;

    if (connection == NULL) {
        (void)ucx->listener_reject(server->listener, request);
        (void)cst_err_set(&why, CST_ENOMEM, "there are %u connections, or no memory", server->n);
        cste_complain(&server->transport->net->complaints, address, &why);
        return;
    }
    connection->server = server;
    TAILQ_INIT(&connection->sendings);
    memcpy(connection->address, address, sizeof connection->address);
    status = ucx->ep_create(server->worker, &params, &connection->ep);
    if (status != UCS_OK) {
        (void)cste_ucx_failed(ucx, status, "accepting", &why);
        cste_complain(&server->transport->net->complaints, address, &why);
        free(connection);
        return;
    }
    TAILQ_INSERT_TAIL(&server->connections, connection, link);
    server->n++;
}

static void connection_came(ucp_conn_request_h request, void *arg)
{
    struct cste_ucx_server *server = arg;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    char address[CSTE_ADDRESS_MAX] = "somebody";

    if (server->transport->ucx.conn_request_query(request, &attr) == UCS_OK) {
        cste_address_write(&attr.client_address, address);
    }
    add_connection(server, request, address);
}

/* Close @connection at once, whatever is being sent. */
static void close_connection(struct connection *connection)
{
    struct cste_ucx_server *server = connection->server;
    const struct cste_ucx *ucx = &server->transport->ucx;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t closing = ucx->ep_close_nbx(connection->ep, &param);

    connection->over = true;
    while (!TAILQ_EMPTY(&connection->sendings) ||
           (UCS_PTR_IS_PTR(closing) && ucx->request_check_status(closing) == UCS_INPROGRESS)) {
        (void)ucx->worker_progress(server->worker);
    }
    if (UCS_PTR_IS_PTR(closing)) {
        ucx->request_free(closing);
    }
    TAILQ_REMOVE(&server->connections, connection, link);
    server->n--;
    if (connection->peer != NULL) {
        cste_net_peers_release(&server->transport->net->peers, connection->peer);
    }
    free(connection);
}

/* Returns whether @connection is to be closed. */
static bool is_over(const struct connection *connection)
{
    struct cste_net *net = connection->server->transport->net;
    const struct sending *sending;

    if (connection->over || (connection->refused && TAILQ_EMPTY(&connection->sendings)) ||
        (connection->peer != NULL && cste_net_peers_is_dropped(&net->peers, connection->peer))) {
        return true;
    }
    TAILQ_FOREACH(sending, &connection->sendings, link)
    {
        if (sending->answer.segment != NULL &&
            !cste_served_lasts(&net->served, sending->answer.segment)) {
            return true;
        }
    }
    return false;
}

static void sweep(struct cste_ucx_server *server)
{
    struct connection *connection = TAILQ_FIRST(&server->connections);

    while (connection != NULL) {
        if (is_over(connection)) {
            close_connection(connection);
            /* Others may have ended meanwhile. */
            connection = TAILQ_FIRST(&server->connections);
        } else {
            connection = TAILQ_NEXT(connection, link);
        }
    }
}

static void *serve_all(void *arg)
{
    struct cste_ucx_server *server = arg;
    struct cste_ucx_transport *transport = server->transport;
    struct pollfd kick = {.fd = server->kick, .events = POLLIN};
    eventfd_t kicks;

    while (!atomic_load(&server->stop)) {
        struct cst_err err;

        while (transport->ucx.worker_progress(server->worker) > 0) {
        }
        sweep(server);
        if (cste_ucx_sleep(transport, server->worker, server->efd, server->kick, &err)) {
            (void)eventfd_read(server->kick, &kicks);
        }
        if (err.status != CST_OK) {
            cste_complain(&transport->net->complaints, "to wait for requests", &err);
            (void)poll(&kick, 1, RETRY_MS);
        }
    }
    return NULL;
}

void cste_ucx_interrupt(void *state)
{
    struct cste_ucx_transport *transport = state;

    (void)eventfd_write(transport->server->kick, 1);
}

static int start(struct cste_ucx_server *server, const struct sockaddr_storage *address,
                 socklen_t bytes, struct cst_err *err)
{
    struct cste_ucx_transport *transport = server->transport;
    const ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)(const void *)address, .addrlen = bytes},
        .conn_handler = {.cb = connection_came, .arg = server}};
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t status =
        transport->ucx.listener_create(server->worker, &params, &server->listener);

    if (status == UCS_OK) {
        status = transport->ucx.listener_query(server->listener, &attr);
    }
    if (status != UCS_OK) {
        return cst_err_set(err, CST_EINVAL, "listening at %s: %s", transport->net->listen,
                           transport->ucx.status_string(status));
    }
    cste_address_write(&attr.sockaddr, transport->address);
    if (pthread_create(&server->thread, NULL, serve_all, server) != 0) {
        return cst_err_set(err, CST_ENOMEM, "no thread to serve other machines");
    }
    server->serves = true;
    return CST_OK;
}

int cste_ucx_open_server(struct cste_ucx_transport *transport,
                         const struct sockaddr_storage *address, socklen_t bytes,
                         struct cst_err *err)
{
    struct cste_ucx_server *server = calloc(1, sizeof *server);
    int rc;

    if (server == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a transport");
    }
    transport->server = server;
    server->transport = transport;
    TAILQ_INIT(&server->connections);
    server->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->kick < 0) {
        return cst_err_errno(err, CST_ENOMEM, errno, "eventfd");
    }
    rc = cste_ucx_make_worker(transport, CSTE_UCX_REQUEST, request_came, server, &server->worker,
                              &server->efd, err);
    return rc == CST_OK ? start(server, address, bytes, err) : rc;
}

void cste_ucx_close_server(struct cste_ucx_transport *transport)
{
    struct cste_ucx_server *server = transport->server;

    if (server == NULL) {
        return;
    }
    if (server->serves) {
        atomic_store(&server->stop, true);
        (void)eventfd_write(server->kick, 1);
        (void)pthread_join(server->thread, NULL);
    }
    while (!TAILQ_EMPTY(&server->connections)) {
        close_connection(TAILQ_FIRST(&server->connections));
    }
    if (server->listener != NULL) {
        transport->ucx.listener_destroy(server->listener);
    }
    if (server->worker != NULL) {
        transport->ucx.worker_destroy(server->worker);
    }
    if (server->kick >= 0) {
        (void)close(server->kick);
    }
    free(server);
}
