/* SPDX-License-Identifier: Apache-2.0 */
/* Routes request frames to the functions that serve them, by a table with one row per message
 * type. Every invalid request gets an error reply. */
#ifndef CST_ROUTE_H
#define CST_ROUTE_H

#include "daemon/session/session.h"
#include "proto/frame.h"

/* The version of the protocol that this daemon speaks. */
#define CSTD_PROTOCOL_VERSION 1

/* Serve @frame. Its descriptors are taken over. */
void cstd_route(struct cstd_session *session, struct cst_frame *frame);

#endif
