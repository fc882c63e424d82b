/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void cste_net_peers_init(struct cste_net_peers *peers)
{
    *peers = (struct cste_net_peers){0};
    (void)pthread_mutex_init(&peers->mutex, NULL);
}

static void free_peer(struct cste_net_peer *peer)
{
    if (peer->dropped >= 0) {
        (void)close(peer->dropped);
    }
    free(peer->certificate);
    free(peer->address);
    free(peer);
}

void cste_net_peers_close(struct cste_net_peers *peers)
{
    while (peers->machines != NULL) {
        struct cste_net_machine *machine = peers->machines;

        peers->machines = machine->next;
        if (machine->peer != NULL) {
            free_peer(machine->peer);
        }
        free(machine);
    }
    (void)pthread_mutex_destroy(&peers->mutex);
}

/* Returns machine @number, or NULL. The mutex is held, or this is the loop thread, which alone
 * changes the list. */
static struct cste_net_machine *find(const struct cste_net_peers *peers, uint32_t number)
{
    struct cste_net_machine *machine = peers->machines;

    while (machine != NULL && machine->number != number) {
        machine = machine->next;
    }
    return machine;
}

/* Returns machine @number, which is made if it is not known. NULL: no memory. */
static struct cste_net_machine *get(struct cste_net_peers *peers, uint32_t number)
{
    struct cste_net_machine *machine = find(peers, number);

    if (machine != NULL) {
        return machine;
    }
    machine = calloc(1, sizeof *machine);
    if (machine != NULL) {
        machine->number = number;
        (void)pthread_mutex_lock(&peers->mutex);
        machine->next = peers->machines;
        peers->machines = machine;
        (void)pthread_mutex_unlock(&peers->mutex);
    }
    return machine;
}

static struct cste_net_peer *new_peer(const struct cste_peer_spec *spec)
{
    struct cste_net_peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL) {
        return NULL;
    }
    peer->number = spec->machine;
    memcpy(peer->token, spec->token, sizeof peer->token);
    peer->address = strdup(spec->end.address);
    peer->certificate_bytes = spec->end.certificate_bytes;
    peer->certificate = malloc(peer->certificate_bytes + 1);
    peer->dropped = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (peer->address == NULL || peer->certificate == NULL || peer->dropped < 0) {
        free_peer(peer);
        return NULL;
    }
    if (peer->certificate_bytes > 0) {
        memcpy(peer->certificate, spec->end.certificate, peer->certificate_bytes);
    }
    return peer;
}

/* Returns the bits in which the two tokens differ. */
static unsigned difference(const uint8_t a[CSTE_WIRE_TOKEN_BYTES],
                           const uint8_t b[CSTE_WIRE_TOKEN_BYTES])
{
    volatile unsigned bits = 0;

    for (int i = 0; i < CSTE_WIRE_TOKEN_BYTES; i++) {
        bits |= (unsigned)(a[i] ^ b[i]);
    }
    return bits;
}

int cste_net_peers_add(struct cste_net_peers *peers, const struct cste_peer_spec *spec,
                       struct cst_err *err)
{
    static const uint8_t zeros[CSTE_WIRE_TOKEN_BYTES];
    struct cste_net_machine *machine;
    struct cste_net_peer *peer;

    if (difference(spec->token, zeros) == 0) {
        return cst_err_set(err, CST_EINVAL, "machine %u: a token of zeros", spec->machine);
    }
    machine = get(peers, spec->machine);
    if (machine != NULL && machine->peer != NULL) {
        return cst_err_set(err, CST_EEXIST, "machine %u is a peer already, at %s", spec->machine,
                           machine->peer->address);
    }
    peer = machine != NULL ? new_peer(spec) : NULL;
    if (peer == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory or no descriptor for machine %u",
                           spec->machine);
    }
    peer->machine = machine;
    (void)pthread_mutex_lock(&peers->mutex);
    machine->peer = peer;
    peer->n_holds = 1;
    (void)pthread_mutex_unlock(&peers->mutex);
    return CST_OK;
}

int cste_net_peers_drop(struct cste_net_peers *peers, uint32_t number, const char *cause,
                        struct cst_err *err)
{
    struct cste_net_machine *machine = find(peers, number);
    struct cste_net_peer *peer = machine != NULL ? machine->peer : NULL;

    if (peer == NULL) {
        return cst_err_set(err, CST_ENOTFOUND, "machine %u is no peer", number);
    }
    (void)pthread_mutex_lock(&peers->mutex);
    (void)snprintf(machine->cause, sizeof machine->cause, "%s", cause);
    machine->peer = NULL;
    (void)pthread_mutex_unlock(&peers->mutex);
    (void)eventfd_write(peer->dropped, 1);
    cste_net_peers_release(peers, peer);
    return CST_OK;
}

int cste_net_peers_hold(struct cste_net_peers *peers, uint32_t number, struct cste_net_peer **out,
                        struct cst_err *err)
{
    const struct cste_net_machine *machine;
    int rc = CST_OK;

    (void)pthread_mutex_lock(&peers->mutex);
    machine = find(peers, number);
    if (machine != NULL && machine->peer != NULL) {
        machine->peer->n_holds++;
        *out = machine->peer;
    } else if (machine != NULL) {
        rc = cst_err_set(err, CST_ELOST, "machine %u was dropped: %s", number, machine->cause);
    } else {
        rc = cst_err_set(err, CST_ELOST, "machine %u is no peer of this job", number);
    }
    (void)pthread_mutex_unlock(&peers->mutex);
    return rc;
}

void cste_net_peers_hold_again(struct cste_net_peers *peers, struct cste_net_peer *peer)
{
    (void)pthread_mutex_lock(&peers->mutex);
    peer->n_holds++;
    (void)pthread_mutex_unlock(&peers->mutex);
}

struct cste_net_peer *cste_net_peers_admit(struct cste_net_peers *peers,
                                           const struct cste_wire_request *request)
{
    const struct cste_net_machine *machine;
    struct cste_net_peer *peer;

    (void)pthread_mutex_lock(&peers->mutex);
    machine = find(peers, request->machine);
    peer = machine != NULL ? machine->peer : NULL;
    if (peer != NULL && difference(peer->token, request->token) != 0) {
        peer = NULL;
    }
    if (peer != NULL) {
        peer->n_holds++;
    }
    (void)pthread_mutex_unlock(&peers->mutex);
    return peer;
}

bool cste_net_peers_is_dropped(struct cste_net_peers *peers, const struct cste_net_peer *peer)
{
    bool dropped;

    (void)pthread_mutex_lock(&peers->mutex);
    dropped = peer->machine->peer != peer;
    (void)pthread_mutex_unlock(&peers->mutex);
    return dropped;
}

int cste_net_peers_say_dropped(struct cste_net_peers *peers, const struct cste_net_peer *peer,
                               struct cst_err *err)
{
    (void)pthread_mutex_lock(&peers->mutex);
    (void)cst_err_set(err, CST_ELOST, "machine %u was dropped: %s", peer->number,
                      peer->machine->cause);
    (void)pthread_mutex_unlock(&peers->mutex);
    return CST_ELOST;
}

bool cste_net_peers_trusts(struct cste_net_peers *peers, const uint8_t *der, size_t bytes)
{
    bool trusted = false;

    (void)pthread_mutex_lock(&peers->mutex);
    for (const struct cste_net_machine *m = peers->machines; m != NULL && !trusted; m = m->next) {
        trusted = m->peer != NULL && bytes > 0 && m->peer->certificate_bytes == bytes &&
                  memcmp(m->peer->certificate, der, bytes) == 0;
    }
    (void)pthread_mutex_unlock(&peers->mutex);
    return trusted;
}

void cste_net_peers_release(struct cste_net_peers *peers, struct cste_net_peer *peer)
{
    bool last;

    (void)pthread_mutex_lock(&peers->mutex);
    last = --peer->n_holds == 0;
    (void)pthread_mutex_unlock(&peers->mutex);
    if (last) {
        free_peer(peer);
    }
}

void cste_net_peers_count(struct cste_net_peers *peers,
                          void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                          void *arg)
{
    (void)pthread_mutex_lock(&peers->mutex);
    for (struct cste_net_machine *m = peers->machines; m != NULL; m = m->next) {
        const struct cste_peer_traffic traffic = {.machine = m->number,
                                                  .pulled_bytes = atomic_load(&m->pulled_bytes),
                                                  .pulled = atomic_load(&m->pulled),
                                                  .served_bytes = atomic_load(&m->served_bytes),
                                                  .served = atomic_load(&m->served),
                                                  .damaged = atomic_load(&m->damaged)};

        each(&traffic, arg);
    }
    (void)pthread_mutex_unlock(&peers->mutex);
}
