/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for something to be known, such as the GPUs of the machine or a job of an
 * earlier daemon, and are then served as if they had just arrived. Loop thread only. */
#ifndef CSTD_HELD_H
#define CSTD_HELD_H

#include "cistern/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <sys/queue.h>

struct cstd_daemon;
struct cstd_held; /* Private to held.c. */
struct cstd_session;

TAILQ_HEAD(cstd_held_list, cstd_held);

/* Serve request @id with the decoded @body. */
typedef void (*cstd_held_fn)(struct cstd_session *session, uint64_t id, void *body);

/* Keep request @id of @session, of type @type with the body @message, in @list, until it is served
 * or its connection ends. @about tells for what it waits. After an error it is still to be
 * answered: CST_EPROTO: the message is too long; CST_ENOCREDIT: a request of the connection is held
 * already, or the user has too many requests in flight; CST_ENOMEM. */
int cstd_hold(struct cstd_held_list *list, uint64_t about, struct cstd_session *session,
              uint64_t id, uint16_t type, const ProtobufCMessage *message, cstd_held_fn serve,
              struct cst_err *err);

/* Serve the requests in @list that wait for @about, the oldest first. */
void cstd_held_serve(struct cstd_held_list *list, uint64_t about, struct cstd_daemon *daemon);

/* Forget all requests in @list, whose sessions answer them. */
void cstd_held_drop(struct cstd_held_list *list);

#endif
