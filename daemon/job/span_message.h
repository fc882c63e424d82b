/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about jobs on several nodes (proto/span.proto) to and from the structs of offload/.
 * Pure, but for the sending. What comes from another node is checked as far as it can be read;
 * members.h and the core check the rest. */
#ifndef CSTD_SPAN_MESSAGE_H
#define CSTD_SPAN_MESSAGE_H

#include "daemon/job/span.h"
#include "proto/span.pb-c.h"

/* Hyper-parameters to and from a message. */
void cstd_span_put_hyper(Span__Hyper *out, const struct cst_hyper *hyper);
void cstd_span_take_hyper(struct cst_hyper *out, const Span__Hyper *in);

/* Send @message of @job's core to machine @to, in several frames if it has many squares. Errors are
 * those of cstd_machine_send: the link goes down, of which members.h is told. */
int cstd_span_send_core(struct cstd_job *job, struct cstd_span_machine *to,
                        const struct cst_machine_message *message, struct cst_err *err);

int cstd_span_send_members(struct cstd_job *job, struct cstd_span_machine *to,
                           const struct cst_members_message *message, struct cst_err *err);

/* Read @in of @from. *out borrows from @in and @from until the next one is read. CST_EAGAIN: the
 * rest of the message follows in other frames. CST_EPROTO: it is none. CST_ENOMEM. */
int cstd_span_read_core(const Span__Core *in, struct cstd_span_machine *from,
                        struct cst_machine_message *out, struct cst_err *err);

/* Read @in, which is about a job on @n machines. CST_EPROTO: it is none. */
int cstd_span_read_members(const Span__Members *in, uint32_t n, struct cst_members_message *out,
                           struct cst_err *err);

#endif
