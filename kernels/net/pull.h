/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane says when it pulls, and what it makes of the reply; the same for all transports. */
#ifndef CST_NET_PULL_H
#define CST_NET_PULL_H

#include "kernels/net/transport.h"

/* How often the bytes of a pull may come damaged. */
#define CSTE_NET_MAX_DAMAGED 4

/* Write the request of @pull, with id @id. */
void cste_net_pull_request(const struct cste_net *net, struct cste_net_pull *pull, uint64_t id,
                           uint8_t out[CSTE_WIRE_BYTES]);

/* Read the reply @in, of @n bytes, to @pull. CST_OK: its payload follows, of pull->bytes, unless
 * pull->done; *sum is its checksum. CST_EPROTO, CST_EVERSION: it is malformed or is no answer to
 * @pull, and the connection has to end. */
int cste_net_pull_reply(struct cste_net_pull *pull, const uint8_t *in, size_t n, uint32_t *sum,
                        struct cst_err *err);

/* The payload has come and should have checksum @sum. Either @pull is done, or it is to be asked
 * for again. */
void cste_net_pull_check(struct cste_net_pull *pull, uint32_t sum);

/* @pull has failed: CST_ELOST, with the cause @why. If the peer was dropped, that is the cause. */
void cste_net_pull_lose(struct cste_net *net, struct cste_net_pull *pull,
                        const struct cst_err *why);

#endif
