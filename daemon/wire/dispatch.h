/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch of request frames to the functions that serve them, by a table with one row per message
 * type. Every invalid request gets an error reply. */
#ifndef CST_DISPATCH_H
#define CST_DISPATCH_H

#include "daemon/wire/session.h"
#include "proto/frame.h"

/* The version of the protocol that this daemon speaks. */
#define CSTD_PROTOCOL_VERSION 1

/* Serve @frame. Its descriptors are taken over. */
void cstd_dispatch(struct cstd_session *session, struct cst_frame *frame);

#endif
