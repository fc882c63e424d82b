/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/net/answer.h"

#include "kernels/net/crc32c.h"

int cste_net_answer_make(struct cste_net *net, const uint8_t *in, size_t n,
                         struct cste_net_answer *out, struct cst_err *err)
{
    struct cste_wire_reply reply = {0};
    struct cste_wire_request request;
    int rc = cste_wire_read_request(in, n, &request, err);

    if (rc != CST_OK) {
        return rc;
    }
    *out = (struct cste_net_answer){.peer = cste_net_peers_admit(&net->peers, &request)};
    reply.id = request.id;
    reply.status = out->peer == NULL
                       ? CST_EDENIED
                       : cste_served_hold(&net->served, request.segment, request.offset,
                                          request.bytes, &out->segment, &reply.segment_bytes);
    if (reply.status == CST_OK) {
        out->payload = out->segment->base + request.offset;
        out->bytes = reply.bytes = request.bytes;
        reply.payload_sum = cste_crc32c(out->payload, out->bytes);
    }
    cste_wire_write_reply(&reply, out->reply);
    return CST_OK;
}

void cste_net_answer_release_segment(struct cste_net *net, struct cste_net_answer *answer)
{
    if (answer->segment != NULL) {
        cste_served_release(&net->served, answer->segment);
        answer->segment = NULL;
    }
}

void cste_net_answer_end(struct cste_net *net, struct cste_net_answer *answer, bool sent)
{
    cste_net_answer_release_segment(net, answer);
    if (answer->peer == NULL) {
        return;
    }
    if (sent && answer->bytes > 0) {
        (void)atomic_fetch_add(&answer->peer->machine->served_bytes, answer->bytes);
        (void)atomic_fetch_add(&answer->peer->machine->served, 1);
    }
    cste_net_peers_release(&net->peers, answer->peer);
    answer->peer = NULL;
}
