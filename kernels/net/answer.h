/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine answers to a request of another machine; the same for all transports. */
#ifndef CST_NET_ANSWER_H
#define CST_NET_ANSWER_H

#include "kernels/net/transport.h"

/* An answer on its way. */
struct cste_net_answer {
    /* Who asks; held. NULL: somebody who is no peer. The reply says so, and the connection ends. */
    struct cste_net_peer *peer;
    struct cste_served_segment
        *segment;        /* Held while its bytes are sent; NULL: there is no payload. */
    const char *payload; /* In the segment. */
    uint32_t bytes;      /* Of the payload. */
    uint8_t reply[CSTE_WIRE_BYTES];
};

/* Read the request @in, of @n bytes, and make the answer to it. CST_EPROTO, CST_EVERSION: it is
 * malformed, there is no answer, and the connection has to end. Any thread. */
int cste_net_answer_make(struct cste_net *net, const uint8_t *in, size_t n,
                         struct cste_net_answer *out, struct cst_err *err);

/* Give back the segment, which is sent or is not going to be. */
void cste_net_answer_release_segment(struct cste_net *net, struct cste_net_answer *answer);

/* Give everything back. @sent: the answer was sent as a whole, and is counted. */
void cste_net_answer_end(struct cste_net *net, struct cste_net_answer *answer, bool sent);

#endif
