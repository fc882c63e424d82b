/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "kernels/net/transport.h"

#include <string.h>

static const struct cste_net_transport *const transports[] = {
    &cste_net_tcp,
    &cste_net_tls,
#ifdef HAVE_UCX
    &cste_net_ucx,
#endif
};

int cste_net_transport_find(const char *name, const struct cste_net_transport **out,
                            struct cst_err *err)
{
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
        if (strcmp(transports[i]->name, name) == 0) {
            *out = transports[i];
            return CST_OK;
        }
    }
#ifdef HAVE_UCX
    return cst_err_set(err, CST_EINVAL, "transport '%s': there are tcp, tls and ucx", name);
#else
    return cst_err_set(err, CST_EINVAL,
                       "transport '%s': there are tcp and tls (this build has no UCX)", name);
#endif
}
