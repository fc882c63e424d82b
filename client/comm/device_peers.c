/* SPDX-License-Identifier: Apache-2.0 */
#include "client/comm/device_peers.h"

#include "client/comm/comm.h"

/* -- copies and sums -------------------------------------------------------------------------- */

/* Only the first failure counts, and nothing is begun after it. */
static void copy(void *arg, void *dst, const void *src, size_t bytes)
{
    struct cst_comm *comm = arg;

    if (comm->peers.err.status == CST_OK) {
        (void)comm->device->copy_peer(comm->device_arg, dst, src, bytes, &comm->peers.err);
    }
}

static void total(void *arg, enum cst_comm_type type, size_t n, uint32_t n_src,
                  const void *const *src, void *dst)
{
    struct cst_comm *comm = arg;

    if (comm->peers.err.status == CST_OK) {
        (void)comm->device->add_up(comm->device_arg, type, n, n_src, src, dst, &comm->peers.err);
    }
}

static int settle(void *arg, struct cst_err *err)
{
    struct cst_comm *comm = arg;
    int rc = comm->device->settle(comm->device_arg, err);

    /* What was enqueued before the failure has ended, too, so that the slots can be unmapped. */
    if (comm->peers.err.status != CST_OK) {
        *err = comm->peers.err;
        rc = err->status;
    }
    return rc;
}

static const struct cstc_transfer_device device = {.copy = copy, .total = total, .settle = settle};

/* -- life ------------------------------------------------------------------------------------- */

bool cstc_peers_can(const struct cst_comm *comm)
{
    return comm->device->use_peers != NULL && comm->job->device.calls != NULL;
}

int cstc_peers_open(struct cst_comm *comm, const struct cstc_call *call, struct cst_err *err)
{
    const Cistern__CommOpened *msg = (const Cistern__CommOpened *)call->reply;
    const uint32_t size = comm->flow.shape.size;
    const struct cst_job *job = comm->job;
    struct cstc_peers *peers = &comm->peers;
    int rc = CST_OK;

    if (call->n_fds != 1 + size || msg->peer_slot_bytes % 64 != 0 ||
        msg->peer_slot_bytes < 64 * (uint64_t)size ||
        msg->peer_slot_bytes > msg->peer_bytes / CST_COMM_SLOTS || !cstc_peers_can(comm)) {
        return cst_err_set(err, CST_EPROTO,
                           "slots of %llu bytes on GPUs in %llu bytes, and %u fds for %u ranks",
                           (unsigned long long)msg->peer_slot_bytes,
                           (unsigned long long)msg->peer_bytes, call->n_fds, size);
    }
    peers->bytes = msg->peer_bytes;
    for (uint32_t i = 0; i < size && rc == CST_OK; i++) {
        void *base = NULL;

        rc = job->device.calls->map(job->device.arg, call->fds[1 + i], peers->bytes, &base, err);
        if (rc == CST_OK) {
            peers->slots[peers->n++] = base;
        }
    }
    if (rc == CST_OK) {
        comm->by_flow = true;
        cstc_flow_use_device(&comm->flow, &device, comm, peers->slots, msg->peer_slot_bytes);
        rc = comm->device->use_peers(comm->device_arg, err);
    }
    return rc;
}

void cstc_peers_close(struct cst_comm *comm)
{
    const struct cst_job *job = comm->job;

    while (comm->peers.n > 0) {
        job->device.calls->unmap(job->device.arg, comm->peers.slots[--comm->peers.n],
                                 comm->peers.bytes);
    }
}
