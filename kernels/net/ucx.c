/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/ucx.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often a worker that has nothing to do looks again before its thread sleeps. That takes some
 * 30 us; to wake a thread on another processor can take longer. */
#define LOOKS_BEFORE_SLEEP 50

/* The library of this process. */
static struct cste_ucx library;

static const char *ucx_version(void)
{
    return library.version;
}

/* -- opening -------------------------------------------------------------------------------- */

static bool is_same(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;

    if (a == NULL || a->sa_family != b->ss_family) {
        return false;
    }
    return a->sa_family == AF_INET
               ? four->sin_addr.s_addr ==
                     ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr
               : memcmp(&six->sin6_addr, &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                        sizeof six->sin6_addr) == 0;
}

/* Find the interface that has @address. CST_EINVAL: there is none. */
static int find_interface(const struct sockaddr_storage *address, char out[IF_NAMESIZE],
                          struct cst_err *err)
{
    char text[CSTE_ADDRESS_MAX];
    struct ifaddrs *all = NULL;
    bool found = false;

    if (getifaddrs(&all) != 0) {
        return cst_err_errno(err, CST_EIO, errno, "getifaddrs");
    }
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        found = (i->ifa_addr == NULL || i->ifa_addr->sa_family == AF_INET ||
                 i->ifa_addr->sa_family == AF_INET6) &&
                is_same(i->ifa_addr, address);
        if (found) {
            (void)snprintf(out, IF_NAMESIZE, "%s", i->ifa_name);
        }
    }
    freeifaddrs(all);
    cste_address_write(address, text);
    return found ? CST_OK
                 : cst_err_set(err, CST_EINVAL, "no interface of this machine has the address %s",
                               text);
}

static int make_context(struct cste_ucx_transport *transport, const char *devices,
                        struct cst_err *err)
{
    const ucp_params_t params = {.field_mask =
                                     UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                 .mt_workers_shared = 1};
    ucp_config_t *config;
    ucs_status_t status = transport->ucx.config_read(NULL, NULL, &config);

    if (status == UCS_OK) {
        status = transport->ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
                                             &transport->context);
        transport->ucx.config_release(config);
    }
    return status == UCS_OK ? CST_OK
                            : cst_err_set(err, CST_EIO, "opening UCX for the devices '%s': %s",
                                          devices, transport->ucx.status_string(status));
}

static void ucx_close(void *state)
{
    struct cste_ucx_transport *transport = state;

    cste_ucx_close_server(transport);
    cste_ucx_close_lanes(transport);
    if (transport->context != NULL) {
        transport->ucx.cleanup(transport->context);
    }
    free(transport);
}

static int open_parts(struct cste_ucx_transport *transport, struct cst_err *err)
{
    struct sockaddr_storage address;
    char interface[IF_NAMESIZE];
    const char *devices = transport->net->devices;
    socklen_t bytes;
    int rc = cste_address_read(transport->net->listen, &address, &bytes, err);

    if (rc == CST_OK) {
        rc = cste_address_check_own(&address, err);
    }
    if (rc == CST_OK && devices == NULL) {
        rc = find_interface(&address, interface, err);
        devices = interface;
    }
    if (rc == CST_OK) {
        rc = cste_ucx_load(&library, devices, transport->net->devices == NULL, err);
        transport->ucx = library;
    }
    if (rc == CST_OK) {
        rc = make_context(transport, devices, err);
    }
    if (rc == CST_OK) {
        rc = cste_ucx_open_lanes(transport, err);
    }
    if (rc == CST_OK) {
        rc = cste_ucx_open_server(transport, &address, bytes, err);
    }
    return rc;
}

static int ucx_open(void **state, struct cste_net *net, struct cste_net_end *end,
                    struct cst_err *err)
{
    struct cste_ucx_transport *transport = calloc(1, sizeof *transport);
    int rc;

    if (transport == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a transport");
    }
    transport->net = net;
    rc = open_parts(transport, err);
    if (rc != CST_OK) {
        ucx_close(transport);
        return rc;
    }
    end->address = transport->address;
    *state = transport;
    return CST_OK;
}

/* -- workers -------------------------------------------------------------------------------- */

int cste_ucx_make_worker(struct cste_ucx_transport *transport, unsigned id,
                         ucp_am_recv_callback_t receive, void *arg, ucp_worker_h *out, int *efd,
                         struct cst_err *err)
{
    const struct cste_ucx *ucx = &transport->ucx;
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    const ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                                                          UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                            .id = id,
                                            .cb = receive,
                                            .arg = arg};
    ucs_status_t status = ucx->worker_create(transport->context, &params, out);

    if (status != UCS_OK) {
        return cste_ucx_failed(ucx, status, "making a worker of UCX", err);
    }
    status = ucx->worker_set_am_recv_handler(*out, &handler);
    if (status == UCS_OK) {
        status = ucx->worker_get_efd(*out, efd);
    }
    if (status != UCS_OK) {
        ucx->worker_destroy(*out);
        *out = NULL;
        return cste_ucx_failed(ucx, status, "making a worker of UCX", err);
    }
    return CST_OK;
}

/* Returns whether @worker, which had nothing to do, has found something soon. */
static bool found_soon(struct cste_ucx_transport *transport, ucp_worker_h worker)
{
    for (int i = 0; i < LOOKS_BEFORE_SLEEP; i++) {
        if (transport->ucx.worker_progress(worker) > 0) {
            return true;
        }
    }
    return false;
}

bool cste_ucx_sleep(struct cste_ucx_transport *transport, ucp_worker_h worker, int efd, int wake,
                    struct cst_err *err)
{
    struct pollfd fds[2] = {{.fd = efd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
    ucs_status_t status =
        found_soon(transport, worker) ? UCS_ERR_BUSY : transport->ucx.worker_arm(worker);

    err->status = CST_OK;
    /* Something came meanwhile: it is to be seen to first. Whether @wake is readable is told in any
     * case. */
    if (status != UCS_OK && status != UCS_ERR_BUSY) {
        (void)cste_ucx_failed(&transport->ucx, status, "waiting for UCX", err);
        return false;
    }
    if (poll(fds, 2, status == UCS_OK ? -1 : 0) <= 0) {
        return false;
    }
    return fds[1].revents != 0;
}

const struct cste_net_transport cste_net_ucx = {.name = "ucx",
                                                .version = ucx_version,
                                                .open = ucx_open,
                                                .close = ucx_close,
                                                .begin = cste_ucx_begin,
                                                .finish = cste_ucx_finish,
                                                .interrupt = cste_ucx_interrupt};
