/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/net_peers.h"

#include "daemon/engine/engines.h"
#include "daemon/engine/net_engine.h"
#include "proto/engine.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An engine of a network that nobody uses and that has no process; NULL: there is none. */
static struct cstd_engine *find_idle(struct cstd_engines *engines)
{
    for (unsigned i = engines->n_nodes; i < engines->n; i++) {
        struct cstd_engine *engine = &engines->v[i];

        if (cstd_net_is(engine->device) && engine->n_users == 0 && engine->process == NULL &&
            engine->stuck == NULL && engine->n_asked == 0) {
            return engine;
        }
    }
    return NULL;
}

int cstd_net_engine_take(struct cstd_engines *engines, const char *name, const char *transport,
                         const char *listen, uint32_t machine, unsigned *index, struct cst_err *err)
{
    struct cstd_engine *engine = find_idle(engines);
    struct cstd_net_engine *net;
    char device[sizeof engine->device];

    if (engines->net_program[0] == '\0') {
        return cst_err_set(err, CST_ENOTFOUND,
                           "there is no cistern-engine-net, which a job on several nodes needs: "
                           "install cistern again, whole");
    }
    net = calloc(1, sizeof *net);
    if (net == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for an engine of a network");
    }
    (void)snprintf(net->transport, sizeof net->transport, "%s", transport);
    (void)snprintf(net->listen, sizeof net->listen, "%s", listen);
    net->machine = machine;
    (void)snprintf(device, sizeof device, CSTD_NET "%.55s", name);
    if (engine == NULL) {
        int rc = cstd_engines_add_device(engines, device, -1, index, err);

        if (rc != CST_OK) {
            free(net);
            return rc;
        }
        engine = &engines->v[*index];
    }
    cstd_net_engine_free(engine->net);
    engine->net = net;
    (void)snprintf(net->label, sizeof net->label, CSTD_NET "%u", engine->index);
    (void)snprintf(engine->device, sizeof engine->device, "%s", device);
    *index = engine->index;
    cstd_engine_use(engine);
    return CST_OK;
}

void cstd_net_engine_release(struct cstd_engines *engines, unsigned index)
{
    struct cstd_engine *engine = &engines->v[index];

    for (uint32_t m = 0; m < CSTD_NET_MACHINES; m++) {
        if (engine->net->peers[m].v != NULL) {
            cstd_net_engine_drop_peer(engine, m, "the job has ended");
        }
    }
    cstd_engine_unuse(engine);
    cstd_engine_end_idle(engine);
}

static void send_peer(struct cstd_engine *engine, uint32_t machine)
{
    const struct cstd_net_bytes *peer = &engine->net->peers[machine];

    (void)cstd_engine_send_bytes(engine, ENGINE__MSG_TYPE__ENGINE_PEER_ADD, machine, peer->v,
                                 peer->n);
}

int cstd_net_engine_add_peer(struct cstd_engine *engine, uint32_t machine, const uint8_t *token,
                             size_t token_bytes, const uint8_t *end, size_t end_bytes,
                             struct cst_err *err)
{
    Engine__NetEnd *there = engine__net_end__unpack(NULL, end_bytes, end);
    Engine__Peer peer = ENGINE__PEER__INIT;
    uint8_t packed[CST_FRAME_MAX_BODY / 16];
    size_t n = 0;

    if (there != NULL && strcmp(there->transport, engine->net->transport) != 0) {
        (void)cst_err_set(err, CST_EMISMATCH,
                          "machine %u sends a job's data by '%.7s', this one by '%s': set "
                          "'network' in [node] to the same value on all nodes",
                          machine, there->transport, engine->net->transport);
        engine__net_end__free_unpacked(there, NULL);
        return CST_EMISMATCH;
    }
    if (there != NULL) {
        peer.machine = machine;
        peer.token.data = (uint8_t *)(uintptr_t)token;
        peer.token.len = token_bytes;
        peer.end = there;
        n = engine__peer__get_packed_size(&peer);
        n = n <= sizeof packed ? engine__peer__pack(&peer, packed) : 0;
    }
    engine__net_end__free_unpacked(there, NULL);
    if (n == 0) {
        return cst_err_set(err, CST_EPROTO, "%zu bytes that do not say how an engine is reached",
                           end_bytes);
    }
    if (engine->net->peers[machine].v != NULL) {
        cstd_net_engine_drop_peer(engine, machine, "it has another engine");
    }
    if (cstd_net_bytes_keep(&engine->net->peers[machine], packed, n) != CST_OK) {
        return cst_err_set(err, CST_ENOMEM, "no memory for machine %u", machine);
    }
    if (cstd_engine_is_up(engine)) {
        send_peer(engine, machine);
    }
    return CST_OK;
}

void cstd_net_engine_drop_peer(struct cstd_engine *engine, uint32_t machine, const char *cause)
{
    Engine__PeerDrop drop = ENGINE__PEER_DROP__INIT;

    if (engine->net->peers[machine].v == NULL) {
        return;
    }
    cstd_net_bytes_forget(&engine->net->peers[machine]);
    drop.machine = machine;
    drop.cause = (char *)(uintptr_t)cause;
    if (cstd_engine_is_up(engine)) {
        (void)cstd_engine_send(engine, ENGINE__MSG_TYPE__ENGINE_PEER_DROP, machine, &drop.base, -1);
    }
}
