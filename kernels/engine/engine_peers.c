/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/engine/engine_parts.h"

#include <stdlib.h>
#include <string.h>

const struct cste_net_spec *cste_engine_net_spec(const Engine__Setup *setup,
                                                 struct cste_net_spec *out)
{
    if (setup->net == NULL) {
        return NULL;
    }
    *out = (struct cste_net_spec){.transport = setup->net->transport,
                                  .listen = setup->net->listen,
                                  .devices = setup->net->devices,
                                  .machine = setup->net->machine};
    return out;
}

void cste_engine_say_end(const struct cste_net_end *end, Engine__NetEnd *out)
{
    *out = (Engine__NetEnd)ENGINE__NET_END__INIT;
    out->transport = (char *)(uintptr_t)end->transport;
    out->version = (char *)(uintptr_t)end->version;
    out->address = (char *)(uintptr_t)end->address;
    out->has_certificate = end->certificate != NULL;
    out->certificate.data = (uint8_t *)(uintptr_t)end->certificate;
    out->certificate.len = end->certificate_bytes;
}

static int answer(struct cste_engine *engine, uint64_t request, uint32_t machine, int status,
                  const struct cst_err *what, struct cst_err *err)
{
    Engine__PeerDone done = ENGINE__PEER_DONE__INIT;

    done.machine = machine;
    done.status = status;
    done.text = status != CST_OK ? (char *)(uintptr_t)what->text : NULL;
    return cste_outbox_say(&engine->outbox, ENGINE__MSG_TYPE__ENGINE_PEER_DONE, CST_FRAME_REPLY,
                           request, &done.base, -1, err);
}

static int add(struct cste_engine *engine, const Engine__Peer *peer, struct cst_err *err)
{
    struct cste_peer_spec spec = {.machine = peer->machine,
                                  .end = {.transport = peer->end->transport,
                                          .version = peer->end->version,
                                          .address = peer->end->address,
                                          .certificate = peer->end->certificate.data,
                                          .certificate_bytes = peer->end->certificate.len}};

    if (peer->token.len != sizeof spec.token) {
        return cst_err_set(err, CST_EINVAL, "machine %u: a token of %zu bytes instead of %zu",
                           peer->machine, peer->token.len, sizeof spec.token);
    }
    memcpy(spec.token, peer->token.data, sizeof spec.token);
    return cste_device_add_peer(&engine->device, &spec, err);
}

int cste_engine_add_peer(struct cste_engine *engine, const struct cst_frame *frame,
                         struct cst_err *err)
{
    Engine__Peer *peer = engine__peer__unpack(NULL, frame->body_bytes, frame->body);
    struct cst_err what;
    int rc;

    if (peer == NULL || frame->n_fds != 0) {
        rc = cst_err_set(err, CST_EPROTO, "malformed PEER_ADD");
    } else {
        rc = add(engine, peer, &what);
        rc = answer(engine, frame->request, peer->machine, rc, &what, err);
    }
    engine__peer__free_unpacked(peer, NULL);
    return rc;
}

int cste_engine_drop_peer(struct cste_engine *engine, const struct cst_frame *frame,
                          struct cst_err *err)
{
    Engine__PeerDrop *drop = engine__peer_drop__unpack(NULL, frame->body_bytes, frame->body);
    struct cst_err what;
    int rc;

    if (drop == NULL || frame->n_fds != 0) {
        rc = cst_err_set(err, CST_EPROTO, "malformed PEER_DROP");
    } else {
        rc = cste_device_drop_peer(&engine->device, drop->machine, drop->cause, &what);
        rc = answer(engine, frame->request, drop->machine, rc, &what, err);
    }
    engine__peer_drop__free_unpacked(drop, NULL);
    return rc;
}

/* -- counters ------------------------------------------------------------------------------- */

struct counting {
    Engine__Pong *pong;
    bool no_memory;
};

static void count(const struct cste_peer_traffic *traffic, void *arg)
{
    struct counting *counting = arg;
    Engine__Pong *pong = counting->pong;
    Engine__PeerTraffic **v = realloc(pong->peers, (pong->n_peers + 1) * sizeof *v);
    Engine__PeerTraffic *entry = malloc(sizeof *entry);

    pong->peers = v != NULL ? v : pong->peers;
    if (v == NULL || entry == NULL) {
        free(entry);
        counting->no_memory = true;
        return;
    }
    *entry = (Engine__PeerTraffic)ENGINE__PEER_TRAFFIC__INIT;
    entry->machine = traffic->machine;
    entry->pulled_bytes = traffic->pulled_bytes;
    entry->pulled = traffic->pulled;
    entry->served_bytes = traffic->served_bytes;
    entry->served = traffic->served;
    entry->damaged = traffic->damaged;
    v[pong->n_peers++] = entry;
}

int cste_engine_count_peers(struct cste_engine *engine, Engine__Pong *pong, struct cst_err *err)
{
    struct counting counting = {.pong = pong};

    cste_device_count_peers(&engine->device, count, &counting);
    if (counting.no_memory) {
        cste_engine_uncount_peers(pong);
        return cst_err_set(err, CST_ENOMEM, "no memory to count %zu machines", pong->n_peers);
    }
    return CST_OK;
}

void cste_engine_uncount_peers(Engine__Pong *pong)
{
    for (size_t i = 0; i < pong->n_peers; i++) {
        free(pong->peers[i]);
    }
    free(pong->peers);
    pong->peers = NULL;
    pong->n_peers = 0;
}
