/* SPDX-License-Identifier: Apache-2.0 */
/* Takes engines of networks for jobs, and tells them which machines are their peers (net_engine.h).
 * Loop thread only. */
#ifndef CSTD_NET_PEERS_H
#define CSTD_NET_PEERS_H

#include "cistern/status.h"

#include <stddef.h>
#include <stdint.h>

struct cstd_engine;
struct cstd_engines;

/* Take an engine for the job @name, and count its use: it starts. CST_ENOTFOUND: there is no engine
 * program; CST_EUNSUPPORTED: too many engines; CST_ENOMEM. */
int cstd_net_engine_take(struct cstd_engines *engines, const char *name, const char *transport,
                         const char *listen, uint32_t machine, unsigned *index,
                         struct cst_err *err);

/* Give the engine back. Nothing is mapped there any more, or will be unmapped. */
void cstd_net_engine_release(struct cstd_engines *engines, unsigned index);

/* Let @machine, whose engine is reached at the packed NetEnd @end and has @token of @token_bytes,
 * be a peer of the engine, in place of what it was. CST_EPROTO: @end is none; CST_EMISMATCH: it has
 * another transport; CST_ENOMEM. */
int cstd_net_engine_add_peer(struct cstd_engine *engine, uint32_t machine, const uint8_t *token,
                             size_t token_bytes, const uint8_t *end, size_t end_bytes,
                             struct cst_err *err);

/* @machine is no peer any more, because of @cause: what is copied from it fails. */
void cstd_net_engine_drop_peer(struct cstd_engine *engine, uint32_t machine, const char *cause);

#endif
