/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of UCX. The library reads its settings from the environment when it is loaded, and
 * installs handlers of signals then unless it is told not to. It is therefore loaded when the
 * transport "ucx" opens, with an environment of ours, and programs are not linked with it. */
#ifndef CST_NET_UCX_LIBRARY_H
#define CST_NET_UCX_LIBRARY_H

#include "cistern/status.h"

#include <ucp/api/ucp.h>

/* X(name): a function of the table, with its name in UCX but for the prefix "ucp_". */
#define CSTE_UCX_FUNCTIONS(X)                                                                      \
    X(get_version)                                                                                 \
    X(config_read)                                                                                 \
    X(config_release)                                                                              \
    X(init_version)                                                                                \
    X(cleanup)                                                                                     \
    X(worker_create)                                                                               \
    X(worker_destroy)                                                                              \
    X(worker_progress)                                                                             \
    X(worker_get_efd)                                                                              \
    X(worker_arm)                                                                                  \
    X(worker_set_am_recv_handler)                                                                  \
    X(listener_create)                                                                             \
    X(listener_query)                                                                              \
    X(listener_destroy)                                                                            \
    X(listener_reject)                                                                             \
    X(conn_request_query)                                                                          \
    X(ep_create)                                                                                   \
    X(ep_close_nbx)                                                                                \
    X(am_send_nbx)                                                                                 \
    X(am_recv_data_nbx)                                                                            \
    X(request_check_status)                                                                        \
    X(request_free)

struct cste_ucx {
#define CSTE_UCX_MEMBER(name) __typeof__(ucp_##name) *name;
    CSTE_UCX_FUNCTIONS(CSTE_UCX_MEMBER)
#undef CSTE_UCX_MEMBER
    const char *(*status_string)(ucs_status_t status);
    char version[32]; /* Such as "1.13". */
};

/* Load UCX for @devices, such as "eth0" or "mlx5_0:1"; @tcp: they are interfaces of TCP. Changes
 * the environment: no other thread may use it. Once in a process. CST_EUNSUPPORTED: there is no
 * library, or it lacks a function. */
int cste_ucx_load(struct cste_ucx *out, const char *devices, bool tcp, struct cst_err *err);

/* CST_EIO, with words of UCX for @status after @what. */
int cste_ucx_failed(const struct cste_ucx *ucx, ucs_status_t status, const char *what,
                    struct cst_err *err);

#endif
