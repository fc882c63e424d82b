/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/net_rig.h"

#include "kernels/math/undo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDO 9
#define PROGRAM "./cistern-engine-net"

/* Abort unless @ok. For errors that cannot occur unless the test or the machine is broken. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "net_rig: %s\n", what);
        abort();
    }
}

struct net_token net_token(uint8_t seed)
{
    struct net_token token;

    for (unsigned i = 0; i < sizeof token.bytes; i++) {
        token.bytes[i] = (uint8_t)(seed * 31 + i * 7 + 1);
    }
    return token;
}

static char *add_memory(struct net_machine *machine, uint32_t id, bool served)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    struct engine_segment_done done;
    void *base;
    int fd = engine_proc_memfd(NET_BYTES, &base);

    add.id = id;
    add.bytes = NET_BYTES;
    add.has_served = 1;
    add.served = served;
    done = engine_proc_segment_done(
        &machine->proc,
        engine_proc_send(&machine->proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, fd));
    must(done.status == CST_OK, done.text);
    return base;
}

void net_start(struct net_machine *machine, uint32_t number, const char *transport,
               const char *listen, unsigned lanes, uint64_t seed)
{
    static Engine__Net net;
    uint64_t undo_bytes = sizeof(struct cst_undo_slot);
    uint64_t state = seed * 2 + number;

    net = (Engine__Net)ENGINE__NET__INIT;
    net.transport = (char *)(uintptr_t)transport;
    net.listen = (char *)(uintptr_t)listen;
    net.machine = number;
    *machine = (struct net_machine){.number = number};
    engine_proc_use(PROGRAM, NULL);
    engine_proc_net(&net);
    engine_proc_open(&machine->proc, 1, lanes, UNDO, engine_proc_memfd(undo_bytes, NULL),
                     undo_bytes);
    must(machine->proc.ready->end != NULL, "READY has no end");
    machine->served = add_memory(machine, NET_SERVED, true);
    machine->own = add_memory(machine, NET_OWN, false);
    for (uint64_t i = 0; i < NET_BYTES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        machine->served[i] = (char)(state >> 56);
    }
}

void net_stop(struct net_machine *machine)
{
    must(engine_proc_close(&machine->proc) == 0, "an engine ended with an error");
}

static struct net_peer_done peer_done(struct net_machine *machine, uint64_t request)
{
    struct net_peer_done out = {.status = CST_ECONN};
    struct cst_frame frame;
    Engine__PeerDone *done;

    if (engine_proc_reply(&machine->proc, request, &frame) == NULL) {
        return out;
    }
    done = engine__peer_done__unpack(NULL, frame.body_bytes, frame.body);
    must(done != NULL && frame.type == ENGINE__MSG_TYPE__ENGINE_PEER_DONE, "PEER_DONE");
    out.status = done->status;
    (void)snprintf(out.text, sizeof out.text, "%s", done->text != NULL ? done->text : "");
    engine__peer_done__free_unpacked(done, NULL);
    return out;
}

struct net_peer_done net_add(struct net_machine *machine, uint32_t number, Engine__NetEnd *end,
                             struct net_token token)
{
    Engine__Peer peer = ENGINE__PEER__INIT;

    peer.machine = number;
    peer.end = end;
    peer.token.data = token.bytes;
    peer.token.len = sizeof token.bytes;
    return peer_done(machine, engine_proc_send(&machine->proc, ENGINE__MSG_TYPE__ENGINE_PEER_ADD,
                                               &peer.base, -1));
}

void net_meet(struct net_machine *a, struct net_machine *b, struct net_token token)
{
    struct net_peer_done done = net_add(a, b->number, b->proc.ready->end, token);

    must(done.status == CST_OK, done.text);
    done = net_add(b, a->number, a->proc.ready->end, token);
    must(done.status == CST_OK, done.text);
}

struct net_peer_done net_drop(struct net_machine *machine, uint32_t number, const char *cause)
{
    Engine__PeerDrop drop = ENGINE__PEER_DROP__INIT;

    drop.machine = number;
    drop.cause = (char *)(uintptr_t)cause;
    return peer_done(machine, engine_proc_send(&machine->proc, ENGINE__MSG_TYPE__ENGINE_PEER_DROP,
                                               &drop.base, -1));
}

struct engine_segment_done net_add_remote(struct net_machine *machine, uint32_t id, uint32_t number,
                                          uint32_t there, uint64_t bytes)
{
    Engine__SegmentAdd add = ENGINE__SEGMENT_ADD__INIT;
    Engine__Remote remote = ENGINE__REMOTE__INIT;

    add.id = id;
    add.bytes = bytes;
    add.remote = &remote;
    remote.machine = number;
    remote.segment = there;
    return engine_proc_segment_done(
        &machine->proc,
        engine_proc_send(&machine->proc, ENGINE__MSG_TYPE__ENGINE_SEGMENT_ADD, &add.base, -1));
}

uint64_t net_submit(struct net_machine *machine, struct cst_place dst, struct cst_place src,
                    uint64_t bytes)
{
    struct engine_command copy = engine_command_copy(dst, src, bytes);

    copy.ticket = ++machine->ticket;
    engine_proc_submit(&machine->proc, &copy, 1);
    return copy.ticket;
}

const struct engine_completion *net_copy(struct net_machine *machine, struct cst_place dst,
                                         struct cst_place src, uint64_t bytes)
{
    return engine_proc_wait(&machine->proc, net_submit(machine, dst, src, bytes));
}

struct net_traffic net_traffic(struct net_machine *machine, uint32_t number)
{
    uint64_t request = engine_proc_send(&machine->proc, ENGINE__MSG_TYPE__ENGINE_PING, NULL, -1);
    struct net_traffic out = {0};
    struct cst_frame frame;
    Engine__Pong *pong;

    must(engine_proc_reply(&machine->proc, request, &frame) != NULL, "PONG");
    pong = engine__pong__unpack(NULL, frame.body_bytes, frame.body);
    must(pong != NULL, "PONG");
    for (size_t i = 0; i < pong->n_peers; i++) {
        const Engine__PeerTraffic *t = pong->peers[i];

        if (t->machine == number) {
            out = (struct net_traffic){t->pulled_bytes, t->pulled, t->served_bytes, t->served,
                                       t->damaged};
        }
    }
    engine__pong__free_unpacked(pong, NULL);
    return out;
}
