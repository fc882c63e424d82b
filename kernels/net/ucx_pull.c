/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/ucx.h"

#include "kernels/net/pull.h"

#include <stdlib.h>
#include <string.h>

struct lane_link;

/* A lane. Its thread alone uses it, also in callbacks of its worker. */
struct cste_ucx_lane {
    struct cste_ucx_transport *transport;
    ucp_worker_h worker; /* NULL: the thread has pulled nothing. */
    int efd;
    struct lane_link *links;
    uint64_t last_id; /* Of a request. */
};

/* An endpoint of a lane. */
struct lane_link {
    struct cste_ucx_lane *lane;
    struct cste_net_peer *peer;  /* Held. */
    ucp_ep_h ep;                 /* NULL: it is closed. */
    struct cste_net_pull *pulls; /* Pulls that are not done. */
    unsigned n_receiving;        /* Payloads that UCX is writing. */
    unsigned n_requests;         /* Requests that UCX is sending. */
    bool broken;                 /* It has to be closed, because of `why`. */
    struct cst_err why;
    struct lane_link *next;
};

/* A request while UCX sends it. */
struct request {
    struct lane_link *link;
    uint8_t bytes[CSTE_WIRE_BYTES];
};

/* A payload while UCX writes it. */
struct receipt {
    struct lane_link *link;
    struct cste_net_pull *pull;
    uint32_t sum;
};

int cste_ucx_open_lanes(struct cste_ucx_transport *transport, struct cst_err *err)
{
    transport->lanes = calloc(transport->net->n_threads, sizeof *transport->lanes);
    return transport->lanes != NULL
               ? CST_OK
               : cst_err_set(err, CST_ENOMEM, "no memory for %u lanes", transport->net->n_threads);
}

static void break_link(struct lane_link *link, const struct cst_err *why)
{
    if (!link->broken) {
        link->broken = true;
        link->why = *why;
    }
}

static void link_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct lane_link *link = arg;
    struct cst_err why;

    (void)ep;
    (void)cste_ucx_failed(&link->lane->transport->ucx, status, "UCX", &why);
    break_link(link, &why);
}

/* -- requests ------------------------------------------------------------------------------- */

static void request_sent(void *of_ucx, ucs_status_t status, void *arg)
{
    struct request *request = arg;
    struct lane_link *link = request->link;

    link->n_requests--;
    if (status != UCS_OK) {
        link_failed(link, link->ep, status);
    }
    link->lane->transport->ucx.request_free(of_ucx);
    free(request);
}

/* Send the request of @pull. A failure breaks the link. */
static void ask(struct lane_link *link, struct cste_net_pull *pull)
{
    struct cste_ucx_lane *lane = link->lane;
    const struct cste_ucx *ucx = &lane->transport->ucx;
    struct request *request = malloc(sizeof *request);
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS |
                                                       UCP_OP_ATTR_FIELD_CALLBACK |
                                                       UCP_OP_ATTR_FIELD_USER_DATA,
                                       .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
                                       .cb.send = request_sent,
                                       .user_data = request};
    ucs_status_ptr_t status;
    struct cst_err why;

    if (request == NULL) {
        (void)cst_err_set(&why, CST_ENOMEM, "no memory for a request");
        break_link(link, &why);
        return;
    }
    request->link = link;
    cste_net_pull_request(lane->transport->net, pull, ++lane->last_id, request->bytes);
    status = ucx->am_send_nbx(link->ep, CSTE_UCX_REQUEST, request->bytes, sizeof request->bytes,
                              NULL, 0, &param);
    if (UCS_PTR_IS_PTR(status)) {
        link->n_requests++;
        return;
    }
    free(request);
    if (UCS_PTR_IS_ERR(status)) {
        link_failed(link, link->ep, UCS_PTR_STATUS(status));
    }
}

/* -- replies -------------------------------------------------------------------------------- */

static void remove_pull(struct lane_link *link, const struct cste_net_pull *pull)
{
    struct cste_net_pull **at = &link->pulls;

    while (*at != NULL && *at != pull) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = pull->next;
    }
}

/* The payload of @pull has come. */
static void check(struct lane_link *link, struct cste_net_pull *pull, uint32_t sum)
{
    cste_net_pull_check(pull, sum);
    if (pull->done) {
        remove_pull(link, pull);
    } else if (!link->broken) {
        ask(link, pull);
    }
}

static void payload_came(void *of_ucx, ucs_status_t status, size_t bytes, void *arg)
{
    struct receipt *receipt = arg;
    struct lane_link *link = receipt->link;

    (void)bytes;
    link->n_receiving--;
    if (status == UCS_OK) {
        check(link, receipt->pull, receipt->sum);
    } else {
        link_failed(link, link->ep, status);
    }
    link->lane->transport->ucx.request_free(of_ucx);
    free(receipt);
}

/* Let UCX write the payload @data to the destination of @pull. */
static void receive(struct lane_link *link, struct cste_net_pull *pull, void *data, uint32_t sum)
{
    struct cste_ucx_lane *lane = link->lane;
    struct receipt *receipt = malloc(sizeof *receipt);
    const ucp_request_param_t param = {.op_attr_mask =
                                           UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                       .cb.recv_am = payload_came,
                                       .user_data = receipt};
    ucs_status_ptr_t status;
    struct cst_err why;

    if (receipt == NULL) {
        (void)cst_err_set(&why, CST_ENOMEM, "no memory for a reply");
        break_link(link, &why);
        return;
    }
    *receipt = (struct receipt){.link = link, .pull = pull, .sum = sum};
    status =
        lane->transport->ucx.am_recv_data_nbx(lane->worker, data, pull->to, pull->bytes, &param);
    if (UCS_PTR_IS_PTR(status)) {
        link->n_receiving++;
        return;
    }
    free(receipt);
    if (UCS_PTR_IS_ERR(status)) {
        link_failed(link, link->ep, UCS_PTR_STATUS(status));
    } else {
        check(link, pull, sum);
    }
}

/* Find the pull that has sent request @id. NULL: it has failed with its link. */
static struct cste_net_pull *find_pull(struct cste_ucx_lane *lane, uint64_t id,
                                       struct lane_link **out)
{
    for (struct lane_link *link = lane->links; link != NULL; link = link->next) {
        for (struct cste_net_pull *pull = link->pulls; pull != NULL; pull = pull->next) {
            if (pull->id == id) {
                *out = link;
                return pull;
            }
        }
    }
    return NULL;
}

/* A message came that is no reply: nobody knows from whom. All machines that owe one are lost. */
static void break_all(struct cste_ucx_lane *lane, const struct cst_err *why)
{
    for (struct lane_link *link = lane->links; link != NULL; link = link->next) {
        if (link->pulls != NULL) {
            break_link(link, why);
        }
    }
}

static ucs_status_t reply_came(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param)
{
    struct cste_ucx_lane *lane = arg;
    struct lane_link *link = NULL;
    struct cste_net_pull *pull;
    struct cste_wire_reply reply;
    uint32_t sum = 0;
    struct cst_err why;

    if (cste_wire_read_reply(header, header_bytes, &reply, &why) != CST_OK) {
        break_all(lane, &why);
        return UCS_OK;
    }
    pull = find_pull(lane, reply.id, &link);
    if (pull == NULL || link->broken) {
        return UCS_OK;
    }
    if (cste_net_pull_reply(pull, header, header_bytes, &sum, &why) != CST_OK) {
        break_link(link, &why);
    } else if (pull->done) {
        remove_pull(link, pull);
    } else if (bytes != pull->bytes) {
        (void)cst_err_set(&why, CST_EPROTO, "a reply with %zu bytes instead of %u", bytes,
                          pull->bytes);
        break_link(link, &why);
    } else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        /* Until all of it is there, no second reply to the request is taken. */
        pull->id = 0;
        receive(link, pull, data, sum);
    } else {
        memcpy(pull->to, data, bytes);
        check(link, pull, sum);
    }
    return UCS_OK;
}

/* -- links ---------------------------------------------------------------------------------- */

/* Close the endpoint. When this returns, UCX writes nothing of it any more. */
static void close_ep(struct lane_link *link)
{
    struct cste_ucx_lane *lane = link->lane;
    const struct cste_ucx *ucx = &lane->transport->ucx;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t closing = ucx->ep_close_nbx(link->ep, &param);

    while (link->n_receiving > 0 || link->n_requests > 0 ||
           (UCS_PTR_IS_PTR(closing) && ucx->request_check_status(closing) == UCS_INPROGRESS)) {
        (void)ucx->worker_progress(lane->worker);
    }
    if (UCS_PTR_IS_PTR(closing)) {
        ucx->request_free(closing);
    }
    link->ep = NULL;
}

/* Close the link to which @at points. All its pulls fail. */
static void close_link(struct lane_link **at)
{
    struct lane_link *link = *at;
    struct cste_net *net = link->lane->transport->net;

    link->broken = true;
    if (link->ep != NULL) {
        close_ep(link);
    }
    while (link->pulls != NULL) {
        struct cste_net_pull *pull = link->pulls;

        link->pulls = pull->next;
        cste_net_pull_lose(net, pull, &link->why);
    }
    *at = link->next;
    cste_net_peers_release(&net->peers, link->peer);
    free(link);
}

/* Close the links that are broken, and those of peers that were dropped. */
static void sweep(struct cste_ucx_lane *lane)
{
    struct lane_link **at = &lane->links;

    while (*at != NULL) {
        if ((*at)->broken || cste_net_peers_is_dropped(&lane->transport->net->peers, (*at)->peer)) {
            close_link(at);
        } else {
            at = &(*at)->next;
        }
    }
}

void cste_ucx_close_lanes(struct cste_ucx_transport *transport)
{
    for (unsigned i = 0; transport->lanes != NULL && i < transport->net->n_threads; i++) {
        struct cste_ucx_lane *lane = &transport->lanes[i];

        while (lane->links != NULL) {
            close_link(&lane->links);
        }
        if (lane->worker != NULL) {
            transport->ucx.worker_destroy(lane->worker);
        }
    }
    free(transport->lanes);
}

static int dial(struct cste_ucx_lane *lane, struct lane_link *link, struct cst_err *err)
{
    const struct cste_ucx *ucx = &lane->transport->ucx;
    struct sockaddr_storage address;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = link_failed, .arg = link}};
    ucs_status_t status;
    int rc = cste_address_read(link->peer->address, &address, &params.sockaddr.addrlen, err);

    if (rc != CST_OK) {
        return rc;
    }
    params.sockaddr.addr = (struct sockaddr *)&address;
    status = ucx->ep_create(lane->worker, &params, &link->ep);
    return status == UCS_OK ? CST_OK : cste_ucx_failed(ucx, status, "connecting", err);
}

/* Find or make the link of @lane to the peer of @pull. NULL: @err says why there is none. */
static struct lane_link *find_link(struct cste_ucx_lane *lane, const struct cste_net_pull *pull,
                                   struct cst_err *err)
{
    struct cste_ucx_transport *transport = lane->transport;
    struct lane_link *link = lane->links;

    while (link != NULL && link->peer != pull->peer) {
        link = link->next;
    }
    if (link != NULL) {
        return link;
    }
    if (lane->worker == NULL && cste_ucx_make_worker(transport, CSTE_UCX_REPLY, reply_came, lane,
                                                     &lane->worker, &lane->efd, err) != CST_OK) {
        return NULL;
    }
    link = calloc(1, sizeof *link);
    if (link == NULL) {
        (void)cst_err_set(err, CST_ENOMEM, "no memory for a connection");
        return NULL;
    }
    link->lane = lane;
    link->peer = pull->peer;
    if (dial(lane, link, err) != CST_OK) {
        free(link);
        return NULL;
    }
    cste_net_peers_hold_again(&transport->net->peers, link->peer);
    link->next = lane->links;
    lane->links = link;
    return link;
}

int cste_ucx_begin(void *state, unsigned thread, struct cste_net_pull *pull, struct cst_err *err)
{
    struct cste_ucx_transport *transport = state;
    struct cste_ucx_lane *lane = &transport->lanes[thread];
    struct lane_link *link;
    struct cst_err why;

    lane->transport = transport;
    sweep(lane);
    link = find_link(lane, pull, &why);
    if (link == NULL) {
        if (why.status != CST_ENOMEM) {
            cste_net_pull_lose(transport->net, pull, &why);
            why = pull->err;
        }
        *err = why;
        return why.status;
    }
    pull->connection = link;
    pull->next = link->pulls;
    link->pulls = pull;
    /* If this breaks the link, the pull fails with it. */
    ask(link, pull);
    (void)transport->ucx.worker_progress(lane->worker);
    return CST_OK;
}

void cste_ucx_finish(void *state, unsigned thread, struct cste_net_pull *pull)
{
    struct cste_ucx_transport *transport = state;
    struct cste_ucx_lane *lane = &transport->lanes[thread];

    while (!pull->done) {
        struct lane_link *link = pull->connection;
        struct cst_err why;
        bool dropped = false;

        if (transport->ucx.worker_progress(lane->worker) == 0 && !pull->done && !link->broken) {
            dropped = cste_ucx_sleep(transport, lane->worker, lane->efd, pull->peer->dropped, &why);
            if (why.status != CST_OK) {
                break_link(link, &why);
            }
        }
        if (dropped || link->broken) {
            sweep(lane);
        }
    }
}
