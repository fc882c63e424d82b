/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/net_engine.h"

#include <stdlib.h>

void cstd_net_bytes_forget(struct cstd_net_bytes *bytes)
{
    free(bytes->v);
    *bytes = (struct cstd_net_bytes){NULL, 0};
}

int cstd_net_bytes_keep(struct cstd_net_bytes *out, const uint8_t *from, size_t n)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);

    if (copy == NULL) {
        return CST_ENOMEM;
    }
    memcpy(copy, from, n);
    cstd_net_bytes_forget(out);
    *out = (struct cstd_net_bytes){copy, n};
    return CST_OK;
}

void cstd_net_engine_see(struct cstd_net_engine *net, const Engine__Pong *pong)
{
    for (size_t i = 0; i < pong->n_peers; i++) {
        const Engine__PeerTraffic *peer = pong->peers[i];

        if (peer->machine < CSTD_NET_MACHINES) {
            net->traffic[peer->machine] = (struct cstd_net_traffic){.received = peer->pulled_bytes,
                                                                    .sent = peer->served_bytes};
        }
    }
}

void cstd_net_engine_end_process(struct cstd_net_engine *net)
{
    cstd_net_bytes_forget(&net->end);
    for (unsigned m = 0; m < CSTD_NET_MACHINES; m++) {
        net->base[m] = cstd_net_engine_traffic(net, m);
        net->traffic[m] = (struct cstd_net_traffic){0};
    }
}

struct cstd_net_traffic cstd_net_engine_traffic(const struct cstd_net_engine *net, uint32_t machine)
{
    return (struct cstd_net_traffic){.received = net->base[machine].received +
                                                 net->traffic[machine].received,
                                     .sent = net->base[machine].sent + net->traffic[machine].sent};
}

void cstd_net_engine_free(struct cstd_net_engine *net)
{
    if (net == NULL) {
        return;
    }
    cstd_net_bytes_forget(&net->end);
    for (unsigned m = 0; m < CSTD_NET_MACHINES; m++) {
        cstd_net_bytes_forget(&net->peers[m]);
    }
    free(net);
}
