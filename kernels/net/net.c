/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/net.h"

#include "kernels/host/host.h"
#include "kernels/net/transport.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Calls of a thread that are under way, the oldest at `first`. A call that was done at once has a
 * pull that is done. */
struct lane {
    struct cste_net_pull pulls[CSTE_NET_WINDOW];
    unsigned first, n;
};

struct device {
    void *host; /* State of the host device, which has the host memory. */
    struct cste_net net;
    const struct cste_net_transport *transport;
    void *state; /* Of the transport. */
    struct cste_net_end end;
    struct lane *lanes; /* One for each thread. */
};

static void interrupt(void *arg)
{
    struct device *device = arg;

    device->transport->interrupt(device->state);
}

static void net_close(void *state)
{
    struct device *device = state;

    if (device->state != NULL) {
        device->transport->close(device->state);
    }
    if (device->host != NULL) {
        cste_host_ops.close(device->host);
    }
    cste_net_peers_close(&device->net.peers);
    cste_served_close(&device->net.served);
    cste_complaints_close(&device->net.complaints);
    free(device->lanes);
    free(device);
}

static int open_parts(struct device *device, const struct cste_device_spec *spec,
                      struct cste_device_about *about, struct cst_err *err)
{
    int rc = spec->net != NULL
                 ? cste_net_transport_find(spec->net->transport, &device->transport, err)
                 : cst_err_set(err, CST_EINVAL, "SETUP says nothing of a network");

    if (rc != CST_OK) {
        return rc;
    }
    device->lanes = calloc(spec->n_threads, sizeof *device->lanes);
    if (device->lanes == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for %u lanes", spec->n_threads);
    }
    rc = cste_host_ops.open(&device->host, spec, about, err);
    if (rc == CST_OK) {
        device->net.machine = spec->net->machine;
        device->net.listen = spec->net->listen;
        device->net.devices = spec->net->devices;
        device->net.n_threads = spec->n_threads;
        rc = device->transport->open(&device->state, &device->net, &device->end, err);
    }
    if (rc == CST_OK) {
        device->end.transport = device->transport->name;
        device->end.version = device->transport->version();
        about->name = "net";
        about->end = device->end;
    }
    return rc;
}

static int net_open(void **state, const struct cste_device_spec *spec,
                    struct cste_device_about *about, struct cst_err *err)
{
    struct device *device = calloc(1, sizeof *device);
    int rc;

    if (device == NULL) {
        return cst_err_set(err, CST_ENOMEM, "no memory for a network");
    }
    cste_net_peers_init(&device->net.peers);
    cste_served_init(&device->net.served);
    cste_complaints_init(&device->net.complaints, spec->warn);
    rc = open_parts(device, spec, about, err);
    if (rc != CST_OK) {
        net_close(device);
        return rc;
    }
    *state = device;
    return CST_OK;
}

/* -- memory --------------------------------------------------------------------------------- */

static int net_map(void *state, int fd, int node, struct cste_mem *mem, struct cst_err *note,
                   struct cst_err *err)
{
    struct device *device = state;
    int rc = cste_host_ops.memory->map(device->host, fd, node, mem, note, err);

    if (rc == CST_OK && mem->served) {
        rc = cste_served_add(&device->net.served, mem->id, mem->base, mem->bytes, err);
        if (rc != CST_OK) {
            cste_host_ops.memory->unmap(device->host, mem);
            mem->base = NULL;
        }
    }
    return rc;
}

static int net_import(void *state, unsigned thread, int *fd, struct cste_mem *mem,
                      struct cst_err *err)
{
    (void)state;
    (void)thread;
    (void)fd;
    if (mem->id_there == 0) {
        return cst_err_set(err, CST_EUNSUPPORTED,
                           "the engine of a network has no memory of its own");
    }
    /* The segment is never reached by an address here. */
    mem->device = mem->id_there;
    return CST_OK;
}

static void net_unmap(void *state, struct cste_mem *mem)
{
    struct device *device = state;

    if (mem->device != 0) {
        return;
    }
    if (mem->served) {
        cste_served_remove(&device->net.served, mem->id, interrupt, device);
    }
    cste_host_ops.memory->unmap(device->host, mem);
}

static int net_populate(void *state, int fd, void *base, uint64_t offset, uint64_t bytes,
                        struct cst_err *err)
{
    return cste_host_ops.memory->populate(((struct device *)state)->host, fd, base, offset, bytes,
                                          err);
}

static int net_lock(void *state, const struct cste_mem *mem, struct cst_err *err)
{
    return cste_host_ops.memory->lock(((struct device *)state)->host, mem, err);
}

/* -- bytes ---------------------------------------------------------------------------------- */

/* Returns the pull for the next call of @lane, which the caller counts if it succeeds. */
static struct cste_net_pull *next_pull(struct lane *lane)
{
    struct cste_net_pull *pull = &lane->pulls[(lane->first + lane->n) % CSTE_NET_WINDOW];

    *pull = (struct cste_net_pull){0};
    return pull;
}

/* Count a call that is done already. */
static int done_at_once(struct lane *lane, int rc)
{
    if (rc == CST_OK) {
        next_pull(lane)->done = true;
        lane->n++;
    }
    return rc;
}

static int refuse_to_write(const struct cste_mem *mem, struct cst_err *err)
{
    return cst_err_set(err, CST_EINVAL,
                       "segment %u of machine %u as a destination: machines only read each other's "
                       "memory",
                       mem->id_there, mem->machine);
}

static int net_copy(void *state, unsigned thread, struct cste_addr dst, struct cste_addr src,
                    uint64_t bytes, struct cst_err *err)
{
    struct device *device = state;
    struct lane *lane = &device->lanes[thread];
    struct cste_net_pull *pull;
    int rc;

    if (dst.mem->device != 0) {
        return refuse_to_write(dst.mem, err);
    }
    if (bytes == 0 || bytes > CSTE_WIRE_MAX_PAYLOAD) {
        return cst_err_set(err, CST_EINVAL, "%" PRIu64 " bytes at a time, 1 to %u are possible",
                           bytes, CSTE_WIRE_MAX_PAYLOAD);
    }
    if (src.mem->device == 0) {
        return done_at_once(lane,
                            cste_host_ops.memory->copy(device->host, thread, dst, src, bytes, err));
    }
    pull = next_pull(lane);
    rc = cste_net_peers_hold(&device->net.peers, src.mem->machine, &pull->peer, err);
    if (rc != CST_OK) {
        return rc;
    }
    pull->segment = src.mem->id_there;
    pull->offset = src.offset;
    pull->bytes = (uint32_t)bytes;
    pull->to = cste_addr_host(dst);
    rc = device->transport->begin(device->state, thread, pull, err);
    if (rc != CST_OK) {
        cste_net_peers_release(&device->net.peers, pull->peer);
        return rc;
    }
    lane->n++;
    return CST_OK;
}

static int net_fill(void *state, unsigned thread, struct cste_addr dst, uint64_t bytes,
                    struct cst_err *err)
{
    struct device *device = state;

    if (dst.mem->device != 0) {
        return refuse_to_write(dst.mem, err);
    }
    return done_at_once(&device->lanes[thread],
                        cste_host_ops.memory->fill(device->host, thread, dst, bytes, err));
}

static int net_finish(void *state, unsigned thread, struct cst_tile_done *done, struct cst_err *err)
{
    struct device *device = state;
    struct lane *lane = &device->lanes[thread];
    struct cste_net_pull *pull = &lane->pulls[lane->first];

    *done = (struct cst_tile_done){0};
    lane->first = (lane->first + 1) % CSTE_NET_WINDOW;
    lane->n--;
    if (pull->peer == NULL) {
        return CST_OK;
    }
    device->transport->finish(device->state, thread, pull);
    cste_net_peers_release(&device->net.peers, pull->peer);
    if (pull->err.status != CST_OK) {
        *err = pull->err;
    }
    return pull->err.status;
}

/* -- other machines ------------------------------------------------------------------------- */

static int net_add_peer(void *state, const struct cste_peer_spec *spec, struct cst_err *err)
{
    struct device *device = state;
    const struct cste_net_end *own = &device->end, *end = &spec->end;

    if (spec->machine == device->net.machine) {
        return cst_err_set(err, CST_EINVAL, "machine %u is this one", spec->machine);
    }
    if (strcmp(own->transport, end->transport) != 0 || strcmp(own->version, end->version) != 0) {
        return cst_err_set(
            err, CST_EVERSION,
            "machine %u has transport '%s' %s, this machine '%s' %s: all machines of a "
            "job need the same transport in the same version",
            spec->machine, end->transport, end->version, own->transport, own->version);
    }
    if ((own->certificate == NULL) != (end->certificate_bytes == 0)) {
        return cst_err_set(err, CST_EINVAL,
                           "machine %u, transport '%s': a certificate of %zu bytes", spec->machine,
                           own->transport, end->certificate_bytes);
    }
    return cste_net_peers_add(&device->net.peers, spec, err);
}

static int net_drop_peer(void *state, uint32_t machine, const char *cause, struct cst_err *err)
{
    struct device *device = state;
    int rc = cste_net_peers_drop(&device->net.peers, machine, cause, err);

    if (rc == CST_OK) {
        interrupt(device);
    }
    return rc;
}

static void net_count_peers(void *state,
                            void (*each)(const struct cste_peer_traffic *traffic, void *arg),
                            void *arg)
{
    cste_net_peers_count(&((struct device *)state)->net.peers, each, arg);
}

static const struct cste_memory_ops memory_ops = {
    /* Each lane has a connection to each machine. */
    .max_lanes = 4,     .piece_bytes = CSTE_WIRE_MAX_PAYLOAD,
    .map = net_map,     .import = net_import,
    .unmap = net_unmap, .populate = net_populate,
    .lock = net_lock,   .copy = net_copy,
    .fill = net_fill,
};

static const struct cste_peer_ops peer_ops = {
    .add = net_add_peer, .drop = net_drop_peer, .count = net_count_peers};

const struct cste_device_ops cste_net_ops = {.name = "net",
                                             .window = CSTE_NET_WINDOW,
                                             .open = net_open,
                                             .close = net_close,
                                             .finish = net_finish,
                                             .memory = &memory_ops,
                                             .peers = &peer_ops};
