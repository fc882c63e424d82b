/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/pull.h"

#include "kernels/net/crc32c.h"

#include <inttypes.h>
#include <string.h>

void cste_net_pull_request(const struct cste_net *net, struct cste_net_pull *pull, uint64_t id,
                           uint8_t out[CSTE_WIRE_BYTES])
{
    struct cste_wire_request request = {.id = id,
                                        .machine = net->machine,
                                        .segment = pull->segment,
                                        .offset = pull->offset,
                                        .bytes = pull->bytes};

    pull->id = id;
    memcpy(request.token, pull->peer->token, sizeof request.token);
    cste_wire_write_request(&request, out);
}

static void refused(struct cste_net_pull *pull, const struct cste_wire_reply *reply)
{
    const struct cste_net_peer *peer = pull->peer;

    pull->done = true;
    switch (reply->status) {
    case CST_EDENIED:
        (void)cst_err_set(&pull->err, CST_ELOST,
                          "machine %u at %s refuses: it is in another epoch of the job, or this "
                          "machine is no peer there",
                          peer->number, peer->address);
        break;
    case CST_ENOTFOUND:
        (void)cst_err_set(&pull->err, CST_ENOTFOUND, "machine %u serves no segment %u",
                          peer->number, pull->segment);
        break;
    default:
        (void)cst_err_set(&pull->err, CST_EINVAL,
                          "%u bytes at %" PRIu64 " of segment %u of machine %u, which has %" PRIu64,
                          pull->bytes, pull->offset, pull->segment, peer->number,
                          reply->segment_bytes);
    }
}

int cste_net_pull_reply(struct cste_net_pull *pull, const uint8_t *in, size_t n, uint32_t *sum,
                        struct cst_err *err)
{
    struct cste_wire_reply reply;
    int rc = cste_wire_read_reply(in, n, &reply, err);

    if (rc != CST_OK) {
        return rc;
    }
    if (reply.id != pull->id) {
        return cst_err_set(err, CST_EPROTO, "a reply to request %" PRIu64 " instead of %" PRIu64,
                           reply.id, pull->id);
    }
    if (reply.status != CST_OK) {
        refused(pull, &reply);
        return CST_OK;
    }
    if (reply.bytes != pull->bytes) {
        return cst_err_set(err, CST_EPROTO, "a reply of %u bytes to a request for %u", reply.bytes,
                           pull->bytes);
    }
    *sum = reply.payload_sum;
    return CST_OK;
}

void cste_net_pull_check(struct cste_net_pull *pull, uint32_t sum)
{
    struct cste_net_machine *machine = pull->peer->machine;
    uint32_t got = cste_crc32c(pull->to, pull->bytes);

    if (got == sum) {
        (void)atomic_fetch_add(&machine->pulled_bytes, pull->bytes);
        (void)atomic_fetch_add(&machine->pulled, 1);
        pull->done = true;
        return;
    }
    (void)atomic_fetch_add(&machine->damaged, 1);
    if (++pull->n_damaged == CSTE_NET_MAX_DAMAGED) {
        pull->done = true;
        (void)cst_err_set(&pull->err, CST_EIO,
                          "%u bytes at %" PRIu64
                          " of segment %u of machine %u came damaged %u times; "
                          "the last time their checksum was 0x%08x instead of 0x%08x",
                          pull->bytes, pull->offset, pull->segment, pull->peer->number,
                          pull->n_damaged, got, sum);
    }
}

void cste_net_pull_lose(struct cste_net *net, struct cste_net_pull *pull, const struct cst_err *why)
{
    pull->done = true;
    if (cste_net_peers_is_dropped(&net->peers, pull->peer)) {
        (void)cste_net_peers_say_dropped(&net->peers, pull->peer, &pull->err);
    } else {
        (void)cst_err_set(&pull->err, CST_ELOST, "machine %u at %s: %s", pull->peer->number,
                          pull->peer->address, why->text);
    }
}
